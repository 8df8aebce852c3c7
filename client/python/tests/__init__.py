import faulthandler

# Tests that hang end and say where, before CI ends everything.
faulthandler.dump_traceback_later(45 * 60, exit=True)

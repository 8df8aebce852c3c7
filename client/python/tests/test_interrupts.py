"""An interrupt (Ctrl-C) at any step of a client's work: it is raised, and leaves no memory mapped, no descriptor open
and no lock taken.
"""

import dis
import gc
import os
import sys
import threading
import time
import unittest
from unittest import mock

import tendril
from tendril import connection, memory, wire

from .fake import PATIENCE, FakeDaemon

# Behind these the interpreter looks for signals.
_LOOKS = ("CALL", "RESUME", "JUMP_BACKWARD", "JUMP_ABSOLUTE", "POP_JUMP_BACKWARD", "INSTRUMENTED_CALL",
          "INSTRUMENTED_RESUME", "INSTRUMENTED_JUMP_BACKWARD")
_HERE = os.path.dirname(os.path.abspath(tendril.__file__))
_codes = {}


def _looks(code):
    """Where a function's instructions lie behind which the interpreter looks for signals, and the next instructions
    whose exceptions go the same way: there a trace function can raise what would be raised.
    """
    found = _codes.get(code)
    if found is None:
        ways = dis._parse_exception_table(code)
        way = lambda at: next((e.target for e in ways if e.start <= at < e.end), None)
        found, before = set(), None
        for i in dis.get_instructions(code):
            if before is not None and before.opname.startswith(_LOOKS) and way(before.offset) == way(i.offset) \
                    and not (before.opname.endswith("RESUME") and before.arg >= 2):
                found.add((before.offset, i.offset))
            before = i
        _codes[code] = found
    return found


def mappings():
    """How many mappings of a segment this process has."""
    with open("/proc/self/maps") as f:
        return sum("memfd:fake" in line for line in f)


def received(fake):
    """How many descriptors of the daemon's memory this process has, but for those that the daemon itself has."""
    with fake.lock:
        own = {o["fd"] for o in fake.objects.values()}
        count = 0
        for fd in os.listdir("/proc/self/fd"):
            try:
                count += int(fd) not in own and "memfd:fake" in os.readlink("/proc/self/fd/" + fd)
            except OSError:
                pass  # closed meanwhile
        return count


class Storm:
    """Interrupts the step-th of the places in a call where the interpreter looks for signals. twice: also the next one.
    """

    def __init__(self, step, twice=False):
        self.left, self.at, self.before = step, None, {}
        self.second = map(memory._raise_later, (threading.get_ident(),) * twice, (KeyboardInterrupt,))

    def trace(self, frame, event, _):
        if event == "call":
            if not frame.f_code.co_filename.startswith(_HERE):
                return None
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
        elif event == "opcode":
            before, self.before[frame] = self.before.get(frame), frame.f_lasti
            if (before, frame.f_lasti) in _looks(frame.f_code) and self.at is None:
                self.left -= 1
                if self.left < 0:
                    self.at = "%s:%s:%d" % (os.path.basename(frame.f_code.co_filename), frame.f_code.co_name,
                                            frame.f_lineno)
                    self.before.clear()
                    sys.settrace(None)
                    for _ in self.second:  # nothing looks for it before the interrupt is raised
                        raise KeyboardInterrupt
                    raise KeyboardInterrupt
        elif event == "return":
            self.before.pop(frame, None)
        return self.trace

    def run(self, call):
        """Returns whether an interrupt was raised, in the call or behind it."""
        raised = 0
        try:
            try:
                sys.settrace(self.trace)
                call()
            except KeyboardInterrupt:
                raised = 1
            sys.settrace(None)
            for _ in range(3):
                abs(0)  # what is left pending comes here
        except KeyboardInterrupt:
            raised += 1
        finally:
            sys.settrace(None)
            self.before.clear()
        return raised > 0


@unittest.skipIf(sys.version_info < (3, 11), "the interpreter looks for signals elsewhere")
class Interrupts(unittest.TestCase):
    def setUp(self):
        self.swallowed = []
        self.addCleanup(setattr, sys, "unraisablehook", sys.unraisablehook)
        sys.unraisablehook = lambda told: self.swallowed.append(str(told.err_msg))
        gc.collect()
        gc.freeze()  # a collection behind each interrupt looks at what is new alone
        self.addCleanup(gc.unfreeze)
        self.fake = FakeDaemon()
        self.addCleanup(self.fake.close)

    def storm(self, call, apart, rests=None, twice=False):
        """Calls again and again, and interrupts each at another step; the steps are so far apart. rests: whether a call
        has left nothing behind; None: no mapping and no descriptor is left, but for those of tests before.
        """
        lost, stuck, interrupts = [], [], 0
        gc.collect()
        before = mappings(), received(self.fake)
        rests = rests or (lambda: mappings() <= before[0] and received(self.fake) <= before[1])
        call()
        gc.collect()
        while True:
            storm = Storm(interrupts * apart, twice)
            raised = storm.run(call)
            if storm.at is None:
                break
            interrupts += 1
            if not raised:
                lost.append(storm.at)
            gc.collect()
            deadline = time.monotonic() + PATIENCE
            while not rests() and time.monotonic() < deadline:
                time.sleep(0.001)  # the background thread may hold the connection for a moment
            if not rests():
                stuck.append(storm.at)
                break
            self.fake.drop_unnamed()
        self.assertEqual((lost, stuck, self.swallowed), ([], [], []))
        self.assertGreater(interrupts, 100 // apart)

    def test_nothing_stays_mapped(self):
        def work():
            store = tendril.connect(self.fake.path, reconnect=False, background=background)
            draft = store.create(9000)
            draft.data[:1] = b"x"
            view = draft.seal().data
            with store.get(name) as again:
                bytes(again.data[:1])
            del view
            store.ping()

        name = "kept"
        with tendril.connect(self.fake.path) as store:
            store.put(b"z" * 5000, name).release()
        for background, apart in (False, 1), (True, 7):
            self.storm(work, apart)
        deadline = time.monotonic() + PATIENCE
        while any(t.name == "tendril tidier" for t in threading.enumerate()):
            self.assertLess(time.monotonic(), deadline, "a background thread goes on")
            time.sleep(0.001)

    @unittest.skipIf(sys.version_info >= (3, 12), "there the steps of a closing look for no signals")
    def test_an_end_raises_again_with_its_last_step(self):
        """Python 3.9 and 3.10 look for signals at each step: one behind the last, in the closing of what is left of the
        end, would find the interrupt there and print it.
        """
        raised, behind, works = [], [], [KeyboardInterrupt, None]

        def trace(frame, event, _):
            if frame.f_code is memory._ending.__code__:
                frame.f_trace_opcodes = True
                if raised and event == "opcode":
                    behind.append(dis.opname[frame.f_code.co_code[frame.f_lasti]])
                return trace
            return None

        def work():
            error = works.pop(0)
            if error is not None:
                raise error

        thing = self.Thing()
        memory.when_gone(thing, work)
        with mock.patch.object(memory, "_raise_later", lambda thread, error: raised.append((thread, error))):
            sys.settrace(trace)
            del thing
            sys.settrace(None)
        self.assertEqual((raised, works), ([(threading.get_ident(), KeyboardInterrupt)], []))
        self.assertEqual(behind, ["YIELD_VALUE"])

    class Thing:
        """It has an end."""

    def test_nothing_stays_referenced(self):
        """By a client that goes on: what an interrupt divides is released all the same, and leaves no lease."""
        def work():
            draft = store.create(9000)
            draft.data[:1] = b"x"
            view = draft.seal().data
            with store.get("kept") as again:
                bytes(again.data[:1])
            del view
            store.status()

        def rests():
            store.status()  # takes the releases along
            live = store._connection()
            live.sweep(now=True)
            return not self.fake.held() and not live._holds and not any(s.leases for s in live._segments.values())

        with tendril.connect(self.fake.path) as store:
            store.put(b"z" * 5000, "kept").release()
        for background, apart, twice in (False, 2, False), (True, 11, False), (False, 5, True):
            with tendril.connect(self.fake.path, background=background) as store:
                self.storm(work, apart, rests, twice)

    def test_an_interrupt_behind_a_loss(self):
        """It is raised in the thread that is to have it, not in the one that connects again and has not begun."""
        lost = []
        with tendril.connect(self.fake.path) as store:
            for i in range(20):
                store.status()
                try:
                    store._lost()
                    memory._raise_later(threading.get_ident(), KeyboardInterrupt)
                    for _ in range(3):
                        abs(0)
                    lost.append(i)
                    break
                except KeyboardInterrupt:
                    pass
                deadline = time.monotonic() + PATIENCE
                while store._returns and time.monotonic() < deadline:
                    time.sleep(0.001)
        self.assertEqual((lost, self.swallowed), ([], []))

    def test_nobody_waits_for_a_reader(self):
        """A request of asyncio that is interrupted leaves the next one a thread that reads, and nothing that waits for
        a reply. So does get_many.
        """
        def ask():
            done = threading.Event()
            store._connection().begin(wire.STATUS, b"", wire.Fields.rest, lambda p: done.set())
            return done

        def work():
            if not ask().wait(PATIENCE):
                raise AssertionError("nobody reads")
            for o in store.get_many(["kept", "kept"]):
                o.release()

        def rests():
            store.status()
            live = store._connection()
            return ask().wait(PATIENCE) and not live._pending and not live._unread and not self.fake.held()

        with tendril.connect(self.fake.path, background=False) as store:
            store.put(b"z" * 5000, "kept").release()
            self.storm(work, 2, rests)

    def test_a_forked_child_is_not_its_parent(self):
        """Also where an interrupt comes as it begins: it opens a connection of its own."""
        with tendril.connect(self.fake.path) as store:
            store.put(b"z" * 5000, "kept").release()
            with mock.patch.object(connection, "forked", side_effect=KeyboardInterrupt):
                child = os.fork()
                if child == 0:
                    own = False
                    try:
                        own = store.get("kept").bytes() == b"z" * 5000 and connection.process != os.getppid()
                    finally:
                        os._exit(0 if own else 1)
            self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)
            self.assertEqual(self.fake.connections, 2)
            self.assertEqual(store.get("kept").bytes(), b"z" * 5000)


if __name__ == "__main__":
    unittest.main()

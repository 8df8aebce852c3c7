"""Programs' __del__ methods: what they read is there, in a garbage collection and at the interpreter's end.

Each program is a process, because a fault would end it.
"""

import json
import os
import platform
import signal
import subprocess
import sys
import unittest

import tendril
from tendril import exporter

from .fake import FakeDaemon

_BEGIN = """
import faulthandler, gc, json, os, sys
faulthandler.enable()
import tendril
try:
    import numpy
except ImportError:
    numpy = None

%s

class Reads:
    "Reads something when it ends, and tells whether that was as it should be."

    def __init__(self, name, thing, read, want, cycle=True):
        self.name, self.thing, self.read, self.want = name, thing, read, want
        if cycle:
            self.itself = self

    def __del__(self, tell=tell):
        tell(self)

gc.disable()
path, mode = sys.argv[1:]
small, large = b"s" * 5000, b"l" * (5 << 20)
"""

_COLLECTED = _BEGIN % """
def tell(reads):
    try:
        told.append((reads.name, bool(reads.read(reads.thing) == reads.want)))
    except BaseException as e:
        told.append((reads.name, repr(e)))
    kept.append(reads.thing)
""" + """
def fill(size, byte, seal=True):
    draft = store.create(size)
    draft.data[:] = byte * size
    return draft.seal() if seal else draft

def others_pages(view):
    "Another draft of the same size gets other pages."
    draft = store.create(len(view))
    draft.data[:] = b"o" * len(view)
    return bytes(view)

def leases(view):
    return [s.leases for s in live._segments.values() if s.number == number]

told, kept = [], []
store = tendril.connect(path, reconnect=False)
live = store._connection()
if mode == "lives":
    view = store.get("small").data
    number, = live._segments
    reads = [Reads("the reference", view, leases, [1])]
    del view
    draft = fill(5000, b"d", False)
    reads.append(Reads("the view of a draft", draft.data, others_pages, b"d" * 5000))
    del draft
else:
    reads = [
        Reads("view", store.get("small").data, bytes, small),
        Reads("object", store.get("small"), lambda o: o.bytes(), small),
        Reads("buffer", memoryview(store.get("small")) if buffers else store.get("small").data, bytes, small),
        Reads("large", store.get("large").data, bytes, large),
        Reads("a draft", fill(5000, b"s", False), lambda d: bytes(d.data), small),
        Reads("a large draft", fill(5 << 20, b"l", False), lambda d: bytes(d.data), large),
        Reads("sealed", fill(5000, b"s").data, bytes, small),
        Reads("sealed, large", fill(5 << 20, b"l"), lambda o: o.bytes(), large),
    ]
    if numpy is not None:
        reads += [
            Reads("array", store.get("small").numpy(), lambda a: a.tobytes(), small),
            Reads("tensor", numpy.from_dlpack(store.get("small")), lambda a: a.tobytes(), small),
        ]
    if mode == "closed":
        store.close()
    elif mode == "dropped":  # what is left of the client is found, too
        reads.append(Reads("client", store, lambda s: s.get("large").bytes(), large))
        reads.append(Reads("seal", fill(5000, b"s", False), lambda d: d.seal().bytes(), small))
        del store, live
count = len(reads)
del reads
gc.collect()
while len(told) < count:
    pass  # none is left for a later collection
again = [bytes(k) for k in kept if type(k) is memoryview]  # what came back to life, too
del kept[:]
print(json.dumps(told))
"""

_ENDS = _BEGIN % """
def tell(reads, BaseException=BaseException, write=os.write, bool=bool, repr=repr):
    try:
        said = repr(bool(reads.read(reads.thing) == reads.want))
    except BaseException as e:
        said = repr(e)
    write(1, ("%s: %s\\n" % (reads.name, said)).encode())
""" + """
store = tendril.connect(path)
reads = [
    Reads("view", store.get("small").data, bytes, small, False),
    Reads("object", store.get("small"), lambda o: o.bytes(), small, False),
    Reads("large", store.get("large").data, bytes, large, False),
    Reads("data?", store.get("large"), lambda o, bytes=bytes: bytes(o.data), large, False),  # may raise
    Reads("release?", store.get("small"), lambda o: o.release(), True, False),
]
if buffers:
    reads.append(Reads("buffer?", store.get("small"), lambda o, view=memoryview: len(view(o)), 5000, False))
if numpy is not None:
    reads += [
        Reads("array", store.get("small").numpy(), lambda a: a.tobytes(), small, False),
        Reads("tensor", numpy.from_dlpack(store.get("small")), lambda a: a.tobytes(), small, False),
        Reads("capsule", store.get("small").__dlpack__(max_version=(1, 0)), lambda c: 1, 1, False),
        Reads("to a tensor?", store.get("small"), lambda o: o.__dlpack__(max_version=(1, 0)) is None, False,
              False),
    ]
print(json.dumps([r.name for r in reads]), flush=True)
if mode == "sys":  # which is cleared last
    sys.keep = reads
    del reads, store
elif mode == "before":  # a module that is cleared after tendril's
    import collections.abc
    collections.abc.keep = reads
    del reads, store
else:
    store.close()
"""

_WRITES = """
import ctypes, os, sys
import tendril

class Writes:
    def __init__(self, part):
        self.part = part

    def __del__(self, write=ctypes.memset, at=ctypes.addressof, note=os.write):
        note(2, b"writes\\n")
        write(at(self.part), 1, 1)

store = tendril.connect(sys.argv[1])
sys.keep = Writes(store.get("small")._part)
"""


_CALLS = """
import gc, json, os, signal, sys
import tendril
from tendril import connection, wire

class Calls:
    def __init__(self, call):
        self.call, self.itself = call, self

    def __del__(self):
        calls(self.call)

def calls(call):
    try:
        told.append(repr(call()))
    except tendril.TendrilError as e:
        told.append(type(e).__name__)

def collects(call):
    Calls(call)
    gc.collect()

def signals(call):
    signal.signal(signal.SIGUSR1, lambda *_: calls(call))
    os.kill(os.getpid(), signal.SIGUSR1)

def lost(amid):
    "The connection is lost, and what ends it is interrupted, under the connection's locks."
    live.alive = False
    amid(lambda: store.get("small"))
    live.alive = True

gc.disable()
told = []
store = tendril.connect(sys.argv[1])
live = store._connection()
for amid in collects, signals:
    sealed, aborted = store.create(5000), store.create(5000)
    sealed.data[:] = aborted.data[:] = b"d" * 5000
    for call in [lambda: store.get("small"), lambda: store.create(10), lambda: store.stat("small"), sealed.seal,
                 aborted.abort, lambda: next(store.list()), lambda: store.get_many(["small"]), store.close]:
        live.call(wire.SWEEP, b"", lambda f: (connection._decode_sweep(f), amid(call)))  # under the connection's locks
    live.call(wire.SWEEP, b"", lambda f: (connection._decode_sweep(f), lost(amid)))
    told.append(store.get("small").bytes() == b"s" * 5000)
    aborted.abort()
    told.append(sealed.seal().bytes() == b"d" * 5000)
    del sealed, aborted, call
store.close()
print(json.dumps(told))
"""


class Finalizers(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.fake = FakeDaemon()
        cls.addClassCleanup(cls.fake.close)
        with tendril.connect(cls.fake.path) as store:
            store.put(b"s" * 5000, "small").release()
            store.put(b"l" * (5 << 20), "large").release()

    def program(self, code, *args, **env):
        code = "buffers = %r\n%s" % (sys.version_info >= (3, 12) or exporter.Exporter is not object, code)
        where = os.path.dirname(os.path.dirname(tendril.__file__))
        return subprocess.run([sys.executable, "-c", code, self.fake.path, *args], capture_output=True, text=True,
                              timeout=600, env=dict(os.environ, PYTHONPATH=where, **env))

    def test_in_a_garbage_collection(self):
        """Of a cycle in which the object with __del__ and what it reads are."""
        for mode in "lives", "closed", "dropped":
            with self.subTest(mode):
                done = self.program(_COLLECTED, mode)
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                told = json.loads(done.stdout)
                self.assertEqual([t for t in told if t[1] is not True], [])
                self.assertGreater(len(told), 1)

    def test_at_the_interpreters_end(self):
        for mode in "main", "sys", "before":
            with self.subTest(mode):
                done = self.program(_ENDS, mode)
                self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
                names, *lines = done.stdout.splitlines()
                told = dict(line.split(": ", 1) for line in lines)
                self.assertEqual(sorted(told), sorted(json.loads(names)))
                self.assertEqual({k: v for k, v in told.items() if v != "True" and not k.endswith("?")}, {})

    def test_a_call_amid_a_call_is_refused(self):
        """Of a __del__ method or a signal handler, which would wait for its own thread. An abort waits for nothing."""
        done = self.program(_CALLS)
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
        told = json.loads(done.stdout)
        self.assertEqual(told, 2 * (4 * ["Busy"] + ["None"] + 4 * ["Busy"] + 2 * [True]))

    @unittest.skipIf(platform.machine() != "x86_64", "a write is explained on x86-64")
    def test_a_write_at_the_interpreters_end_is_explained(self):
        done = self.program(_WRITES, TENDRIL_EXPLAIN_FAULTS="1")
        self.assertEqual(done.returncode, -signal.SIGSEGV, done.stderr)
        self.assertIn("writes\ntendril: this process wrote to a sealed object", done.stderr)


if __name__ == "__main__":
    unittest.main()

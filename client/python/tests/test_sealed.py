"""Sealed objects do not change: in the process that made one, a write to any view of it raises or faults."""

import ctypes
import errno
import os
import platform
import random
import signal
import subprocess
import sys
import threading
import time
import unittest

import tendril

from .fake import PATIENCE
from .test_daemon import WithDaemon

try:
    import numpy as np
except ImportError:
    np = None

_libc = ctypes.CDLL(None, use_errno=True)
_libc.read.restype, _libc.read.argtypes = ctypes.c_ssize_t, [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t]

# Objects that share pages with others, that have pages of their own, and that have a segment of their own.
SIZES = (100, 64 << 10, 100001, (24 << 20) + 5)
WAYS = [(size, {}) for size in SIZES] + [(5000, {"shared": True}), (5000, {"strict": True}), (100001, {"strict": True})]


def address_of(view):
    """The address of a buffer's bytes, as a library finds it that does not ask whether it may write to them."""
    if np is not None:
        return np.frombuffer(view, "u1").ctypes.data
    return ctypes.addressof(ctypes.c_char.from_buffer(view))


def pattern(size, seed=0):
    return bytes((i + seed) & 255 for i in range(256)) * (size // 256 + 1)


class WithReader(WithDaemon):
    died = False  # a child of this test

    def setUp(self):
        super().setUp()
        self.reader = tendril.connect(self.daemon.socket)
        self.addCleanup(self.reader.close)
        self.beside = self.store.put(b"lies before the others")

    def faults(self, address):
        """Whether a store there faults: the kernel, which stores as this process would, says so. The first of a test is
        done by a child, which has the same mappings: it ends the process.
        """
        if not self.dies(address):
            return False
        with open("/dev/zero", "rb", buffering=0) as zero:
            return _libc.read(zero.fileno(), address, 1) == -1 and ctypes.get_errno() == errno.EFAULT

    def dies(self, address):
        """Whether a child is ended by its store there. True without a try, but for the first of a test."""
        if self.died:
            return True
        child = os.fork()
        if child == 0:
            try:
                signal.signal(signal.SIGSEGV, signal.SIG_DFL)
                ctypes.memset(address, 0xEE, 1)
            finally:
                os._exit(0)
        status = os.waitpid(child, 0)[1]
        self.died = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGSEGV
        return self.died

    @staticmethod
    def inode_at(address):
        """That of the file that is mapped there, or None."""
        with open("/proc/self/maps") as maps:
            for line in maps:
                ends, _, _, _, inode = line.split()[:5]
                first, last = (int(x, 16) for x in ends.split("-"))
                if first <= address < last:
                    return inode
        return None

    def cannot_alter(self, what, address, size, key, want):
        for at in (0, size // 2, size - 1):
            self.assertTrue(self.faults(address + at), "%s: a store to byte %d of %d went through" % (what, at, size))
        with self.reader.get(key) as o:
            self.assertEqual(o.bytes(), want, what)


@unittest.skipIf(np is None, "NumPy is not installed")
class Sealed(WithReader):
    def test_objects(self):
        for size, options in WAYS:
            want = pattern(size)[:size]
            options = {k: v for k, v in options.items() if k != "shared"}
            made = [self.store.put(want, **options), self.store.put(np.frombuffer(want, "u1"), **options)]
            draft = self.store.create(size, **options)
            draft.data[:] = want
            made.append(draft.seal())
            array = self.store.empty(size, "u1", **options)
            array[:] = np.frombuffer(want, "u1")
            made.append(array.seal())
            made += [self.store.get(o) for o in made]
            for i, o in enumerate(made):
                # torch.from_numpy(o.numpy())[0] = 5 does the same.
                self.cannot_alter("object %d" % i, o.numpy().ctypes.data, size, o.id, want)
                self.cannot_alter("its data", address_of(o.data), size, o.id, want)

    def test_views_of_drafts(self):
        for size, options in WAYS:
            want = pattern(size, 1)[:size]
            draft = self.store.create(size, **options)
            whole, twice = draft.data, draft.data
            part, array = draft.data[size // 2:], np.frombuffer(draft.data, "u1")
            whole[:] = want
            o = draft.seal_filled() if options.get("shared") else draft.seal()
            for view in (whole, twice):
                with self.assertRaises(ValueError):
                    view[0] = 1
            self.assertTrue(self.faults(address_of(part)), (size, options))
            self.cannot_alter("an array over the draft", array.ctypes.data, size, o.id, want)
            self.assertEqual(array.tobytes(), want)  # and can be read
            with self.assertRaises(tendril.Sealed):
                draft.data
            self.assertEqual(o.bytes(), want)
            self.assertEqual(self.store.stat(o).strict, bool(options.get("strict")))

    def test_empty_arrays(self):
        for size, options in WAYS:
            if options.get("shared"):
                continue
            want = pattern(size, 2)[:size]
            array = self.store.empty(size, "u1", **options)
            part, derived = array[1:], array.reshape(-1, 1)
            array[:] = np.frombuffer(want, "u1")
            o = array.seal()
            for view in (array, array.base, array[::2]):
                with self.assertRaises(ValueError):
                    view[0] = 1
            for view in (array, part, derived):
                self.cannot_alter("an array over the draft", view.ctypes.data, len(view), o.id, want)
            self.assertEqual(array.tobytes(), want)

    def test_a_refused_seal_opens_again(self):
        self.store.put(b"", "taken").release()
        for size, options in WAYS:
            draft = self.store.create(size, "taken", **options)
            array = np.frombuffer(draft.data, "u1")
            with self.assertRaises(tendril.Exists):
                draft.seal_filled() if options.get("shared") else draft.seal()
            array[:] = 7
            draft.data[0] = 8
            self.store.rename("taken", "free")
            o = draft.seal()
            want = b"\x08" + b"\x07" * (size - 1)
            self.cannot_alter("sealed at the second try", array.ctypes.data, size, o.id, want)
            self.store.delete("taken")
            self.store.rename("free", "taken")
        self.store.delete("taken")

    def test_strict_needs_to_be_asked_for_in_time(self):
        draft = self.store.create(100)
        with self.assertRaises(tendril.Invalid):
            draft.seal(strict=True)
        draft.data[:] = bytes(100)
        draft.seal()
        child_has_it = self.store.create(100, strict=True)
        child_has_it.data[:] = b"x" * 100
        r, w = os.pipe()
        child = os.fork()
        if child == 0:
            os.read(r, 1)
            os._exit(0)
        with self.assertRaises(tendril.Busy):
            child_has_it.seal()
        child_has_it.data[0] = 1
        os.write(w, b"x")
        os.waitpid(child, 0)
        os.close(r)
        os.close(w)
        self.assertEqual(child_has_it.seal().bytes(), b"\1" + b"x" * 99)

    def test_pushed_frames(self):
        with self.store.writer("frames") as w, self.reader.reader("frames") as r:
            for i in range(12):  # the memory of each is freed
                for size in (100, 100001):
                    want = pattern(size, i)[:size]
                    array = w.empty(size)
                    array[:] = np.frombuffer(want, "u1")
                    w.push(array)
                    with self.assertRaises(ValueError):
                        array[0] = 1
                    draft = w.create(size)
                    view = np.frombuffer(draft.data, "u1")
                    view[:] = np.frombuffer(want, "u1")
                    w.push(draft)
                    for pushed in (array, view):
                        self.assertTrue(self.faults(pushed.ctypes.data) and self.faults(pushed.ctypes.data + size - 1))
                        with r.pop(PATIENCE) as frame:
                            self.assertEqual(frame.bytes(), want)
                    del array, draft, view, pushed

    def test_dumped_values(self):
        value = {"a": np.arange(50000.0)}
        o = self.store.dump(value)
        for found in (o.load(), self.store.load(o), self.store.get(o).load()):
            self.assertTrue(self.faults(found["a"].ctypes.data))
            self.assertEqual(found["a"].tolist(), value["a"].tolist())

    def test_parts(self):
        draft = self.store.create(9000, shared=True)
        part = self.reader.fill(draft.id)
        address = part.numpy().ctypes.data
        part.data[:] = bytes(9000)
        segment = self.inode_at(address)
        part.done()
        self.assertNotEqual(self.inode_at(address), segment)  # nothing, or what a thread has mapped there since
        o = draft.seal_filled()
        self.assertEqual(o.bytes(), bytes(9000))

    def test_memory_opens_for_the_next_object(self):
        """Objects of all sizes come and go in shared segments. Each can be filled, and has those bytes at the end."""
        failed = []

        def work(seed):
            choose, held = random.Random(seed), []
            try:
                for _ in range(150):
                    size = 1 + choose.randrange(700000) >> choose.randrange(12) or 1
                    want = pattern(size, choose.randrange(256))[:size]
                    array = self.store.empty(size, "u1")
                    array[:] = np.frombuffer(want, "u1")
                    if choose.randrange(4) == 0:
                        array.abort()
                        continue
                    held.append((array.seal(), want, array if choose.randrange(2) else None))
                    if len(held) > 8:
                        o, want, _ = held.pop(choose.randrange(len(held)))
                        self.assertEqual(o.bytes(), want)
            except BaseException as e:  # noqa: B902
                failed.append(repr(e))

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(failed, [])


@unittest.skipIf(np is None, "NumPy is not installed")
class Restarts(WithReader):
    """A claim leaves mappings as they are."""

    def test_a_handover_and_a_crash(self):
        want = pattern(100001)[:100001]
        array = self.store.empty(100001, "u1", "kept", lifetime="persisted")
        array[:] = np.frombuffer(want, "u1")
        o = array.seal()
        self.daemon.hand_over()
        self.cannot_alter("the array", array.ctypes.data, 100001, "kept", want)
        self.cannot_alter("the object", o.numpy().ctypes.data, 100001, "kept", want)
        self.daemon.process.kill()
        self.daemon.process.wait(PATIENCE)
        self.daemon.start()
        self.reader.stat("kept")  # it has claimed what it held: from here on references only end
        deadline = time.monotonic() + PATIENCE
        while (refs := self.store.stat("kept").refs) != 1 and time.monotonic() < deadline:
            time.sleep(0.01)  # the reader's release may wait for its background thread
        self.assertEqual(refs, 1)
        self.cannot_alter("the array", array.ctypes.data, 100001, "kept", want)
        self.cannot_alter("the object", o.numpy().ctypes.data, 100001, "kept", want)


CHILD = """
import ctypes, faulthandler, sys, tendril
how, wild = sys.argv[2:4]
if how == "first":
    faulthandler.enable()
if how != "environment":
    assert tendril.explain_faults() and tendril.explain_faults()
store = tendril.connect(sys.argv[1])
put = store.put(b"sealed")
got = store.get(put)
if how == "late":
    assert tendril.explain_faults()

def writes():
    ctypes.memset(16 if wild == "wild" else address, 1, 1)

draft = store.create(10)
kept = draft.data[:]  # a view that stays
if wild == "draft":
    address = ctypes.addressof(ctypes.c_char.from_buffer(kept))
    draft.seal()
else:
    address = ctypes.addressof(got._part)
writes()
"""


@unittest.skipUnless(platform.machine() == "x86_64", "the sentence is written on x86-64 only")
class Explained(WithDaemon):
    def child(self, how, wild):
        env = dict(os.environ, TENDRIL_EXPLAIN_FAULTS="1" if how == "environment" else "")
        return subprocess.run([sys.executable, "-c", CHILD, self.daemon.socket, how, wild], capture_output=True,
                              text=True, env=env, cwd=os.path.join(os.path.dirname(__file__), ".."))

    def test_a_store_to_a_sealed_object(self):
        for how in ("asked", "late", "first", "environment"):
            for what in ("sealed", "draft"):
                done = self.child(how, what)
                self.assertEqual(done.returncode, -signal.SIGSEGV, done)
                self.assertTrue(done.stderr.startswith("tendril: this process wrote to a sealed object."), done.stderr)
                self.assertIn("in writes", done.stderr)

    def test_a_store_elsewhere(self):
        done = self.child("asked", "wild")
        self.assertEqual(done.returncode, -signal.SIGSEGV, done)
        self.assertNotIn("sealed", done.stderr.split("Fatal Python error")[0])
        self.assertIn("in writes", done.stderr)


if __name__ == "__main__":
    unittest.main()

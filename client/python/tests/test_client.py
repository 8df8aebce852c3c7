"""The client against the tests' own server: views, threads, forks, garbage."""

import ast
import gc
import io
import json
import os
import pathlib
import socket
import struct
import sys
import tempfile
import threading
import time
import unittest
import zlib
from unittest import mock

import tendril
from tendril import connection, data, memory, wire

from .fake import PATIENCE, FakeDaemon, descriptors, frame

try:
    import numpy as np
except ImportError:
    np = None


class WithFake(unittest.TestCase):
    hook = None

    def setUp(self):
        self.fake = FakeDaemon(type(self).hook)
        self.addCleanup(self.fake.close)
        self.store = tendril.connect(self.fake.path)
        self.addCleanup(self.store.close)


class Objects(WithFake):
    def test_bytes_round_trip(self):
        for raw in (b"", b"x", bytes(range(256)) * 1000):
            put = self.store.put(raw, name="n%d" % len(raw))
            with self.store.get("n%d" % len(raw)) as o:
                self.assertEqual(o.bytes(), raw)
                self.assertEqual(o.id, put.id)
                self.assertEqual(len(o), len(raw))
                self.assertTrue(o.data.readonly)

    def test_views_keep_the_reference(self):
        o = self.store.put(b"0123456789", name="kept")
        part = o.data[3:6]
        self.assertFalse(o.release())
        with self.assertRaises(tendril.Invalid):
            o.data
        gc.collect()
        self.store.status()
        self.assertEqual(self.fake.released, [])
        self.assertEqual(bytes(part), b"345")
        del part
        self.assertTrue(self.fake.wait(lambda: self.fake.released == [bytes(o.id)]))

    def test_buffer_protocol(self):
        o = self.store.put(b"0123", name="pep688")
        view = memoryview(o)
        self.assertEqual((bytes(o), zlib.crc32(o), io.BytesIO(o).read()), (b"0123", zlib.crc32(b"0123"), b"0123"))
        with self.assertRaises(TypeError):
            io.BytesIO(b"abc").readinto(o)
        self.assertFalse(o.release())
        self.assertEqual((view.readonly, bytes(view)), (True, b"0123"))
        for use in (memoryview, bytes, zlib.crc32, io.BytesIO, io.BytesIO().write):
            with self.assertRaisesRegex(tendril.Invalid, "%s was released" % o.id.hex()):
                use(o)
        self.assertEqual((type(o).__name__, isinstance(o, tendril.Object), o.size, o.release()),
                         ("Object", True, 4, True))
        self.assertIn("released", repr(o))
        gc.collect()
        self.store.status()
        self.assertEqual(self.fake.released, [])
        del view
        self.assertTrue(self.fake.wait(lambda: self.fake.released == [bytes(o.id)]))

    def test_release_comes_once_for_each_get(self):
        self.store.put(b"abc", name="a").release()
        for n in range(2, 5):
            self.store.get("a").release()
            self.assertTrue(self.fake.wait(lambda: len(self.fake.released) == n))

    def test_a_draft_that_is_dropped_is_aborted(self):
        draft = self.store.create(100)
        key = bytes(draft.id)
        del draft
        self.assertTrue(self.fake.wait(lambda: self.fake.aborted == [key]))

    def test_an_exception_aborts_a_draft(self):
        with self.assertRaises(RuntimeError):
            with self.store.create(10, "never") as draft:
                draft.data[:] = b"x" * 10
                raise RuntimeError
        self.assertTrue(self.fake.wait(lambda: len(self.fake.aborted) == 1))
        with self.assertRaises(tendril.NotFound):
            self.store.get("never")

    def test_sealed_draft(self):
        with self.store.create(3, "d") as draft:
            draft.data[:] = b"abc"
        self.assertEqual(self.store.get("d").bytes(), b"abc")
        with self.assertRaises(tendril.Sealed):
            draft.data

    def test_errors_are_classes(self):
        with self.assertRaises(tendril.Full):
            self.store.create(1 << 40)
        with self.assertRaises(MemoryError):
            self.store.create(1 << 40)
        with self.assertRaises(LookupError):
            self.store.get("nobody")
        with self.assertRaises(tendril.Unsupported):
            self.store.bind(bytes(16), "x")
        with self.assertRaises(tendril.Invalid):
            self.store.create(-1)
        with self.assertRaises(tendril.Invalid):
            self.store.create(1, meta={"long": "x" * 5000})

    def test_list_joins_pages(self):
        for i in range(5):
            self.store.put(b"x", name=str(i))
        self.assertEqual([o.name for o in self.store.list()], list("01234"))
        self.assertEqual(self.store.list()[0].lifetime, "named")

    def test_large_foreign_segments_are_let_go(self):
        other = tendril.connect(self.fake.path)
        self.addCleanup(other.close)
        other.put(bytes(65 << 20), name="large")
        store = tendril.connect(self.fake.path, background=False)
        self.addCleanup(store.close)
        before = descriptors()
        for _ in range(3):
            store.get("large").release()
        self.assertTrue(self.fake.wait(lambda: len(self.fake.forgotten) == 3))
        self.assertEqual(descriptors() - before, set())

    def test_the_background_thread_lets_idle_segments_go(self):
        other = tendril.connect(self.fake.path)
        self.addCleanup(other.close)
        other.put(bytes(65 << 20), name="large")
        patch = mock.patch("tendril.connection._KEEP_SECONDS", 0.1)
        patch.start()
        self.addCleanup(patch.stop)
        before = descriptors()
        for _ in range(100):
            self.store.get("large").release()
        self.assertLess(len(self.fake.forgotten), 100)  # kept for the next get
        deadline = time.monotonic() + PATIENCE
        while descriptors() - before and time.monotonic() < deadline:  # it may also have gone and come meanwhile
            time.sleep(0.001)
        self.assertEqual(descriptors() - before, set())
        self.assertTrue(self.fake.wait(lambda: self.fake.forgotten))  # said, and read by the fake a moment later
        self.assertEqual(self.store.get("large").size, 65 << 20)

    def test_a_client_that_is_dropped_ends_its_thread(self):
        tidiers = lambda: [t for t in threading.enumerate() if t.name == "tendril tidier"]
        self.store.put(b"x", name="x").release()
        before = tidiers()
        store = tendril.connect(self.fake.path)
        store.get("x").release()
        mine = [t for t in tidiers() if t not in before]
        self.assertEqual(len(mine), 1)
        store._live._sock.close()
        del store
        gc.collect()
        mine[0].join(PATIENCE)
        self.assertFalse(mine[0].is_alive())

    def test_a_client_that_is_dropped_leaves_nothing(self):
        self.store.put(b"x" * 1000, name="x").release()
        mapped = lambda: pathlib.Path("/proc/self/maps").read_text().count("memfd:fake")
        for background in (True, False):
            before, maps = descriptors(), mapped()
            store = tendril.connect(self.fake.path, background=background)
            got = store.get("x")
            mine, theirs = {d for d in descriptors() - before}, mapped()
            got.release()
            self.assertTrue(mine and theirs > maps)
            tidier = store._live._tidier
            del got, store
            gc.collect()
            if tidier is not None and tidier._thread is not None:
                tidier._thread.join(PATIENCE)
            del tidier
            gc.collect()
            deadline = time.monotonic() + PATIENCE
            while descriptors() & mine and time.monotonic() < deadline:  # the fake closes its own end a moment later
                time.sleep(0.001)
            self.assertEqual((descriptors() & mine, mapped()), (set(), maps))

    def test_a_client_that_is_closed_in_the_middle_of_a_reply(self):
        memory = os.memfd_create("half")
        self.addCleanup(os.close, memory)
        half = struct.pack("<IHHQ", 100, wire.GET | wire.REPLY, wire.FLAG_FD, 9)[:9]
        fake = FakeDaemon(lambda kind, payload: (half, [memory]) if kind == wire.GET else None)
        self.addCleanup(fake.close)
        store = tendril.connect(fake.path, reconnect=False)
        self.addCleanup(store.close)
        live = store._connection()
        received = live._received

        def closing(*message):  # what another thread does in this moment
            closer = threading.Thread(target=live.close)
            closer.start()
            closer.join()
            received(*message)
        live._received = closing
        with self.assertRaises(tendril.Disconnected):
            store.get("x")
        live._received = received
        inode = os.fstat(memory).st_ino
        self.assertEqual([fd for fd, _, ino in descriptors() if ino == inode], [memory])

    def test_the_end_of_a_descriptor_is_not_interrupted(self):
        """Signals are looked for where a function of Python begins: there its end would lose the interrupt."""
        swallowed, before = [], descriptors()
        self.addCleanup(setattr, sys, "unraisablehook", sys.unraisablehook)
        sys.unraisablehook = swallowed.append
        file = memory.Descriptor(os.memfd_create("x"))

        def interrupt(frame, event, _):
            if event == "call" and frame.f_code.co_filename == memory.__file__:
                raise KeyboardInterrupt
        sys.setprofile(interrupt)
        try:
            del file
        finally:
            sys.setprofile(None)
        self.assertEqual((descriptors() - before, swallowed), (set(), []))

    def test_no_descriptor_is_inherited(self):
        self.store.put(b"x" * 100, name="fd")
        for fd in os.listdir("/proc/self/fd"):
            try:
                target = os.readlink("/proc/self/fd/" + fd)
            except OSError:
                continue
            if "memfd:fake" in target:
                self.assertFalse(os.get_inheritable(int(fd)))


@unittest.skipIf(np is None, "NumPy is not installed")
class Arrays(WithFake):
    def test_round_trip(self):
        for a in (np.arange(24.0).reshape(2, 3, 4), np.arange(6, dtype=">i2").reshape(2, 3).T, np.zeros((0, 5), "f4"),
                  np.array(3.5), np.arange(20, dtype="u1")[::3], np.arange(4, dtype="c8"), np.array([True, False]),
                  np.array(["ab", "c"]), np.array(["2020-01-01"], "M8[D]")):
            with self.store.put(a) as o, self.store.get(o.id) as again:
                b = again.numpy()
                self.assertEqual(b.dtype, a.dtype)
                self.assertEqual(b.shape, a.shape)
                np.testing.assert_array_equal(a, b)
                self.assertFalse(b.flags.writeable)
                if b.size:
                    with self.assertRaises(ValueError, msg=str(a)):
                        b.flags.writeable = True
                del b

    def test_arrays_outlive_the_handle(self):
        self.store.put(np.arange(1000), name="a").release()
        a = self.store.get("a").numpy()[10:20].reshape(2, 5)
        gc.collect()
        self.store.status()
        self.assertEqual(len(self.fake.released), 1)
        self.assertEqual(a.sum(), sum(range(10, 20)))
        del a
        self.assertTrue(self.fake.wait(lambda: len(self.fake.released) == 2))

    def test_filled_in_place(self):
        a = self.store.empty((3, 4), "f4", name="filled", order="F")
        a[:] = np.arange(12).reshape(3, 4)
        with self.assertRaises(tendril.Invalid):
            (a + 1).seal()
        a.seal()
        with self.assertRaises(ValueError):
            a[0, 0] = 1
        np.testing.assert_array_equal(self.store.get("filled").numpy(), np.arange(12).reshape(3, 4))

    def test_what_is_no_bytes_is_refused(self):
        for a in (np.array([object()]), np.zeros(3, [("a", "i4"), ("b", "O")])):
            with self.assertRaises(tendril.Invalid):
                self.store.put(a)

    def test_foreign_metadata_cannot_reach_outside(self):
        for meta in ({"dtype": "<f8", "shape": [100]}, {"dtype": "<f8", "shape": [2], "strides": [9]},
                     {"dtype": "|O", "shape": [1]}, {"dtype": "<f8", "shape": [-1]}, {"dtype": "nonsense"},
                     {"dtype": "<f8", "shape": [1 << 62, 1 << 62]}, {"dtype": "<f8", "shape": 4},
                     {"dtype": "<f8", "shape": [2], "strides": [-1]}, {"dtype": "<f8", "shape": [True]},
                     {"dtype": "|V8", "fields": [["a", "|O"]]},
                     {"dtype": "|V8", "fields": [["a", "<i8"]], "shape": [9]},
                     {"dtype": "|V8", "fields": "|O"}, {"dtype": "|V8", "fields": [[1]]}, {"dtype": "|V8", "fields": 3},
                     {"dtype": "|V8", "fields": []}, {"dtype": "("}):
            with self.store.create(64, meta=meta) as draft:
                key = draft.id
            with self.assertRaises(tendril.Invalid, msg=str(meta)):
                self.store.get(key).numpy()

    def test_metadata_that_is_no_json_object(self):
        for raw in (b"[" * 4000, b"\xff", b"3", b'{"a":' * 600):
            self.assertIsNone(data.meta_of(raw), raw[:10])

    def test_an_empty_object_has_no_elements(self):
        self.store.put(b"", name="empty", meta={"dtype": "<f8", "shape": [1]})
        with self.assertRaises(tendril.Invalid):
            self.store.get("empty").numpy()

    def test_without_metadata_it_is_bytes(self):
        self.store.put(b"\x01\x02", name="raw")
        np.testing.assert_array_equal(self.store.get("raw").numpy(), np.array([1, 2], "u1"))


class Processes(WithFake):
    def test_a_forked_child_has_its_own_connection(self):
        kept = self.store.put(b"parent's", name="shared")
        child = os.fork()
        if child == 0:
            code = 1
            try:
                ok = kept.bytes() == b"parent's"
                ok = ok and self.store.get("shared").bytes() == b"parent's"
                self.store.put(b"child's", name="child").release()
                kept.release()
                self.store.close()
                code = 0 if ok else 2
            finally:
                os._exit(code)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.assertEqual(self.fake.connections, 2)
        self.assertNotIn(bytes(kept.id), self.fake.released[1:])  # only the child's own get
        self.assertEqual(kept.bytes(), b"parent's")
        self.assertEqual(self.store.get("child").bytes(), b"child's")

    def test_the_background_thread_is_not_there_while_the_process_forks(self):
        self.store.put(b"x", name="x").release()
        tidier = self.store._live._tidier  # those of clients of earlier tests end at some time of their own
        before = tidier._thread
        self.assertTrue(before.is_alive())
        child = os.fork()
        if child == 0:
            os._exit(len(threading.enumerate()) - 1)
        self.assertFalse(before.is_alive())  # it ended, and another began
        self.assertTrue(tidier._thread.is_alive())
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.assertEqual(self.store.get("x").bytes(), b"x")

    def test_fork_while_other_threads_are_at_work(self):
        self.store.put(b"x" * 1000, name="busy").release()
        stop = threading.Event()

        def work():
            while not stop.is_set():
                self.store.get("busy").release()

        threads = [threading.Thread(target=work) for _ in range(3)]
        for t in threads:
            t.start()
        try:
            for _ in range(10):
                child = os.fork()
                if child == 0:
                    code = 1
                    try:
                        code = 0 if self.store.get("busy").bytes() == b"x" * 1000 else 2
                    finally:
                        os._exit(code)
                self.assertEqual(os.waitpid(child, 0)[1], 0)
        finally:
            stop.set()
            for t in threads:
                t.join()

    def test_threads(self):
        failed = []

        def work(i):
            try:
                for k in range(50):
                    data = b"%d-%d" % (i, k) * 10
                    self.store.put(data, name="t%d" % i if k == 0 else "").release()
                    self.assertEqual(self.store.get("t%d" % i).bytes(), b"%d-0" % i * 10)
            except BaseException as e:  # noqa: B902
                failed.append(e)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(failed, [])
        self.assertTrue(self.fake.wait(lambda: len(self.fake.released) == 800))

    def test_daemon_gone(self):
        o = self.store.put(b"still here", name="x")
        self.fake.close()
        with self.assertRaises(tendril.Disconnected):
            self.store.get("x")
        with self.assertRaises(ConnectionError):
            self.store.get("x")
        self.assertEqual(o.bytes(), b"still here")

    def test_no_daemon(self):
        with self.assertRaisesRegex(tendril.Disconnected, "tendril daemon"):
            tendril.connect(os.path.join(self.fake.dir.name, "nothing"))

    def test_close_wakes_a_waiting_thread(self):
        waiting = threading.Event()
        self.fake.hook = lambda kind, payload: (waiting.set(), b"")[1] if kind == wire.GET else None
        caught = []

        def wait():
            try:
                self.store.get("never", timeout=None)
            except tendril.Disconnected as e:
                caught.append(e)

        t = threading.Thread(target=wait)
        t.start()
        self.assertTrue(waiting.wait(PATIENCE))
        self.store.close()
        t.join(PATIENCE)
        self.assertEqual(len(caught), 1)


class Connects(WithFake):
    def test_what_a_call_calls_may_call(self):
        """While another thread connects: it waits for that one. Only who interrupts a connect is refused."""
        begun, go = threading.Event(), threading.Event()

        def hook(kind, payload):
            if kind == wire.HELLO:
                begun.set()
                go.wait(PATIENCE)

        class Calls:
            def __reduce__(self):
                store._may_wait()
                go.set()
                return str, (store.put(b"x").bytes().decode(),)

        self.addCleanup(go.set)
        self.fake.hook = hook
        store = tendril.Client(self.fake.path)
        self.addCleanup(store.close)
        threading.Thread(target=store.ping, daemon=True).start()
        self.assertTrue(begun.wait(PATIENCE))
        self.assertEqual(store.dump(Calls()).load(), "x")

    def test_a_fault_of_the_fake_is_seen(self):
        fake = FakeDaemon(lambda kind, payload: 1 / 0)
        with self.assertRaises(tendril.Disconnected):
            tendril.connect(fake.path)
        fake.wait(lambda: fake.faults)
        with self.assertRaises(ZeroDivisionError):
            fake.close()
        fake.close()


class HandingOn:
    """A connection's lock. When the thread that reads lets it go with its reply, another thread is at once in the
    middle of the next one, and then, if so wished, the first is interrupted (Ctrl-C).
    """

    def __init__(self, live, interrupt):
        self.live, self.interrupt, self.lock, self.other = live, interrupt, live._turn_lock, object()
        live._turn_lock = self

    def __enter__(self):
        self.lock.acquire()
        self.before = self.live._reading

    def acquire(self, *wait):  # by who only looks for leases that ended
        return self.lock.acquire(*wait)

    def release(self):
        self.lock.release()

    def locked(self):
        return self.lock.locked()

    def __exit__(self, *_):
        if self.before is None or self.live._reading is not None:
            self.lock.release()
            return
        self.live._reading, self.live._halfway, self.live._turn_lock = self.other, True, self.lock
        self.lock.release()
        if self.interrupt:
            raise KeyboardInterrupt


class Turns(WithFake):
    def test_who_has_read_leaves_the_next_reader_alone(self):
        self.store.put(b"x", name="x")
        self.store.get("x").release()
        live = self.store._live
        for interrupt in (False, True):
            lock = HandingOn(live, interrupt)
            try:
                self.store.get("x").release()
            except KeyboardInterrupt:
                self.assertTrue(interrupt)
            self.assertIs(live._turn_lock, lock.lock)  # it was handed on
            self.assertIs(live._reading, lock.other)
            self.assertTrue(live._halfway)
            self.assertTrue(live.alive)
            live._reading, live._halfway = None, False
        self.assertEqual(self.store.get("x").bytes(), b"x")


class Elsewhere(WithFake):
    def test_copy_to_host_brings_what_only_other_nodes_have(self):
        made = self.store.put(b"there", "there")

        def hook(kind, payload):
            if kind == wire.STAT:
                told = {"id": made.id.hex(), "kind": "host", "state": "sealed", "size_bytes": 5, "nodes": nodes}
                return frame(wire.STAT | wire.REPLY, json.dumps(told).encode())
            return None
        nodes = ["b"]
        self.fake.hook = hook
        self.assertEqual(self.store.stat("there").nodes, ["b"])
        with self.store.copy("there", "host") as brought:
            self.assertEqual((brought.id, brought.bytes()), (made.id, b"there"))
        with self.store.copy("there", "host", "own") as own:
            self.assertEqual((own.id != made.id, own.name, own.bytes()), (True, "own", b"there"))
        nodes = []
        with self.assertRaisesRegex(tendril.Invalid, "put"):
            self.store.copy("there", "host")


class Limits(WithFake):
    def test_a_limit_is_not_waited_for(self):
        """What the tenant may have no more of is no memory that others are about to unmap."""
        asked = []

        def hook(kind, payload):
            asked.append(kind)
            if kind in (wire.CREATE, wire.GET):
                return frame(0xFFFF, struct.pack("<HH", 16, 4) + b"many")
            return None

        self.fake.hook = hook
        for ask in (lambda: self.store.create(5), lambda: self.store.get("x"), lambda: self.store.get_many(["x"])):
            with self.assertRaises(tendril.Limit):
                ask()
        self.assertEqual([k for k in asked if k in (wire.CREATE, wire.GET)], [wire.CREATE, wire.GET, wire.GET])
        self.assertEqual([k for k in asked if k in (wire.SWEEP, wire.STATUS)], [])
        self.assertTrue(issubclass(tendril.Limit, tendril.Quota))

    def test_only_ones_own_memory_helps_a_quota(self):
        """Others, who need only keep what they should give back, delay no refusal."""
        enough = 7  # requests: more than are made without asking what leaves
        for code, leaves, own, goes_on in ((8, 5, 0, False), (8, 5, 5, True), (8, 5, None, True), (8, 0, None, False),
                                           (7, 5, 0, True), (7, 0, 0, False)):
            made = []

            def hook(kind, payload):
                if kind == wire.STATUS:
                    store = {"leaving_bytes": leaves}
                    if own is not None:
                        store["tenant_leaving_bytes"] = own
                    return frame(kind | 0x8000, json.dumps({"store": store}).encode())
                if kind != wire.CREATE:
                    return None
                made.append(kind)
                return frame(0xFFFF, struct.pack("<HH", 2 if len(made) > enough else code, 4) + b"many")

            self.fake.hook = hook
            with self.subTest(code=code, leaves=leaves, own=own), mock.patch("tendril.client._LEAVING_PAUSE", 0.01):
                with self.assertRaises(tendril.Invalid if goes_on else tendril.Quota if code == 8 else tendril.Full):
                    self.store.create(5)


class Garbage(unittest.TestCase):
    """Whatever a daemon sends, the client raises: it never crashes, hangs, or keeps a descriptor."""

    def meet(self, raw, kind=wire.GET):
        fake = FakeDaemon(lambda k, p: raw if k == kind else None)
        self.addCleanup(fake.close)
        before = descriptors()
        store = tendril.Client(fake.path)
        try:
            with self.assertRaises((tendril.Protocol, tendril.Disconnected)) as caught:
                store.ping()
                store.get("x")
            with self.assertRaises(tendril.TendrilError):
                store.get("x")
        finally:
            store.close()
        self.assertLessEqual(len(descriptors() - before), 2)  # the fake's own end, at most
        return str(caught.exception)

    def test_lengths(self):
        self.assertIn("exceeds", self.meet(frame(wire.GET | 0x8000, b"", size=0xFFFFFFFF)))
        self.assertIn("exceeds", self.meet(frame(wire.GET | 0x8000, b"", size=wire.MAX_PAYLOAD + 1)))

    def test_types(self):
        self.meet(frame(0x1234, b""))
        self.meet(frame(wire.SEAL | 0x8000, b""))
        self.meet(struct.pack("<IHHQ", 0, wire.GET | 0x8000, 0, 999999))
        self.meet(frame(wire.GET | 0x8000, b"", flags=0x80))

    def test_payloads(self):
        whole = bytes(16) + struct.pack("<QQQ", 5, 4096, 0) + struct.pack("<QB", 10, 0) + struct.pack("<I", 0)
        for n in range(0, len(whole), 7):
            self.meet(frame(wire.GET | 0x8000, whole[:n]))
        self.assertIn("descriptor", self.meet(frame(wire.GET | 0x8000, whole)))
        self.assertIn("descriptor", self.meet(frame(wire.GET | 0x8000, whole, flags=1)))
        self.meet(frame(wire.GET | 0x8000, whole + b"x"))
        big = bytes(16) + struct.pack("<QQQ", 5, 4096, (1 << 64) - 64) + struct.pack("<QB", (1 << 64) - 1, 0) + bytes(4)
        self.assertIn("does not lie", self.meet(frame(wire.GET | 0x8000, big)))
        self.meet(frame(0xFFFF, b"\x01"))
        self.meet(frame(0xFFFF, struct.pack("<HH", 3, 2) + b"\xff\xfe"))

    def test_hello(self):
        self.meet(frame(wire.HELLO | 0x8000, b"\x02\x00"), kind=wire.HELLO)
        hello = struct.pack("<HH", 9, 0) + bytes(16) + struct.pack("<HIQ", 0, 1, 1)
        self.meet(frame(wire.HELLO | 0x8000, hello), kind=wire.HELLO)

    def test_noise(self):
        self.meet(os.urandom(1000).replace(b"<", b"_"))

    def test_unknown_error_code(self):
        fake = FakeDaemon(lambda k, p: frame(0xFFFF, struct.pack("<HH", 77, 3) + b"new") if k == wire.GET else None)
        self.addCleanup(fake.close)
        with tendril.connect(fake.path) as store:
            with self.assertRaisesRegex(tendril.TendrilError, "77.*new"):
                store.get("x")
            store.status()

    def test_refused_before_the_hello(self):
        with tempfile.TemporaryDirectory() as home, socket.socket(socket.AF_UNIX) as listener:
            path = os.path.join(home, "s")
            listener.bind(path)
            listener.listen(1)
            dial = connection._dial

            def dial_late(path):
                sock = dial(path)
                peer, _ = listener.accept()
                peer.sendall(struct.pack("<IHHQHH", 12, 0xFFFF, 0, 0, 12, 8) + b"too many")
                peer.close()
                return sock
            with mock.patch.object(connection, "_dial", dial_late):
                with self.assertRaisesRegex(tendril.Disconnected, "too many"):
                    tendril.connect(path)

    def test_connects_once_more(self):
        """A daemon that ends a connection before its first answer is asked a second time, and no third. One that says
        why it refuses is asked once.
        """
        hello = struct.pack("<IHHQHH16xHIQ", 34, wire.HELLO | 0x8000, 0, 1, wire.VERSION, 0, 0, 1, 1)
        refusal = struct.pack("<IHHQHH", 6, 0xFFFF, 0, 1, 12, 2) + b"no"
        for answers, raised, tries in (((b"", hello), None, 2), ((b"", b"", hello), tendril.Disconnected, 2),
                                       ((refusal, hello), tendril.Busy, 1)):
            with self.subTest(tries=tries, raised=raised), tempfile.TemporaryDirectory() as home, \
                    socket.socket(socket.AF_UNIX) as listener:
                path, tried = os.path.join(home, "s"), []
                listener.bind(path)
                listener.listen(4)

                def serve():
                    for answer in answers:
                        try:
                            peer, _ = listener.accept()
                        except OSError:
                            return
                        tried.append(answer)
                        peer.recv(4096)
                        peer.sendall(answer)
                        peer.close()

                server = threading.Thread(target=serve)
                server.start()
                try:
                    tendril.connect(path).close()
                    got = None
                except tendril.TendrilError as e:
                    got = type(e)
                listener.shutdown(socket.SHUT_RDWR)
                server.join()
                self.assertEqual((got, len(tried)), (raised, tries))

    def test_repeats(self):
        """What changes nothing is repeated while the new connections break, too: four times at most."""
        cuts = 0

        def cut(kind, _):
            nonlocal cuts
            if kind != wire.HELLO and cuts > 0:
                cuts -= 1
                raise EOFError

        fake = FakeDaemon(cut)
        self.addCleanup(fake.close)
        for n in range(6):
            with self.subTest(n=n), tendril.connect(fake.path, background=False) as store:
                before = fake.connections
                cuts = n
                if n < 5:
                    store.status()
                else:
                    with self.assertRaises(tendril.Disconnected):
                        store.status()
                self.assertEqual(fake.connections - before, min(n, 4))
                cuts = 1
                with self.assertRaises(tendril.Disconnected):
                    store.delete("x")
            cuts = 0

    def test_refusal_is_no_broken_rule(self):
        fake = FakeDaemon(lambda k, p: struct.pack("<IHHQHH", 8, 0xFFFF, 0, 0, 12, 4) + b"full")
        self.addCleanup(fake.close)
        with self.assertRaisesRegex(tendril.Disconnected, "busy|full"):
            tendril.connect(fake.path, reconnect=False).status()


class NewerGarbage(unittest.TestCase):
    """The same for replies about streams, fills, composites and claims.

    They are right, cut at every byte, too long, without descriptors, and with too many.
    """

    PLACE = bytes([7] * 16) + struct.pack("<QQQ", 5, 4096, 64)
    GOT = PLACE + struct.pack("<QBI", 100, 0, 2) + b"{}"
    RIGHT = {
        wire.STREAM_OPEN: struct.pack("<QIQ", 5, 16, 0), wire.STREAM_POP: struct.pack("<Q", 9) + GOT, wire.FILL: GOT,
        wire.COMPOSE: bytes([7] * 16), wire.SWEEP: struct.pack("<IQQ", 2, 5, 6), wire.RECLAIM: struct.pack("<HB", 1, 2),
    }

    def setUp(self):
        self.memory = os.memfd_create("lies")
        self.addCleanup(os.close, self.memory)
        os.ftruncate(self.memory, 4096)
        self.said = {}  # the reply to a kind of request
        self.fake = FakeDaemon(lambda kind, payload: self.said.get(kind))
        self.addCleanup(self.fake.close)

    def reply(self, kind, payload, fds=None):
        fds = (1 if kind in (wire.STREAM_POP, wire.FILL) else 0) if fds is None else fds
        return frame(kind | 0x8000, payload, flags=min(fds, 1)), [self.memory] * fds

    def ask(self, kind, said):
        """The name of the error that a client makes of the reply, or OK. Fails if a descriptor stays open."""
        self.said = {k: self.reply(k, v) for k, v in self.RIGHT.items()}
        self.said[kind] = said
        before = descriptors()
        store = tendril.connect(self.fake.path, reconnect=False)
        try:
            self.run_one(store, kind)
            result = "OK"
        except tendril.TendrilError as e:
            result = type(e).__name__
        store.close()
        self.fake.live[-1].close()
        del store
        gc.collect()
        self.assertEqual(descriptors() - before, set(), (kind, said))
        return result

    def run_one(self, store, kind):
        if kind == wire.FILL:
            store.fill("x").data[:] = bytes(100)
        elif kind == wire.COMPOSE:
            store.compose({"m": bytes([7] * 16)}).release()
        elif kind == wire.SWEEP:
            store._connection().sweep(now=True)
        else:
            reader = store.reader("x")
            if kind == wire.STREAM_POP:
                self.assertEqual(reader.pop().bytes(), bytes(100))

    def test_replies(self):
        for kind in (wire.STREAM_OPEN, wire.STREAM_POP, wire.FILL, wire.COMPOSE, wire.SWEEP):
            right = self.RIGHT[kind]
            self.assertEqual(self.ask(kind, self.reply(kind, right)), "OK", kind)
            for n in range(len(right)):
                self.assertEqual(self.ask(kind, self.reply(kind, right[:n])), "Protocol", (kind, n))
            self.assertEqual(self.ask(kind, self.reply(kind, right + b"x")), "Protocol", kind)
            self.assertEqual(self.ask(kind, self.reply(kind ^ 1, right)), "Protocol", kind)

    def test_descriptors(self):
        for kind in (wire.STREAM_POP, wire.FILL):
            self.assertEqual(self.ask(kind, self.reply(kind, self.RIGHT[kind], 0)), "Protocol")
            self.assertEqual(self.ask(kind, self.reply(kind, self.RIGHT[kind], 20)), "Protocol")
            raw, fds = self.reply(kind, self.RIGHT[kind], 1)
            self.assertEqual(self.ask(kind, (raw, [])), "Protocol")

    def test_places(self):
        top = (1 << 64) - 1
        for place in ((1, 4096, 0, 4097), (1, 4096, 64, 4096), (1, 4096, top, 1), (1, 4096, top - 63, 128),
                      (1, 1 << 40, 0, 1), (1, 8192, 0, 1), (1, top, 0, top), (1, 0, 0, 1)):
            got = bytes([7] * 16) + struct.pack("<QQQQBI", *place, 0, 0)
            for kind, payload in ((wire.STREAM_POP, bytes(8) + got), (wire.FILL, got)):
                self.assertIn(self.ask(kind, self.reply(kind, payload)), ("Protocol", "Full"), place)

    def come_back(self, said):
        """Loses the connection while an object is held, and answers the claim. Returns Object.gone, or the error."""
        self.said = {wire.STATUS: frame(wire.STATUS | 0x8000, b"{}")}
        store = tendril.connect(self.fake.path)
        self.addCleanup(store.close)
        held = store.put(b"held")
        self.said[wire.RECLAIM] = said
        with self.fake.lock:
            self.fake.live[-1].shutdown(2)
        try:
            for _ in range(2):
                try:
                    store.status()
                except tendril.Disconnected:
                    pass
            return held.gone
        except tendril.TendrilError as e:
            return type(e).__name__
        finally:
            self.assertEqual(held.bytes(), b"held")

    def test_claims(self):
        for verdict in (0, 1, 2):
            self.assertEqual(self.come_back(self.reply(wire.RECLAIM, struct.pack("<HB", 1, verdict))), verdict == 0)
        for lie in (b"", b"\1", b"\1\0", b"\1\0\2\0", b"\0\0", b"\0\0\2", b"\2\0\2\2", b"\xff\xff\2", b"\1\0\3",
                    b"\1\0\xff"):
            self.assertEqual(self.come_back(self.reply(wire.RECLAIM, lie)), "Protocol", lie)


class Environment(unittest.TestCase):
    def test_where_a_daemon_is_looked_for(self):
        from tendril.connection import sockets
        system = "/run/tendril/tendril.sock"
        with mock.patch.dict(os.environ, {"TENDRIL_SOCKET": "/a"}):
            self.assertEqual(sockets(), ["/a"])
        with mock.patch.dict(os.environ, {"XDG_RUNTIME_DIR": "/run/user/7"}):
            os.environ.pop("TENDRIL_SOCKET", None)
            with mock.patch("os.getuid", lambda: 0):
                self.assertEqual(sockets(), [system])
            with mock.patch("os.getuid", lambda: 7):
                self.assertEqual(sockets(), ["/run/user/7/tendril/tendril.sock", system])
                del os.environ["XDG_RUNTIME_DIR"]
                self.assertEqual(sockets(), ["/tmp/tendril-7/tendril.sock", system])

    def test_a_strangers_socket_under_tmp(self):
        """Anybody can make a socket under /tmp: the client accepts its own user's and root's."""
        peer = mock.Mock()
        for path, uid, good in (("/tmp/tendril-7/tendril.sock", 8, False), ("/tmp/any.sock", 8, False),
                                ("/tmp/any.sock", 7, True), ("/tmp/any.sock", 0, True), ("/run/any.sock", 8, True)):
            peer.getsockopt.return_value = struct.pack("3i", 1, uid, 1)
            with mock.patch("os.getuid", lambda: 7):
                if good:
                    connection._check_owner(peer, path)
                else:
                    with self.assertRaises(tendril.Permission, msg=path):
                        connection._check_owner(peer, path)

    def test_the_first_that_answers(self):
        fake, late = FakeDaemon(), FakeDaemon()
        self.addCleanup(fake.close)
        self.addCleanup(late.close)
        none = fake.path + "-none"
        with mock.patch.object(connection, "sockets", lambda: [none, fake.path]):
            store = tendril.connect()
            self.addCleanup(store.close)
        with mock.patch.object(connection, "sockets", lambda: [late.path]):
            store._live._fail(tendril.Disconnected("lost"))
            store.ping()  # the same daemon again
        self.assertEqual((fake.connections, late.connections), (2, 0))
        with mock.patch.object(connection, "sockets", lambda: [none, none + "2"]):
            with self.assertRaisesRegex(tendril.Disconnected, "%s .*%s2 .*start one" % (none, none)):
                tendril.connect()


class Modules(unittest.TestCase):
    def test_import_each_other_in_one_direction(self):
        """The imports have no cycle, those inside functions included. Imports for type checkers do not count."""
        folder = pathlib.Path(tendril.__file__).parent
        uses = {}
        for path in folder.glob("*.py"):
            tree = ast.parse(path.read_text())
            checked = {n for i in ast.walk(tree)
                       if isinstance(i, ast.If) and getattr(i.test, "id", "") == "TYPE_CHECKING" for n in ast.walk(i)}
            names = set()
            for n in ast.walk(tree):
                if isinstance(n, ast.ImportFrom) and n.level == 1 and n not in checked:
                    names.update([n.module] if n.module else [a.name for a in n.names])
            uses[path.stem] = {n for n in names if (folder / (n + ".py")).exists()}
        self.assertGreater(sum(map(len, uses.values())), 20)
        while uses:
            free = [m for m, of in uses.items() if not of & set(uses)]
            self.assertTrue(free, "modules that import each other: %s" % sorted(uses))
            for m in free:
                del uses[m]


if __name__ == "__main__":
    unittest.main()

"""Labels, lifetimes, watching, many at once, ranges, DLPack, pickles and reconnecting, against the real daemon."""

import ctypes
import gc
import os
import pickle
import select
import signal
import threading
import time
import unittest

import tendril
from tendril import pickles

from .fake import PATIENCE
from .test_daemon import Daemon, WithDaemon

try:
    import numpy as np
except ImportError:
    np = None


class Pages(WithDaemon):
    def test_a_listing_comes_page_by_page(self):
        for i in range(1100):
            self.store.put(b"", "pg%04d" % i, lifetime="named").release()
        names = []
        for o in self.store.objects("pg"):
            if not names:  # objects that exist all the time come once, though others are made and deleted
                self.store.delete("pg1099")
                self.store.put(b"", "pgx", lifetime="named").release()
            names.append(o.name)
        self.assertEqual([n for n in names if n not in ("pg1099", "pgx")], ["pg%04d" % i for i in range(1099)])
        self.assertEqual(len(names), len(set(names)))
        self.assertEqual(len(self.store.list("pg")), 1100)
        self.assertEqual(len(self.store.top(130)), 130)
        self.assertEqual(self.store.list("pg", labels={"a": "b"}), [])


class Attributes(WithDaemon):
    def test_labels_and_ttl(self):
        self.store.put(b"1", "l1", labels={"kind": "map", "area": "nörd"}).release()
        self.store.put(b"2", "l2", labels={"kind": "map"}, lifetime="named").release()
        self.assertEqual([o.name for o in self.store.list("l", labels={"kind": "map"})], ["l1", "l2"])
        found = [o.labels for o in self.store.list(labels={"area": "nörd"})]
        self.assertEqual(found, [{"kind": "map", "area": "nörd"}])
        self.assertEqual([o.name for o in self.store.list("l2", labels={"kind": "map"})], ["l2"])
        short = self.store.put(b"3", ttl=0.05)
        key = short.id
        short.release()
        deadline = time.monotonic() + PATIENCE
        with self.assertRaises(tendril.NotFound):
            while time.monotonic() < deadline:
                self.store.stat(key)
                time.sleep(0.01)
        for bad in ({"k": "v" * 129}, {str(i): "" for i in range(17)}):
            with self.assertRaises(tendril.Invalid):
                self.store.put(b"4", labels=bad)
        self.store.delete("l1")
        self.store.delete("l2")

    def test_update(self):
        with self.store.put(b"x" * 1000, "u") as o:
            self.store.update(o, pinned=True, labels={"a": "b"}, ttl=1000)
            info = self.store.stat("u")
            self.assertTrue(info.pinned and info.expires)
            self.assertEqual(info.labels, {"a": "b"})
            self.store.update("u", pinned=False, labels={}, ttl=0)
            info = self.store.stat("u")
            self.assertFalse(info.pinned or info.expires or info.labels)
            self.store.update("u", persist=True)
            info = self.store.stat("u")
            self.assertEqual((info.lifetime, info.on_disk), ("persisted", True))
        self.store.delete("u")

    def test_rename(self):
        self.store.put(b"1", "r1").release()
        self.store.put(b"2", "r2").release()
        with self.assertRaises(tendril.Exists):
            self.store.rename("r1", "r2")
        self.store.rename("r1", "r2", replace=True)
        self.assertEqual(self.store.get("r2").bytes(), b"1")
        with self.assertRaises(tendril.NotFound):
            self.store.rename("r1", "r3")
        self.store.delete("r2")

    def test_share(self):
        with self.store.put(b"x", "s") as o:
            self.store.share("s", "all")
            self.store.unshare(o, "all")
            with self.assertRaises(tendril.Invalid):
                self.store.share(o, "everybody")
        self.assertEqual(self.store.list(shared=True), [])
        self.store.delete("s")

    def test_top(self):
        with self.store.put(bytes(3 << 20), "large"), self.store.put(b"small"):
            first = self.store.top(1)
            self.assertEqual([o.name for o in first], ["large"])
            self.assertEqual(first[0].holders[0]["pid"], os.getpid())
        self.store.delete("large")

    def test_ranges_and_checksum(self):
        data = os.urandom(1 << 10) * 2500
        with self.store.put(data) as a, self.store.put(data) as b:
            self.assertEqual(self.store.read(a), data)
            self.assertEqual(self.store.read(a, 7, 1 << 20), data[7:7 + (1 << 20)])
            self.assertEqual(self.store.read(a, len(data)), b"")
            with self.assertRaises(tendril.Invalid):
                self.store.read(a, len(data) - 1, 2)
            self.assertEqual(self.store.checksum(a), self.store.checksum(b))
        with self.store.put(b"") as empty:
            self.assertEqual(self.store.checksum(empty), 0xEF46DB3751D8E999)  # XXH64 of nothing

    def test_many(self):
        made = [self.store.put(bytes([i])) for i in range(100)]
        found = self.store.get_many([o.id for o in made], timeout=PATIENCE)
        self.assertEqual([o.bytes()[0] for o in found], list(range(100)))
        with self.assertRaises(tendril.NotFound):
            self.store.get_many([made[0], "nobody"])
        with self.assertRaises(tendril.Timeout):
            self.store.get_many([made[0], "nobody"], timeout=0.05)
        later = threading.Timer(0.1, lambda: self.store.put(b"!", "somebody").release())
        later.start()
        self.assertEqual(self.store.get_many(["somebody", made[3]], timeout=PATIENCE)[0].bytes(), b"!")
        later.join()
        self.assertEqual(self.store.get_many([]), [])
        self.store.delete("somebody")

    def test_a_large_object_is_populated_when_asked(self):
        with self.store.put(bytes(8 << 20)) as o:
            o.populate()
            self.assertEqual(o.data[-1], 0)


class Watching(WithDaemon):
    def test_events(self):
        with self.store.watch("w") as events:
            with self.assertRaises(tendril.Timeout):
                events.next(0)
            self.store.put(b"", "other").release()
            with self.store.put(b"abc", "w1") as o:
                self.assertTrue(select.select([events], [], [], PATIENCE)[0])
                event = events.next(PATIENCE)
                self.assertEqual((event.kind, event.id, event.name, event.size_bytes), ("sealed", str(o.id), "w1", 3))
            self.store.rename("w1", "w2")
            self.store.delete("w2")
            kinds = []
            for event in events:
                kinds.append(event.kind)
                if event.kind == "gone":
                    break
            self.assertIn("named", kinds)
        self.store.delete("other")

    def test_the_next_daemon(self):
        daemon = Daemon()
        self.addCleanup(daemon.close)
        store = tendril.connect(daemon.socket, patience=PATIENCE)
        self.addCleanup(store.close)
        with store.watch("x") as events:
            for crash in (False, True):
                if crash:
                    daemon.process.kill()
                    daemon.process.wait(PATIENCE)
                else:
                    daemon.hand_over()
                self.assertEqual(events.next(PATIENCE).kind, "disconnected")
                if crash:
                    with self.assertRaises(tendril.Timeout):
                        events.next(0.05)
                    self.assertEqual(events.fileno(), -1)
                    daemon.start()
                self.assertEqual(events.next(PATIENCE).kind, "lost")
                self.assertGreaterEqual(events.fileno(), 0)
                store.put(b"x", "x", replace=True).release()
                while True:
                    event = events.next(PATIENCE)
                    if event.kind == "named" or event.kind == "sealed" and event.name:
                        break
                self.assertEqual(event.name, "x")
        with self.assertRaises(tendril.Disconnected):
            events.next(0)

    def test_the_daemon_ends(self):
        daemon = Daemon()
        try:
            with tendril.connect(daemon.socket, reconnect=False) as store, store.watch() as events:
                daemon.process.kill()
                with self.assertRaises(tendril.Disconnected):
                    events.next(PATIENCE)
                with self.assertRaises(tendril.Disconnected):
                    events.next(PATIENCE)
        finally:
            daemon.close()


@unittest.skipIf(np is None, "NumPy is not installed")
class Pickles(WithDaemon):
    def test_values(self):
        value = {"a": np.arange(1000.0).reshape(10, 100), "b": [1, "zwei"],
                 "f": np.asfortranarray(np.ones((3, 4), "u1")), "s": np.arange(10)[::2]}
        self.store.dump(value, "value").release()
        back = self.store.load("value")
        self.assertEqual(back["b"], value["b"])
        self.assertEqual((back["a"].tolist(), back["s"].tolist()), (value["a"].tolist(), value["s"].tolist()))
        self.assertTrue(back["f"].flags.f_contiguous)
        self.assertFalse(back["a"].flags.writeable)
        self.assertEqual(back["a"].ctypes.data % 64, 0)
        inside = self.store.get("value")
        start = np.frombuffer(inside.data, "u1").ctypes.data
        # The store's own memory, not a copy.
        self.assertTrue(start <= inside.load()["a"].ctypes.data < start + inside.size)
        self.store.delete("value")

    def test_views_keep_the_object(self):
        back = self.store.load(self.store.dump(np.arange(10)))
        gc.collect()
        self.store.status()
        self.assertEqual(back.sum(), 45)

    def test_what_is_no_pickle(self):
        for data in (pickles.MAGIC, pickles.MAGIC + b"\xff" * 8, pickles.MAGIC + b"\1" + bytes(7),
                     pickles.MAGIC + b"\1" + bytes(7) + b"\x20" + bytes(7) + b"\xff" * 8):
            with self.store.put(data) as o, self.assertRaises(tendril.Invalid):
                self.store.load(o)

    def test_another_tenants(self):
        class Foreign(tendril.Client):
            tenant = "uid:another"
        ran = []
        with self.store.dump([1]) as o, Foreign(self.daemon.socket) as other:
            with self.assertRaises(tendril.Permission):
                ran.append(other.load(o.id))
            self.assertEqual(ran, [])
            self.assertEqual(other.load(o.id, foreign=True), [1])

    def test_objects_travel_by_reference(self):
        with self.store.put(np.arange(5)) as o:
            raw = pickle.dumps(o)
            self.assertLess(len(raw), 500)
            again = pickle.loads(raw)
            self.assertEqual((again.id, again.numpy().tolist()), (o.id, [0, 1, 2, 3, 4]))
            again.release()
        with self.assertRaises(tendril.Invalid):
            pickle.dumps(o)


@unittest.skipIf(np is None, "NumPy is not installed")
class DLPack(WithDaemon):
    def setUp(self):
        super().setUp()
        self.array = np.arange(24, dtype="f4").reshape(2, 3, 4)
        self.object = self.store.put(self.array)

    @staticmethod
    def _tensor(capsule, name):
        from tendril import dlpack
        kind = dlpack._Managed if name == b"dltensor_versioned" else dlpack._OldManaged
        return kind.from_address(dlpack._pointer(id(capsule), name))

    def test_without_a_copy(self):
        capsule = self.object.__dlpack__(max_version=(1, 0))
        managed = self._tensor(capsule, b"dltensor_versioned")
        t = managed.tensor
        self.assertEqual((managed.major, managed.flags), (1, 1))  # read-only
        self.assertEqual((t.ndim, t.shape[:3], t.strides[:3]), (3, [2, 3, 4], [12, 4, 1]))
        self.assertEqual((t.dtype.code, t.dtype.bits, t.device.device_type), (2, 32, 1))
        self.assertEqual(t.data, self.object.numpy().ctypes.data)
        self.assertEqual(self.object.__dlpack_device__(), (1, 0))

    def test_it_keeps_the_object_until_it_is_deleted(self):
        from tendril import dlpack
        key = self.object.id
        capsule = self.object.__dlpack__(max_version=(1, 1))
        self.object.release()
        self.store.stat(key)
        managed = self._tensor(capsule, b"dltensor_versioned")
        # A consumer takes the tensor: it renames the capsule, and calls the deleter when it is done.
        used = b"used_dltensor_versioned"
        set_name = ctypes.pythonapi.PyCapsule_SetName
        set_name.argtypes = [ctypes.py_object, ctypes.c_char_p]
        set_name(capsule, used)
        del capsule
        gc.collect()
        self.store.stat(key)
        self.assertEqual(ctypes.cast(managed.tensor.data, ctypes.POINTER(ctypes.c_float))[23], 23.0)
        managed.deleter(ctypes.byref(managed))
        del managed
        gc.collect()
        with self.assertRaises(tendril.NotFound):
            self.store.stat(key)
        self.assertEqual(dlpack._lent, {})

    def test_a_capsule_that_nobody_takes(self):
        from tendril import dlpack
        capsule = self.object.__dlpack__(max_version=(1, 0))
        self.assertEqual(len(dlpack._lent), 1)
        del capsule
        self.assertEqual(dlpack._lent, {})

    def test_old_consumers_get_no_writable_memory(self):
        tensor = self._tensor(self.object.__dlpack__(), b"dltensor").tensor
        self.assertNotEqual(tensor.data, self.object.numpy().ctypes.data)
        for consumer in (self.object, _Old(self.object)):
            taken = np.from_dlpack(consumer)
            self.assertEqual(taken.tolist(), self.array.tolist())
        copied = np.from_dlpack(_Copies(self.object))
        self.assertEqual(copied.tolist(), self.array.tolist())
        self.assertNotEqual(copied.ctypes.data, self.object.numpy().ctypes.data)

    def test_refusals(self):
        for options in ({"stream": 1}, {"dl_device": (2, 0)}, {"copy": False}):
            with self.assertRaises(BufferError):
                self.object.__dlpack__(**options)
        with self.store.put(np.array(["abc"])) as text, self.assertRaises(BufferError):
            text.__dlpack__(max_version=(1, 0))


class _Old:
    """An object as libraries before DLPack 1.0 ask for it."""

    def __init__(self, o):
        self.o = o

    def __dlpack__(self, **_):
        return self.o.__dlpack__()

    def __dlpack_device__(self):
        return self.o.__dlpack_device__()


class _Copies:
    """What np.from_dlpack asks, for NumPy versions that do not pass copy on."""

    def __init__(self, o):
        self.o = o

    def __dlpack__(self, **options):
        options.pop("copy", None)
        return self.o.__dlpack__(copy=True, **options)

    def __dlpack_device__(self):
        return self.o.__dlpack_device__()


class Reconnecting(unittest.TestCase):
    def test_a_daemon_that_comes_back(self):
        first = Daemon()
        self.addCleanup(first.close)
        store = tendril.connect(first.socket, patience=PATIENCE)
        self.addCleanup(store.close)
        kept = store.put(b"kept", "kept")
        live = store._connection()  # of now: once the client knows of the loss, it waits for the next daemon
        first.process.send_signal(signal.SIGKILL)
        first.process.wait(PATIENCE)
        with self.assertRaises(tendril.Disconnected):
            live.call(tendril.wire.STATUS, b"", lambda f: f.rest())
        self.assertEqual(kept.bytes(), b"kept")
        second = threading.Timer(0.2, first.start)
        second.start()
        with self.assertRaises(tendril.NotFound):  # the client waited, reconnected, and the second daemon answered
            store.get("kept")
        second.join()
        store.put(b"new", "kept").release()
        self.assertEqual((kept.bytes(), store.get("kept").bytes()), (b"kept", b"new"))

    def test_not_when_it_is_turned_off(self):
        daemon = Daemon()
        self.addCleanup(daemon.close)
        store = tendril.connect(daemon.socket, reconnect=False)
        self.addCleanup(store.close)
        daemon.process.kill()
        daemon.process.wait(PATIENCE)
        daemon.start()
        for _ in range(2):
            with self.assertRaises(tendril.Disconnected):
                store.status()
        with tendril.connect(daemon.socket) as other:
            other.status()

    def test_patience_ends(self):
        with self.assertRaises(tendril.Disconnected):
            tendril.connect("/nonexistent/s", patience=0.1)


if __name__ == "__main__":
    unittest.main()

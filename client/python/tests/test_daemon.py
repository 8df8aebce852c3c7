"""The client against the real daemon: needs TENDRIL_BIN or bin/tendril (make build)."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import tendril

from .fake import PATIENCE

try:
    import numpy as np
except ImportError:
    np = None

_ROOT = os.path.join(os.path.dirname(__file__), "..", "..", "..")
BIN = os.environ.get("TENDRIL_BIN") or os.path.join(_ROOT, "bin", "tendril")
# If TENDRIL_BIN is set the binary must exist. Then nothing is skipped silently.
MISSING = not os.path.exists(BIN) and "TENDRIL_BIN" not in os.environ


def until(condition, what):
    """Waits until a condition holds."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError("never came: " + what)
        time.sleep(0.01)


class Daemon:
    def __init__(self, **env):
        self.dir = tempfile.mkdtemp(prefix="tendril-py-")
        self.socket = os.path.join(self.dir, "s")
        self.log = open(os.path.join(self.dir, "log"), "wb")
        clean = {k: v for k, v in os.environ.items() if not k.startswith("TENDRIL_")}
        empty = os.path.join(self.dir, "vendors")
        os.mkdir(empty)
        clean.update(TENDRIL_SOCKET=self.socket, TENDRIL_STATE_DIR=os.path.join(self.dir, "state"))
        # The default of 256 MiB of warm memory would be most of the work of a daemon that lives for a second.
        clean.update(TENDRIL_VENDORS=empty, TENDRIL_LISTEN="none", TENDRIL_WARM_MEMORY="16MiB")
        clean.update(env)
        self.env = clean
        self.start()

    def spawn(self, *args):
        return subprocess.Popen([BIN, *args], env=self.env, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)

    def start(self):
        """Starts the daemon, also after it was killed, and waits until it answers."""
        self.process = self.spawn("daemon")
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                tendril.connect(self.socket).close()
                return
            except tendril.Disconnected:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    self.close()
                    raise
                time.sleep(0.02)

    def hand_over(self):
        """Starts a daemon that takes over from this one."""
        before, self.process = self.process, None
        self.process = self.spawn("daemon", "--takeover")
        if before.wait(PATIENCE) != 0:
            raise AssertionError("the daemon that was taken over ended with %d" % before.returncode)

    def close(self):
        self.process.terminate()
        self.process.wait(PATIENCE)
        self.log.close()
        shutil.rmtree(self.dir, ignore_errors=True)


@unittest.skipIf(MISSING, "no bin/tendril: make build makes it")
class WithDaemon(unittest.TestCase):
    env = {}

    @classmethod
    def setUpClass(cls):
        cls.daemon = Daemon(**cls.env)
        cls.addClassCleanup(cls.daemon.close)

    def setUp(self):
        self.store = tendril.connect(self.daemon.socket)
        self.addCleanup(self.store.close)


POCL = "/etc/OpenCL/vendors/pocl.icd"


@unittest.skipUnless(os.path.exists(POCL), "no %s: PoCL is not installed" % POCL)
class OpenCLDevice(WithDaemon):
    """Objects in the memory of an OpenCL device, which only copies reach."""

    env = {"TENDRIL_VENDORS": os.path.dirname(POCL), "POCL_DEVICES": "basic"}

    def keeper(self):
        return self.store.status()["opencl_keepers"][0]["pid"]

    def test_objects(self):
        data = os.urandom((3 << 20) + 5)
        uuid = self.store.devices()[0]["uuid"]
        with self.store.put(data, "there", device="opencl:0", meta={"n": 1}) as there:
            self.assertEqual((there.device, there.size, there.meta), (uuid, len(data), {"n": 1}))
            with self.assertRaisesRegex(tendril.Unsupported, "no other process maps"):
                there.cuda()
        info = self.store.stat("there")
        self.assertEqual((info.kind, info.device, info.state), ("opencl", uuid, "sealed"))
        for _ in range(2):
            with self.store.get("there") as got, got.to(uuid) as again:
                self.assertEqual(got.bytes(), data)
                self.assertEqual(again.bytes(), data)
            os.kill(self.keeper(), signal.SIGKILL)  # nothing is lost with it
        self.daemon.hand_over()
        with self.store.get("there") as got:
            self.assertEqual(got.bytes(), data)
        self.store.delete("there")
        with self.assertRaises(tendril.NoDevice):
            self.store.find_gpu("opencl:99")
        with self.assertRaisesRegex(tendril.Invalid, "'opencl:N'"):
            self.store.find_gpu("opencl:x")

    def test_a_draft(self):
        data = os.urandom(4000)
        with self.store.put(data) as host:
            draft = self.store.create(4000, "half", device="opencl:0")
            for unsupported in (lambda: draft.data, draft.cuda):
                with self.assertRaises(tendril.Unsupported):
                    unsupported()
            draft.fill_from(host, at=2000, offset=2000)
            os.kill(self.keeper(), signal.SIGKILL)
            draft.fill_from(host, size=400)
            with self.assertRaises(tendril.Invalid):
                draft.fill_from(host, at=1)
            with self.assertRaises(tendril.Invalid):
                draft.fill_from(host, at=-1)
            with draft.seal() as there:
                self.assertEqual(there.bytes(), data[:400] + bytes(1600) + data[2000:])
        self.store.delete("half")


class Store(WithDaemon):
    def test_put_get(self):
        for n in (0, 1, 63, 64, 65, 4096, 1 << 20, 40 << 20):
            data = os.urandom(min(n, 1 << 16)) * (n // (1 << 16) or 1)
            with self.store.put(data, name="p%d" % n) as o:
                self.assertEqual(o.bytes(), data)
            with self.store.get("p%d" % n) as o:
                self.assertTrue(o.data.readonly)
                self.assertEqual(o.bytes(), data)
            self.store.delete("p%d" % n)
            with self.assertRaises(tendril.NotFound):
                self.store.get("p%d" % n)

    @unittest.skipIf(np is None, "NumPy is not installed")
    def test_arrays_between_processes(self):
        a = self.store.empty((100, 200), "f4", name="array")
        a[:] = np.arange(20000).reshape(100, 200)
        a.seal()
        code = ("import sys, tendril; a = tendril.connect(sys.argv[1]).get('array').numpy();"
                "print(a.dtype, a.shape, float(a.sum()), a.flags.writeable)")
        out = subprocess.run([sys.executable, "-c", code, self.daemon.socket], capture_output=True, text=True,
                             check=True, cwd=os.path.join(os.path.dirname(__file__), "..")).stdout
        self.assertEqual(out.split("\n")[0], "float32 (100, 200) %s False" % float(a.sum(dtype="f8")))

    def test_names(self):
        first = self.store.put(b"1", name="n")
        with self.assertRaises(tendril.Exists):
            self.store.put(b"2", name="n")
        second = self.store.put(b"2")
        with self.assertRaises(tendril.Exists):
            self.store.bind(second, "n")
        self.store.bind(second, "n", replace=True)
        self.assertEqual(self.store.get("n").bytes(), b"2")
        self.assertEqual(first.bytes(), b"1")
        info = self.store.stat("n")
        self.assertEqual((info.id, info.size_bytes, info.state), (str(second.id), 1, "sealed"))
        self.assertIn("n", [o.name for o in self.store.list()])
        self.store.delete("n")

    def test_names_that_are_too_long(self):
        for n in (256, 300, 70000):
            for ask in self.store.get, self.store.stat, self.store.delete, self.store.checksum:
                with self.assertRaisesRegex(tendril.Invalid, "names have at most 255"):
                    ask("n" * n)

    def test_unsealed_is_not_visible(self):
        draft = self.store.create(10, "draft")
        with tendril.connect(self.daemon.socket) as other:
            with self.assertRaises((tendril.NotFound, tendril.NotSealed)):
                other.get("draft")
            got = []
            t = threading.Thread(target=lambda: got.append(other.get("draft", timeout=PATIENCE).bytes()))
            t.start()
            draft.data[:] = b"0123456789"
            draft.seal()
            t.join()
            self.assertEqual(got, [b"0123456789"])
        self.store.delete("draft")

    def test_timeout(self):
        with self.assertRaises(tendril.Timeout):
            self.store.get("never there", timeout=0.05)

    def test_a_sealed_object_cannot_be_mapped_for_writing(self):
        self.store.put(b"x" * 100, name="sealed").release()
        with tendril.connect(self.daemon.socket) as other:
            o = other.get("sealed")
            fds = [int(fd) for fd in os.listdir("/proc/self/fd") if "memfd:tendril" in _link(fd)]
            import mmap
            for fd in fds:
                try:
                    mmap.mmap(fd, 4096, flags=mmap.MAP_SHARED, prot=mmap.PROT_WRITE).close()
                except (OSError, PermissionError):
                    continue
                self.fail("descriptor %d of a sealed segment was mapped writable" % fd)
            self.assertTrue(fds)
            self.assertEqual(o.bytes(), b"x" * 100)
        self.store.delete("sealed")

    def test_checksum(self):
        with self.store.put(b"hello", "summed", checksum=True):
            self.assertTrue(self.store.stat("summed").checksum)
        with self.store.put(b"hello", "not"):
            self.assertFalse(self.store.stat("not").checksum)
        for name in ("summed", "not"):
            self.store.delete(name)

    def test_strict(self):
        draft = self.store.create(5000, "strict", strict=True)
        draft.data[:] = b"s" * 5000
        o = draft.seal(strict=True)
        self.assertEqual(o.bytes(), b"s" * 5000)
        self.assertTrue(self.store.stat("strict").strict)
        self.store.delete("strict")

    def test_abort(self):
        key = self.store.create(10, "gone").id
        self.store.status()
        with self.assertRaises(tendril.NotFound):
            self.store.stat(key)

    def test_ephemeral_objects_go_with_their_last_reference(self):
        o = self.store.put(b"abc")
        key, view = o.id, o.data
        o.release()
        self.store.stat(key)
        del view
        with self.assertRaises(tendril.NotFound):
            self.store.stat(key)

    def test_children_of_a_fork(self):
        kept = self.store.put(b"parent's", name="forked")
        for _ in range(5):
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    with self.store.get("forked") as o:
                        code = 0 if o.bytes() == b"parent's" else 2
                    self.store.put(b"c" * 100000).release()
                finally:
                    os._exit(code)
            self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.assertEqual(kept.bytes(), b"parent's")
        self.assertEqual(self.store.stat("forked").refs, 1)
        self.store.delete("forked")

    def test_a_killed_client_leaves_nothing(self):
        code = ("import os, sys, tendril, time; s = tendril.connect(sys.argv[1]); d = s.create(1 << 20);"
                "o = s.put(b'x'); child = os.fork()\nif child: print(d.id, o.id, flush=True)\ntime.sleep(3600)")
        p = subprocess.Popen([sys.executable, "-c", code, self.daemon.socket], stdout=subprocess.PIPE, text=True,
                             start_new_session=True, cwd=os.path.join(os.path.dirname(__file__), ".."))
        keys = p.stdout.readline().split()
        p.kill()  # the forked child still holds the socket
        p.wait()
        try:
            deadline = time.monotonic() + PATIENCE
            while {o.id for o in self.store.list(all=True)} & set(keys) and time.monotonic() < deadline:
                time.sleep(0.02)
            self.assertFalse({o.id for o in self.store.list(all=True)} & set(keys))
        finally:
            os.killpg(p.pid, signal.SIGKILL)
            p.stdout.close()

    def test_many_objects_keep_few_descriptors(self):
        for i in range(40):
            self.store.put(bytes(17 << 20), name="big").release()
            self.store.delete("big")
        self.assertLess(len([fd for fd in os.listdir("/proc/self/fd") if "memfd:tendril" in _link(fd)]), 20)

    def test_devices_and_status(self):
        self.assertIsInstance(self.store.status(), dict)
        self.store.devices()

    def test_command_line(self):
        def run(*args, socket=self.daemon.socket, **kw):
            return subprocess.run([sys.executable, "-m", "tendril", "--socket", socket, *args], capture_output=True,
                                  cwd=os.path.join(os.path.dirname(__file__), ".."), **kw)
        self.assertEqual(run("put", "-", "--name", "cli", input=b"hello").returncode, 0)
        self.assertEqual(run("get", "cli").stdout, b"hello")
        self.assertIn(b"cli", run("ls").stdout)
        self.assertEqual(run("get", "nobody").returncode, 4)
        self.assertEqual(run("ls", socket="/nonexistent").returncode, 3)


class Restarts(unittest.TestCase):
    def setUp(self):
        if MISSING:
            self.skipTest("no bin/tendril: make build makes it")
        self.daemon = Daemon()
        self.addCleanup(self.daemon.close)
        self.store = tendril.connect(self.daemon.socket, patience=PATIENCE)
        self.addCleanup(self.store.close)

    def test_a_handover_loses_nothing(self):
        held, early = self.store.put(b"held" * 5000), self.store.put(b"early")
        view, name = held.data, self.store.put(b"named", name="n")
        draft = self.store.create(100)
        for _ in range(2):
            self.daemon.hand_over()
            early_id = early.id
            early.release()
            self.assertEqual(self.store.stat(held).refs, 1)
            self.assertEqual((held.gone, name.gone, bytes(view[:4])), (False, False, b"held"))
            self.assertEqual(self.store.get(held).bytes(), b"held" * 5000)
            with self.assertRaises(tendril.Disconnected):
                draft.seal()
        with self.assertRaises(tendril.NotFound):
            self.store.get(early_id)  # released while no daemon knew of it
        other = tendril.connect(self.daemon.socket)
        self.addCleanup(other.close)
        self.assertEqual(other.get(held.id).bytes(), b"held" * 5000)

    def test_a_crash_leaves_what_is_on_disk(self):
        held, kept = self.store.put(b"held"), self.store.put(b"kept", name="k", lifetime="persisted")
        self.daemon.process.kill()
        self.daemon.process.wait(PATIENCE)
        self.daemon.start()
        self.assertEqual(self.store.stat(kept).refs, 1)
        self.assertEqual((held.gone, held.bytes(), kept.gone, kept.bytes()), (True, b"held", False, b"kept"))
        held.release()
        kept.release()
        self.assertEqual(self.store.stat("k").refs, 0)
        with self.assertRaises(tendril.NotFound):
            self.store.get(held.id)


    def test_a_handover_under_load(self):
        self.store.put(b"kept" * 1000, name="kept").release()
        stop, failed, rounds = threading.Event(), [], [0]

        def work():
            try:
                while not stop.is_set():
                    with self.store.get("kept", timeout=PATIENCE) as o:
                        self.assertEqual(o.bytes()[:4], b"kept")
                    self.store.stat("kept")
                    self.assertEqual([g.size for g in self.store.get_many(["kept", "kept"])], [4000, 4000])
                    rounds[0] += 1
            except BaseException as e:  # noqa: B902
                failed.append(repr(e))

        threads = [threading.Thread(target=work) for _ in range(3)]
        for t in threads:
            t.start()
        try:
            for _ in range(2):
                before = rounds[0]
                self.daemon.hand_over()
                while rounds[0] < before + 20 and not failed:
                    time.sleep(0.005)
        finally:
            stop.set()
            for t in threads:
                t.join()
        self.assertEqual(failed, [])

    def test_what_had_not_left_is_sent_to_the_next_daemon(self):
        self.store.put(b"x", name="n").release()
        self.daemon.hand_over()
        self.store.rename("n", "m")  # not repeatable, but the request had not left
        self.assertEqual(self.store.get("m").bytes(), b"x")


class SmallStore(WithDaemon):
    env = {"TENDRIL_CAPACITY": "32MiB"}

    def test_full_and_room_again(self):
        with self.assertRaises(tendril.Full):
            self.store.create(1 << 30)
        for _ in range(10):  # each time the memory of the object before must have been freed
            self.store.put(bytes(18 << 20)).release()

    def test_an_idle_reader_gives_memory_back(self):
        with tendril.connect(self.daemon.socket) as reader:
            self.store.put(bytes(18 << 20), name="idle").release()
            reader.get("idle").release()
            self.store.delete("idle")
            deadline = time.monotonic() + PATIENCE
            while reader._live.has_idle() and time.monotonic() < deadline:  # the reader asks for nothing
                time.sleep(0.01)
            self.assertFalse(reader._live.has_idle())
            self.store.put(bytes(25 << 20)).release()  # there is room for it

    def test_a_reader_gives_memory_back(self):
        with tendril.connect(self.daemon.socket) as reader:
            for _ in range(5):
                self.store.put(bytes(18 << 20), name="x").release()
                reader.get("x").release()
                self.store.delete("x")


def _link(fd):
    try:
        return os.readlink("/proc/self/fd/" + fd)
    except OSError:
        return ""


if __name__ == "__main__":
    unittest.main()

"""Objects in the memory of GPUs, against the real daemon and a CUDA driver for tests, whose memory is the host's."""

import ctypes
import gc
import glob
import os
import pickle
import struct
import subprocess
import sys
import tempfile
import threading
import unittest
import weakref

import tendril
from tendril import connection, cuda, dlpack, layouts

from .fake import PATIENCE, FakeDaemon, descriptors, frame
from .test_daemon import MISSING, WithDaemon

try:
    import numpy as np
except ImportError:
    np = None

_HERE = os.path.dirname(os.path.abspath(__file__))
_SOURCE = os.environ.get("CUDA_FAKE_SOURCE") or os.path.join(
    _HERE, "..", "..", "..", "forwarding", "cuda", "fakecuda", "testdata", "fakecuda.c")
GRANULE = 2 << 20

_work = tempfile.TemporaryDirectory(prefix="tendril-cuda-")
DRIVER = os.path.join(_work.name, "libfakecuda.so")
LOG = os.path.join(_work.name, "log")


def setUpModule():
    if not os.path.exists(_SOURCE) and "TENDRIL_BIN" not in os.environ:
        raise unittest.SkipTest("the source of the CUDA driver for tests is not here")
    subprocess.run(["cc", "-std=gnu11", "-O1", "-shared", "-fPIC", "-o", DRIVER, _SOURCE, "-lpthread"], check=True)
    os.environ["TENDRIL_CUDA_DRIVER"], os.environ["CUDA_FAKE_LOG"] = DRIVER, LOG
    cuda._driver = None


def tearDownModule():
    for name in ("TENDRIL_CUDA_DRIVER", "CUDA_FAKE_LOG"):
        os.environ.pop(name, None)
    cuda._driver = None


def counts():
    """How often this process called the driver, and how much it has not given back."""
    with open("%s.%d" % (LOG, os.getpid())) as f:
        words = f.read().split()
    return int(words[1]), int(words[3])


def left():
    """What this process has not given back to the driver but for contexts, which stay."""
    gc.collect()
    return counts()[1] - len(cuda.driver()._contexts)


def read(array, n=None):
    return ctypes.string_at(array.address, array.nbytes if n is None else n)


def write(array, data):
    ctypes.memmove(array.address, bytes(data), len(data))


def later(stream, address, value):
    """Queues work in a stream: a byte becomes value."""
    library = ctypes.CDLL(DRIVER)
    library.fakecuda_later.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_ubyte]
    assert library.fakecuda_later(stream, address, value) == 0


class Array:
    """What another library's array says of itself."""

    def __init__(self, address, shape, typestr="|u1", **more):
        self.__cuda_array_interface__ = dict({
            "shape": shape, "typestr": typestr, "data": (address, False), "strides": None, "stream": None, "version": 3,
        }, **more)


class Capsule:
    """An array that has DLPack alone."""

    def __init__(self, array):
        self.array, self.streams = array, []

    def __dlpack__(self, stream=None):
        self.streams.append(stream)
        return self.array.__dlpack__()

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def python(code, *args, **env):
    """Runs a program of another process, with tendril; what it prints."""
    where = os.path.dirname(os.path.dirname(tendril.__file__))
    done = subprocess.run([sys.executable, "-c", code, *args], env=dict(os.environ, PYTHONPATH=where, **env),
                          capture_output=True, text=True)
    if done.returncode:
        raise AssertionError("%s\n%s" % (done.stdout, done.stderr))
    return done.stdout


@unittest.skipIf(MISSING, "no bin/tendril: make build makes it")
class WithGPUs(WithDaemon):
    @classmethod
    def setUpClass(cls):
        cls.env = {"TENDRIL_CUDA_DRIVER": DRIVER}
        super().setUpClass()

    def setUp(self):
        super().setUp()
        self.other = tendril.connect(self.daemon.socket)
        self.addCleanup(self.other.close)

    def gpu_object(self, data, name="", device="cuda:0", **more):
        with self.store.create(len(data), device=device, **more) as draft:
            write(draft.cuda(), data)
            sealed = draft.seal()
        if name:
            self.store.bind(sealed, name)
        return sealed


class OtherPrograms(WithGPUs):
    """Memory of programs that know nothing of the store: cudaIpcMemHandle_t."""

    PROGRAM = """
import ctypes, os, sys
driver = ctypes.CDLL(sys.argv[1])
at, context, size = ctypes.c_uint64(), ctypes.c_void_p(), int(sys.argv[2])
driver.cuIpcGetMemHandle.argtypes = [ctypes.c_char_p, ctypes.c_uint64]
for code in (driver.cuInit(0), driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 1),
             driver.cuCtxSetCurrent(context), driver.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(size))):
    assert code == 0, code
ctypes.memmove(at.value, bytes(range(256)) * (size // 256), size)
handle = ctypes.create_string_buffer(64)
assert driver.cuIpcGetMemHandle(handle, at.value) == 0
print(handle.raw.hex(), flush=True)
sys.stdin.readline()
"""

    def exporter(self, size):
        other = subprocess.Popen([sys.executable, "-c", self.PROGRAM, DRIVER, str(size)], stdin=subprocess.PIPE,
                                 stdout=subprocess.PIPE, text=True)
        self.addCleanup(other.stdout.close)
        self.addCleanup(other.wait)
        self.addCleanup(other.stdin.close)
        return bytes.fromhex(other.stdout.readline())

    def test_a_handle_is_put(self):
        handle = self.exporter(1 << 16)
        before = left()
        with cuda.IPCArray(handle, (100, 2), "<u2", ordinal=1, offset=256) as theirs:
            with self.store.put(theirs, "theirs") as o:
                self.assertEqual((o.device[-2:], o.meta["shape"], o.size), ("01", [100, 2], 400))
        with self.assertRaises(tendril.Invalid):
            self.store.put(theirs)
        self.assertEqual(self.other.get("theirs").bytes(), (bytes(range(256)) * 2)[:400])
        array = cuda.IPCArray(handle, 1000, ordinal=1)
        del array
        theirs.close()
        self.assertEqual(left(), before)
        self.store.delete("theirs")

    def test_an_object_goes_out_by_a_handle(self):
        text = bytes(range(200))
        with self.store.put(text) as host, host.to("cuda:1") as there:
            handle = self.store.ipc_handle(there)
            self.assertEqual((len(handle.handle), handle.device[-2:], handle.size), (64, "01", 200))
            cuda.IPCArray(handle.handle, 200, ordinal=1).close()
            before = left()
            with cuda.IPCArray(handle.handle, 200, ordinal=1) as theirs, self.store.put(theirs) as o:
                self.assertEqual(o.bytes(), text)
            theirs.close()
            self.assertEqual(left(), before)
            handle.release()
            handle.release()
            self.store.gpus()  # the keeper gives it back before it answers
            with self.assertRaises(tendril.NoDevice):
                cuda.IPCArray(handle.handle, 200, ordinal=1)
            with self.store.ipc_handle(there) as again:
                self.assertNotEqual(again.handle, bytes(64))
            with self.assertRaises(tendril.Unsupported):
                self.store.ipc_handle(host)
        with self.assertRaises(tendril.NotFound):
            self.store.ipc_handle("none")

    def test_what_is_no_handle(self):
        with self.assertRaises(tendril.Invalid):
            cuda.IPCArray(b"short", 10)
        with self.assertRaises(tendril.Invalid):
            cuda.IPCArray(bytes(64), 10, offset=-1)
        with self.assertRaises(tendril.NoDevice) as e:
            cuda.IPCArray(bytes(64), 10)
        self.assertIn("cuIpcOpenMemHandle", str(e.exception))
        handle = self.exporter(4096)
        with cuda.IPCArray(handle, 5000, ordinal=1) as theirs:  # more than there is: the driver says so
            with self.assertRaises(tendril.NoDevice):
                self.store.put(theirs)
        again = self.store.create(100, device="cuda:1")  # nothing is left of that
        again.abort()


class Devices(WithGPUs):
    def test_which_there_are(self):
        found = self.store.gpus()
        self.assertEqual([(g["index"], g["name"], g["shares"]) for g in found],
                         [(0, "Fake GPU 0", True), (1, "Fake GPU 1", True)])
        second = b"\xfa" * 15 + b"\x01"
        for text in ("cuda:1", second.hex(), "cuda:" + second.hex(), "GPU-fafafafa-fafa-fafa-fafa-fafafafafa01"):
            self.assertEqual(self.store.find_gpu(text), second, text)
        self.assertEqual(self.store.find_gpu("cuda"), b"\xfa" * 15 + b"\0")
        with self.assertRaisesRegex(tendril.NoDevice, "has 2 GPUs"):
            self.store.create(1, device="cuda:2")
        for text in ("cuda:x", "cuda:-1", "gpu", "", second.hex() + "0", second.hex()[1:]):
            with self.assertRaises(tendril.Invalid, msg=text):
                self.store.create(1, device=text)

    def test_a_node_without(self):
        class Without(WithDaemon):
            pass
        Without.setUpClass()
        try:
            with tendril.connect(Without.daemon.socket) as store:
                for ask in (store.gpus, lambda: store.create(1, device="cuda:0"),
                            lambda: store.create(1, device="fa" * 16)):
                    with self.assertRaises(tendril.Unsupported):
                        ask()
        finally:
            Without.doClassCleanups()


class Objects(WithGPUs):
    def test_fill_seal_and_get(self):
        before = left()
        draft = self.store.create(24, "grid", device="cuda:1", meta={"dtype": "<f4", "shape": [2, 3]})
        self.assertIsInstance(draft, tendril.CudaDraft)
        there = draft.cuda()
        self.assertEqual((there.shape, there.dtype, there.nbytes, read(there)), ((2, 3), "<f4", 24, bytes(24)))
        write(there, struct.pack("<6f", *range(6)))
        with self.assertRaises(tendril.Unsupported):
            draft.data
        sealed = draft.seal()
        for ended in (draft.seal, draft.cuda):
            with self.assertRaises(tendril.Sealed):
                ended()
        got = self.other.get("grid")
        self.assertIsInstance(got, tendril.CudaObject)
        self.assertEqual((got.size, got.device, got.id), (24, self.store.gpus()[1]["uuid"], sealed.id))
        self.assertEqual(self.store.stat("grid").device, got.device)
        self.assertEqual(struct.unpack("<6f", read(got.cuda())), tuple(range(6)))
        write(there, struct.pack("<f", 9))
        self.assertEqual(read(got.cuda(), 4), struct.pack("<f", 9))  # the same memory
        code = ("import sys, ctypes, tendril; o = tendril.connect(sys.argv[1]).get('grid').cuda();"
                "print(o.shape, ctypes.string_at(o.address, 4).hex(), o.__dlpack_device__())")
        self.assertEqual(python(code, self.daemon.socket), "(2, 3) 00001041 (2, 1)\n")
        del draft, there
        self.assertFalse(sealed.release() and got.release() and False)
        self.assertEqual(left(), before)
        with self.assertRaises(tendril.Invalid):
            got.cuda()
        self.store.delete("grid")

    def test_bytes_for_programs_without_cuda(self):
        with self.gpu_object(struct.pack("<4i", 1, 2, 3, 4), "ints", meta={"dtype": "<i4", "shape": [2, 2]}) as o:
            self.assertEqual(o.bytes(), struct.pack("<4i", 1, 2, 3, 4))
            self.assertTrue(o.data.readonly)
            copies = len(self.store.list(all=True))
            o.bytes(), o.data
            self.assertEqual(len(self.store.list(all=True)), copies)  # one copy serves all
            code = "import sys, tendril; print(tendril.connect(sys.argv[1]).get('ints').bytes().hex())"
            self.assertEqual(python(code, self.daemon.socket, TENDRIL_CUDA_DRIVER="/nonexistent"),
                             o.bytes().hex() + "\n")
            code = code.replace(".bytes().hex()", ".cuda()")
            with self.assertRaisesRegex(AssertionError, "Unsupported.*nonexistent"):
                python(code, self.daemon.socket, TENDRIL_CUDA_DRIVER="/nonexistent")
            with self.assertRaisesRegex(AssertionError, "Unsupported: GPU .* is not among the 0"):
                python(code, self.daemon.socket, CUDA_FAKE_DEVICES="0")
        with self.assertRaises(tendril.Invalid):
            o.data
        self.store.delete("ints")

    @unittest.skipIf(np is None, "NumPy is not installed")
    def test_arrays(self):
        a = np.arange(12, dtype="f8").reshape(3, 4)
        with self.store.put(a, "a", device="cuda:1") as there:
            self.assertEqual(there.cuda().shape, (3, 4))
            self.assertEqual(read(there.cuda()), a.tobytes())
            back = there.numpy()
        self.assertEqual(back.tolist(), a.tolist())
        self.assertFalse(back.flags.writeable)
        self.store.delete("a")
        f = np.asfortranarray(a)
        with self.store.put(f, device="cuda:0") as there:
            self.assertEqual(there.cuda().__cuda_array_interface__["strides"], (8, 24))
            self.assertEqual(there.numpy().tolist(), f.tolist())

    def test_empty(self):
        for dtype in ("f4", "<f4", *([np.float32, np.dtype("f4"), "float32"] if np else [])):
            with self.store.empty_cuda((3, 4), dtype, device="cuda:1", order="F") as draft:
                self.assertEqual((draft.cuda().shape, draft.cuda().strides, draft.size), ((3, 4), (1, 3), 48))
                self.assertEqual(draft.meta, {"dtype": "<f4", "shape": [3, 4], "strides": [1, 3]})
        self.assertEqual(self.store.empty_cuda(5, "u1").meta["shape"], [5])
        for shape, dtype, order in (((0,), "f4", "C"), ((-1,), "f4", "C"), ((1,), "U4", "C"), ((1,), object, "C"),
                                    ((1,), "f4", "K"), (33 * [1], "f4", "C")):
            with self.assertRaises(tendril.Invalid):
                self.store.empty_cuda(shape, dtype, order=order)

    def test_from_place_to_place(self):
        with self.store.put(b"some bytes", meta={"n": 1}) as host:
            self.assertEqual(host.device, "host")
            with self.assertRaises(tendril.Unsupported):
                host.cuda()
            with self.assertRaises(tendril.Invalid):
                host.to("host")
            with host.to("cuda:1") as first, first.to("cuda:0") as second, second.to("host") as back:
                self.assertEqual(read(second.cuda()), b"some bytes")
                self.assertEqual((back.bytes(), back.meta), (b"some bytes", {"n": 1}))
                self.assertEqual((back.device, first.device[-2:], second.device[-2:]), ("host", "01", "00"))
                with self.store.copy(second, "host", "named") as named:
                    self.assertEqual(named.bytes(), b"some bytes")
                with self.assertRaises(tendril.Exists):
                    self.store.copy(second, "cuda:1", "named")
        self.store.delete("named")

    def test_refusals(self):
        for size in (0, -1, 1 << 63):
            with self.assertRaises(tendril.Invalid):
                self.store.create(size, device="cuda:0")
        for more in ({"strict": True}, {"shared": True}, {"checksum": True}, {"name": "p", "lifetime": "persisted"}):
            with self.assertRaises(tendril.Unsupported):
                self.store.create(1, device="cuda:0", **more)
        with self.assertRaises(tendril.Full):
            self.store.create(1 << 40, device="cuda:0")
        draft = self.store.create(10, device="cuda:0")
        with self.assertRaises(tendril.Unsupported):
            draft.seal(strict=True)
        with self.assertRaises(tendril.Unsupported):
            draft.seal_filled()
        draft.abort()
        with self.assertRaises(tendril.Sealed):
            draft.cuda()
        with self.assertRaises(tendril.Unsupported):
            self.store.create(10).cuda()
        with self.store.create(1, device="cuda:0", meta={"dtype": "<f8", "shape": [1]}) as draft:
            with self.assertRaises(tendril.Invalid):
                draft.cuda()

    def test_a_taken_name_leaves_the_draft(self):
        self.store.put(b"", "taken").release()
        draft = self.store.create(3, "taken", device="cuda:0")
        write(draft.cuda(), b"abc")
        with self.assertRaises(tendril.Exists):
            draft.seal()
        self.store.delete("taken")
        with draft.seal() as o:
            self.assertEqual(read(o.cuda()), b"abc")
        self.store.delete("taken")

    def test_a_name_that_moves_between_memories(self):
        for _ in range(2):
            gpu, host = self.gpu_object(b"gpu", "moves"), self.store.put(b"host")
            for _ in range(2):
                with self.store.get("moves") as o:
                    self.assertEqual((o.bytes(), o.device != "host"), (b"gpu", True))
            self.store.bind(host, "moves", replace=True)
            with self.store.get("moves") as o:
                self.assertEqual((o.bytes(), o.device), (b"host", "host"))
            self.store.bind(gpu, "moves", replace=True)
            self.store.get("moves").release()
            self.store.delete("moves")
            gpu.release()
            with self.assertRaises(tendril.NotFound):
                self.store.get("moves")

    def test_an_exception_aborts(self):
        before = left()
        with self.assertRaises(KeyError):
            with self.store.create(3, "never", device="cuda:0") as draft:
                draft.cuda()
                raise KeyError
        del draft
        self.assertEqual(left(), before)
        self.assertEqual(self.other.list("never", all=True), [])

    def test_waiting_many_trees_and_pickles(self):
        def soon():
            draft = self.other.create(4, "late", device="cuda:0")
            write(draft.cuda(), b"late")
            draft.seal().release()
        timer = threading.Timer(0.1, soon)
        timer.start()
        with self.store.get("late", timeout=PATIENCE) as o:
            self.assertEqual(o.bytes(), b"late")
            again = pickle.loads(pickle.dumps(o))
            self.assertEqual(read(again.cuda()), b"late")
            again.release()
        timer.join()
        with self.store.put(b"host") as host:
            many = self.store.get_many([host, "late", "late"])
            self.assertEqual([o.bytes() for o in many], [b"host", b"late", b"late"])
            self.store.compose({"cpu": host, "gpu": many[1]}, "pair").release()
            with self.store.tree("pair") as tree:
                self.assertEqual(read(tree["gpu"].object.cuda()), b"late")
            self.store.delete("pair")
        self.store.delete("late")


class Interfaces(WithGPUs):
    def test_cuda_array_interface(self):
        with self.gpu_object(bytes(range(24)), meta={"dtype": "<i2", "shape": [3, 4], "strides": [1, 3]}) as o:
            told = o.cuda().__cuda_array_interface__
            self.assertEqual((told["shape"], told["typestr"], told["strides"], told["stream"], told["version"]),
                             ((3, 4), "<i2", (2, 6), None, 3))
            self.assertEqual(told["data"], (o.cuda().address, False))
            self.assertEqual(o.__cuda_array_interface__, told)
        with self.gpu_object(b"abc") as o:
            told = o.__cuda_array_interface__
            self.assertEqual((told["shape"], told["typestr"], told["strides"]), ((3,), "|u1", None))

    def test_dlpack(self):
        with self.gpu_object(bytes(48), device="cuda:1", meta={"dtype": "<f4", "shape": [2, 3]}) as o:
            for version, name, kind in (((1, 0), b"dltensor_versioned", dlpack._Managed),
                                        (None, b"dltensor", dlpack._OldManaged)):
                capsule = o.__dlpack__(max_version=version, stream=1)
                managed = kind.from_address(dlpack._pointer(id(capsule), name))
                t = managed.tensor
                self.assertEqual(getattr(managed, "flags", 1), 1)  # read-only
                self.assertEqual((t.device.device_type, t.device.device_id, t.data), (2, 1, o.cuda().address))
                self.assertEqual((t.ndim, t.shape[:2], t.strides[:2]), (2, [2, 3], [3, 1]))
                self.assertEqual((t.dtype.code, t.dtype.bits, t.dtype.lanes), (2, 32, 1))
                del capsule, managed
            self.assertEqual(dlpack._lent, {})
            with self.store.create(8, device="cuda:1") as draft:
                capsule = draft.__dlpack__(max_version=(1, 1))
                at = dlpack._pointer(id(capsule), b"dltensor_versioned")
                self.assertEqual(dlpack._Managed.from_address(at).flags, 0)
                del capsule
            self.assertEqual(o.__dlpack_device__(), (2, 1))
            for options in ({"dl_device": (2, 0)}, {"copy": True}):
                with self.assertRaises(BufferError):
                    o.__dlpack__(**options)

    def test_a_tensor_keeps_the_object_and_its_mapping(self):
        before, files = left(), descriptors()
        o = self.gpu_object(b"tensor")
        key = o.id
        capsule = o.__dlpack__()
        mapped = left()
        self.assertGreater(mapped, before)
        self.assertFalse(o.release())
        managed = dlpack._OldManaged.from_address(dlpack._pointer(id(capsule), b"dltensor"))
        set_name = ctypes.pythonapi.PyCapsule_SetName
        set_name.argtypes = [ctypes.py_object, ctypes.c_char_p]
        used = b"used_dltensor"
        set_name(capsule, used)  # as a consumer does, which then calls the deleter
        del capsule
        self.assertEqual(left(), mapped)
        self.assertEqual(ctypes.string_at(managed.tensor.data, 6), b"tensor")
        self.store.stat(key)
        managed.deleter(ctypes.byref(managed))
        del managed
        self.assertEqual(left(), before)
        with self.assertRaises(tendril.NotFound):
            self.store.stat(key)
        self.assertEqual(descriptors() - files, set())

    def test_a_finalizer_meets_the_memory(self):
        """In a garbage collection of a cycle that has an array."""
        class Reads:
            def __init__(self, *things):
                self.things, self.itself = things, self

            def __del__(self):
                told.append((read(self.things[0]), counts()[1] - len(cuda.driver()._contexts)))

        told = []
        self.gpu_object(b"first").release()
        before = left()
        with self.gpu_object(b"text") as o:
            reads = Reads(o.cuda(), o)
        mapped = left()
        self.assertGreater(mapped, before)
        del o, reads
        self.assertEqual(left(), before)
        self.assertEqual(told, [(b"text", mapped)])

    def test_the_mapping_ends_before_the_reference(self):
        """Memory to which nobody refers any more may be given to others."""
        class Reference:
            def __init__(self, lease):
                self.lease = lease

            def __del__(self):
                told.append(left())

        told = []
        self.gpu_object(b"text", "read").release()
        before = left()
        o = self.store.get("read")
        o._memory._lease = Reference(o._memory._lease)
        o.cuda()
        del o
        self.assertEqual(told, [before])

    def test_the_mapping_ends_after_the_work(self):
        o = self.gpu_object(b"x")
        later(7, o.cuda().address, 1)  # a kernel that runs when its tensor is dropped
        o.release()
        with self.store.create(1, device="cuda:0") as draft:  # it met no memory that was gone
            draft.cuda()

    def test_nothing_is_left_of_many(self):
        with self.gpu_object(b"many", "many"):
            self.store.get("many").cuda()
            before, files = left(), descriptors()
            for _ in range(300):
                o = self.store.get("many")
                o.cuda().__dlpack__()
                o.release()
            self.assertEqual((left(), descriptors() - files), (before, set()))
            for _ in range(100):
                self.store.get("many").release()  # not mapped
            self.assertEqual((left(), descriptors() - files), (before, set()))
        self.store.delete("many")

    def test_every_call_of_the_driver_fails_in_turn(self):
        self.gpu_object(b"firm", "firm").release()
        before, files = left(), descriptors()
        failed, lost = 0, []
        try:
            for i in range(1, 100):
                os.environ["CUDA_FAKE_FAIL"] = "%d:2" % (counts()[0] + i)
                try:
                    with self.store.get("firm") as o:
                        read(o.cuda())
                        if counts()[0] < int(os.environ["CUDA_FAKE_FAIL"].split(":")[0]):
                            break  # the call that is to fail comes after it
                except tendril.Full:
                    failed += 1
                del o
                os.environ.pop("CUDA_FAKE_FAIL")
                lost.append(left() - before)
                before += lost[-1]
                if lost[-1]:
                    files = descriptors()  # the handle that was not given back has one
                self.assertEqual(descriptors() - files, set(), "call %d" % i)
        finally:
            os.environ.pop("CUDA_FAKE_FAIL", None)
        self.assertGreater(failed, 7)
        self.assertEqual(sorted(lost)[:-1], [0] * (len(lost) - 1), lost)  # all but what one call was to give back
        self.store.delete("firm")

    def test_memory_goes_without_a_garbage_collection(self):
        def pending():
            return {id(x): x for x in gc.get_objects() if isinstance(x, connection.Pending)}

        self.gpu_object(b"dropped", "dropped")
        gc.collect()
        before = pending()  # other tests' connections have some
        gc.disable()
        self.addCleanup(gc.enable)
        for key in ("none", "dropped"):
            try:
                o = self.store.get(key)  # the daemon refuses GET first
                gone = weakref.ref(o)
                del o
                self.assertIsNone(gone())
            except tendril.NotFound:
                self.assertEqual(key, "none")
        with self.assertRaises(tendril.NotFound):
            self.store.get_many(["none"])
        self.assertEqual([x for key, x in pending().items() if key not in before], [])

    def test_a_forked_child(self):
        o = self.gpu_object(b"parents")
        array = o.cuda()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                try:
                    o.cuda()
                except tendril.Unsupported as e:
                    code = 0 if "fork" in str(e) else 2
                del o, array
                gc.collect()
            finally:
                os._exit(code)
        self.assertEqual(os.waitpid(pid, 0)[1], 0)
        self.assertEqual(read(array), b"parents")  # the child ended no mapping


class Putting(WithGPUs):
    def setUp(self):
        super().setUp()
        self.source = self.store.create(64, device="cuda:1")
        self.addCleanup(self.source.abort)
        self.at = self.source.cuda().address
        ctypes.memmove(self.at, bytes(range(64)), 64)

    def test_an_array_of_another_library(self):
        with self.store.put(Array(self.at, (2, 3), "<i2"), "p") as o:
            self.assertIsInstance(o, tendril.CudaObject)
            self.assertEqual((o.device[-2:], o.size, o.meta), ("01", 12, {"dtype": "<i2", "shape": [2, 3],
                                                                          "strides": [3, 1]}))
            self.assertNotEqual(o.cuda().address, self.at)
            self.assertEqual(read(o.cuda()), bytes(range(12)))
        self.store.delete("p")
        with self.store.put(Array(self.at, (2, 4), "<f4", strides=(4, 8))) as o:  # Fortran's order
            self.assertEqual(o.cuda().strides, (1, 2))
        with self.store.put(Array(self.at, (4,)), device="cuda:0", labels={"a": "b"}) as o:
            self.assertEqual((o.device[-2:], self.store.stat(o).labels), ("00", {"a": "b"}))
        with self.store.put(Array(self.at, (4,)), device="host") as o:
            self.assertEqual((o.device, o.bytes()), ("host", bytes(range(4))))
            with o.to("cuda:0") as there, self.store.put(there) as copied:  # such an array, too
                self.assertEqual(read(copied.cuda()), bytes(range(4)))
        with self.assertRaises(tendril.Invalid):
            o.to("cuda:0")

    def test_a_capsule(self):
        with self.store.put(self.source.cuda()) as whole:
            capsule = Capsule(whole.cuda())
            with self.store.put(capsule) as o:
                self.assertEqual(read(o.cuda()), bytes(range(64)))
            self.assertEqual(capsule.streams, [1])
        self.assertEqual(dlpack._lent, {})

    def test_types_that_numpy_lacks(self):
        class BFloat16(Capsule):
            __cuda_array_interface__ = {"typestr": "<V2"}  # as PyTorch's

        class Float8(Capsule):
            @property
            def __cuda_array_interface__(self):  # as PyTorch's
                return {}["float8"]

        array = self.source.cuda()
        array._how = layouts.Layout("<V2", 2, (4, 2), (2, 1), (4, 16))
        with self.store.put(BFloat16(array), "bf") as o, self.other.get("bf") as again:
            self.assertEqual(o.meta, {"dtype": "<V2", "shape": [4, 2], "strides": [2, 1], "dlpack": [4, 16]})
            capsule = again.__dlpack__()
            t = dlpack._OldManaged.from_address(dlpack._pointer(id(capsule), b"dltensor")).tensor
            self.assertEqual((t.dtype.code, t.dtype.bits, t.shape[:2]), (4, 16, [4, 2]))
            self.assertEqual(o.bytes(), bytes(range(16)))
            if np:
                self.assertEqual((o.numpy().dtype.str, o.numpy().shape), ("|V2", (4, 2)))
            del capsule
        self.store.delete("bf")
        array._how = layouts.Layout("<V1", 1, (8,), (1,), (10, 8))
        with self.store.put(Float8(array)) as o:
            self.assertEqual((o.meta["dtype"], o.meta["dlpack"], o.bytes()), ("<V1", [10, 8], bytes(range(8))))
        array._how = layouts.Layout("<V1", 1, (4,), (1,), (17, 4))  # DLPack's float4
        with self.assertRaises(tendril.Invalid):
            self.store.put(Capsule(array))

    def test_it_waits_for_the_arrays_work(self):
        for value, how in ((7, {"stream": 5}), (8, {"stream": 1}), (9, {"version": 2})):
            later(how.get("stream", 77), self.at, value)
            with self.store.put(Array(self.at, (1,), **how)) as o:
                self.assertEqual(read(o.cuda()), bytes([value]))
        later(5, self.at, 10)
        with self.store.put(Array(self.at, (1,), stream=None)) as o:  # says that no work is under way
            self.assertEqual(read(o.cuda()), bytes([9]))

    def test_a_seal_waits_for_the_work(self):
        draft = self.store.create(1, device="cuda:0")
        array = draft.cuda()
        later(5, array.address, 11)
        with draft.seal() as o:
            self.assertEqual(read(o.cuda()), bytes([11]))

    def test_what_cannot_be_put(self):
        before = left()
        host = ctypes.create_string_buffer(8)
        for array in (Array(self.at, (2, 2), strides=(8, 1)), Array(self.at, (2, 2), strides=(0, 1)),
                      Array(self.at, (2,), strides=(-1,)), Array(self.at, (0,)), Array(self.at, (2,), "|V8"),
                      Array(self.at, (2,), "|O8"), Array(self.at, (2,), mask=1),
                      Array(self.at, (2,), "<f4", strides=(3,)), Array(ctypes.addressof(host), (8,)), Array(0, (8,))):
            with self.assertRaises(tendril.Invalid, msg=array.__cuda_array_interface__):
                self.store.put(array)
        for more in ({"strict": True}, {"checksum": True}):
            with self.assertRaises(tendril.Unsupported):
                self.store.put(Array(self.at, (8,)), **more)
        with self.assertRaises(tendril.NoDevice):  # beyond the memory that is there: the driver refuses
            self.store.put(Array(self.at, (GRANULE + 1,)))
        self.assertEqual(left(), before)
        self.assertEqual(self.other.list(), [])


class Bytes(unittest.TestCase):
    """Against a daemon in this process: the protocol's bytes, as ipc/wire/testdata has them, and replies that lie."""

    REQUEST = ("0500000000000000010000000000000000000000000000020101006e010000006d5a00000000000000010001006101"
               "0062")
    REPLY = ("0102000000000000000000000000001001000000000000000000000000000002630000000000000000002000000000000204"
             "0000006d657461")
    COPY = ("01020000000000000000000000000010" + 8 * "00" + "01020000000000000000000000000011" + "0000" + 8 * "00"
            + "0400000000000000")

    def serve(self, replies):
        self.asked = []

        def hook(kind, payload):
            if kind not in replies:
                return None
            self.asked.append((kind, payload))
            raw = replies[kind]
            return raw(payload) if callable(raw) else raw
        daemon = FakeDaemon(hook)
        self.addCleanup(daemon.close)
        store = tendril.connect(daemon.path)
        self.addCleanup(store.close)
        return store

    @staticmethod
    def memory():
        return os.memfd_create("fakecuda")

    def test_golden(self):
        fd = self.memory()
        store = self.serve({160: (frame(160 | 0x8000, bytes.fromhex(self.REPLY), 1), [fd])})
        draft = store._create_device(5, bytes([1] + 14 * [0] + [2]), "n", "ttl", 0.09, {"a": "b"}, None)
        sent = self.asked[0][1]
        want = bytes.fromhex(self.REQUEST).replace(b"\1\0\0\0m", b"\0\0\0\0")  # metadata of this client is JSON
        self.assertEqual(sent, want)
        self.assertEqual((draft.id.hex()[:4], draft.size, draft._allocation()._whole), ("0102", 99, 2 << 20))
        os.close(fd)

    def test_replies_that_lie(self):
        right = bytes.fromhex(self.REPLY)
        fd = self.memory()
        self.addCleanup(os.close, fd)
        before = descriptors()
        lies = [right[:n] for n in range(len(right))] + [right + b"x"]
        lies += [right[:32] + struct.pack("<QQ", *pair) + right[48:] for pair in ((0, 1), (2, 1), (1 << 63, 1))]
        cases = [(raw, [fd]) for raw in lies] + [(right, [])]
        for raw, fds in cases:
            store = self.serve({4: frame(0xFFFF, struct.pack("<HH", 10, 1) + b"x"),
                                161: (frame(161 | 0x8000, raw, len(fds)), fds)})
            with self.assertRaises(tendril.Protocol, msg=raw.hex()):
                store.get("x")
            store.close()
        store = self.serve({163: frame(163 | 0x8000, b"{}")})
        with self.assertRaises(tendril.Protocol):
            store.gpus()
        store.close()
        gc.collect()
        self.assertEqual([f for f in descriptors() - before if os.readlink("/proc/self/fd/%d" % f[0]).startswith(
            "/memfd:fakecuda")], [])

    def test_an_older_daemon(self):
        store = self.serve({4: frame(0xFFFF, struct.pack("<HH", 10, 3) + b"why"),
                            161: frame(0xFFFF, struct.pack("<HH", 10, 5) + b"161??")})
        with self.assertRaisesRegex(tendril.Unsupported, "^why$"):
            store.get("x")

    def test_layouts(self):
        for meta, size in (({"dtype": "<f4"}, 8), ({"dtype": "<f4", "shape": [2]}, 8), (None, 5), ({"a": 1}, 5),
                           ({"dtype": "<f4", "shape": [0, 9]}, 8), ({"dtype": "|b1", "shape": [2, 2],
                                                                      "strides": [1, 2]}, 4)):
            self.assertLessEqual(layouts.layout(meta, size).nbytes, size)
        for meta in ({"dtype": "<V2", "dlpack": [4, 8]}, {"dtype": "<f4", "dlpack": [4, 16]}, {"dtype": "<V2"},
                     {"dtype": "<V2", "dlpack": 4}, {"dtype": "<f4", "shape": [3]}, {"dtype": "O"}, {"dtype": "<U3"},
                     {"dtype": "<f4", "shape": "x"},
                     {"dtype": "<f4", "shape": [True]}, {"dtype": "<f4", "shape": [-1]},
                     {"dtype": "<f4", "shape": [2], "strides": [2]}, {"dtype": "<f4", "shape": [2], "strides": []},
                     {"dtype": "<f4", "shape": 33 * [1]}, {"dtype": "<f4", "shape": [2], "strides": [-1]}):
            with self.assertRaises(tendril.Invalid, msg=meta):
                layouts.layout(meta, 8)


if __name__ == "__main__":
    unittest.main()

"""The allocator for PyTorch and CuPy, through the entry points that they call, against a CUDA driver for tests."""

import glob
import os
import subprocess
import unittest

import tendril

from . import test_cuda
from .test_daemon import MISSING, until

LIBRARY = os.environ.get("TENDRIL_CUDA_LIBRARY") or os.path.join(
    os.path.dirname(os.environ.get("TENDRIL_BIN") or os.path.join(
        os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "bin", "tendril")), "lib", "libtendril_cuda.so.0")

# What the programs below have in common: they allocate as the two libraries do, and have arrays as those.
_PROGRAM = """
import ctypes, os, sys, threading
import tendril
from tendril import allocators
store = tendril.connect(sys.argv[1])
lib = ctypes.CDLL(allocators.library(store))
lib.tendril_torch_alloc.restype = lib.tendril_cupy_alloc.restype = ctypes.c_void_p
lib.tendril_torch_alloc.argtypes = [ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
lib.tendril_torch_free.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
lib.tendril_cupy_alloc.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
lib.tendril_cupy_free.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int]
alloc = lambda n, gpu=0: lib.tendril_torch_alloc(n, gpu, None)
free = lambda p, n=0, gpu=0: lib.tendril_torch_free(p, n, gpu, None)

class Array:
    def __init__(self, address, n, typestr="|u1", item=1):
        self.__cuda_array_interface__ = {"shape": (n // item,), "typestr": typestr, "data": (address, False),
                                         "strides": None, "stream": None, "version": 3}

def objects():
    return [o for d in store.status()["store"].get("devices") or [] for o in [d["objects"]] if o]
M = 1 << 20
"""


@unittest.skipIf(MISSING, "no bin/tendril: make build makes it")
@unittest.skipUnless(os.path.exists(LIBRARY), "no libtendril_cuda.so.0: make build makes it")
class Allocators(test_cuda.WithGPUs):
    def run_program(self, code, **env):
        return test_cuda.python(_PROGRAM + code, self.daemon.socket, TENDRIL_CUDA_LIBRARY=LIBRARY, **env)

    def test_put_is_without_a_copy(self):
        said = self.run_program("""
p = alloc(3 * M, 1)
ctypes.memset(p, 7, 3 * M)
ctypes.memset(p, 1, 4)
before = store.gpus() and store.status()["keeper"].get("copies")
o = store.put(Array(p, 3 * M, "<u4", 4), "t", meta={"epoch": 5})
print(o.device[-2:], o.size, o.meta["epoch"], o.shape, o.meta["dtype"], o.name)
copy = store.get("t")
seen = copy.cuda()
print(ctypes.string_at(seen.address, 6), seen.address != p)
ctypes.memset(p + 5, 9, 1)             # one memory (and what a program must not do)
print(ctypes.string_at(seen.address, 6))
free(p)                                # others have it still
print(ctypes.string_at(seen.address, 6))
o.release(); copy.release(); del seen
print(store.get("t").bytes()[:6])
store.delete("t")
""")
        self.assertEqual(said, "01 3145728 5 (786432,) <u4 t\n"
                               r"b'\x01\x01\x01\x01\x07\x07' True" "\n" + r"b'\x01\x01\x01\x01\x07\t'" "\n" * 1 +
                         r"b'\x01\x01\x01\x01\x07\t'" "\n" + r"b'\x01\x01\x01\x01\x07\t'" "\n")

    def test_what_is_copied(self):
        said = self.run_program("""
p, small = alloc(2 * M), alloc(1000)
ctypes.memset(p, 3, 2 * M)
ctypes.memset(small, 4, 1000)
part = store.put(Array(p, M), "part")
print(part.cuda().address != p, ctypes.string_at(part.cuda().address, 2))
rest = store.put(Array(p + M, M), "rest")
few = store.put(Array(small, 1000), "few")
print(ctypes.string_at(few.cuda().address, 2))
first = store.put(Array(p, 2 * M), "first")
again = store.put(Array(p, 2 * M), "again")
print(first.id != again.id, again.bytes() == first.bytes() == bytes([3]) * 2 * M)
for x in (part, rest, few, first, again):
    x.release()
free(p); free(small)
for x in ("part", "rest", "few", "first", "again"):
    store.delete(x)
""")
        self.assertEqual(said, "True b'\\x03\\x03'\nb'\\x04\\x04'\nTrue True\n")

    def test_names_and_times(self):
        said = self.run_program("""
store.put(b"there", "taken").release()
p = alloc(M)
try:
    store.put(Array(p, M), "taken")
except tendril.Exists as e:
    print("Exists")
q = alloc(M)
ctypes.memset(q, 5, M)
store.put(Array(q, M), "taken", replace=True).release()
print(store.stat("taken").kind, store.get("taken").bytes()[:2])
r = alloc(M)
o = store.put(Array(r, M), ttl=90.0, labels={"a": "b"})
info = store.stat(o)
print(info.lifetime, info.labels)
store.delete(o)
o.release()
free(p); free(q); free(r)
store.delete("taken")
""")
        self.assertEqual(said, "Exists\ncuda b'\\x05\\x05'\nttl {'a': 'b'}\n")

    def test_sealing_waits_for_the_gpu(self):
        said = self.run_program("""
p = lib.tendril_cupy_alloc(None, M, 0)
driver = ctypes.CDLL(os.environ["TENDRIL_CUDA_DRIVER"])
driver.fakecuda_later.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_ubyte]
assert driver.fakecuda_later(77, p, 200) == 0          # a kernel in some stream
o = store.put(Array(p, M))
print(o.bytes()[0])
o.release()
lib.tendril_cupy_free(None, p, 0)
""")
        self.assertEqual(said, "200\n")

    def test_nothing_stays(self):
        log = os.path.join(test_cuda._work.name, "allocator")
        said = self.run_program("""
def many():
    for i in range(40):
        ps = [alloc(n, i % 2) for n in (M, 2 * M + 5, 100, 4 * M)]
        if i % 5 == 0:
            store.put(Array(ps[1], 2 * M + 5)).release()
        for p in ps:
            ctypes.memset(p, i, 100)
            free(p)
threads = [threading.Thread(target=many) for _ in range(3)]
[t.start() for t in threads]; [t.join() for t in threads]
free(12345); free(None)                                # not its own
print(len(os.listdir("/proc/self/fd")) < 40)
left = open(os.environ["CUDA_FAKE_LOG"] + "." + str(os.getpid())).read().split()
print(left[3])                                         # two contexts
""", CUDA_FAKE_LOG=log)
        self.assertEqual(said, "True\n2\n")
        until(lambda: not any(d["objects"] for d in self.store.status()["store"].get("devices") or []),
              "the end of what the program had")

    def test_faults(self):
        # The store gives nothing: memory is the driver's own, one line says so, and put copies.
        code = """
p, q = alloc(40 * M), alloc(40 * M)
ctypes.memset(p, 6, 40 * M); ctypes.memset(q, 7, 40 * M)
print(p != q, store.stat(store.put(Array(p, 2000))).size_bytes)
free(p); free(q)
"""
        where = os.path.dirname(os.path.dirname(tendril.__file__))
        done = subprocess.run([os.sys.executable, "-c", _PROGRAM + code, self.daemon.socket], capture_output=True,
                              text=True, env=dict(os.environ, PYTHONPATH=where, TENDRIL_CUDA_LIBRARY=LIBRARY))
        self.assertEqual(done.stdout, "True 2000\n", done.stderr)
        self.assertEqual(done.stderr.count("tendril: memory of the store: "), 1, done.stderr)
        # Every call of the driver fails in turn. Nothing crashes, and memory that comes is memory.
        said = self.run_program("""
driver = ctypes.CDLL(os.environ["TENDRIL_CUDA_DRIVER"])
libc = ctypes.CDLL(None)
log = os.environ["CUDA_FAKE_LOG"] + "." + str(os.getpid())
def calls():
    words = open(log).read().split()
    return int(words[1]), int(words[3])
p = alloc(M); free(p)
begin, base = calls()
free(alloc(M))
length = calls()[0] - begin
got = 0
for i in range(1, length + 1):
    libc.setenv(b"CUDA_FAKE_FAIL", b"%d:1" % (calls()[0] + i), 1)
    p = alloc(M)
    if p:
        got += 1
        ctypes.memset(p, 1, M)
        free(p)
libc.setenv(b"CUDA_FAKE_FAIL", b"", 1)
p = alloc(M)
ctypes.memset(p, 1, M)
free(p)
print(length > 10, got > length // 3, calls()[1] - base <= 8)  # what the failed calls were to give back
""", CUDA_FAKE_LOG=os.path.join(test_cuda._work.name, "faults"))
        self.assertEqual(said, "True True True\n")

    def test_a_process_has_one_daemon(self):
        said = self.run_program("""
free(alloc(M))
class Elsewhere:
    _path = "/nonexistent/socket"
    def ping(self): pass
try:
    allocators.library(Elsewhere())
except tendril.Invalid as e:
    print(e)
""")
        self.assertEqual(said, "memory comes from another daemon already: a process has one\n")

    def test_without_the_library(self):
        code = ("import sys, tendril\nfrom tendril import allocators\n"
                "try: allocators.library(tendril.connect(sys.argv[1]))\n"
                "except tendril.Unsupported as e: print('make build' in str(e))")
        said = test_cuda.python(code, self.daemon.socket, TENDRIL_CUDA_LIBRARY="/nonexistent.so")
        self.assertEqual(said, "True\n")


def setUpModule():
    test_cuda.setUpModule()


def tearDownModule():
    for name in glob.glob(os.path.join(test_cuda._work.name, "allocator.*")):
        os.remove(name)
    test_cuda.tearDownModule()


if __name__ == "__main__":
    unittest.main()

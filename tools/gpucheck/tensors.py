"""Checks and measures the Python client on a GPU, with PyTorch and CuPy (and JAX, where it is) as the programs.

    PYTHONPATH=client/python python3 tools/gpucheck/tensors.py bin/tendril [DIRECTORY]

DIRECTORY has what else is checked: the C client's example gpu, and the OpenCL example objectsum.
Starts a daemon of its own. Prints a line for each check and each time; the exit status is the number of checks that
failed. Times are medians; each stands beside what it is to be compared with, measured in the same run.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import traceback

import tendril

failed = []
figures = {}


def check(name, ask):
    """Runs a check. It fails by an exception."""
    began = time.perf_counter()
    try:
        said = ask()
        print("ok      %-66s %s (%.0f ms)" % (name, said or "", 1000 * (time.perf_counter() - began)), flush=True)
    except Exception:
        failed.append(name)
        print("FAILED  %s\n%s" % (name, traceback.format_exc()), flush=True)


def median(name, times, ask, per=1e3, unit="ms"):
    """Times ask, and keeps the median."""
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        ask()
        taken.append(time.perf_counter() - began)
    figures[name] = statistics.median(taken) * per
    print("        %-66s %.3f %s (least %.3f, most %.3f)" % (
        name, figures[name], unit, min(taken) * per, max(taken) * per), flush=True)


def same(a, b):
    if a != b:
        raise AssertionError("%r is not %r" % (a, b))


class Other:
    """Another process that does what it is told: one expression or statement a line."""

    def __init__(self, setup):
        code = ("import sys, os, traceback, tendril\nstore = tendril.connect(os.environ['TENDRIL_SOCKET'])\n" + setup +
                "\nprint('ready', flush=True)\nfor line in sys.stdin:\n"
                "    try:\n        try: out = eval(line)\n        except SyntaxError: out = exec(line)\n"
                "    except BaseException: out = 'ERROR ' + traceback.format_exc().replace(chr(10), ' | ')\n"
                "    print(out, flush=True)\n")
        self.process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True)
        same(self.process.stdout.readline(), "ready\n")

    def do(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        out = self.process.stdout.readline().rstrip("\n")
        if out.startswith("ERROR") or not out:
            raise AssertionError(out.replace(" | ", "\n") or "the other process ended")
        return out

    def close(self):
        self.process.stdin.close()
        self.process.wait(60)


def daemon(binary, work):
    os.chmod(work, 0o755)  # workers run as another user
    os.mkdir(work + "/v")
    with open(work + "/v/nvidia.icd", "w") as f:
        f.write("libnvidia-opencl.so.1\n")
    env = dict(os.environ, TENDRIL_SOCKET=work + "/s", TENDRIL_STATE_DIR=work + "/state", TENDRIL_VENDORS=work + "/v",
               TENDRIL_LISTEN="127.0.0.1:0", TENDRIL_CAPACITY=os.environ.get("TENDRIL_CAPACITY", "8GiB"))
    started = subprocess.Popen([binary, "daemon"], env=env, stdin=subprocess.DEVNULL, stdout=open(work + "/log", "wb"),
                               stderr=subprocess.STDOUT)
    os.environ["TENDRIL_SOCKET"] = work + "/s"
    return started


def held():
    """Descriptors and mappings of this process."""
    return len(os.listdir("/proc/self/fd")), sum(1 for _ in open("/proc/self/maps"))


def between_libraries(store, torch, cupy, other):
    def torch_writes():
        draft = store.empty_cuda((1000, 1000), "f4", "made")
        torch.from_dlpack(draft).copy_(torch.arange(1e6, device="cuda").reshape(1000, 1000))
        draft.seal().release()
        return "sum %s" % other.do("float(cupy.asarray(store.get('made')).sum(dtype='f8'))")
    check("PyTorch fills a draft (DLPack), CuPy of another process reads it", torch_writes)

    def same_memory():
        o = store.get("made")
        mine = torch.from_dlpack(o)
        same(float(mine[999, 999]), 999999.0)
        other.do("kept = cupy.from_dlpack(store.get('made')); kept[3, 4] = -7; cupy.cuda.Device().synchronize()")
        same(float(mine[3, 4]), -7.0)
        mine[5, 6] = 42
        torch.cuda.synchronize()
        same(other.do("float(kept[5, 6])"), "42.0")
        as_tensor = torch.as_tensor(o, device="cuda")
        same(as_tensor.data_ptr(), mine.data_ptr())
        other.do("del kept")
    check("both see each other's writes: it is one memory; as_tensor and from_dlpack agree", same_memory)

    def cupy_puts():
        other.do("store.put(cupy.arange(24, dtype='i8').reshape(2, 3, 4).transpose(2, 0, 1)*1, 'c').release()")
        other.do("store.put(cupy.asfortranarray(cupy.arange(12, dtype='f8').reshape(3, 4)), 'f').release()")
        same(torch.from_dlpack(store.get("c")).cpu().tolist(), store.get("c").numpy().tolist())
        same(torch.from_dlpack(store.get("f")).cpu().tolist(), store.get("f").numpy().tolist())
        same(store.get("f").numpy()[1].tolist(), [4.0, 5.0, 6.0, 7.0])
    check("CuPy puts, PyTorch reads, and numpy() by the keeper has the same bytes", cupy_puts)

    def dtypes():
        for name in ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "complex64"):
            t = torch.ones(5, 7, device="cuda").to(getattr(torch, name))
            with store.put(t) as o:
                back = torch.from_dlpack(o)
                same((back.dtype, back.shape, bool((back == t).all())), (t.dtype, t.shape, True))
                del back
        for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
            t = torch.randn(64, device="cuda").to(getattr(torch, name))
            with store.put(t) as o:
                back = torch.from_dlpack(o)
                same((back.dtype, bool((back.view(torch.uint8) == t.view(torch.uint8)).all())), (t.dtype, True))
                del back
    check("types", dtypes)

    def streams():
        side = torch.cuda.Stream()
        a = torch.zeros(1 << 24, device="cuda")
        torch.cuda.synchronize()
        for use in (lambda: store.put(a), lambda: store.put(cupy.from_dlpack(a))):
            with torch.cuda.stream(side):
                a.zero_()
                for _ in range(400):
                    a += 1
                with use() as o:
                    got = torch.from_dlpack(o).clone()  # on the side stream: after all else there
            side.synchronize()
            same((float(got.min()), float(got.max())), (400.0, 400.0))
    check("put waits for work that other streams have on the tensor", streams)

    def seals():
        draft = store.empty_cuda(1 << 24, "f4")
        t = torch.from_dlpack(draft)
        with torch.cuda.stream(torch.cuda.Stream()):
            t.zero_()  # a draft's contents are undefined
            for _ in range(400):
                t += 1
            sealed = draft.seal()
        code = "(lambda a: (float(a.min()), float(a.max())))(cupy.asarray(store.get('%s')))" % sealed.id
        same(other.do(code), "(400.0, 400.0)")
    check("a seal waits for the work of all streams of this process", seals)

    def dropped():
        draft = store.empty_cuda(1 << 26, "f4")
        t = torch.from_dlpack(draft)
        for _ in range(300):
            t.mul_(1.01)
        draft.abort()
        del t, draft  # 300 kernels are under way
        torch.cuda.synchronize()
        return "no error afterwards"
    check("a tensor dropped while kernels use it", dropped)


def opencl(store, torch, program, objectsum):
    def run(name, *flags):
        done = subprocess.run([program, "run", *flags, "--", objectsum, name], capture_output=True, text=True,
                              timeout=120, env=dict(os.environ, OCL_ICD_FILENAMES=""))
        return done.returncode, done.stdout.strip(), done.stderr.strip()[-600:]

    def uuids():
        cuda = [g["uuid"] for g in store.gpus()]
        cl = [d.get("uuid") for d in store.devices()]
        if not set(cuda) & set(cl):
            raise AssertionError("CUDA names %s, OpenCL %s" % (cuda, cl))
        return "%s is the same in both" % cuda[0]
    check("OpenCL's and CUDA's UUIDs", uuids)

    def sums():
        for size in (100, 5000003, 1 << 30):
            t = torch.randint(0, 256, (size,), dtype=torch.uint8, device="cuda")
            with store.put(t, "bytes"):
                began = time.perf_counter()
                same(run("bytes"), (0, "%d bytes, sum %d" % (size, int(t.sum(dtype=torch.int64))), ""))
                took = time.perf_counter() - began
                same(bool((torch.from_dlpack(store.get("bytes")) == t).all()), True)
            store.delete("bytes")
            del t
        return "1 GiB with the program's start: %.2f s" % took
    check("an OpenCL program's kernel reads what PyTorch put, in place", sums)

    def elsewhere():
        with store.put(torch.ones(1 << 20, dtype=torch.uint8, device="cuda"), "bytes"):
            code, out, err = run("bytes", "--device", "type=cpu")
        store.delete("bytes")
        if code == 0:
            raise AssertionError("a CPU read it: %s" % out)
        return "%s" % err.replace("\n", " | ")[-220:]
    check("a context without that GPU is refused, with a reason (or there is no other device)", elsewhere)


def results(store, torch, program, publish, home):
    """A kernel's result as an object in the memory of its GPU, of programs here and of another machine's."""
    n = 5000003

    def run(flags, *words):
        env = dict(os.environ, OCL_ICD_FILENAMES="")
        if "--server" in flags:
            env.update(HOME=home, XDG_CONFIG_HOME=home, XDG_RUNTIME_DIR=home)
            del env["TENDRIL_SOCKET"]
        done = subprocess.run([program, "run", "--device", "platform=NVIDIA", *flags, "--", publish, str(n), *words],
                              capture_output=True, text=True, timeout=120, env=env)
        same((done.returncode, done.stderr), (0, ""))

    def right(t):
        want = torch.arange(n, device="cuda", dtype=torch.int32) * 3 + 1
        same(bool((t.view(torch.int32) == want).all()), True)

    def away():
        listen = store.status()["node"]["listen"]
        os.makedirs(home, exist_ok=True)
        # as root a token is for a tenant of its own, and such objects are for one tenant
        token = subprocess.run([program, "token", "create", "--expires", "1h", "--tenant", "uid:%d" % os.getuid()],
                               capture_output=True, text=True, check=True).stdout.strip()
        env = dict(os.environ, HOME=home, XDG_CONFIG_HOME=home, XDG_RUNTIME_DIR=home)
        del env["TENDRIL_SOCKET"]
        server = "127.0.0.1:" + listen.rpartition(":")[2]
        subprocess.run([program, "login", server, "--token", token], check=True, env=env, capture_output=True, timeout=60)
        return ["--server", server, "--plaintext"]

    def published(flags):
        for round_ in range(2):  # the second one takes the name
            began = time.perf_counter()
            run([*flags, "--publish", "result", "--publish-kind", "cuda"])
            took = time.perf_counter() - began
        info = store.stat("result")
        same((info.kind, info.size_bytes), ("cuda", 4 * n))
        right(torch.from_dlpack(store.get("result")))
        store.delete("result")
        return "%d bytes, the program %.2f s" % (4 * n, took)

    def drafts(flags):
        with store.empty_cuda((4 * n,), "u1", "filled") as draft:
            t = torch.from_dlpack(draft)
            t.zero_()
            torch.cuda.synchronize()
            run(flags, str(draft.id))
            right(t)
            del t
            draft.seal().release()
        right(torch.from_dlpack(store.get("filled")))
        store.delete("filled")
    far = []
    check("another machine's session", lambda: far.extend(away()))
    for name, flags in (("here", []), ("of another machine's", far)):
        check("PyTorch reads a kernel's result where it is: a program " + name, lambda: published(flags))
        check("a kernel fills a tensor of PyTorch's: a program " + name, lambda: drafts(flags))


def life(store, torch, binary):
    def tensor_outlives():
        o = store.put(torch.full((1000,), 7.0, device="cuda"))
        key = o.id
        t = torch.from_dlpack(o)[10:20]
        assert not o.release()
        del o
        store.stat(key)
        same(float(t.sum()), 70.0)
        del t
        try:
            store.stat(key)
        except tendril.NotFound:
            return
        raise AssertionError("the object stays after its last tensor")
    check("the object lives as long as a tensor over a part of it", tensor_outlives)

    def leaks():
        store.put(torch.ones(1 << 20, device="cuda"), "leak").release()
        for round_ in range(2):
            before, memory = held(), torch.cuda.mem_get_info()[0]
            for _ in range(1000):
                with store.get("leak") as o:
                    torch.from_dlpack(o)
            after, less = held(), memory - torch.cuda.mem_get_info()[0]
            if round_ and (after != before or less > 2 << 20):
                raise AssertionError("descriptors and mappings %s, then %s; %d bytes of the GPU" % (
                    before, after, less))
        return "%d descriptors, %d mappings" % after
    check("1000 gets as tensors leave nothing", leaks)

    def at_exit():
        code = ("import os, torch, tendril\nstore = tendril.connect()\n"
                "kept = torch.from_dlpack(store.get('leak'))\nheld = store.get('leak').cuda()\n"
                "print(float(kept.sum()))")
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
        same((done.returncode, done.stdout, done.stderr), (0, "1048576.0\n", ""))
    check("a process that ends with tensors in its globals", at_exit)

    def without_cuda():
        code = "import tendril; o = tendril.connect().get('leak'); print(o.numpy().sum(), o.device[:8])"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120,
                              env=dict(os.environ, TENDRIL_CUDA_DRIVER="/none"))
        return "%s%s" % (done.stdout.strip(), done.stderr[-300:])
    check("a process without a CUDA driver reads the bytes", without_cuda)

    def places():
        with store.get("leak") as o, o.to("host") as h, h.to("cuda:0") as back:
            same(bool((torch.from_dlpack(back) == torch.from_dlpack(o)).all()), True)
    check("to host and back", places)

    def example():
        for words, want in ((["put", "cuda:0", "text", "from C"], ""), (["get", "text"], "from C\n")):
            done = subprocess.run([binary] + words, capture_output=True, text=True, timeout=60)
            same((done.returncode, done.stdout, done.stderr), (0, want, ""))
        same(store.get("text").bytes(), b"from C\0")
        same(bytes(torch.from_dlpack(store.get("text")).cpu().tolist()), b"from C\0")
    if binary:
        check("the C example puts and gets; PyTorch reads it", example)


def interfaces(store, torch, cupy):
    def jax_reads():
        try:
            os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
            import jax
        except ImportError:
            return "no JAX here"
        o = store.put(torch.arange(100.0, device="cuda"))
        a = jax.dlpack.from_dlpack(o)
        same(float(a.sum()), 4950.0)
        with store.put(jax.numpy.arange(10) * 2) as other:
            return "%s; put(jax array) -> %s" % (type(a).__name__, other.numpy().tolist())
    check("JAX", jax_reads)

    def read_only():
        from tendril import dlpack

        class Flagged:
            def __init__(self, o):
                self.o = o

            def __dlpack_device__(self):
                return self.o.__dlpack_device__()

            def __dlpack__(self, **options):
                asked.append(options)
                capsule = self.o.__dlpack__(**options)
                if dlpack._is_valid(id(capsule), dlpack._NAME):
                    dlpack._Managed.from_address(dlpack._pointer(id(capsule), dlpack._NAME)).flags = 1
                return capsule
        said = []
        o = store.put(torch.ones(3, device="cuda"))
        takers = [("torch", torch.from_dlpack), ("cupy", cupy.from_dlpack)]
        if "jax" in sys.modules:
            takers.append(("jax", sys.modules["jax"].dlpack.from_dlpack))
        for name, take in takers:
            asked = []
            try:
                got = take(Flagged(o))
                said.append("%s takes it (asked %s)" % (name, asked))
                del got
            except Exception as e:
                said.append("%s: %.100s (asked %s)" % (name, e, asked))
        return "; ".join(said)
    check("what takes a tensor that says it is read-only", read_only)


def times(store, torch, other):
    for name, size in (("1 MiB", 1 << 20), ("1 GiB", 1 << 30)):
        t = torch.ones(size, dtype=torch.uint8, device="cuda")
        store.put(t, "timed").release()

        def get():
            with store.get("timed") as o:
                torch.from_dlpack(o)

        def hand_over():
            kept.append(torch.from_dlpack(store.get("timed")))

        def only_get():
            store.get("timed").release()

        def put():
            store.put(t).release()

        def create():
            store.create(size, device="cuda:0").abort()
        get()
        median("get %s as a tensor of PyTorch, both started" % name, 200, get)
        kept = []
        median("of it the hand-over: get, import, map", 100, hand_over)
        kept.clear()
        median("of it get and release", 200, only_get)
        median("put(tensor) %s, and release" % name, 30, put)
        median("create %s and abort" % name, 30, create)
        median("the same tensor through the host: .cpu() and .cuda()", 5, lambda: t.cpu().cuda())
        o = store.get("timed")
        median("to('host') %s" % name, 3, lambda: o.to("host").release())
        del o
        store.delete("timed")


def main():
    with tempfile.TemporaryDirectory(prefix="tendril-tensors-") as work:
        node = daemon(os.path.abspath(sys.argv[1]), work)
        try:
            store = tendril.connect(patience=30)
            print(json.dumps(store.gpus()))
            import cupy
            import torch
            print("Python %s, PyTorch %s, CuPy %s, DLPack asked by from_dlpack" % (
                sys.version.split()[0], torch.__version__, cupy.__version__), flush=True)
            torch.zeros(1, device="cuda")
            other = Other("import cupy; cupy.zeros(1)")
            between_libraries(store, torch, cupy, other)
            more = os.path.abspath(sys.argv[2]) if len(sys.argv) > 2 else ""
            if more:
                opencl(store, torch, os.path.abspath(sys.argv[1]), os.path.join(more, "objectsum"))
                results(store, torch, os.path.abspath(sys.argv[1]), os.path.join(more, "publish"), work + "/far")
            life(store, torch, more and os.path.join(more, "gpu"))
            interfaces(store, torch, cupy)
            times(store, torch, other)
            other.close()
            store.close()
        except BaseException:
            print(open(work + "/log").read()[-4000:])
            raise
        finally:
            node.terminate()
            node.wait(60)
    print(json.dumps(figures))
    print("%d checks failed: %s" % (len(failed), ", ".join(failed)) if failed else "all checks are good")
    return len(failed)


if __name__ == "__main__":
    sys.exit(main())

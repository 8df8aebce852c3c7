"""Checks PyTorch's and CuPy's allocators out of the store, and a GPU that is full, on a GPU.

    TENDRIL_CUDA_LIBRARY=bin/lib/libtendril_cuda.so.0 PYTHONPATH=client/python \\
        python3 tools/gpucheck/allocators.py bin/tendril

Starts a daemon of its own. Prints a line for each check and each time; the exit status is the number of checks that
failed. It is a process of its own because PyTorch takes an allocator before it uses CUDA, or not at all.
"""

import gc
import json
import os
import sys
import tempfile
import time

import tensors
from tensors import Other, check, median, same

import tendril
from tendril import allocators, cuda

GIB = 1 << 30


def objects(store):
    """How many objects GPUs have in their memory, and how many are away."""
    told = store.status()["store"].get("devices") or []
    return sum(d["objects"] for d in told), sum(d.get("away_objects", 0) for d in told)


def listed(store):
    """What is in the memory of GPUs, for a check that failed."""
    return "; ".join("%s %d bytes, %s, %d references, by %s %d" % (o.name or o.id[:8], o.size_bytes, o.state, o.refs,
                                                                  o.creator, o.creator_pid)
                     for o in store.list(all=True) if o.kind == "cuda")


def pytorch(store, torch, other):
    def without_a_copy():
        t = torch.arange(10 ** 6, dtype=torch.float32, device="cuda").reshape(1000, 1000) * 2
        o = store.put(t, "t")
        same(other.do("float(cupy.asarray(store.get('t')).sum(dtype='f8'))"), str(float(t.double().sum())))
        other.do("kept = cupy.asarray(store.get('t'))")
        t[3, 4] = -7  # what a program must not do: it shows that there is one memory
        torch.cuda.synchronize()
        same(other.do("float(kept[3, 4])"), "-7.0")
        del t
        gc.collect()
        same(other.do("float(kept[3, 4])"), "-7.0")
        other.do("del kept")
        o.release()
        store.delete("t")
    check("PyTorch: put of a tensor is its memory, which outlives it", without_a_copy)

    def work():
        torch.manual_seed(1)
        a, b = torch.randn(3000, 2000, device="cuda", dtype=torch.float64), torch.randn(2000, 1000, device="cuda",
                                                                                        dtype=torch.float64)
        want = a.cpu() @ b.cpu()
        off = 0.0
        for _ in range(50):
            c = a @ b
            off = max(off, float((c.cpu() - want).abs().max()))
            c = torch.relu(c).sum(dim=1).sort().values  # small ones, and temporary ones
        if off > 1e-9:
            raise AssertionError("the product differs by %g" % off)
        return "50 products, off by %.1e" % off
    check("PyTorch computes in that memory", work)

    def training():
        model = torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 10)).cuda()
        steps = torch.optim.SGD(model.parameters(), lr=0.01)
        x, y = torch.randn(512, 1024, device="cuda"), torch.randint(0, 10, (512,), device="cuda")
        losses = []
        for _ in range(30):
            loss = torch.nn.functional.cross_entropy(model(x), y)
            steps.zero_grad()
            loss.backward()  # PyTorch's own threads allocate
            steps.step()
            losses.append(float(loss.detach()))
        if not losses[-1] < losses[0]:
            raise AssertionError("the loss went from %g to %g" % (losses[0], losses[-1]))
        with store.put(model[0].weight.detach(), "weight"):
            same(other.do("store.get('weight').shape"), "(4096, 1024)")
        store.delete("weight")
        return "loss %.3f to %.3f" % (losses[0], losses[-1])
    check("PyTorch trains in that memory, from its own threads", training)

    def nothing_stays():
        gc.collect()
        torch.cuda.synchronize()
        torch._C._cuda_clearCublasWorkspaces()  # which it keeps, in that memory, too
        other.do("store.status() and None")  # what it released goes along
        if objects(store)[0]:
            raise AssertionError(listed(store))
    check("what PyTorch let go of is gone", nothing_stays)

    def taken(size):
        t = torch.empty(size, dtype=torch.uint8, device="cuda")
        torch.cuda.synchronize()
        began = time.perf_counter()
        o = store.put(t)
        took = time.perf_counter() - began
        o.release()
        return took
    for name, size in (("1 MiB", 1 << 20), ("1 GiB", GIB)):
        times = sorted(taken(size) for _ in range(20))
        tensors.figures["put in place %s" % name] = times[10] * 1e3
        print("        %-66s %.3f ms (least %.3f)" % ("put of a tensor in place, %s: median" % name, times[10] * 1e3,
                                                      times[0] * 1e3), flush=True)
        median("torch.empty %s and free, out of the store" % name, 30, lambda n=size: torch.empty(
            n, dtype=torch.uint8, device="cuda"))
        there = store.create(size, device="cuda:0", meta={"dtype": "|u1", "shape": [size]})
        source = torch.from_dlpack(there)
        median("for comparison: put that copies on the GPU, %s" % name, 10, lambda t=source: store.put(t).release())
        del source
        there.abort()


def cupy_too(store):
    """In another process, whose pool CuPy does without."""
    c = Other("import cupy\nfrom tendril import allocators\ncupy.cuda.set_allocator(allocators.for_cupy(store))")

    def without_a_copy():
        c.do("a = cupy.arange(10**6, dtype='f8').reshape(100, -1); o = store.put(a, 'c')")
        c.do("before = float(cupy.asarray(o.cuda())[7, 7]); a[7, 7] = -3; cupy.cuda.Device().synchronize()")
        same(c.do("float(cupy.asarray(store.get('c').cuda())[7, 7])"), "-3.0")
        same(c.do("before"), "70007.0")
        same(c.do("float((a @ a.T).trace() > 0)"), "1.0")
        c.do("o.release(); del a, o")
        store.delete("c")
    check("CuPy: put of an array is its memory", without_a_copy)
    c.close()


def handles(store, other):
    """Memory that CuPy of another process has from cudaMalloc, by cudaIpcMemHandle_t."""
    def copied_once():
        other.do("p = cupy.cuda.runtime.malloc(1 << 30)")
        other.do("memory = cupy.cuda.UnownedMemory(p, 1 << 30, None)")
        other.do("mine = cupy.ndarray(1 << 27, 'f8', cupy.cuda.MemoryPointer(memory, 0))")
        other.do("mine[:] = cupy.arange(1 << 27); cupy.cuda.Device().synchronize()")
        handle = bytes.fromhex(other.do("cupy.cuda.runtime.ipcGetMemHandle(p).hex()"))
        began = time.perf_counter()
        with cuda.IPCArray(handle, 1 << 27, "<f8") as theirs:
            store.put(theirs, "theirs").release()
        took = (time.perf_counter() - began) * 1e3
        tensors.figures["put of 1 GiB by cudaIpcMemHandle_t"] = took
        same(other.do("float(cupy.asarray(store.get('theirs').cuda())[12345])"), "12345.0")
        other.do("del mine; cupy.cuda.runtime.free(p)")
        same(other.do("float(cupy.asarray(store.get('theirs').cuda())[-1])"), str(float((1 << 27) - 1)))
        store.delete("theirs")
        return "1 GiB in %.1f ms" % took
    check("a cudaIpcMemHandle_t is put by one copy", copied_once)

    def lent():
        """The reverse: another process opens a copy of an object, writes it, and the object stays as it is."""
        other.do("o = store.put(cupy.arange(1 << 27, dtype='f8'), 'lent')")
        began = time.perf_counter()
        handle = store.ipc_handle("lent")
        took = (time.perf_counter() - began) * 1e3
        tensors.figures["1 GiB as a cudaIpcMemHandle_t"] = took
        other.do("p = cupy.cuda.runtime.ipcOpenMemHandle(bytes.fromhex('%s'))" % handle.handle.hex())
        other.do("memory = cupy.cuda.UnownedMemory(p, 1 << 30, None)")
        other.do("theirs = cupy.ndarray(1 << 27, 'f8', cupy.cuda.MemoryPointer(memory, 0))")
        same(other.do("float(theirs[12345]), float(theirs[-1])"), str((12345.0, float((1 << 27) - 1))))
        other.do("theirs[:] = -1; cupy.cuda.Device().synchronize()")
        same(other.do("float(cupy.asarray(store.get('lent').cuda())[12345])"), "12345.0")
        other.do("del theirs; cupy.cuda.runtime.ipcCloseMemHandle(p); o.release()")
        handle.release()
        store.delete("lent")
        return "1 GiB in %.1f ms" % took
    check("an object is opened by a cudaIpcMemHandle_t of a copy, and stays as it is", lent)


def full(store, torch, other):
    """A process takes all of the GPU's memory but some; more objects come than fit beside it."""
    left, n = 5 * GIB, 8

    def more_than_fit():
        other.do("import torch; torch.zeros(1, device='cuda'); free, _ = torch.cuda.mem_get_info()")
        other.do("hog = torch.empty(free - %d, dtype=torch.uint8, device='cuda')" % left)
        before = objects(store)[0]
        began = time.perf_counter()
        for i in range(n):
            with store.empty_cuda(GIB // 8, "<i8", "full%d" % i) as draft:
                t = torch.from_dlpack(draft)
                torch.arange(i, i + GIB // 8, out=t)
                del t
                draft.seal().release()
        took = time.perf_counter() - began
        here, away = objects(store)
        if away == 0 or here + away != n + before:
            raise AssertionError("%d are in the GPU's memory, %d before, %d are away: %s" % (
                here, before, away, listed(store)))
        return "%d of 1 GiB made in %.0f ms: %d there, %d made way" % (n, took * 1e3, here, away)
    check("objects that nobody uses make way on a full GPU", more_than_fit)

    def all_come_back():
        times = []
        for _ in range(2):
            for i in range(n):
                was = store.stat("full%d" % i).state
                began = time.perf_counter()
                with store.get("full%d" % i) as o:
                    if was == "spilled":
                        times.append((time.perf_counter() - began) * 1e3)
                    t = torch.from_dlpack(o)
                    same((int(t[0]), int(t[-1]), int(t[GIB // 16])), (i, i + GIB // 8 - 1, i + GIB // 16))
                    same(bool((t[1:] - t[:-1] == 1).all()) if i == 0 else True, True)
                    del t
        tensors.figures["get of 1 GiB that made way, while another one does"] = sorted(times)[len(times) // 2]
        return "%d came back, median %.0f ms, least %.0f" % (len(times), sorted(times)[len(times) // 2], min(times))
    check("they come back with their bytes", all_come_back)

    def held_stays():
        held = [torch.from_dlpack(store.get("full%d" % i)) for i in range(3)]
        try:
            store.create(8 * GIB, device="cuda:0").abort()
            raise AssertionError("8 GiB were had beside the other process")
        except tendril.Full as e:
            said = str(e)
        same([int(t[5]) for t in held], [5, 6, 7])
        return said[:100]
    check("what is mapped stays, and what can never fit is Full", held_stays)
    gc.collect()
    for i in range(n):
        store.delete("full%d" % i)
    other.do("del hog; torch.cuda.empty_cache()")


def main():
    with tempfile.TemporaryDirectory(prefix="tendril-allocators-") as work:
        os.environ["TENDRIL_CAPACITY"] = "24GiB"
        node = tensors.daemon(os.path.abspath(sys.argv[1]), work)
        try:
            store = tendril.connect(patience=30)
            print(json.dumps(store.gpus()))
            import torch
            torch.cuda.memory.change_current_allocator(allocators.for_torch(store))
            torch.zeros(1, device="cuda")
            other = Other("import cupy; cupy.zeros(1)")
            pytorch(store, torch, other)
            cupy_too(store)
            handles(store, other)
            full(store, torch, other)
            other.close()
            store.close()
            said = open(work + "/log").read()
            for line in [x for x in said.splitlines() if "level=warn" in x or "level=err" in x][:10]:
                print("        the daemon: " + line)
        except BaseException:
            print(open(work + "/log").read()[-4000:])
            raise
        finally:
            node.terminate()
            node.wait(60)
    print(json.dumps(tensors.figures))
    bad = tensors.failed
    print("%d checks failed: %s" % (len(bad), ", ".join(bad)) if bad else "all checks are good")
    return len(bad)


if __name__ == "__main__":
    sys.exit(main())

"""Checks objects in the memory of GPUs on a GPU, and measures the figures that docs/PERFORMANCE.md keeps.

    python3 tools/gpucheck/figures.py [OUT-DIRECTORY [SECONDS]]

It needs what `make gpucheck-build` builds and client/python, no compiler; PyTorch and CuPy for the checks that use them.
Daemons are its own. Every step has a limit, and none starts after SECONDS (140). It prints what each step said, then a
table of the figures, and writes both as figures.json. The exit status is the number of steps that failed.
"""

import datetime
import json
import os
import re
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time

HERE = os.path.abspath(os.path.join(os.path.dirname(__file__), "../.."))
BIN = os.path.join(HERE, "bin")
DRIVER = os.environ.get("GPUCHECK_OPENCL", "libnvidia-opencl.so.1")
DEVICES = os.environ.get("GPUCHECK_DEVICES", "platform=NVIDIA")
ROUNDS = 3  # native, forwarded and remote programs in turn

began = time.monotonic()
steps = []  # name, what went wrong or "", seconds
raw = {}  # figures as they were measured
said_of_memory = []  # by bin/gpu/memory, which lists the GPUs
rows = []  # the table: what, reach, seen, what it is compared with, good


def left(limit):
    return max(1, min(limit, SECONDS - (time.monotonic() - began)))


def step(name, run, need=3):
    """Runs a step if `need` seconds are left for it."""
    print("\n== %s" % name, flush=True)
    start = time.monotonic()
    try:
        if left(need) < need:
            raise TimeoutError("not run: no time was left")
        run()
        wrong = ""
    except Exception as e:
        wrong = "%s: %s" % (type(e).__name__, str(e)[-2000:])
        print("-- FAILED: " + wrong, flush=True)
    took = time.monotonic() - start
    steps.append({"step": name, "failed": wrong, "seconds": round(took, 1)})
    print("-- %.1f s" % took, flush=True)


def program(words, limit, good=(0,), **more):
    """Runs a program, says what it said, and gives that."""
    done = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, stdin=subprocess.DEVNULL,
                            start_new_session=True, **more)
    try:
        said, _ = done.communicate(timeout=left(limit))
    except subprocess.TimeoutExpired:
        os.killpg(done.pid, 9)
        said, _ = done.communicate()
        raise TimeoutError("%s ran past its limit; it said: %s" % (words[0], said[-3000:])) from None
    print(said[-12000:].rstrip(), flush=True)
    if done.returncode not in good:
        raise RuntimeError("%s ended with %d" % (os.path.basename(words[0]), done.returncode))
    return said


class Node:
    """A daemon on the vendor's OpenCL driver, as a user of this machine and as one of another machine see it."""

    def __init__(self, work):
        self.work = work
        os.chmod(work, 0o755)  # workers run as another user
        os.makedirs(work + "/vendors")
        os.makedirs(work + "/far")
        with open(work + "/vendors/driver.icd", "w") as f:
            f.write(DRIVER + "\n")
        self.env = dict(os.environ, TENDRIL_SOCKET=work + "/s", TENDRIL_STATE_DIR=work + "/state",
                        TENDRIL_VENDORS=work + "/vendors", TENDRIL_LISTEN="127.0.0.1:0", TENDRIL_CAPACITY="12GiB",
                        OCL_ICD_VENDORS="/nonexistent", OCL_ICD_FILENAMES="")
        vendors = "/nonexistent" if "nvidia" in DRIVER else work + "/vendors"  # some loaders look at one of them alone
        self.native = dict(os.environ, OCL_ICD_VENDORS=vendors, OCL_ICD_FILENAMES=DRIVER)
        self.far = dict(self.env, HOME=work + "/far", XDG_CONFIG_HOME=work + "/far", XDG_RUNTIME_DIR=work + "/far")
        del self.far["TENDRIL_SOCKET"]
        self.log = open(work + "/log", "wb")
        self.process = subprocess.Popen([BIN + "/tendril", "daemon"], env=self.env, stdin=subprocess.DEVNULL,
                                        stdout=self.log, stderr=subprocess.STDOUT)
        self.port = None

    def tendril(self, *words, env=None):
        done = subprocess.run([BIN + "/tendril", *words], env=env or self.env, capture_output=True, text=True,
                              timeout=left(60))
        if done.returncode:
            raise RuntimeError("tendril %s: %s" % (" ".join(words), done.stderr[-800:]))
        return done.stdout

    def started(self):
        while True:
            try:
                if '"uuid"' in self.tendril("devices", "--json"):
                    break
            except RuntimeError:
                pass
            if self.process.poll() is not None or left(2) < 2:
                raise RuntimeError(open(self.work + "/log").read()[-3000:])
            time.sleep(0.1)
        print(self.tendril("devices"))
        self.port = "127.0.0.1:" + json.loads(self.tendril("status", "--json"))["node"]["listen"].rpartition(":")[2]
        token = self.tendril("token", "create", "--expires", "1h").strip()
        self.tendril("login", self.port, "--token", token, env=self.far)

    def words(self, way, command):
        """How a program is run: natively, by the daemon of this machine, or as another machine's without TLS."""
        device = ["--device", DEVICES] if DEVICES else []
        if way == "native":
            return command, self.native
        if way == "forwarded":
            return [BIN + "/tendril", "run", *device, "--", *command], self.env
        return [BIN + "/tendril", "run", "--server", self.port, "--plaintext", *device, "--", *command], self.far

    def end(self):
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
        for line in open(self.work + "/log", errors="replace"):
            if "level=warn" in line or "level=err" in line:
                print("the daemon: " + line.rstrip()[:400])


class Bench:
    """clbench, started once and asked a test at a time."""

    def __init__(self, node, way):
        words, env = node.words(way, [BIN + "/gpu/clbench"])
        self.process = subprocess.Popen(words, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.name = self.process.stdout.readline().strip()
        if not self.name:
            raise RuntimeError("clbench %s did not start" % way)

    def ask(self, test):
        self.process.stdin.write(test + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("clbench ended at " + test)
        return float(line.split()[0])

    def end(self):
        self.process.stdin.close()
        self.process.wait(20)


def transfers(node):
    """Writes, reads and calls: native, forwarded, and as another machine's, in turn."""
    tests = ["write_256MiB", "read_256MiB", "write_mapped_256MiB", "read_mapped_256MiB", "create_release_4KiB",
             "kernel_finish"]
    ways = {way: Bench(node, way) for way in ("native", "forwarded", "plaintext")}
    try:
        for round_ in range(ROUNDS + 1):  # the first one warms up
            for test in tests + ["write_1GiB", "read_1GiB"]:
                for way, bench in ways.items():
                    if test.endswith("1GiB") != (way == "plaintext"):
                        continue
                    value = bench.ask(test)
                    if round_:
                        raw.setdefault("%s %s" % (way, test), []).append(value)
    finally:
        for bench in ways.values():
            bench.process.kill() if sys.exc_info()[0] else bench.end()
    for name in sorted(raw):
        print("%-40s %s" % (name, " ".join("%.1f" % x for x in raw[name])))


def loopback():
    """What the network of this machine gives without Tendril."""
    lib = dict(os.environ, LD_LIBRARY_PATH=BIN + "/gpu/lib:" + os.environ.get("LD_LIBRARY_PATH", ""))
    tool = BIN + "/gpu/iperf3"
    server = subprocess.Popen([tool, "-s", "-1", "-p", "5299", "-B", "127.0.0.1"], env=lib, stdout=subprocess.DEVNULL)
    try:
        for _ in range(50):
            time.sleep(0.1)
            if subprocess.run(["sh", "-c", "grep -q ':14B3 ' /proc/net/tcp"]).returncode == 0:
                break
        said = subprocess.run([tool, "-c", "127.0.0.1", "-p", "5299", "-n", "4G", "-J"], env=lib, capture_output=True,
                              text=True, timeout=left(30))
        raw["iperf3"] = [json.loads(said.stdout)["end"]["sum_received"]["bits_per_second"] / 8]
        print("iperf3, one stream: %.2f GB/s" % (raw["iperf3"][0] / 1e9))
    finally:
        server.kill()
        server.wait()


def peak(node):
    """clpeak: what bandwidth and compute it finds, and how long a launch takes."""
    for way in ("native", "forwarded"):
        words, env = node.words(way, [BIN + "/gpu/clpeak", "--global-bandwidth", "--compute-sp", "--kernel-latency"])
        said = program(words, 40, env=env)
        # the first device alone is looked at: natively there is no other
        for name, value in re.findall(r"^\s*(float\d*|Kernel launch latency)\s*: ([0-9.]+)", said, re.M):
            key = "%s clpeak %s" % (way, name)
            key += " compute" if name != "Kernel launch latency" and key in raw else ""
            raw.setdefault(key, [float(value)])


def handover(node):
    """An OpenCL program opens an object of 1 GiB in the GPU's memory, and writes from memory of the store."""
    big = node.work + "/big"
    with open(big, "wb") as f:
        f.truncate(1 << 30)
        for at in range(0, 1 << 30, 64 << 20):  # what handover looks for
            f.seek(at)
            f.write(struct.pack("<Q", at + 1))
    print(node.tendril("put", big, "--name", "big", "--device", "cuda:0"))
    os.unlink(big)
    words, env = node.words("forwarded", [BIN + "/gpu/handover", "big"])
    env = dict(env, TENDRIL_PUBLISH_KIND="cuda")
    for name, value in re.findall(r"^(\w+) ([0-9.]+) ", program(words, 90, env=env), re.M):
        raw["forwarded " + name] = [float(value)]
    fallbacks = json.loads(node.tendril("status", "--json")).get("fallbacks", [])
    raw["forwarded in pieces"] = [float(any("510 MiB" in x["what"] for x in fallbacks))]
    node.tendril("rm", "big", "handover-published")


def memory():
    """The Go client, and processes that are killed."""
    said = program([BIN + "/gpu/memory", "-tendril", BIN + "/tendril"], 60)
    said_of_memory.append(said)
    for what, least, median in re.findall(r"^time   (.*?)\s+least +([0-9.]+) ms, median +([0-9.]+) ms", said, re.M):
        raw["memory: " + what] = [float(median)]
    pinned = re.search(r"driver's own, 1024 MiB: .*: (\S.*) ms", said)
    if pinned:
        raw["memory: the driver's own"] = [float(x) for x in pinned[1].split() if re.fullmatch(r"[0-9.]+", x)]


def peers():
    """Two GPUs: PyTorch's copies between them, and those of objects."""
    if "cuda:1" not in "".join(said_of_memory):
        print("one GPU")
        return
    tensors("peers.py")


def tensors(script, *more):
    env = dict(os.environ, PYTHONPATH=HERE + "/client/python",
               TENDRIL_CUDA_LIBRARY=BIN + "/lib/libtendril_cuda.so.0")
    said = program([sys.executable, HERE + "/tools/gpucheck/" + script, BIN + "/tendril", *more], 70, env=env)
    for line in said.splitlines():
        if line.startswith("{"):
            for name, value in json.loads(line).items():
                raw["%s: %s" % (script, name)] = [value]


def doctor(node):
    program([BIN + "/tendril", "doctor"], 60, env=node.env)


def median(name):
    return statistics.median(raw[name]) if name in raw else None


def row(what, seen, beside, unit, reach="", least=None, most=None):
    """A line of the table. least and most are shares of what it is compared with, or sums with it, as functions."""
    def show(x):
        return "-" if x is None else ("%.3g %s" % (x, unit)).strip()
    limit = least or most
    good = ""
    if limit:
        at = limit(beside) if beside is not None or reach[3:4].isdigit() and " x " not in reach else None
        good = "not measured" if seen is None or at is None else "yes" if (seen >= at if least else seen <= at) else "NO"
    rows.append({"what": what, "reach": reach, "seen": show(seen), "beside": show(beside), "good": good})


def scaled(name, by):
    return None if median(name) is None else median(name) / by


def rate(name):
    ms = median(name)
    return None if ms is None else (1 << 30) / ms / 1e6  # GB/s of 1 GiB


def table():
    own = raw.get("memory: the driver's own", [])
    there, back = [(1 << 30) / x / 1e6 for x in own[-2:]] if len(own) >= 4 else (None, None)
    row("hand over 1 GiB, CUDA: get, import, map", median("memory: get 1024 MiB from the daemon, import, map; both started"),
        None, "ms", "<= 0.3 ms", most=lambda _: 0.3)
    row("hand over 1 GiB, OpenCL: open as a cl_mem", scaled("forwarded open", 1e3), None, "ms", "<= 0.4 ms",
        most=lambda _: 0.4)
    row("the same, and 64 bytes read", scaled("forwarded open_and_read_64B", 1e3), None, "ms")
    every = median("forwarded marks_all")
    row("1 GiB in pieces (1: the driver imports 510 MiB at most)", median("forwarded in pieces"), None, "")
    row("marks of it that are right", median("forwarded marks"), every, "", "all", least=lambda x: x)
    row("publish 1 GiB in the memory of the GPU", scaled("forwarded publish", 1e3), None, "ms")
    row("marks of it that are right", median("forwarded published_marks"), every, "", "all", least=lambda x: x)
    for way, bus in (("host object to GPU", there), ("GPU to host object", back)):
        row(way + ", 1 GiB, pinned", rate("memory: %s by the keeper, again, 1024 MiB" % way), bus, "GB/s",
            ">= 0.95 x the driver", least=lambda x: .95 * x)
        row("the same, the first time: staged", rate("memory: %s by the keeper, the first time, 1024 MiB" % way), bus, "GB/s")
    between = [raw[x][0] for x in raw if x.startswith("memory: from one GPU to another, 1024 MiB")]
    if between:
        row("from one GPU to another, 1 GiB", (1 << 30) / max(between) / 1e6, median("peers.py: PyTorch, 1024 MiB, 0 to 1"),
            "GB/s", ">= 0.9 x PyTorch", least=lambda x: .9 * x)
    row("write 256 MiB of ordinary memory, forwarded", scaled("forwarded write_256MiB", 1e9),
        scaled("native write_256MiB", 1e9), "GB/s", ">= 2 x native", least=lambda x: 2 * x)
    row("read 256 MiB to ordinary memory, forwarded", scaled("forwarded read_256MiB", 1e9),
        scaled("native read_256MiB", 1e9), "GB/s", ">= 0.9 x native", least=lambda x: .9 * x)
    for word, bus in (("write", there), ("read", back)):
        for whose, name in (("mapped memory, forwarded", "forwarded %s_mapped_256MiB"),
                            ("mapped memory, native", "native %s_mapped_256MiB"),
                            ("the store's memory, forwarded", "forwarded store_%s")):
            row("%s 256 MiB of %s" % (word, whose), scaled(name % word, 1e9), bus, "GB/s", ">= 0.95 x the bus",
                least=lambda x: .95 * x)
    row("remote write of 1 GiB, plaintext, loopback", scaled("plaintext write_1GiB", 1e9), scaled("iperf3", 1e9), "GB/s",
        ">= 0.95 x iperf3", least=lambda x: .95 * x)
    row("remote read of 1 GiB, plaintext, loopback", scaled("plaintext read_1GiB", 1e9), scaled("iperf3", 1e9), "GB/s")
    row("clCreateBuffer and release 4 KiB, forwarded", scaled("forwarded create_release_4KiB", 1e3),
        scaled("native create_release_4KiB", 1e3), "us", "<= native", most=lambda x: x)
    for size, reach in (("1", 20), ("1024", 250)):
        row("allocate and free %s MiB, steady" % size,
            scaled("memory: create and abort %s MiB through the daemon, again" % size, 1e-3), None, "us",
            "<= %d us" % reach, most=lambda _, most=reach: most)
    for kind in ("float", "float16", "float compute", "float16 compute"):
        row("clpeak " + kind, median("forwarded clpeak " + kind), median("native clpeak " + kind), "",
            ">= 0.98 x native", least=lambda x: .98 * x)
    row("clpeak launch", median("forwarded clpeak Kernel launch latency"),
        median("native clpeak Kernel launch latency"), "us", "<= native + 10 us", most=lambda x: x + 10)
    row("kernel and finish, forwarded", scaled("forwarded kernel_finish", 1e3), scaled("native kernel_finish", 1e3), "us")
    for name in sorted(x for x in raw if x.startswith(("tensors.py", "allocators.py"))):
        row(name, raw[name][0], None, "ms")


def told():
    """What this machine is."""
    def ask(*words):
        try:
            return subprocess.run(words, capture_output=True, text=True, timeout=20).stdout.strip()
        except OSError:
            return ""
    return {"date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
            "gpu": ask("nvidia-smi", "--query-gpu=name,driver_version,compute_mode", "--format=csv,noheader"),
            "processors": os.cpu_count(), "kernel": os.uname().release, "tendril": ask(BIN + "/tendril", "--version")}


def main():
    machine = told()
    print(json.dumps(machine))
    with tempfile.TemporaryDirectory(prefix="tendril-figures-") as work:
        node = Node(work)
        try:
            step("the daemon", node.started)
            step("transfers and calls", lambda: transfers(node))
            step("loopback", loopback)
            step("an object as a cl_mem", lambda: handover(node))
            step("clpeak", lambda: peak(node))
            step("doctor", lambda: doctor(node))
        finally:
            node.end()
            shutil.copy(work + "/log", OUT + "/daemon.log")
    step("memory of GPUs", memory)
    step("copies between two GPUs", peers, 10)
    step("PyTorch and CuPy", lambda: tensors("tensors.py", BIN + "/gpu"), 10)
    step("allocators, a full GPU, cudaIpcMemHandle_t", lambda: tensors("allocators.py"), 10)
    table()
    print("\n%-52s %-22s %-14s %-14s %s" % ("what", "reach", "seen", "beside", "good"))
    for r in rows:
        print("%-52s %-22s %-14s %-14s %s" % (r["what"][:52], r["reach"], r["seen"], r["beside"], r["good"]))
    with open(OUT + "/figures.json", "w") as f:
        json.dump({"machine": machine, "table": rows, "steps": steps, "measured": raw}, f, indent=1)
    print()
    for s in steps:
        print("step %-45s %6.1f s  %s" % (s["step"], s["seconds"], s["failed"][:100].replace("\n", " ")))
    bad = sum(1 for s in steps if s["failed"])
    print("%d steps failed, %.0f s" % (bad, time.monotonic() - began))
    return bad


if __name__ == "__main__":
    OUT = sys.argv[1] if len(sys.argv) > 1 else "gpucheck-out"
    SECONDS = float(sys.argv[2]) if len(sys.argv) > 2 else 140
    os.makedirs(OUT, exist_ok=True)
    sys.exit(main())

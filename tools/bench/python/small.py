"""Measures the Python client against Redis and multiprocessing.shared_memory, in one process. For each line on standard
input the median time in ns, of: "put SIZE" and "get SIZE" with the daemon at $TENDRIL_SOCKET; "redis-put SIZE" and
"redis-get SIZE" with a Redis that this program starts (a unix socket, nothing on disk); "map" of getting an array of
64 MiB; "shm" of attaching to one. Run with client/python on PYTHONPATH."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from multiprocessing import shared_memory
from typing import Callable, Dict

import numpy
import redis

import tendril

CALLS, WARM = 1000, 100
MAPPED = 64 << 20


def median(step: "Callable[[], object]") -> int:
    took = []
    for _ in range(CALLS + WARM):
        began = time.perf_counter_ns()
        step()
        took.append(time.perf_counter_ns() - began)
    return sorted(took[WARM:])[CALLS // 2]


def start_redis(folder: str) -> "tuple[subprocess.Popen[bytes], redis.Redis]":
    path = os.path.join(folder, "redis")
    server = subprocess.Popen(["redis-server", "--port", "0", "--unixsocket", path, "--save", "", "--dir", folder],
                              stdout=subprocess.DEVNULL)
    client = redis.Redis(unix_socket_path=path)
    for _ in range(500):
        try:
            client.ping()
            return server, client
        except redis.ConnectionError:
            time.sleep(0.02)
    raise SystemExit("redis-server does not answer")


def steps(store: tendril.Client, rival: "redis.Redis") -> "Dict[str, Callable[[], object]]":
    """What is measured, by the line that asks for it."""
    found: "Dict[str, Callable[[], object]]" = {}
    for size in (100, 4096):
        data, name = os.urandom(size), "bench/%d" % size
        store.put(data, name, replace=True).release()
        rival.set(name, data)

        def get(name: str = name, data: bytes = data) -> None:
            with store.get(name) as o:
                if o.bytes() != data:
                    raise SystemExit("other bytes came")

        found["put %d" % size] = lambda data=data: store.put(data).release()  # type: ignore[misc]
        found["get %d" % size] = get
        found["redis-put %d" % size] = lambda data=data, name=name: rival.set(name, data)  # type: ignore[misc]
        found["redis-get %d" % size] = lambda name=name: rival.get(name)  # type: ignore[misc]
    store["bench/mapped"] = numpy.ones(MAPPED // 4, "f4")
    block = shared_memory.SharedMemory(create=True, size=MAPPED)

    def mapped() -> None:
        o = store.get("bench/mapped")
        if o.numpy()[-1] != 1:
            raise SystemExit("other bytes came")
        o.release()

    def attached() -> None:
        there = shared_memory.SharedMemory(block.name)
        array = numpy.ndarray(MAPPED // 4, "f4", there.buf)
        array[-1]
        del array
        there.close()

    found["map"], found["shm"], found["end"] = mapped, attached, lambda: (block.close(), block.unlink())
    return found


def main() -> None:
    folder = tempfile.mkdtemp(prefix="tendril-bench-")
    server, rival = start_redis(folder)
    writer, reader = tendril.connect(), tendril.connect()
    asked = steps(writer, rival)
    other = steps(reader, rival)  # whoever gets did not put
    try:
        print("ready", flush=True)
        for line in sys.stdin:
            what = line.strip()
            print("%.1f" % median((other if what in ("map",) or what.startswith("get") else asked)[what]), flush=True)
    finally:
        asked["end"](), other["end"]()
        server.kill()
        server.wait()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()

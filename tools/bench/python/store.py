"""Measures the Python client against the daemon at $TENDRIL_SOCKET. For each line on standard input the median time in ns: for
"get" of getting an array of 1 GiB, with the array made and looked at; for "fill" of making one of 1 MiB, filling it in place,
and sealing it. Run with client/python on PYTHONPATH."""

import sys
import time
from typing import Callable

import numpy

import tendril

CALLS, WARM = 1000, 100
SIZE = 1 << 30
FILLED = 1 << 20


def median(step: "Callable[[], int]") -> int:
    """Of the times that step gives."""
    took = [step() for _ in range(CALLS + WARM)][WARM:]
    return sorted(took)[CALLS // 2]


def get(reader: tendril.Client, key: tendril.ObjectID) -> int:
    began = time.perf_counter_ns()
    found = reader.get(key)
    array = found.numpy()
    ended = time.perf_counter_ns()
    if array.shape != (SIZE // 4,) or array.dtype != numpy.float32:
        raise SystemExit("another array came")
    del array
    found.release()
    return ended - began


def fill(writer: tendril.Client, source: "numpy.ndarray") -> int:
    began = time.perf_counter_ns()
    made = writer.empty(FILLED // 4, "f4")
    made[:] = source
    made.seal().release()
    return time.perf_counter_ns() - began


def main() -> None:
    writer, reader = tendril.connect(), tendril.connect()
    made = writer.empty(SIZE // 4, "f4")
    made[0] = 1
    kept = made.seal()
    source = numpy.ones(FILLED // 4, "f4")
    print("ready", flush=True)
    for line in sys.stdin:
        step = (lambda: fill(writer, source)) if line == "fill\n" else (lambda: get(reader, kept.id))
        print("%.1f" % median(step), flush=True)


if __name__ == "__main__":
    main()

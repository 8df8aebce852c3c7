"""Measures the Python client against the daemon at $TENDRIL_SOCKET: for each line on standard input the median time in ns
of getting an array of 1 GiB, with the array made and looked at. Run with client/python on PYTHONPATH."""

import sys
import time

import numpy

import tendril

CALLS, WARM = 1000, 100
SIZE = 1 << 30


def main() -> None:
    writer, reader = tendril.connect(), tendril.connect()
    made = writer.empty(SIZE // 4, "f4")
    made[0] = 1
    kept = made.seal()
    key = kept.id
    print("ready", flush=True)
    for _ in sys.stdin:
        took = []
        for i in range(CALLS + WARM):
            began = time.perf_counter_ns()
            found = reader.get(key)
            array = found.numpy()
            ended = time.perf_counter_ns()
            if array.shape != (SIZE // 4,) or array.dtype != numpy.float32:
                raise SystemExit("another array came")
            if i >= WARM:
                took.append(ended - began)
            del array
            found.release()
        print("%.1f" % sorted(took)[CALLS // 2], flush=True)


if __name__ == "__main__":
    main()

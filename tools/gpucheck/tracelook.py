"""Shows one copy of each kind out of what cudatrace wrote: python3 tools/gpucheck/tracelook.py FILE..."""

import sys

COPIES = ("cuMemcpyDtoDAsync_v2", "cuMemcpyDtoD_v2", "cuMemcpyHtoD_v2", "cuMemcpyDtoH_v2")


def main():
    for path in sys.argv[1:]:
        calls = []
        for line in open(path):
            words = line.split()
            if len(words) == 5:
                calls.append((int(words[0]), words[1], int(words[2]), int(words[3]), int(words[4])))
        for kind in COPIES:
            large = [i for i, c in enumerate(calls) if c[1] == kind and c[4] >= 32 << 20]
            if not large:
                continue
            top = max(calls[i][4] for i in large)
            mine = [i for i in large if calls[i][4] == top]
            at = mine[len(mine) // 2]
            print("%s, around one of %d MiB of %s: begin us, took us, idle us before, MiB" % (kind, top >> 20, path))
            last = None
            for c in calls[max(0, at - 110):at + 110]:
                idle = 0 if last is None else c[0] - last
                last = c[0] + c[2]
                if c[1] != "cuCtxSetCurrent" or c[2] > 20000:
                    print("%12.1f %9.1f %9.1f  %-32s %8.1f%s" % (c[0] / 1e3, c[2] / 1e3, idle / 1e3, c[1], c[4] / 2**20,
                                                               "  FAILED %d" % c[3] if c[3] else ""))
        print("in all: function, calls, us, most us")
        for name in sorted({c[1] for c in calls}):
            some = [c[2] / 1e3 for c in calls if c[1] == name]
            print("    %-34s %7d %12.0f %10.0f" % (name, len(some), sum(some), max(some)))


if __name__ == "__main__":
    main()

"""Times copies between two GPUs: PyTorch's, and those of objects from Python.

    PYTHONPATH=client/python python3 tools/gpucheck/peers.py bin/tendril

Starts a daemon of its own. Prints GB/s: the first, the median and the best copy of each way. $PEERS_MIB has the sizes;
with $PEERS_OBJECTS_ONLY PyTorch is left out, which has the GPUs reach each other as long as it lasts.
"""

import json
import os
import statistics
import struct
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import tensors  # noqa: E402

import tendril  # noqa: E402
from tendril import wire  # noqa: E402

TRIES = 9
figures = {}  # GB/s, medians
SIZES = [(int(x) << 20, x + " MiB") for x in os.environ.get("PEERS_MIB", "1024 64").split()]


def timed(what, size, ask):
    try:
        taken = []
        for _ in range(TRIES):
            began = time.perf_counter()
            done = ask()
            taken.append(time.perf_counter() - began)
            if done is not None:
                done.release()
        figures[what] = size / statistics.median(taken[1:]) / 1e9
        print("%-58s first %7.1f, median %7.1f, best %7.1f GB/s; median %8.0f us" % (
            what, size / taken[0] / 1e9, size / statistics.median(taken[1:]) / 1e9, size / min(taken) / 1e9,
            statistics.median(taken[1:]) * 1e6), flush=True)
    except Exception as e:
        print("FAILED  %s: %s: %s" % (what, type(e).__name__, e), flush=True)


def torchs():
    import torch
    for size, text in SIZES:
        a = torch.ones(size, dtype=torch.uint8, device="cuda:0")
        b = torch.zeros(size, dtype=torch.uint8, device="cuda:1")
        for source, target, way in ((a, b, "0 to 1"), (b, a, "1 to 0")):
            def copied(source=source, target=target):
                target.copy_(source)
                torch.cuda.synchronize(0)
                torch.cuda.synchronize(1)
            timed("PyTorch, %s, %s" % (text, way), size, copied)


def objects(store):
    for size, text in SIZES:
        draft = store.create(size, device="cuda:0")
        with draft.seal() as o:
            timed("object.to('cuda:1'), %s: create, copy, seal" % text, size, lambda: o.to("cuda:1"))
            there = store.create(size, device="cuda:1")
            body = bytes(there.id) + bytes(8) + bytes(tendril.ObjectID(o.id)) + wire.str16("")
            body += struct.pack("<QQ", 0, size)
            timed("CopyObject alone, %s, 0 to 1" % text, size,
                  lambda: store._plain(wire.COPY_OBJECT, body) and None)
            there.abort()
    for way in (store.status().get("keeper") or {}).get("copies") or []:
        print("way    %s" % way)


def main():
    try:
        if not os.environ.get("PEERS_OBJECTS_ONLY"):
            torchs()
    except ImportError as e:
        print("no PyTorch: %s" % e)
    with tempfile.TemporaryDirectory(prefix="tendril-peers-") as work:
        node = tensors.daemon(os.path.abspath(sys.argv[1]), work)
        try:
            store = tendril.connect(patience=30)
            objects(store)
            store.close()
        finally:
            node.terminate()
            node.wait(60)
            print(json.dumps(figures))
            said = open(work + "/log").read().splitlines()
            print("\n".join(x for x in said if "level=warn" in x or "level=err" in x))


if __name__ == "__main__":
    main()

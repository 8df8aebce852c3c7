"""Tendril's shared-memory object store, from Python.

    import tendril
    store = tendril.connect()
    store.put(numpy.arange(12).reshape(3, 4), name="grid")
    with store.get("grid", timeout=5) as grid:
        print(grid.numpy().sum())

Sealed objects do not change. From the seal on, the kernel gives nobody a new writable mapping, not even root. All that
an Object hands out (data, numpy(), DLPack, load()) lies in memory that faults when it is written, also in the process
that made the object, and also what a library makes of it (torch.from_numpy).

The seal also closes what that process had before: memoryviews of a draft raise ValueError, and the array of empty() is
read-only. A write through another view of them faults, or does not reach the object. Hostile code in that process can
still write: it can make pages writable again (mprotect), or use a child that was forked before the seal. strict=True
(put, create, empty, dump) excludes that: no writable mapping is left, and none can be made.

A write to sealed memory raises SIGSEGV, not an exception, because the page is mapped read-only. With
tendril.explain_faults(), or TENDRIL_EXPLAIN_FAULTS=1 in the environment, the process says so, and where it was.

Objects can lie in the memory of GPUs: create(device="cuda:0"), put(tensor). Their cuda() is taken by CuPy, PyTorch,
Numba and JAX without a copy. Such memory can be written after the seal: the hardware knows no other mapping.

Pure Python, written from ipc/PROTOCOL.md. Only arrays need NumPy. The client trusts what the daemon says, but checks
every length.
"""

from .client import Client, connect
from .cuda import CudaArray
from .errors import (
    Aborted, Busy, Disconnected, Ended, Exists, Full, Internal, Invalid, Limit, NoDevice, NotFound, NotSealed,
    Permission, Protocol, Quota, Sealed, Storage, TendrilError, Timeout, Unstorable, Unsupported, Version,
)
from .faults import explain_faults, explain_if_asked
from .objects import CudaDraft, CudaObject, Draft, Info, Object, ObjectID, Part, Tree
from .streams import Frame, Reader, Writer
from .watch import Event, Watch

__version__ = "0.1.0"

__all__ = [
    "Aborted", "Busy", "Client", "CudaArray", "CudaDraft", "CudaObject", "Disconnected", "Draft", "Ended", "Event",
    "Exists", "Frame", "Full", "Info", "Internal", "Invalid", "Limit", "NoDevice", "NotFound", "NotSealed", "Object",
    "ObjectID", "Part", "Permission", "Protocol", "Quota", "Reader", "Sealed", "Storage", "TendrilError", "Timeout",
    "Tree", "Unstorable", "Unsupported", "Version", "Watch", "Writer", "connect", "explain_faults",
]

explain_if_asked()

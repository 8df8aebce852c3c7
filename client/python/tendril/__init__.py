"""Tendril's shared-memory object store, from Python.

    import tendril
    store = tendril.connect()
    store.put(numpy.arange(12).reshape(3, 4), name="grid")
    with store.get("grid", timeout=5) as grid:
        print(grid.numpy().sum())

Pure Python, written from ipc/PROTOCOL.md alone; NumPy is needed only for arrays. It trusts the
daemon about meaning, never about lengths.
"""

from .client import Client, connect
from .errors import (
    Aborted, Busy, Disconnected, Ended, Exists, Full, Internal, Invalid, NoDevice, NotFound, NotSealed, Permission,
    Protocol, Quota, Sealed, Storage, TendrilError, Timeout, Unsupported, Version,
)
from .objects import Draft, Info, Object, ObjectID, Part, Tree
from .streams import Frame, Reader, Writer
from .watch import Event, Watch

__version__ = "0.1.0"

__all__ = [
    "Aborted", "Busy", "Client", "Disconnected", "Draft", "Ended", "Event", "Exists", "Frame", "Full", "Info", "Internal",
    "Invalid", "NoDevice", "NotFound", "NotSealed", "Object", "ObjectID", "Part", "Permission", "Protocol", "Quota", "Reader",
    "Sealed", "Storage", "TendrilError", "Timeout", "Tree", "Unsupported", "Version", "Watch", "Writer", "connect",
]

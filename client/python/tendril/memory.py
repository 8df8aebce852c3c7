"""Mappings of the store's segments, and leases on parts of them.

A lease is what keeps a daemon's reference alive: every memoryview and array taken
from it keeps it, and when the last of them is gone its end is called. ctypes arrays
serve as the exporting objects, because they can be watched (weakref.finalize) and
laid over memory that is mapped read-only; mmap objects can do neither and cost a
descriptor each.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from typing import Callable, Dict

from .errors import Full, Protocol

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_longlong]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

_MAP_FAILED = ctypes.c_void_p(-1).value
_MADV_POPULATE_READ, _MADV_POPULATE_WRITE = 22, 23
_POPULATE_FROM = 1 << 20  # bytes; below this a few page faults are cheaper than the call


class _End(weakref.ref):  # type: ignore[type-arg]
    """Calls end when its lease is gone. weakref.finalize does the same for five times the price, on every get."""

    __slots__ = ("end",)
    end: Callable[[], None]


_ends: Dict[int, _End] = {}  # they must live until then


def _gone(ref: _End) -> None:
    del _ends[id(ref)]
    ref.end()


def _when_gone(part: object, end: Callable[[], None]) -> None:
    ref = _End(part, _gone)  # type: ignore[arg-type]
    ref.end = end
    _ends[id(ref)] = ref


class Mapping:
    """One segment in this process. Not thread-safe: the segment table's lock guards it."""

    def __init__(self, fd: int, size: int, writable: bool) -> None:
        """Maps size bytes of fd, which stays the caller's."""
        have = os.fstat(fd).st_size
        if size <= 0 or have < size:
            raise Protocol("segment announced with %d bytes has %d" % (size, have))
        prot = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        address = _libc.mmap(None, size, prot, mmap.MAP_SHARED, fd, 0)
        if address is None or address == _MAP_FAILED:
            raise Full("cannot map a segment of %d bytes: %s" % (size, os.strerror(ctypes.get_errno())))
        self.address: int = address
        self.size = size
        self.writable = writable

    def close(self) -> None:
        """Unmaps. Precondition: no lease is left."""
        if self.address:
            _libc.munmap(self.address, self.size)
            self.address = 0

    def lease(self, offset: int, size: int, end: Callable[[], None]) -> "ctypes.Array[ctypes.c_ubyte]":
        """An exporter over [offset, offset+size); end is called once nothing uses it any more, in any thread."""
        if self.writable:
            populate(self.address + offset, size, True)
        part = (ctypes.c_ubyte * size).from_address(self.address + offset)
        _when_gone(part, end)
        return part


def address_of(part: "ctypes.Array[ctypes.c_ubyte]") -> int:
    """Where a lease's bytes lie."""
    return ctypes.addressof(part)


def populate(address: int, size: int, writable: bool) -> None:
    """Enters a large range into the page tables at once; the pages themselves are the daemon's already.

    A kernel before 5.14 refuses the advice, and then the faults come one by one.
    """
    if size < _POPULATE_FROM:
        return
    start = address - address % mmap.PAGESIZE
    advice = _MADV_POPULATE_WRITE if writable else _MADV_POPULATE_READ
    _libc.madvise(start, address + size - start, advice)


def nothing(end: Callable[[], None]) -> "ctypes.Array[ctypes.c_ubyte]":
    """The lease of an object of no bytes."""
    part = (ctypes.c_ubyte * 0)()
    _when_gone(part, end)
    return part


def view(part: "ctypes.Array[ctypes.c_ubyte]", writable: bool) -> memoryview:
    """The bytes of a lease, one dimension of format 'B'."""
    if len(part) == 0:
        return memoryview(b"") if not writable else memoryview(bytearray())
    whole = memoryview(part).cast("B")
    return whole if writable else whole.toreadonly()

"""Mappings of the store's segments, and leases on parts of them.

A lease is what keeps a daemon's reference alive: every memoryview and array taken
from it keeps it, and when the last of them is gone its end is called. ctypes arrays
serve as the exporting objects, because they can be watched (weakref.finalize) and
laid over memory that is mapped read-only; mmap objects can do neither and cost a
descriptor each.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import weakref
from typing import Any, Callable, Dict, List

from . import faults
from .errors import Full, Protocol

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_longlong]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.mremap.restype = ctypes.c_void_p
_libc.mremap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]

_MAP_FAILED = ctypes.c_void_p(-1).value
_MADV_POPULATE_READ, _MADV_POPULATE_WRITE = 22, 23
_POPULATE_FROM = 1 << 20  # bytes; below this a few page faults are cheaper than the call
_MAP_FIXED, _MAP_NORESERVE = 0x10, 0x4000
_MREMAP_MAYMOVE, _MREMAP_FIXED, _MREMAP_DONTUNMAP = 1, 2, 4
# From this size on moving page table entries beats changing them: 75 ns a page, twice an object. store/segment has the figures.
_PARK_FROM = 256 << 10


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
        self.address = _map(None, size, mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0), mmap.MAP_SHARED, fd)
        self.size = size
        self.writable = writable
        faults.entered(self.address, size)
        # The unit of protect: huge pages' size, where the segment has those (or perhaps has them, which costs nothing but precision).
        self._unit = max(mmap.PAGESIZE, os.fstat(fd).st_blksize)
        self._parking = 0  # an address; 0: nothing was parked yet
        self._parks = writable  # until the kernel says that it cannot

    def close(self) -> None:
        """Unmaps. Precondition: no lease is left."""
        if self.address:
            faults.left(self.address)
            _libc.munmap(self.address, self.size)
            self.address = 0
        self._end_parking()

    def protect(self, start: int, end: int, stores: bool) -> bool:
        """Allows or forbids stores to [start, end), multiples of a page: from then on they fault. False: the kernel refuses."""
        if end - start >= _PARK_FROM:
            self._park(start, end - start, not stores)
        prot = mmap.PROT_READ | (mmap.PROT_WRITE if stores else 0)
        if _libc.mprotect(self.address + start, end - start, prot) == 0:
            return True
        # Huge pages can be protected as a whole alone: what is opened is opened with them, what is shut is shut where they are all of it.
        up, down = -(-(start if not stores else end) // self._unit) * self._unit, (end if not stores else start) // self._unit * self._unit
        start, end = (down, min(up, self.size)) if stores else (up, down)
        return end > start and _libc.mprotect(self.address + start, end - start, prot) == 0

    def _park(self, start: int, size: int, away: bool) -> None:
        """A second mapping of the memory, at an address that nobody is told of, takes the page table entries, whole tables at a time where
        it can be, or gives them back. What they leave can be made read-only without a look at each page. Entries that are not there where
        they are looked for come back by faults, so parked and mprotected pages may be mixed."""
        if not self._parks or not self._parking and not away:
            return
        if not self._parking:
            # A length of 0 asks for a copy of the mapping, which may write as the first does, whatever seals there are.
            got = _libc.mremap(self.address, 0, self.size, _MREMAP_MAYMOVE, None)
            self._parks = got is not None and got != _MAP_FAILED
            if not self._parks:
                return
            if _libc.mprotect(got, self.size, mmap.PROT_READ | mmap.PROT_WRITE) != 0:  # it begins with the protection of the first page
                self._parks = False
                _libc.munmap(got, self.size)
                return
            self._parking = int(got)
        here, there = self.address + start, self._parking + start
        source, target = (here, there) if away else (there, here)
        if _libc.mremap(source, size, size, _MREMAP_MAYMOVE | _MREMAP_FIXED | _MREMAP_DONTUNMAP, target) != target:
            self._parks = ctypes.get_errno() != errno.EINVAL  # before Linux 5.13, or huge pages

    def _end_parking(self) -> None:
        if self._parking:
            _libc.munmap(self._parking, self.size)
            self._parking = 0

    def empty(self) -> None:
        """Maps nothing in its place: whatever touches a lease faults until map_again."""
        self._end_parking()
        anonymous = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED | _MAP_NORESERVE
        _map(self.address, self.size, 0, anonymous, -1)

    def map_again(self, fd: int, writable: bool) -> None:
        """Maps fd in the same place, where leases find it."""
        _map(self.address, self.size, mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0), mmap.MAP_SHARED | _MAP_FIXED, fd)
        self.writable = writable

    def lease(self, offset: int, size: int, end: Callable[[], None]) -> "ctypes.Array[ctypes.c_ubyte]":
        """An exporter over [offset, offset+size); end is called once nothing uses it any more, in any thread."""
        part = (ctypes.c_ubyte * size).from_address(self.address + offset)
        _when_gone(part, end)
        return part

    def other_face(self, offset: int, lease: "ctypes.Array[ctypes.c_ubyte]") -> "ctypes.Array[ctypes.c_ubyte]":
        """An exporter over the same bytes as a lease of another mapping of this segment, which it keeps."""
        part: Any = (ctypes.c_ubyte * len(lease)).from_address(self.address + offset)
        part.keeps = lease
        return part  # type: ignore[no-any-return]


def _map(address: "int | None", size: int, prot: int, flags: int, fd: int) -> int:
    got = _libc.mmap(address, size, prot, flags, fd, 0)
    if got is None or got == _MAP_FAILED:
        raise Full("cannot map a segment of %d bytes: %s" % (size, os.strerror(ctypes.get_errno())))
    return int(got)


class Scratch:
    """Memory of this process alone in which a small object is filled: what lies beside it in a segment cannot be shut, but this can."""

    __slots__ = ("part", "_state")
    _free: "Dict[int, List[int]]" = {}  # addresses by size in bytes, of what can be used again
    _KEPT = 16  # of each size

    def __init__(self, size: int) -> None:
        whole = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        try:
            address = self._free[whole].pop()
        except (KeyError, IndexError):
            address = _map(None, whole, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1)
        state = self._state = [address, whole, True]  # the last: stores are allowed
        self.part: Any = (ctypes.c_ubyte * size).from_address(address)
        _when_gone(self.part, lambda: Scratch._ended(state))

    def allow(self, stores: bool) -> None:
        """Allows or forbids stores."""
        address, whole, now = self._state
        if now != stores and _libc.mprotect(address, whole, mmap.PROT_READ | (mmap.PROT_WRITE if stores else 0)) == 0:
            self._state[2] = stores
            if stores:
                faults.left(address)
            else:
                faults.entered(address, whole)

    @staticmethod
    def _ended(state: "List[Any]") -> None:
        address, whole, open_ = state
        free = Scratch._free.setdefault(whole, [])
        if open_ and len(free) < Scratch._KEPT:
            free.append(address)
        else:
            faults.left(address)
            _libc.munmap(address, whole)


def copy(to: "ctypes.Array[ctypes.c_ubyte]", source: "ctypes.Array[ctypes.c_ubyte]") -> None:
    """Copies a lease's bytes."""
    ctypes.memmove(to, source, len(source))


def release_views(views: "List[weakref.ref[memoryview]]") -> None:
    """Releases memoryviews: later use raises ValueError. One that others are made from stays."""
    for ref in views:
        found = ref()
        if found is not None:
            try:
                found.release()
            except BufferError:
                pass
    views.clear()


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

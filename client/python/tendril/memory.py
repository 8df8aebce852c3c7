"""Mappings of the store's segments, and leases of parts of them.

A lease keeps a reference to an object. Every memoryview and array over the object's memory keeps the lease; when the
last of them is gone, the lease's end is called. A lease is a ctypes array, because such arrays have weak references
and can lie over read-only memory. mmap objects can do neither, and cost a descriptor each.
"""

from __future__ import annotations

import ctypes
import errno
import io
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
_POPULATE_FROM = 1 << 20  # bytes; below this, page faults cost less than the call
_MAP_FIXED, _MAP_NORESERVE = 0x10, 0x4000
_MREMAP_MAYMOVE, _MREMAP_FIXED, _MREMAP_DONTUNMAP = 1, 2, 4
# Bytes. From this size on it is faster to move page table entries than to change them, which costs 75 ns a page, twice
# for each object. store/segment has the figures.
_PARK_FROM = 256 << 10


class _End(weakref.ref):  # type: ignore[type-arg]
    """Calls end when its lease is gone. weakref.finalize does the same, but takes five times as long on every get."""

    __slots__ = ("end",)
    end: Callable[[], None]


_ends: Dict[int, _End] = {}  # keeps each until its lease is gone


def _gone(ref: _End) -> None:
    del _ends[id(ref)]
    ref.end()


def _when_gone(part: object, end: Callable[[], None]) -> None:
    ref = _End(part, _gone)  # type: ignore[arg-type]
    ref.end = end
    _ends[id(ref)] = ref


class Descriptor(io.FileIO):
    """Owns a descriptor, which is closed with it. It is made of one in a single step of the interpreter."""

    # FileIO's own end would warn. This is no function of Python: there an interrupt could come, and would be lost with
    # the descriptor.
    __del__ = io.FileIO.close


class Mapping:
    """One mapping of a segment in this process. Not thread-safe: the lock of the segment table guards it."""

    def __init__(self, fd: int, size: int, writable: bool) -> None:
        """Maps size bytes of fd, which stays the caller's. Raises Protocol if it is smaller, Full if mmap fails."""
        have = os.fstat(fd).st_size
        if size <= 0 or have < size:
            raise Protocol("the daemon announced a segment of %d bytes, but it has %d" % (size, have))
        self.address = _map(None, size, mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0), mmap.MAP_SHARED, fd)
        self.size = size
        self.writable = writable
        faults.entered(self.address, size)
        # The unit of protect: the size of huge pages, if the segment has them or may have them.
        self._unit = max(mmap.PAGESIZE, os.fstat(fd).st_blksize)
        self._parking = 0  # the address of the second mapping (_park); 0: there is none yet
        self._parks = writable  # False once the kernel refused it

    def close(self) -> None:
        """Unmaps. Precondition: there are no leases."""
        if self.address:
            faults.left(self.address)
            _libc.munmap(self.address, self.size)
            self.address = 0
        self._end_parking()

    def protect(self, start: int, end: int, stores: bool) -> bool:
        """Makes [start, end), multiples of the page size, writable or read-only. False: the kernel refuses."""
        if end - start >= _PARK_FROM:
            self._park(start, end - start, not stores)
        prot = mmap.PROT_READ | (mmap.PROT_WRITE if stores else 0)
        if _libc.mprotect(self.address + start, end - start, prot) == 0:
            return True
        # A huge page can only be protected as a whole: widen to whole ones for writing, else narrow to whole ones.
        if stores:
            start, end = start // self._unit * self._unit, min(-(-end // self._unit) * self._unit, self.size)
        else:
            start, end = -(-start // self._unit) * self._unit, end // self._unit * self._unit
        return end > start and _libc.mprotect(self.address + start, end - start, prot) == 0

    def _park(self, start: int, size: int, away: bool) -> None:
        """Moves page table entries to a second mapping of the memory, or back. It makes mprotect faster.

        The second mapping lies at an address that nobody is told. The kernel moves whole tables at a time if it can. A
        range without entries can be made read-only without a look at each page. Missing entries come back by page
        faults, so parked and protected pages may be mixed.
        """
        if not self._parks or not self._parking and not away:
            return
        if not self._parking:
            # A length of 0 makes a copy of the mapping. It may be writable as the first is, in spite of seals.
            got = _libc.mremap(self.address, 0, self.size, _MREMAP_MAYMOVE, None)
            self._parks = got is not None and got != _MAP_FAILED
            if not self._parks:
                return
            # The copy has the protection of the first page.
            if _libc.mprotect(got, self.size, mmap.PROT_READ | mmap.PROT_WRITE) != 0:
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
        """Maps nothing in the mapping's place: until map_again, any access to a lease faults."""
        self._end_parking()
        anonymous = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED | _MAP_NORESERVE
        _map(self.address, self.size, 0, anonymous, -1)

    def map_again(self, fd: int, writable: bool) -> None:
        """Maps fd in the same place, so that leases stay valid. Raises Full."""
        prot = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        _map(self.address, self.size, prot, mmap.MAP_SHARED | _MAP_FIXED, fd)
        self.writable = writable

    def lease(self, offset: int, size: int, end: Callable[[], None]) -> "ctypes.Array[ctypes.c_ubyte]":
        """A lease of [offset, offset+size). end is called when nothing uses it any more, in any thread."""
        part = (ctypes.c_ubyte * size).from_address(self.address + offset)
        ref = _End(part, _gone)  # type: ignore[arg-type]  # _when_gone, for the most frequent of its uses
        ref.end = end
        _ends[id(ref)] = ref
        return part

    def other_face(self, offset: int, lease: "ctypes.Array[ctypes.c_ubyte]") -> "ctypes.Array[ctypes.c_ubyte]":
        """The same bytes as a lease of another mapping of this segment, through this one. It keeps that lease."""
        part: Any = (ctypes.c_ubyte * len(lease)).from_address(self.address + offset)
        part.keeps = lease
        return part  # type: ignore[no-any-return]


def _map(address: "int | None", size: int, prot: int, flags: int, fd: int) -> int:
    got = _libc.mmap(address, size, prot, flags, fd, 0)
    if got is None or got == _MAP_FAILED:
        raise Full("cannot map a segment of %d bytes: %s" % (size, os.strerror(ctypes.get_errno())))
    return int(got)


class Scratch:
    """Memory of this process alone in which a small object is filled.

    Its pages can be made read-only. Those of the segment cannot, because other unsealed objects lie in them too.
    """

    __slots__ = ("part", "_state")
    _free: "Dict[int, List[int]]" = {}  # addresses by size in bytes, to be used again
    _KEPT = 16  # at most, of each size

    def __init__(self, size: int) -> None:
        whole = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        try:
            address = self._free[whole].pop()
        except (KeyError, IndexError):
            address = _map(None, whole, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1)
        state = self._state = [address, whole, True]  # the last: it is writable
        self.part: Any = (ctypes.c_ubyte * size).from_address(address)
        _when_gone(self.part, lambda: Scratch._ended(state))

    def allow(self, stores: bool) -> None:
        """Makes the memory writable or read-only."""
        address, whole, now = self._state
        prot = mmap.PROT_READ | (mmap.PROT_WRITE if stores else 0)
        if now != stores and _libc.mprotect(address, whole, prot) == 0:
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
    """Releases memoryviews: later use raises ValueError. A view from which others were made stays."""
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
    """Maps the pages of a large range with one system call. The daemon has allocated them already.

    A kernel before 5.14 refuses this. Then each page is mapped by a page fault.
    """
    if size < _POPULATE_FROM:
        return
    start = address - address % mmap.PAGESIZE
    advice = _MADV_POPULATE_WRITE if writable else _MADV_POPULATE_READ
    _libc.madvise(start, address + size - start, advice)


def nothing(end: Callable[[], None]) -> "ctypes.Array[ctypes.c_ubyte]":
    """The lease of an empty object."""
    part = (ctypes.c_ubyte * 0)()
    _when_gone(part, end)
    return part


def view(part: "ctypes.Array[ctypes.c_ubyte]", writable: bool) -> memoryview:
    """A memoryview of a lease: one dimension, format 'B'."""
    if len(part) == 0:
        return memoryview(b"") if not writable else memoryview(bytearray())
    whole = memoryview(part).cast("B")
    return whole if writable else whole.toreadonly()

"""Mappings of the store's segments, and leases of parts of them.

A lease keeps a reference to an object. Every memoryview and array over the object's memory keeps the lease; when the
last of them is gone, the lease's end is called. A lease is a ctypes array, because such arrays have weak references
and can lie over read-only memory. mmap objects can do neither, and cost a descriptor each.

Mapped memory has an owner, a Range, and is unmapped with the last reference to it. A lease refers to its mapping.
"""

from __future__ import annotations

import _thread
import collections
import ctypes
import errno
import io
import mmap
import os
import sys
import weakref
from functools import partial
from typing import Any, Callable, Dict, Generator, List, Optional

from . import faults
from .errors import Full, Protocol

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_size_t
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_longlong]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.mremap.restype = ctypes.c_size_t
_libc.mremap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]

_MAP_FAILED = ctypes.c_size_t(-1).value
_MADV_POPULATE_READ, _MADV_POPULATE_WRITE = 22, 23
_POPULATE_FROM = 1 << 20  # bytes; below this, page faults cost less than the call
_MAP_FIXED, _MAP_NORESERVE = 0x10, 0x4000
_MREMAP_MAYMOVE, _MREMAP_FIXED, _MREMAP_DONTUNMAP = 1, 2, 4
# Bytes. From this size on it is faster to move page table entries than to change them, which costs 75 ns a page, twice
# for each object. store/segment has the figures.
_PARK_FROM = 256 << 10


_FIRST = (0,)
_TRIES = (0,) * 8  # of an end that is interrupted again and again
_run: Callable[[Any], None] = collections.deque(maxlen=0).extend  # runs a chain of iterators in one step

_ends: "Dict[int, weakref.ref[Any]]" = {}  # keeps each until what it refers to is gone

_raise_later = ctypes.pythonapi.PyThreadState_SetAsyncExc
_raise_later.argtypes = [ctypes.c_ulong, ctypes.py_object]


# A garbage collection calls what weak references ask for, and then the __del__ methods of what it has found, in any
# order. These can still reach all of that. So it must not find what has an end, and finds nothing that it does not
# track. Such a thing ends with the last reference to it, when no program can reach it any more.
untrack = ctypes.pythonapi.PyObject_GC_UnTrack
untrack.restype, untrack.argtypes = None, [ctypes.py_object]


class End:
    """The end of a thing that may refer to itself: an attribute of it, to which nothing else refers. When it goes, work
    is called. The thing's other attributes may have gone before; what keeps refers to has not.
    """

    __slots__ = ("__weakref__",)

    def __init__(self, work: Callable[[], None], keeps: Any = None) -> None:
        when_gone(self, work, keeps)


def when_gone(thing: object, work: Callable[[], None], keeps: Any = None) -> None:
    """Calls work when nothing refers to thing any more, in any thread. A thing has one such work. It raises nothing.
    What keeps refers to goes after that.

    Precondition: nothing to which thing refers leads back to it, because no garbage collection would find that.
    An interrupt meanwhile is raised behind it. Then work is called again, from its beginning.
    weakref.finalize takes five times as long.
    """
    untrack(thing)
    steps = _ending(id(thing), work, keeps)
    next(steps)
    _ends[id(thing)] = weakref.ref(thing, steps.send)


def _ending(key: int, work: Callable[[], None], keeps: Any,
            finalizing: Callable[[], bool] = sys.is_finalizing) -> "Generator[Any, Any, None]":
    """The steps of an end. The first waits for it.

    The interpreter looks for signals where a function of Python begins. In a callback of a weak reference, or in
    __del__, an interrupt is printed there and lost. A generator goes on within its try.
    When the interpreter ends, work may fail because modules are cleared already: the process's end is its end then.
    """
    kind: Any = None
    try:
        yield
        _ends.pop(key, None)
        work()
    except GeneratorExit:
        return  # the interpreter ends
    except BaseException as e:
        kind = e.__class__
    if kind is not None:
        again: Any = ()
        try:
            if not finalizing():
                _surely(key, work)
                again = map(_raise_later, (_thread.get_ident(),), (kind,))
        except BaseException:
            _surely(key, work)
            again = map(_raise_later, (_thread.get_ident(),), (kind,))
        # One step calls this and goes back to what was interrupted, without a look for signals. It stands in no try:
        # what is left of this is closed without a step then, behind which Python before 3.11 would look for them.
        yield from again
    yield


def _surely(key: int, work: Callable[[], None]) -> None:
    """Calls work until it is not interrupted. An interrupt between two tries, or before the first, is raised."""
    for _ in _TRIES:
        try:
            _ends.pop(key, None)
            return work()
        except BaseException:
            pass


class Descriptor(io.FileIO):
    """Owns a descriptor, which is closed with it. It is made of one in a single step of the interpreter."""

    # FileIO's own end would warn. This is no function of Python: there an interrupt could come, and would be lost with
    # the descriptor.
    __del__ = io.FileIO.close


class Range:
    """Mapped memory: it is unmapped with the last reference to it, or by end."""

    __slots__ = ("size", "writable", "_at", "__weakref__")

    def __init__(self, size: int, call: Callable[..., int], *arguments: Any) -> None:
        """Maps size bytes by call, which is mmap or mremap. Raises Full. An interrupt does not lose the address."""
        self.size, self.writable = size, True
        self._at: List[int] = []
        when_gone(self, partial(_unmap, self._at, size))
        _run(map(self._at.append, map(call, *((a,) for a in arguments))))
        if self._at[0] == _MAP_FAILED:
            self._at.clear()
            raise _cannot_map(size)

    @property
    def address(self) -> int:
        return self._at[0]

    def end(self) -> None:
        """Unmaps. A second call does nothing."""
        _unmap(self._at, self.size)


def _unmap(at: List[int], size: int) -> None:
    """Unmaps the range that begins at the only element of at, and takes it away."""
    if at:
        faults.left(at[0])
        _run(map(_libc.munmap, map(at.pop, _FIRST), (size,)))


def _cannot_map(size: int) -> Full:
    return Full("cannot map a segment of %d bytes: %s" % (size, os.strerror(ctypes.get_errno())))


class Mapping:
    """One mapping of a segment in this process. Not thread-safe: the lock of the segment table guards it."""

    def __init__(self, fd: int, size: int, writable: bool) -> None:
        """Maps size bytes of fd, which stays the caller's. Raises Protocol if it is smaller, Full if mmap fails."""
        have = os.fstat(fd).st_size
        if size <= 0 or have < size:
            raise Protocol("the daemon announced a segment of %d bytes, but it has %d" % (size, have))
        prot = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        self._pages = Range(size, _libc.mmap, None, size, prot, mmap.MAP_SHARED, fd, 0)
        self.address = self._pages.address
        self.size = size
        self.writable = writable
        faults.entered(self.address, size)
        # The unit of protect: the size of huge pages, if the segment has them or may have them.
        self._unit = max(mmap.PAGESIZE, os.fstat(fd).st_blksize)
        self._parking: Optional[Range] = None  # the second mapping (_park), if there is one yet
        self._parks = writable  # False once the kernel refused it

    def close(self) -> None:
        """Unmaps. Precondition: there are no leases. Without a call the last lease unmaps."""
        self._pages.end()
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
        if not self._parks or self._parking is None and not away:
            return
        if self._parking is None:
            # A length of 0 makes a copy of the mapping. It may be writable as the first is, in spite of seals.
            try:
                parking = Range(self.size, _libc.mremap, self.address, 0, self.size, _MREMAP_MAYMOVE, None)
            except Full:
                self._parks = False
                return
            # The copy has the protection of the first page.
            if _libc.mprotect(parking.address, self.size, mmap.PROT_READ | mmap.PROT_WRITE) != 0:
                self._parks = False
                return
            self._parking = parking
        here, there = self.address + start, self._parking.address + start
        source, target = (here, there) if away else (there, here)
        if _libc.mremap(source, size, size, _MREMAP_MAYMOVE | _MREMAP_FIXED | _MREMAP_DONTUNMAP, target) != target:
            self._parks = ctypes.get_errno() != errno.EINVAL  # before Linux 5.13, or huge pages

    def _end_parking(self) -> None:
        if self._parking is not None:
            self._parking.end()
            self._parking = None

    def empty(self) -> None:
        """Maps nothing in the mapping's place: until map_again, any access to a lease faults."""
        self._end_parking()
        anonymous = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED | _MAP_NORESERVE
        self._map_over(0, anonymous, -1)

    def map_again(self, fd: int, writable: bool) -> None:
        """Maps fd in the same place, so that leases stay valid. Raises Full."""
        prot = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        self._map_over(prot, mmap.MAP_SHARED | _MAP_FIXED, fd)
        self.writable = writable

    def _map_over(self, prot: int, flags: int, fd: int) -> None:
        if _libc.mmap(self.address, self.size, prot, flags, fd, 0) == _MAP_FAILED:
            raise _cannot_map(self.size)

    def lease(self, offset: int, size: int, end: Callable[[], None]) -> "ctypes.Array[ctypes.c_ubyte]":
        """A lease of [offset, offset+size). end is called when nothing uses it any more, in any thread."""
        part = (ctypes.c_ubyte * size).from_address(self.address + offset)
        untrack(part)
        steps = _ending(id(part), end, self)  # when_gone, for the most frequent of its uses
        next(steps)
        _ends[id(part)] = weakref.ref(part, steps.send)
        return part

    def other_face(self, offset: int, lease: "ctypes.Array[ctypes.c_ubyte]") -> "ctypes.Array[ctypes.c_ubyte]":
        """The same bytes as a lease of another mapping of this segment, through this one. It keeps that lease."""
        part: Any = (ctypes.c_ubyte * len(lease)).from_address(self.address + offset)
        part.keeps = lease, self
        return part  # type: ignore[no-any-return]


class Scratch:
    """Memory of this process alone in which a small object is filled.

    Its pages can be made read-only. Those of the segment cannot, because other unsealed objects lie in them too.
    """

    __slots__ = ("part", "_pages")
    _free: "Dict[int, List[Range]]" = {}  # by size in bytes, to be used again
    _KEPT = 16  # at most, of each size

    def __init__(self, size: int) -> None:
        whole = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        try:
            self._pages = self._free[whole].pop()
        except (KeyError, IndexError):
            self._pages = Range(whole, _libc.mmap, None, whole, mmap.PROT_READ | mmap.PROT_WRITE,
                                mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
        self.part: Any = (ctypes.c_ubyte * size).from_address(self._pages.address)
        when_gone(self.part, partial(Scratch._ended, [self._pages]))

    def allow(self, stores: bool) -> None:
        """Makes the memory writable or read-only."""
        pages = self._pages
        prot = mmap.PROT_READ | (mmap.PROT_WRITE if stores else 0)
        if pages.writable != stores and _libc.mprotect(pages.address, pages.size, prot) == 0:
            pages.writable = stores
            if stores:
                faults.left(pages.address)
            else:
                faults.entered(pages.address, pages.size)

    @staticmethod
    def _ended(last: "List[Range]") -> None:
        """Keeps the only element of last for another object, or lets it be unmapped."""
        if last:
            free = Scratch._free.setdefault(last[0].size, [])
            if last[0].writable and len(free) < Scratch._KEPT:
                _run(map(free.append, map(last.pop, _FIRST)))
            last.clear()


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
    when_gone(part, end)
    return part


def view(part: "ctypes.Array[ctypes.c_ubyte]", writable: bool) -> memoryview:
    """A memoryview of a lease: one dimension, format 'B'."""
    if len(part) == 0:
        return memoryview(b"") if not writable else memoryview(bytearray())
    whole = memoryview(part).cast("B")
    return whole if writable else whole.toreadonly()

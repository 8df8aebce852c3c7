"""Who stores to which page of a segment that this connection fills.

A page of sealed objects alone may be shut: stores to it fault. One that has a part of an unsealed object must be open.
Objects of WHOLE_FROM bytes and more have their pages for themselves (ipc/PROTOCOL.md, "Sealing").
"""

from __future__ import annotations

from typing import Optional, Tuple

BYTES = 4096
WHOLE_FROM = 64 << 10  # bytes of an object
_SHUT = 0x80  # of a page
_NEW = 0x7F  # nothing lay there yet; any other value is how many unsealed objects begin or end there, at most 64

Range = Tuple[int, int]  # first and last page


class Table:
    """Not thread-safe: the segment table's lock guards it."""

    __slots__ = ("_pages",)

    def __init__(self, size: int) -> None:
        self._pages = bytearray([_NEW]) * -(-size // BYTES)

    def is_new(self, offset: int, size: int) -> bool:
        """Whether an object is the first one in a page of its own: then the page is in no page table yet. To be asked before enter."""
        first, last = _span(offset, size)
        return self._pages.find(_NEW, first, last + 1) >= 0

    def enter(self, offset: int, size: int) -> Optional[Range]:
        """Notes an unsealed object of at least a byte; returns the pages that must be opened for it."""
        first, last = _span(offset, size)
        self._clear(_NEW, first, last)
        shut = self._pages.find(_SHUT, first, last + 1)
        found = None
        if shut >= 0:
            found = shut, self._pages.rfind(_SHUT, first, last + 1)
            self._clear(_SHUT, *found)
        self._count(first, last, 1)
        return found

    def leave(self, offset: int, size: int, shut: bool) -> Optional[Range]:
        """Notes that an object is unsealed no more; with shut returns the pages to be shut: not a first or last one that another has a part of."""
        first, last = _span(offset, size)
        self._count(first, last, -1)
        if not shut:
            return None
        if self._pages[first] not in (0, _SHUT):
            first += 1
        if first <= last and self._pages[last] not in (0, _SHUT):
            last -= 1
        if first > last:
            return None
        self._pages[first:last + 1] = bytes([_SHUT]) * (last + 1 - first)
        return first, last

    def open_all(self) -> None:
        """Notes that every page is open."""
        self._clear(_SHUT, 0, len(self._pages) - 1)

    def _clear(self, value: int, first: int, last: int) -> None:
        if self._pages.find(value, first, last + 1) >= 0:
            self._pages[first:last + 1] = self._pages[first:last + 1].replace(bytes([value]), b"\0")

    def _count(self, first: int, last: int, by: int) -> None:
        self._pages[first] += by
        if last != first:
            self._pages[last] += by


def _span(offset: int, size: int) -> Range:
    return offset // BYTES, (offset + size - 1) // BYTES

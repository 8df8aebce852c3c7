"""Which pages of a segment that this connection fills are open (writable) or shut (read-only).

A page on which only sealed objects lie may be shut: then writes to it fault. A page with a part of an unsealed object
must be open. Objects of WHOLE_FROM bytes and more share no page with others (ipc/PROTOCOL.md, "Sealing").
"""

from __future__ import annotations

from typing import Optional, Tuple

BYTES = 4096
WHOLE_FROM = 64 << 10  # bytes of an object
# The state of a page: one of these, or how many unsealed objects begin or end on it, at most 64.
_SHUT = 0x80
_NEW = 0x7F  # no object lay on it yet

Range = Tuple[int, int]  # first and last page


class Table:
    """The pages of one segment. Not thread-safe: the lock of the segment table guards it. Sizes are bytes."""

    __slots__ = ("_pages",)

    def __init__(self, size: int) -> None:
        self._pages = bytearray([_NEW]) * -(-size // BYTES)

    def is_new(self, offset: int, size: int) -> bool:
        """Whether a page of the object is new, and so in no page table yet. Ask before enter."""
        first, last = _span(offset, size)
        return self._pages.find(_NEW, first, last + 1) >= 0

    def enter(self, offset: int, size: int) -> Optional[Range]:
        """Notes an unsealed object of at least one byte. Returns the pages to open for it, or None."""
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
        """Notes that an object is sealed or aborted. With shut, returns the pages to shut, or None.

        A first or last page that has a part of another unsealed object stays open.
        """
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

"""What put stores: bytes, wherever they lie, and metadata."""

from __future__ import annotations

from typing import Any, Dict, Optional, Sequence, Tuple

_COPY_STEP = 64 << 20  # bytes copied at a time, so that Ctrl-C does not wait long

Meta = Optional[Dict[str, Any]]


class Source:
    """What is to be stored: how many bytes, its metadata, and its parts with their offsets. Parts alias the data."""

    __slots__ = ("size", "meta", "parts")

    def __init__(self, size: int, meta: Meta, parts: "Sequence[Tuple[int, memoryview]]") -> None:
        self.size, self.meta, self.parts = size, meta, parts

    def bytes(self) -> "bytes | bytearray | memoryview":
        """All bytes in one piece, for small sources."""
        if len(self.parts) == 1 and self.parts[0][1].nbytes == self.size:
            return self.parts[0][1]
        whole = bytearray(self.size)
        self.write(memoryview(whole))
        return whole

    def write(self, target: memoryview) -> None:
        """Copies the parts to their offsets in target, of size bytes."""
        for offset, part in self.parts:
            for at in range(0, part.nbytes, _COPY_STEP):
                piece = part[at:at + _COPY_STEP]
                target[offset + at:offset + at + piece.nbytes] = piece

"""Bytes and metadata of what is stored: buffers and arrays."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Dict, Optional, Sequence

if TYPE_CHECKING:
    from .objects import Draft

_COPY_STEP = 64 << 20  # bytes copied at a time, so that Ctrl-C does not wait long


def source_of(data: Any, meta: Optional[Dict[str, Any]]) -> "tuple[memoryview, Optional[Dict[str, Any]]]":
    """The bytes of a buffer or array, and the metadata. An array's dtype, shape and strides are added to meta."""
    if hasattr(data, "__array_interface__"):
        from . import arrays
        array = arrays.dense(data)
        described = arrays.describe(array)
        described.update(meta or {})
        return arrays.flat(array), described
    whole = memoryview(data)
    return whole.cast("B") if whole.c_contiguous and whole.nbytes else memoryview(whole.tobytes()), meta


def fill(draft: Draft, parts: "Sequence[tuple[int, memoryview]]") -> None:
    """Copies the parts to their offsets."""
    target = draft._memory()
    for offset, part in parts:
        for at in range(0, part.nbytes, _COPY_STEP):
            piece = part[at:at + _COPY_STEP]
            target[offset + at:offset + at + piece.nbytes] = piece


def meta_of(raw: bytes) -> Optional[Dict[str, Any]]:
    """An object's metadata as a dict. None if it has none, or if another program stored something else than JSON."""
    if not raw:
        return None
    try:
        meta = json.loads(raw.decode("utf-8"))
    except ValueError:
        return None
    return meta if isinstance(meta, dict) else None

"""Bytes and metadata of what is stored: buffers, arrays, tables."""

from __future__ import annotations

import json
from typing import Any, List

from . import pickles
from .errors import Unstorable
from .source import Meta, Source

# The formats of struct that are types of arrays, without those of bytes (B, c). Others need NumPy.
_FORMATS = {"?": "b", **dict.fromkeys("bhilqn", "i"), **dict.fromkeys("BHILQN", "u"), **dict.fromkeys("efd", "f")}


def source_of(data: Any, meta: Meta) -> Source:
    """How to store data so that Object.load gives it back. What is known of its type is added to meta.

    Raises Unstorable if something of data would be lost.
    """
    kind = type(data)
    if kind is bytes or kind is bytearray:
        return Source(len(data), meta, ((0, memoryview(data)),))
    library = _library(kind)
    if library == "pandas":
        return pickled(data, "pandas." + kind.__name__, meta)
    if library == "pyarrow":
        from . import tables
        return tables.source(data, meta)
    if hasattr(kind, "tendril_source"):  # an Object
        source: Source = data.tendril_source()
        return Source(source.size, _merged(source.meta, meta), source.parts)
    if hasattr(kind, "__array_interface__") or hasattr(kind, "__array__"):
        from . import arrays
        described, part = arrays.taken(data)
        return Source(part.nbytes, _merged(described, meta), ((0, part),))
    try:
        whole = memoryview(data)
    except TypeError:
        raise Unstorable("put takes bytes, buffers, arrays, data frames and Arrow tables, no %s: %s" % (
            kind.__name__, "encode() it, or use dump" if kind is str else "dump() keeps any value")) from None
    return _buffer(whole, meta)


def pickled(value: Any, name: str, meta: Meta) -> Source:
    """The source of a pickle of value, with its buffers beside it. name: what Object.load will give."""
    size, parts = pickles.plan(value)
    described = dict(pickles.META, type=name) if name else dict(pickles.META)
    return Source(size, _merged(described, meta), parts)


def _library(kind: type) -> str:
    """pandas for a data frame, series or index, pyarrow for what is that library's and no buffer, else nothing."""
    for base in kind.__mro__:
        library = str(base.__module__).partition(".")[0]
        if library == "pandas" and base.__name__ in ("DataFrame", "Series", "Index"):
            return library
        if library == "pyarrow" and base.__name__ != "Buffer":
            return library
        if base.__name__ == "Buffer":
            return ""
    return ""


def _merged(described: Meta, meta: Meta) -> Meta:
    """What is known of the data, and what the program says, which rules."""
    return dict(described or {}, **(meta or {})) if described or meta else meta


def _buffer(whole: memoryview, meta: Meta) -> Source:
    """The source of a buffer. One dimension of bytes has no metadata; others are arrays."""
    parts = whole.cast("B") if whole.c_contiguous and whole.nbytes else memoryview(whole.tobytes())
    letter = whole.format.lstrip("@=<>!|")
    if whole.ndim == 1 and letter in ("B", "c"):
        return Source(parts.nbytes, meta, ((0, parts),))
    if letter not in _FORMATS:
        try:
            from . import arrays
            described, parts = arrays.taken(whole)
        except ImportError:
            raise Unstorable("a buffer of format %r needs NumPy; dump() keeps it" % whole.format) from None
        return Source(parts.nbytes, _merged(described, meta), ((0, parts),))
    order = "|" if whole.itemsize == 1 else ">" if whole.format[0] in ">!" else _NATIVE
    steps: List[int] = []
    step = 1
    for n in reversed(whole.shape or ()):
        steps.insert(0, step)
        step *= max(n, 1)
    described = {"dtype": "%s%s%d" % (order, _FORMATS[letter], whole.itemsize), "shape": list(whole.shape or ()),
                 "strides": steps}
    return Source(parts.nbytes, _merged(described, meta), ((0, parts),))


_NATIVE = "<" if memoryview(b"\1\0").cast("H")[0] == 1 else ">"


def meta_of(raw: bytes) -> Meta:
    """An object's metadata as a dict. None if it has none, or if another program stored something else than JSON."""
    if not raw:
        return None
    try:
        meta = json.loads(raw.decode("utf-8"))
    except (ValueError, RecursionError):
        return None
    return meta if isinstance(meta, dict) else None


def value_of(data: memoryview, meta: Meta) -> Any:
    """The value that source_of took. Raises Invalid if data is not what meta says."""
    if is_pickle(data, meta):
        return pickles.restore(data)
    if meta and "arrow" in meta:
        from . import tables
        return tables.value(data, meta)
    if meta and "dtype" in meta:
        from . import arrays
        return arrays.over(data, meta)
    return data


def is_pickle(data: memoryview, meta: Meta) -> bool:
    """Whether value_of would run code that the object names."""
    return "pickle" in meta if meta else data[:len(pickles.MAGIC)] == pickles.MAGIC


def opaque(meta: Meta) -> str:
    """What the bytes are if they are neither an array nor plain bytes; else nothing."""
    if not meta or "dtype" in meta:
        return ""
    if "pickle" in meta:
        return str(meta.get("type", "a pickled value"))
    return "an Arrow " + str(meta["arrow"]) if "arrow" in meta else ""

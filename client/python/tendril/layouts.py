"""How arrays lie in memory, for those that NumPy does not describe: in the memory of GPUs."""

from __future__ import annotations

import re
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from .errors import Invalid

MAX_DIMENSIONS = 32

_DTYPE = re.compile(r"[<>|=]?([biufc])([1-9][0-9]?)")
# DLPack's types that NumPy lacks, in whole bytes: bfloat16 and the kinds of float8.
_MORE = frozenset([(4, 16)] + [(code, 8) for code in range(7, 15)])


class Layout(NamedTuple):
    """How an array lies in memory: dtype as NumPy's typestr, strides in elements."""

    dtype: str
    item: int  # bytes
    shape: Tuple[int, ...]
    strides: Tuple[int, ...]
    kind: Optional[Tuple[int, int]] = None  # DLPack's code and bits, if NumPy lacks the type; dtype is then "<V2"

    @property
    def contiguous(self) -> bool:
        """Whether the elements follow each other in C order."""
        return self.strides == c_strides(self.shape)

    @property
    def nbytes(self) -> int:
        count = self.item
        for n in self.shape:
            count *= n
        return count

    def meta(self) -> Dict[str, Any]:
        """The metadata of an object that holds the array."""
        told = {"dtype": self.dtype, "shape": list(self.shape), "strides": list(self.strides)}
        return told if self.kind is None else dict(told, dlpack=list(self.kind))


def c_strides(shape: Sequence[int]) -> Tuple[int, ...]:
    steps: List[int] = []
    step = 1
    for n in reversed(shape):
        steps.append(step)
        step *= max(n, 1)
    return tuple(reversed(steps))


def is_more(kind: Tuple[int, int]) -> bool:
    """Whether DLPack's code and bits are a type that NumPy lacks and objects may have."""
    return kind in _MORE


def item_size(dtype: str) -> int:
    """The bytes of one element. Raises Invalid for a dtype with objects, fields, or text."""
    match = _DTYPE.fullmatch(dtype)
    if match is None:
        raise Invalid("dtype %.60r: the memory of a GPU holds booleans, integers, real and complex numbers" % dtype)
    return int(match.group(2))


def layout(meta: Optional[Dict[str, Any]], size: int) -> Layout:
    """How the array that meta describes lies in an object of size bytes; without a dtype bytes. Raises Invalid."""
    if not meta or "dtype" not in meta:
        return Layout("|u1", 1, (size,), (1,))
    try:
        dtype = str(meta["dtype"])
        kind = None if "dlpack" not in meta else _integers(meta["dlpack"])
        if kind is None:
            item = item_size(dtype)
        elif kind in _MORE and dtype == "<V%d" % (kind[1] // 8):
            item = kind[1] // 8
        else:
            raise ValueError("no such type")
        shape = _integers(meta.get("shape", [size // item]))
        strides = meta.get("strides")
        steps = c_strides(shape) if strides is None else _integers(strides)
        if len(steps) != len(shape):
            raise ValueError("%d strides for %d dimensions" % (len(steps), len(shape)))
        last = sum((n - 1) * s for n, s in zip(shape, steps))
        if 0 not in shape and (last + 1) * item > size:
            raise ValueError("it needs %d bytes" % ((last + 1) * item))
    except ValueError as e:
        raise Invalid("metadata %.200r does not fit an object of %d bytes: %s" % (meta, size, e)) from None
    return Layout(dtype, item, shape, steps, None if kind is None else (kind[0], kind[1]))


def _integers(values: Any) -> Tuple[int, ...]:
    if not isinstance(values, (list, tuple)) or len(values) > MAX_DIMENSIONS:
        raise ValueError("not a list of at most %d integers" % MAX_DIMENSIONS)
    for v in values:
        if not isinstance(v, int) or isinstance(v, bool) or v < 0:
            raise ValueError("%r is not a dimension" % (v,))
    return tuple(values)


def new_layout(shape: Any, dtype: Any, order: str) -> Layout:
    """The layout of a new array. dtype: a typestr, or what has one as its attribute str, as NumPy's dtypes have."""
    text = dtype if isinstance(dtype, str) else getattr(dtype, "str", None)
    if isinstance(text, str) and re.fullmatch("[biufc][0-9]+", text):
        text = ("|" if text[1:] == "1" else "<") + text
    if not isinstance(text, str) or not _DTYPE.fullmatch(text):
        try:
            import numpy
            text = numpy.dtype(dtype).str
        except (ImportError, TypeError):
            raise Invalid("dtype %.60r: give a NumPy dtype, or its text, such as '<f4'" % (dtype,)) from None
    dims = tuple(int(n) for n in (shape if hasattr(shape, "__iter__") else (shape,)))
    if any(n < 0 for n in dims) or len(dims) > MAX_DIMENSIONS or order not in ("C", "F"):
        raise Invalid("shape %r with order %r: want sizes from 0 on, and order C or F" % (dims, order))
    steps = c_strides(dims) if order == "C" else tuple(reversed(c_strides(dims[::-1])))
    return Layout(text, item_size(text), dims, steps)

"""Tensor metadata, and NumPy arrays over the store's memory. Imported only when arrays are used."""

from __future__ import annotations

import functools
from typing import Any, Dict, Optional, Sequence, Tuple

import numpy as np

from .errors import Invalid, Unstorable

_MAX_DIMENSIONS = 32
_format: Any = np.lib.format  # it has no types


def describe(array: "np.ndarray[Any, Any]") -> Dict[str, Any]:
    """The metadata of an array: dtype, shape, and strides in elements; fields of a structured dtype.

    Raises Unstorable for a dtype that its text does not describe whole.
    """
    told = _told(array.dtype)
    size = array.dtype.itemsize
    told["shape"] = list(array.shape)
    told["strides"] = [s // size if size else 0 for s in array.strides]
    return told


def _told(dtype: "np.dtype[Any]") -> Dict[str, Any]:
    """How the metadata describes a dtype."""
    if dtype.metadata is not None or not _plain(dtype):
        raise Unstorable("dtype %s cannot be described whole: dump() keeps the array" % dtype)
    if dtype.fields is None:
        if np.dtype(dtype.str) != dtype:
            raise Unstorable("dtype %s cannot be described whole: dump() keeps the array" % dtype)
        return {"dtype": dtype.str}
    try:
        fields = _format.dtype_to_descr(dtype)
    except ValueError:
        fields = None
    if not isinstance(fields, list) or _format.descr_to_dtype(_fields(fields)) != dtype:
        raise Unstorable("the fields of dtype %s do not lie in their order: dump() keeps the array" % dtype)
    return {"dtype": "|V%d" % dtype.itemsize, "fields": fields}


def _plain(dtype: "np.dtype[Any]") -> bool:
    """Whether the elements are nothing but bytes."""
    return not dtype.hasobject and dtype.subdtype is None and dtype.itemsize != 0


@functools.lru_cache(maxsize=256)
def _simple(text: str) -> "np.dtype[Any]":
    return np.dtype(text)


def _dtype(meta: Dict[str, Any]) -> "np.dtype[Any]":
    """The dtype that metadata describes. Raises ValueError or TypeError."""
    if "fields" in meta:
        dtype: "np.dtype[Any]" = _format.descr_to_dtype(_fields(meta["fields"]))
    else:
        dtype = _simple(str(meta["dtype"]))
    if not _plain(dtype):
        raise ValueError("dtype %s has objects or no bytes" % dtype)
    return dtype


def dtype_of(meta: Optional[Dict[str, Any]]) -> "np.dtype[Any]":
    """The dtype that metadata describes; without one bytes. Raises Invalid."""
    try:
        return _dtype(meta) if meta and "dtype" in meta else np.dtype(np.uint8)
    except (TypeError, ValueError, SyntaxError) as e:
        raise Invalid("metadata %.200r describes no dtype: %s" % (meta, e)) from None


def as_asked(array: "np.ndarray[Any, Any]", dtype: Any, copy: Optional[bool]) -> "np.ndarray[Any, Any]":
    """What __array__ returns. Raises ValueError if copy is False and another dtype needs one."""
    if dtype is not None and np.dtype(dtype) != array.dtype:
        if copy is False:
            raise ValueError("an array of %s is none of %s without a copy" % (array.dtype, np.dtype(dtype)))
        return array.astype(dtype)
    return array.copy() if copy else array


def _fields(told: Any) -> Any:
    """The fields of a structured dtype as NumPy wants them: JSON has no tuples."""
    if not isinstance(told, (list, tuple)):
        return str(told)
    fields = []
    for field in told:
        name, kind, *shape = field
        fields.append((tuple(name) if isinstance(name, list) else name, _fields(kind), *(tuple(s) for s in shape)))
    return fields


_WHOLE = (np.ndarray, np.memmap, np.recarray)  # the types of arrays of which nothing but the elements matters


def taken(data: Any) -> "Tuple[Dict[str, Any], memoryview]":
    """The metadata and the bytes of an array, or of what can be taken as one. Raises Unstorable."""
    kind = type(data)
    if isinstance(data, np.ma.MaskedArray):
        raise Unstorable("a masked array would lose its mask: dump() keeps it, put(a.filled(x)) stores it without")
    if isinstance(data, np.ndarray) and kind not in _WHOLE and not isinstance(data, Filling):
        raise Unstorable("%s says more than its elements do: dump() keeps it, put(numpy.asarray(x)) stores the "
                         "elements alone" % kind.__name__)
    if hasattr(data, "coords") or getattr(data, "palette", None) is not None:  # xarray, PIL
        raise Unstorable("%s has coordinates or a palette beside its elements: dump() keeps it, "
                         "put(numpy.asarray(x)) stores the elements alone" % kind.__name__)
    try:
        array = dense(data)
    except (TypeError, ValueError, RuntimeError, BufferError) as e:
        if hasattr(kind, "__dlpack__"):
            from . import dlpack
            return dlpack.take(data, e)
        raise Unstorable("%s cannot be taken as an array: %s; dump() keeps it" % (kind.__name__, e)) from None
    return describe(array), flat(array)


def dense(array: Any) -> "np.ndarray[Any, Any]":
    """The array itself if it is contiguous, in C or Fortran order. Otherwise a copy in C order."""
    given: "np.ndarray[Any, Any]" = np.asarray(array)
    if given.flags.f_contiguous or given.flags.c_contiguous:
        return given
    return np.ascontiguousarray(given)


def flat(array: "np.ndarray[Any, Any]") -> memoryview:
    """The bytes of a dense array, without a copy."""
    line: Any = array.ravel(order="K").view(np.uint8)
    return memoryview(line).cast("B") if line.size else memoryview(b"")


def over(view: memoryview, meta: Optional[Dict[str, Any]]) -> "np.ndarray[Any, Any]":
    """The array over view that meta describes; without a dtype in meta an array of bytes. Raises Invalid."""
    if not meta or "dtype" not in meta:
        return np.frombuffer(view, dtype=np.uint8) if len(view) else np.empty(0, np.uint8)
    try:
        dtype = _dtype(meta)
        shape = _integers(meta.get("shape", [len(view) // dtype.itemsize]), 0)
        strides = meta.get("strides")
        steps = None if strides is None else tuple(s * dtype.itemsize for s in _integers(strides, None))
        # frombuffer, because the base of an array over a memoryview is the writable exporter below it. Such an array
        # could be made writable again.
        if not len(view) and 0 not in shape:
            raise ValueError("the object is empty")
        line = np.frombuffer(view if len(view) else bytes(dtype.itemsize), dtype=np.uint8)
        return np.ndarray(shape, dtype, buffer=line, strides=steps)
    except (TypeError, ValueError, OverflowError, SyntaxError) as e:
        raise Invalid("metadata %.200r does not fit an object of %d bytes: %s" % (meta, len(view), e)) from None


def exported(array: Any) -> memoryview:
    """The memoryview of an array. Raises ValueError if it would not say the array's dtype."""
    view = memoryview(array)
    if array.dtype.kind == "V" and np.asarray(view).dtype != array.dtype:
        raise ValueError("buffers have no format for %s" % array.dtype)
    return view


def _integers(values: Any, least: Optional[int]) -> Tuple[int, ...]:
    if not isinstance(values, (list, tuple)) or len(values) > _MAX_DIMENSIONS:
        raise ValueError("not a list of at most %d integers" % _MAX_DIMENSIONS)
    for v in values:
        if not isinstance(v, int) or isinstance(v, bool) or (least is not None and v < least):
            raise ValueError("%r is not a dimension" % (v,))
    return tuple(values)


class Filling(np.ndarray):  # type: ignore[type-arg]
    """An array in the store's memory to fill in place and then seal, or a with block. For one thread at a time.

    Only the array that Client.empty returned can be sealed, not a view of it or a result.
    """

    draft: Any

    def __array_finalize__(self, other: Any) -> None:
        self.draft = None

    def seal(self) -> Any:
        """Seals the object and returns it, as Draft.seal. This array and all others over its memory are read-only.

        Raises Invalid if Client.empty did not return this array.
        """
        if self.draft is None:
            raise Invalid("this array is not the one that empty() returned")
        try:
            return self.draft.seal()
        finally:
            if not self.draft.open:
                self.close()

    def close(self) -> None:
        """Makes this array and its base read-only, after the object was sealed or pushed into a stream."""
        self.flags.writeable = False
        if isinstance(self.base, np.ndarray):
            self.base.flags.writeable = False

    def abort(self) -> None:
        """Aborts the unsealed object. Its memory stays until the array is gone."""
        if self.draft is not None:
            self.draft.abort()

    def __enter__(self) -> "Filling":
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        """The end of a with block seals the object, unless that has happened; an exception aborts it."""
        if self.draft is None or not self.draft.open:
            return
        if kind is None:
            self.seal().release()
        else:
            self.abort()


def fillable(view: memoryview, shape: Sequence[int], dtype: Any, order: Any, draft: Any) -> Filling:
    """A writable array over a draft's bytes."""
    whole = view if len(view) else memoryview(bytearray(1))
    array = np.ndarray(tuple(shape), dtype, buffer=whole, order=order).view(Filling)
    array.draft = draft
    return array


def measure(shape: Any, dtype: Any, order: str) -> Tuple[Tuple[int, ...], Any, int, Dict[str, Any]]:
    """Shape, dtype, size in bytes and metadata of a new array. Raises Invalid."""
    kind = np.dtype(dtype)
    told = _told(kind)
    dims = tuple(int(n) for n in (shape if hasattr(shape, "__iter__") else (shape,)))
    if any(n < 0 for n in dims) or order not in ("C", "F"):
        raise Invalid("shape %r with order %r: want sizes from 0 on, and order C or F" % (dims, order))
    count = 1
    for n in dims:
        count *= n
    steps, step = [], 1
    for n in (reversed(dims) if order == "C" else dims):
        steps.append(step)
        step *= max(n, 1)
    if order == "C":
        steps.reverse()
    return dims, kind, count * kind.itemsize, dict(told, shape=list(dims), strides=steps)

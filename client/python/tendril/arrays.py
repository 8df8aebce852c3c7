"""Tensor metadata, and NumPy arrays over the store's memory. Imported only when arrays are used."""

from __future__ import annotations

from typing import Any, Dict, Optional, Sequence, Tuple

import numpy as np

from .errors import Invalid

_MAX_DIMENSIONS = 32


def describe(array: "np.ndarray[Any, Any]") -> Dict[str, Any]:
    """The metadata of an array: dtype, shape, and strides in elements. Raises Invalid for a dtype with objects."""
    dtype = _plain(array.dtype)
    return {
        "dtype": dtype.str,
        "shape": list(array.shape),
        "strides": [s // dtype.itemsize if dtype.itemsize else 0 for s in array.strides],
    }


def _plain(dtype: "np.dtype[Any]") -> "np.dtype[Any]":
    if dtype.hasobject or dtype.fields is not None or dtype.subdtype is not None or dtype.itemsize == 0:
        raise Invalid("dtype %s has objects, fields or subarrays: store a view with a plain dtype" % dtype)
    return dtype


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
        dtype = _plain(np.dtype(str(meta["dtype"])))
        shape = _integers(meta.get("shape", [len(view) // dtype.itemsize]), 0)
        strides = meta.get("strides")
        steps = None if strides is None else tuple(s * dtype.itemsize for s in _integers(strides, None))
        # frombuffer, because the base of an array over a memoryview is the writable exporter below it. Such an array
        # could be made writable again.
        if not len(view) and 0 not in shape:
            raise ValueError("the object is empty")
        line = np.frombuffer(view if len(view) else bytes(dtype.itemsize), dtype=np.uint8)
        return np.ndarray(shape, dtype, buffer=line, strides=steps)
    except (TypeError, ValueError, OverflowError) as e:
        raise Invalid("metadata %.200r does not fit an object of %d bytes: %s" % (meta, len(view), e)) from None


def _integers(values: Any, least: Optional[int]) -> Tuple[int, ...]:
    if not isinstance(values, (list, tuple)) or len(values) > _MAX_DIMENSIONS:
        raise ValueError("not a list of at most %d integers" % _MAX_DIMENSIONS)
    for v in values:
        if not isinstance(v, int) or isinstance(v, bool) or (least is not None and v < least):
            raise ValueError("%r is not a dimension" % (v,))
    return tuple(values)


class Filling(np.ndarray):  # type: ignore[type-arg]
    """An array in the store's memory to fill in place and then seal. For one thread at a time.

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
        sealed = self.draft.seal()
        self.close()
        return sealed

    def close(self) -> None:
        """Makes this array and its base read-only, after the object was sealed or pushed into a stream."""
        self.flags.writeable = False
        if isinstance(self.base, np.ndarray):
            self.base.flags.writeable = False

    def abort(self) -> None:
        """Aborts the unsealed object. Its memory stays until the array is gone."""
        if self.draft is not None:
            self.draft.abort()


def fillable(view: memoryview, shape: Sequence[int], dtype: Any, order: Any, draft: Any) -> Filling:
    """A writable array over a draft's bytes."""
    whole = view if len(view) else memoryview(bytearray(1))
    array = np.ndarray(tuple(shape), dtype, buffer=whole, order=order).view(Filling)
    array.draft = draft
    return array


def measure(shape: Any, dtype: Any, order: str) -> Tuple[Tuple[int, ...], Any, int, Dict[str, Any]]:
    """Shape, dtype, size in bytes and metadata of a new array. Raises Invalid."""
    kind = _plain(np.dtype(dtype))
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
    return dims, kind, count * kind.itemsize, {"dtype": kind.str, "shape": list(dims), "strides": steps}

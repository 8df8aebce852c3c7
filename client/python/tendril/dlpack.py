"""DLPack over the store's memory: tensors for other libraries without a copy (dmlc/dlpack, version 1.0).

Of objects in host memory:
The store's memory is read-only, and writing to it would end the process. DLPack 1.0 can say so, older versions cannot.
A consumer that does not ask for 1.0 gets a copy, unless it says copy=False: then BufferError.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any, Callable, Dict, Optional, Sequence, Tuple

from .errors import Invalid, Unstorable
from .immortal import immortal
from .layouts import MAX_DIMENSIONS, Layout, c_strides, is_more

CPU = (1, 0)  # kDLCPU, device 0
_CUDA = 2  # kDLCUDA

_READ_ONLY, _IS_COPIED = 1, 2
_CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}  # kDLInt, kDLUInt, kDLFloat, kDLComplex, kDLBool


class _Device(ctypes.Structure):
    _fields_ = [("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32)]


class _DataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p), ("device", _Device), ("ndim", ctypes.c_int32), ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Managed(ctypes.Structure):
    """DLManagedTensorVersioned."""

    _fields_ = [
        ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("manager_ctx", ctypes.c_void_p), ("deleter", _Deleter),
        ("flags", ctypes.c_uint64), ("tensor", _Tensor),
    ]


class _OldManaged(ctypes.Structure):
    """DLManagedTensor, before version 1.0."""

    _fields_ = [("tensor", _Tensor), ("manager_ctx", ctypes.c_void_p), ("deleter", _Deleter)]


_Destructor = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
_new = ctypes.pythonapi.PyCapsule_New
_new.restype, _new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, _Destructor]
_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.restype, _is_valid.argtypes = ctypes.c_int, [ctypes.c_void_p, ctypes.c_char_p]
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_char_p]

_NAME, _OLD_NAME = b"dltensor_versioned", b"dltensor"

# What other libraries' tensors refer to, by the address of their record. The record's deleter, which C code calls,
# removes it. A tensor may outlive this module, when the interpreter ends.
_lent: Dict[int, Tuple[Any, ...]] = immortal({})
_deleter = immortal(_Deleter(_lent.pop))


def _capsule_ends(capsule: int, ends: Callable[[], bool] = sys.is_finalizing) -> None:
    """Frees the tensor of a capsule that no consumer took. A consumer renames the capsule."""
    if ends():
        return  # the process frees it. What follows may be cleared already
    for name in (_NAME, _OLD_NAME):
        if _is_valid(capsule, name):
            _lent.pop(_pointer(capsule, name), None)


_destructor = immortal(_Destructor(_capsule_ends))


def _code(dtype: str) -> Tuple[int, int]:
    """DLPack's code and bits. Raises BufferError for a dtype that DLPack does not have."""
    kind, size = dtype[1:2], int(dtype[2:])
    if kind not in _CODES or dtype[0] == ">":
        raise BufferError("DLPack has no type for %s" % dtype)
    return _CODES[kind], 8 * size


def _describe(address: int, kind: Tuple[int, int], shape: Sequence[int], strides: Sequence[int],
              device: Tuple[int, int]) -> Tuple[_Tensor, Any]:
    """The tensor, and what must live as long as it. kind: DLPack's code and bits."""
    dims = (ctypes.c_int64 * max(len(shape), 1))(*shape)
    steps = (ctypes.c_int64 * max(len(shape), 1))(*strides)
    p = ctypes.POINTER(ctypes.c_int64)
    tensor = _Tensor(address, _Device(*device), len(shape), _DataType(kind[0], kind[1], 1),
                     ctypes.cast(dims, p), ctypes.cast(steps, p), 0)
    return tensor, (dims, steps)


def export(array: Any, stream: Any = None, max_version: Optional[Tuple[int, int]] = None,
           dl_device: Optional[Tuple[int, int]] = None, copy: Optional[bool] = None,
           kind: Optional[Tuple[int, int]] = None) -> Any:
    """A capsule of a NumPy array, which it keeps. Arguments as those of __dlpack__ in the Python array API standard.

    kind: DLPack's code and bits, of a type that NumPy lacks. Raises BufferError for another device, a stream, or
    copy=False from a consumer that cannot be given read-only memory.
    """
    if stream is not None:
        raise BufferError("the object is in the CPU's memory, where stream must be None")
    if dl_device is not None and tuple(dl_device) != CPU:
        raise BufferError("the object is in the CPU's memory, not on device %r" % (dl_device,))
    versioned = max_version is not None and max_version[0] >= 1
    copied = bool(copy) or not (versioned or array.flags.writeable)
    if copied and copy is False:
        raise BufferError("the store's memory is read-only, which only DLPack 1.0 can say: use max_version=(1, 0), "
                          "or a copy")
    if copied:
        array = array.copy()
    size = max(array.dtype.itemsize, 1)
    tensor, keep = _describe(array.ctypes.data, kind or _code(array.dtype.str), array.shape,
                             [s // size for s in array.strides], CPU)
    flags = (_IS_COPIED if copied else 0) | (0 if array.flags.writeable else _READ_ONLY)
    return _lend(tensor, flags, versioned, (keep, array))


def _lend(tensor: _Tensor, flags: int, versioned: bool, keep: Any) -> Any:
    """The capsule of a tensor, with what must live as long as it."""
    managed: Any = None
    if versioned:
        managed = _Managed(1, 0, None, _deleter, flags, tensor)
    else:
        managed = _OldManaged(tensor, None, _deleter)
    at = ctypes.addressof(managed)
    _lent[at] = (managed, keep)
    return _new(at, _NAME if versioned else _OLD_NAME, _destructor)


def export_cuda(array: Any, address: int, ordinal: int, how: Layout, writable: bool, *, stream: Any = None,
                max_version: Optional[Tuple[int, int]] = None, dl_device: Optional[Tuple[int, int]] = None,
                copy: Optional[bool] = None) -> Any:
    """A capsule of an array in the memory of a GPU, which it keeps. Arguments as those of __dlpack__ in the standard.

    The stream needs nothing: no work on a sealed object is under way. Raises BufferError for another device or a copy.
    """
    if dl_device is not None and tuple(dl_device) != (_CUDA, ordinal):
        raise BufferError("the array is on device %r, not on %r" % ((_CUDA, ordinal), tuple(dl_device)))
    if copy:
        raise BufferError("the array is in the memory of a GPU: copy it with the library that takes it")
    tensor, keep = _describe(address, how.kind or _code(how.dtype), how.shape, how.strides, (_CUDA, ordinal))
    versioned = max_version is not None and max_version[0] >= 1
    return _lend(tensor, 0 if writable else _READ_ONLY, versioned, (keep, array))


_LETTERS = {code: letter for letter, code in _CODES.items()}


def take_cuda(data: Any) -> Tuple[int, Layout, Optional[int], bool, Any]:
    """Reads another library's tensor in the memory of a GPU: address, layout, its stream, False, and what keeps it.

    Its producer makes the legacy default stream wait for the work on the tensor.
    """
    capsule = data.__dlpack__(stream=1)
    address, how = _taken(capsule, _CUDA)
    return address, how, 1, False, (data, capsule)


def take(data: Any, why: Exception) -> "Tuple[Dict[str, Any], memoryview]":
    """The metadata and the bytes of a tensor in host memory whose type NumPy lacks. why: what NumPy said.

    Raises Unstorable if its elements do not lie densely, or the tensor cannot be had.
    """
    try:
        if data.__dlpack_device__()[0] != CPU[0]:
            raise BufferError("it is on another device")
        capsule = data.__dlpack__()
        address, how = _taken(capsule, CPU[0])
    except (TypeError, ValueError, RuntimeError, BufferError):
        raise Unstorable("%s cannot be taken as an array: %s; dump() keeps it" % (type(data).__name__, why)) from None
    order = sorted(range(len(how.shape)), key=lambda i: -how.strides[i])
    dense = c_strides([how.shape[i] for i in order])
    if any(how.strides[i] != step for i, step in zip(order, dense) if how.shape[i] > 1):
        raise Unstorable("the elements of this %s do not lie densely: make it contiguous" % type(data).__name__)
    if not how.nbytes:
        return how.meta(), memoryview(b"")
    line: Any = (ctypes.c_ubyte * how.nbytes).from_address(address)
    line.keeps = data, capsule
    return how.meta(), memoryview(line).cast("B")


def _taken(capsule: Any, device: int) -> Tuple[int, Layout]:
    """Where the tensor of a capsule before version 1.0 lies on a device of that type, and how."""
    if not _is_valid(id(capsule), _OLD_NAME):
        raise Invalid("the array's __dlpack__ gave no tensor, though it was asked for one before version 1.0")
    tensor = _OldManaged.from_address(_pointer(id(capsule), _OLD_NAME)).tensor
    kind, n = tensor.dtype, tensor.ndim
    if tensor.device.device_type != device or not 0 <= n <= MAX_DIMENSIONS:
        raise Invalid("a tensor of %d dimensions on a device of type %d" % (n, tensor.device.device_type))
    more = is_more((kind.code, kind.bits))
    if not more and (kind.code not in _LETTERS or kind.bits % 8) or kind.lanes != 1:
        raise Invalid("a tensor of DLPack's type %d with %d bits and %d lanes: store a view of it as integers" % (
            kind.code, kind.bits, kind.lanes))
    shape = tuple(tensor.shape[i] for i in range(n))
    steps, step = [1] * n, 1
    for i in reversed(range(n)):
        steps[i] = tensor.strides[i] if tensor.strides else step
        step *= max(shape[i], 1)
    item = kind.bits // 8
    dtype = "<V%d" % item if more else ("|" if item == 1 else "<") + _LETTERS[kind.code] + str(item)
    how = Layout(dtype, item, shape, tuple(steps), (kind.code, kind.bits) if more else None)
    return (tensor.data or 0) + tensor.byte_offset, how

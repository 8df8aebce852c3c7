"""Memory of GPUs: the CUDA driver, mappings of the store's allocations, and arrays over them.

The driver is the program's own, called with ctypes and loaded when it is first needed. $TENDRIL_CUDA_DRIVER names
another one. Mappings are made in a GPU's primary context, which is that of CuPy, PyTorch, Numba and JAX. It is retained
from the first mapping to the end of the process. The program's current context is left as it is.

A mapping lives as long as any array over it, and ends after the GPU's work: whoever drops a tensor may have kernels
under way that use it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
import sys
import threading
from functools import partial
from typing import TYPE_CHECKING, Any, Dict, List, NamedTuple, Optional, Tuple

from . import dlpack, wire
from .errors import Full, Invalid, NoDevice, Protocol, TendrilError, Unsupported
from .layouts import Layout, c_strides, item_size
from .memory import Descriptor, End

if TYPE_CHECKING:
    from .connection import Connection

_ANY, _CUDA_DLPACK = ctypes.c_void_p, 2  # kDLCUDA
_OUT_OF_MEMORY = 2
_HANDLE_FD = 1  # CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
_LOCATION_DEVICE = 1
_READ_WRITE = 3
_POINTER_ORDINAL = 9  # CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
IPC_BYTES = 64  # of a cudaIpcMemHandle_t

_INT, _U64, _SIZE = ctypes.c_int, ctypes.c_uint64, ctypes.c_size_t


class _Access(ctypes.Structure):
    """CUmemAccessDesc."""

    _fields_ = [("kind", _INT), ("ordinal", _INT), ("flags", _INT)]


class _Handle(ctypes.Structure):
    """CUipcMemHandle."""

    _fields_ = [("reserved", ctypes.c_ubyte * IPC_BYTES)]


_FUNCTIONS: Dict[str, List[Any]] = {
    "cuInit": [ctypes.c_uint],
    "cuGetErrorName": [_INT, ctypes.POINTER(ctypes.c_char_p)],
    "cuDeviceGetCount": [ctypes.POINTER(_INT)],
    "cuDeviceGet": [ctypes.POINTER(_INT), _INT],
    "cuDeviceGetUuid": [ctypes.c_char_p, _INT],
    "cuDevicePrimaryCtxRetain": [ctypes.POINTER(_ANY), _INT],
    "cuCtxGetCurrent": [ctypes.POINTER(_ANY)],
    "cuCtxSetCurrent": [_ANY],
    "cuCtxSynchronize": [],
    "cuStreamSynchronize": [_ANY],
    "cuPointerGetAttribute": [_ANY, _INT, _U64],
    "cuMemImportFromShareableHandle": [ctypes.POINTER(_U64), _ANY, _INT],
    "cuMemAddressReserve": [ctypes.POINTER(_U64), _SIZE, _SIZE, _U64, ctypes.c_ulonglong],
    "cuMemAddressFree": [_U64, _SIZE],
    "cuMemMap": [_U64, _SIZE, _SIZE, _U64, ctypes.c_ulonglong],
    "cuMemSetAccess": [_U64, _SIZE, ctypes.POINTER(_Access), _SIZE],
    "cuMemUnmap": [_U64, _SIZE],
    "cuMemRelease": [_U64],
    "cuMemcpyDtoD_v2": [_U64, _U64, _SIZE],
}
# Functions that not every driver has (Tegra's), found when they are first called.
_FUNCTIONS_LATER: Dict[str, List[Any]] = {
    "cuIpcOpenMemHandle_v2": [ctypes.POINTER(_U64), _Handle, ctypes.c_uint],
    "cuIpcCloseMemHandle": [_U64],
}


class Driver:
    """The CUDA driver of this process. Any number of threads may use it."""

    def __init__(self, path: str) -> None:
        """Loads and initialises it. Raises Unsupported, with the reason."""
        self.pid = os.getpid()
        self._contexts: Dict[int, int] = {}
        self._ordinals: Dict[bytes, int] = {}
        try:
            self._library = library = ctypes.CDLL(path)
            self._functions = {name: getattr(library, name) for name in _FUNCTIONS}
        except (OSError, AttributeError) as e:
            raise Unsupported("this process cannot use the CUDA driver %s: %s" % (path, e)) from None
        for name, types in _FUNCTIONS.items():
            self._functions[name].argtypes, self._functions[name].restype = types, _INT
        code = self._functions["cuInit"](0)
        if code:
            raise Unsupported("the CUDA driver %s does not start: %s" % (path, self._name(code)))

    def call(self, function: str, *args: Any) -> None:
        """Calls a function of the driver. Raises Full if the GPU is, NoDevice for other errors."""
        if function in _FUNCTIONS_LATER and function not in self._functions:
            self._find(function)
        code = self._functions[function](*args)
        if code:
            raise (Full if code == _OUT_OF_MEMORY else NoDevice)("%s: %s" % (function, self._name(code)))

    def _find(self, name: str) -> None:
        """Finds one of the functions that not every driver has. Raises Unsupported."""
        try:
            found = getattr(self._library, name)
        except AttributeError as e:
            raise Unsupported("this CUDA driver opens no memory of other processes: %s" % e) from None
        found.argtypes, found.restype = _FUNCTIONS_LATER[name], _INT
        self._functions[name] = found

    def _name(self, code: int) -> str:
        text = ctypes.c_char_p()
        if self._functions["cuGetErrorName"](code, ctypes.byref(text)) or not text.value:
            return "CUDA error %d" % code
        return "%s (%d)" % (text.value.decode("ascii", "replace"), code)

    def uuid(self, ordinal: int) -> bytes:
        """The UUID of the GPU with this place in the process's order."""
        device, raw = _INT(), ctypes.create_string_buffer(16)
        self.call("cuDeviceGet", ctypes.byref(device), ordinal)
        self.call("cuDeviceGetUuid", raw, device)
        return raw.raw

    def ordinal(self, uuid: bytes) -> int:
        """The place of a GPU in this process's order. Raises Unsupported if it is not there."""
        known = self._ordinals.get(uuid)
        if known is not None:
            return known
        n = _INT()
        self.call("cuDeviceGetCount", ctypes.byref(n))
        for i in range(n.value):
            if self.uuid(i) == uuid:
                self._ordinals[uuid] = i
                return i
        raise Unsupported("GPU %s is not among the %d that this process may use: is CUDA_VISIBLE_DEVICES set?" % (
            uuid.hex(), n.value))

    def context(self, ordinal: int) -> "_Current":
        """A with block in which a GPU's primary context is the thread's."""
        with _lock:
            context = self._contexts.get(ordinal)
            if context is None:
                device, made = _INT(), _ANY()
                self.call("cuDeviceGet", ctypes.byref(device), ordinal)
                self.call("cuDevicePrimaryCtxRetain", ctypes.byref(made), device)
                context = self._contexts[ordinal] = made.value or 0
        return _Current(self, context)

    def place(self, address: int) -> int:
        """The ordinal of the GPU in whose memory an address lies. Raises Invalid."""
        ordinal = _INT(-1)
        try:
            self.call("cuPointerGetAttribute", ctypes.byref(ordinal), _POINTER_ORDINAL, address)
        except NoDevice as e:
            raise Invalid("%#x is no address of a GPU's memory: %s" % (address, e)) from None
        return ordinal.value


class _Current:
    """Makes a context the thread's in a with block, and the one before again afterwards."""

    __slots__ = ("_driver", "_context", "_before")

    def __init__(self, driver: Driver, context: int) -> None:
        self._driver, self._context, self._before = driver, context, _ANY()

    def __enter__(self) -> None:
        self._driver.call("cuCtxGetCurrent", ctypes.byref(self._before))
        self._driver.call("cuCtxSetCurrent", self._context)

    def __exit__(self, *_: Any) -> None:
        self._driver.call("cuCtxSetCurrent", self._before)


# Guards what follows, and a driver's contexts. A garbage collection under it may end mappings, which need it.
_lock = threading.RLock()
_driver: Optional[Driver] = None


def driver() -> Driver:
    """The process's driver. Raises Unsupported if there is none, or if a parent process loaded it."""
    global _driver
    with _lock:
        if _driver is None:
            _driver = Driver(os.environ.get("TENDRIL_CUDA_DRIVER") or "libcuda.so.1")
        if _driver.pid != os.getpid():
            raise Unsupported("CUDA does not survive a fork, and process %d used it before: start processes with the "
                              "method spawn" % _driver.pid)
        return _driver


def _forked() -> None:
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_forked)


class Memory:
    """An allocation of a GPU, and this process's mapping of it, once it is asked for.

    It keeps lease, this process's reference to the object, and lives as long as any array over it.
    """

    def __init__(self, uuid: bytes, size: int, whole: int, lease: Any, file: "Optional[Descriptor]") -> None:
        """size: the object's bytes. whole: those of the allocation, which are mapped."""
        self.uuid, self.size = uuid, size
        self._whole, self._lease, self._file = whole, lease, file
        self._lock = threading.Lock()
        self._end: Optional[End] = None
        self._address, self._ordinal = 0, -1
        self._driver: Optional[Driver] = None

    def map(self) -> "Tuple[int, int]":
        """Address and GPU's ordinal in this process. The first call maps. Raises Unsupported, NoDevice, Full."""
        if self._file is None:
            raise Unsupported("memory of device %s that no other process maps: an OpenCL driver's, or the GPU is gone. "
                              "numpy(), load() and to('host') copy it" % self.uuid.hex())
        with self._lock:
            if self._driver is None:
                use = driver()
                self._ordinal = use.ordinal(self.uuid)
                with use.context(self._ordinal):
                    at = _map(use, self._ordinal, self._file.fileno(), self._whole)
                    self._end = End(partial(_unmap, use, self._ordinal, [
                        ("cuCtxSynchronize",),  # cuMemUnmap does not wait for kernels
                        ("cuMemUnmap", at, self._whole), ("cuMemAddressFree", at, self._whole)]), self._lease)
                    self._address, self._driver = at, use
                    self._file.close()
            elif self._driver.pid != os.getpid():
                driver()  # which says why this cannot be
            return self._address, self._ordinal

    def synchronize(self) -> None:
        """Waits for all work that this process has given to the GPU, if it has the memory mapped."""
        if self._driver is not None and self._driver.pid == os.getpid():
            with self._driver.context(self._ordinal):
                self._driver.call("cuCtxSynchronize")

    def fill(self, source: "Source") -> None:
        """Copies an array on the same GPU, after the work on it that its stream has, and waits until it is done."""
        address, _ = self.map()
        use = driver()
        with use.context(self._ordinal):
            if source.whole_context:
                use.call("cuCtxSynchronize")
            elif source.stream is not None:
                use.call("cuStreamSynchronize", source.stream)
            use.call("cuMemcpyDtoD_v2", address, source.address, source.size)
            use.call("cuStreamSynchronize", None)


def _unmap(use: Driver, ordinal: int, left: "List[Tuple[Any, ...]]") -> None:
    """The end of a mapping: makes the calls of left. At the end of the interpreter the driver may have ended before,
    and takes all mappings with it.
    """
    if use.pid != os.getpid() or sys.is_finalizing():
        return
    try:
        with use.context(ordinal):
            while left:
                try:
                    use.call(*left[0])
                except TendrilError:
                    pass  # nobody can do anything about it; a context that is broken runs no kernels
                del left[0]
    except TendrilError:
        pass  # the process's end unmaps


def _map(use: Driver, ordinal: int, fd: int, size: int) -> int:
    """Maps an allocation whose descriptor, the caller's, is fd. Its GPU's context is the thread's."""
    handle, at = _U64(), _U64()
    access = _Access(_LOCATION_DEVICE, ordinal, _READ_WRITE)
    with contextlib.ExitStack() as undo:
        use.call("cuMemAddressReserve", ctypes.byref(at), size, 0, 0, 0)
        undo.callback(use.call, "cuMemAddressFree", at, size)
        use.call("cuMemImportFromShareableHandle", ctypes.byref(handle), fd, _HANDLE_FD)
        try:
            use.call("cuMemMap", at, size, 0, handle, 0)
            undo.callback(use.call, "cuMemUnmap", at, size)
        finally:
            use.call("cuMemRelease", handle)  # a mapping keeps the memory
        use.call("cuMemSetAccess", at, size, ctypes.byref(access), 1)
        undo.pop_all()
    return at.value


# Arrays ---------------------------------------------------------------------

class CudaArray:
    """An array in the memory of a GPU, for other libraries. It keeps the object.

    CuPy, PyTorch, Numba and JAX take it as it is (cupy.asarray, torch.as_tensor, from_dlpack), without a copy, and keep
    it as long as they use the memory. That of a sealed object must not be written. DLPack 1.0 says so; nothing prevents
    it. __cuda_array_interface__ does not say so, because PyTorch then refuses the array.
    """

    def __init__(self, memory: Memory, how: Layout, writable: bool) -> None:
        self._memory = memory
        self._how = how
        self._writable = writable
        self._address, self._ordinal = memory.map()

    @property
    def shape(self) -> Tuple[int, ...]:
        return self._how.shape

    @property
    def dtype(self) -> str:
        """As NumPy's typestr: '<f4'."""
        return self._how.dtype

    @property
    def strides(self) -> Tuple[int, ...]:
        """In elements."""
        return self._how.strides

    @property
    def nbytes(self) -> int:
        return self._how.nbytes

    @property
    def address(self) -> int:
        """Where the array begins, in this process."""
        return self._address

    @property
    def __cuda_array_interface__(self) -> Dict[str, Any]:
        """Version 3. The stream is None: whoever sealed the object waited for the GPU's work on it."""
        steps = None if self._how.contiguous else tuple(s * self._how.item for s in self._how.strides)
        return {"shape": self._how.shape, "typestr": self._how.dtype, "data": (self._address, False),
                "strides": steps, "stream": None, "version": 3}

    def __dlpack__(self, **options: Any) -> Any:
        """A capsule for another library's from_dlpack (see dlpack.py)."""
        return dlpack.export_cuda(self, self._address, self._ordinal, self._how, self._writable, **options)

    def __dlpack_device__(self) -> Tuple[int, int]:
        return _CUDA_DLPACK, self._ordinal

    def __repr__(self) -> str:
        return "<tendril.CudaArray %s %s on cuda:%d>" % (self._how.dtype, list(self._how.shape), self._ordinal)


# What others have --------------------------------------------------------------


class Source(NamedTuple):
    """An array of another library in the memory of a GPU."""

    address: int
    size: int  # bytes
    ordinal: int
    how: Layout
    stream: Optional[int]  # work on the array is in this one; None: none is under way
    whole_context: bool  # it may be in any stream
    keeps: Any


def _interface(data: Any) -> Any:
    """An array's __cuda_array_interface__. None if it has none, or has no word for its type (PyTorch's float8)."""
    try:
        return getattr(data, "__cuda_array_interface__", None)
    except (KeyError, TypeError):
        if not hasattr(data, "__dlpack__"):
            raise
        return None


def is_cuda(data: Any) -> bool:
    """Whether data is an array in the memory of a GPU."""
    if _interface(data) is not None:
        return True
    device = getattr(data, "__dlpack_device__", None)
    return device is not None and hasattr(data, "__dlpack__") and int(device()[0]) == _CUDA_DLPACK


def source_of(data: Any) -> Source:
    """Reads an array's interface. Raises Invalid for what cannot be stored, as elements that do not lie densely."""
    told = _interface(data)
    # PyTorch says '<V2' of bfloat16 there. DLPack has its name.
    if told is None or "V" in str(told["typestr"]) and hasattr(data, "__dlpack__"):
        return _source(*dlpack.take_cuda(data))
    item = item_size(str(told["typestr"]))
    shape, strides = tuple(told["shape"]), told.get("strides")
    if told.get("mask") is not None:
        raise Invalid("the array has a mask: store array and mask as two objects")
    if strides is not None and any(s % item for s in strides):
        raise Invalid("strides %r are no multiples of the %d bytes of an element: store a copy" % (strides, item))
    steps = c_strides(shape) if strides is None else tuple(s // item for s in strides)
    versioned = told.get("version", 0) >= 3
    return _source(told["data"][0], Layout(str(told["typestr"]), item, shape, steps),
                   told.get("stream") if versioned else None, not versioned, data)


def _source(address: int, how: Layout, stream: Optional[int], whole_context: bool, keeps: Any) -> Source:
    if not how.nbytes:
        raise Invalid("an array of shape %r has no bytes to lie in the memory of a GPU" % (how.shape,))
    step = 1
    for s, n in sorted((s, n) for n, s in zip(how.shape, how.strides) if n > 1):
        if s != step:
            raise Invalid("an array of shape %r and strides %r (in elements) has gaps or repeats: store a contiguous "
                          "copy of it" % (how.shape, how.strides))
        step *= n
    return Source(address, how.nbytes, driver().place(address), how, stream, whole_context, keeps)


# Memory of programs that know nothing of the store -----------------------------------


class IPCArray:
    """Another process's memory, by the handle that cudaIpcGetMemHandle gave there: Client.put copies it once.

    The other process keeps the memory until this is closed, and has waited for its own work on it. The handle stands
    for an allocation of cudaMalloc from its beginning on; offset is where in it the array begins, in bytes. A process
    cannot open its own. A context manager; the end of the array closes it, too, after the GPU's work.
    """

    def __init__(self, handle: bytes, shape: "int | Tuple[int, ...]", dtype: str = "|u1", *, ordinal: int = 0,
                 offset: int = 0) -> None:
        """shape, dtype: of the array, which lies densely, in C order. ordinal: the GPU's in this process.

        Raises Invalid for what is no handle, Unsupported without a driver, NoDevice if the driver does not open it.
        """
        if len(handle) != IPC_BYTES:
            raise Invalid("a handle of %d bytes: cudaIpcMemHandle_t has %d" % (len(handle), IPC_BYTES))
        if offset < 0:
            raise Invalid("offset %d is below 0" % offset)
        self._base: "List[int]" = []  # the address, until this is closed
        self._ordinal = ordinal
        self._driver = use = driver()
        self._shape = (shape,) if isinstance(shape, int) else tuple(shape)
        self._dtype, self._offset = dtype, offset
        item_size(dtype)
        at = _U64()
        with use.context(ordinal):
            use.call("cuIpcOpenMemHandle_v2", ctypes.byref(at), _Handle.from_buffer_copy(handle), 1)
        self._base.append(at.value)
        self._end = End(partial(_dropped, use, ordinal, self._base))

    @property
    def __cuda_array_interface__(self) -> Dict[str, Any]:
        if not self._base:
            raise Invalid("the memory of another process was closed")
        return {"shape": self._shape, "typestr": self._dtype, "data": (self._base[0] + self._offset, False),
                "strides": None, "stream": None, "version": 3}

    def close(self) -> None:
        """Ends this process's use of the memory, after the GPU's work. A second call does nothing."""
        _close(self._driver, self._ordinal, self._base)

    def __enter__(self) -> "IPCArray":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def _close(use: Driver, ordinal: int, base: "List[int]") -> None:
    """Ends the use of another process's memory at the only element of base, and takes that away."""
    if not base or use.pid != os.getpid() or sys.is_finalizing():
        return
    with use.context(ordinal):
        try:
            use.call("cuCtxSynchronize")
        finally:
            use.call("cuIpcCloseMemHandle", base.pop())


def _dropped(use: Driver, ordinal: int, base: "List[int]") -> None:
    try:
        _close(use, ordinal, base)
    except TendrilError:
        pass  # nobody can do anything about it; the process's end closes it


# Which GPU -----------------------------------------------------------------------


def uuid_of(text: str) -> Optional[bytes]:
    """The UUID that text is: 32 digits, with GPU- or cuda: before them or not. None for cuda:N and cuda, alone."""
    rest = text[5:] if text.startswith("cuda:") else text
    if text == "cuda" or rest is not text and rest.isdecimal() and len(rest) < 16:
        return None
    digits = (rest[4:] if rest.startswith("GPU-") else rest).replace("-", "")
    try:
        raw = bytes.fromhex(digits)
    except ValueError:
        raw = b""
    if len(raw) != 16 or len(digits) != 32:
        raise Invalid("device %.60r: want 'cuda:N', 'opencl:N', or a UUID of 32 hexadecimal digits" % text)
    return raw


class IPCHandle:
    """A copy of an object in the memory of a GPU, for programs that open CUDA handles: Client.ipc_handle makes it.

    handle has the 64 bytes that cudaIpcOpenMemHandle takes in another process than the daemon's, on the GPU whose UUID
    is device; size is the object's in bytes, and of the copy's first ones. Who opens it may write the copy, and never
    the object. It is charged to the tenant, and ends with release(), with the connection, and with the daemon's keeper,
    which a fault of its driver may end at any time. Whoever has it open closes it before. A context manager.
    """

    __slots__ = ("handle", "device", "size", "_live", "_number")

    def __init__(self, live: "Connection", fields: Any) -> None:
        self._number = fields.u64()
        self.device: str = fields.take(16).hex()
        self.size: int = fields.u64()
        fields.u64()  # of the copy
        self.handle: bytes = bytes(fields.take(IPC_BYTES))
        fields.end()
        self._live: "Optional[Connection]" = live

    def release(self) -> None:
        """Gives the copy back. A second call does nothing.

        Raises NoDevice if it had ended with the keeper before: the handle was of no use since.
        """
        live, self._live = self._live, None
        if live is not None and live.alive:
            live.call(wire.CLOSE_IPC, struct.pack("<Q", self._number), wire.nothing)

    def __enter__(self) -> "IPCHandle":
        return self

    def __exit__(self, *_: Any) -> None:
        self.release()


def reply_of(fields: Any) -> "Tuple[bytes, bytes, int, int, bytes, Optional[Descriptor]]":
    """A reply about memory of a device: id, UUID, bytes of the object and the allocation, metadata, descriptor.

    What an OpenCL driver has comes without a descriptor, and with no bytes to be mapped.
    """
    key, uuid, size, whole = fields.id(), fields.take(16), fields.u64(), fields.u64()
    fields.u8()
    meta = fields.bytes32()
    if size <= 0 or 0 < whole < size or len(fields.fds) != (1 if whole else 0):
        raise Protocol("an object of %d bytes in an allocation of %d, with %d descriptors" % (
            size, whole, len(fields.fds)))
    fields.end()
    return key, uuid, size, whole, meta, fields.fds.pop() if whole else None

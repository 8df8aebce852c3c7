"""Memory of GPUs out of the store, for PyTorch and CuPy: Client.put of a whole array in it is without a copy.

    store = tendril.connect()
    torch.cuda.memory.change_current_allocator(tendril.allocators.for_torch(store))    # before any other use of CUDA
    t = torch.rand(1000, 1000, device="cuda")
    store.put(t, "name")                        # t's memory is the object: do not write it any more

    cupy.cuda.set_allocator(tendril.allocators.for_cupy(store))

Each array of 1 MiB or more has an object of its own, which takes a multiple of 2 MiB, a descriptor of the daemon's, and
the time of a request. Smaller ones are the driver's own memory, and so is what the store does not give: put copies
those. It also copies a part of an array, and an array that was put before. Freeing waits for the GPU.

PyTorch keeps the workspaces of cuBLAS there (32 MiB for each thread that multiplied, on an H100) until
torch._C._cuda_clearCublasWorkspaces().

The library libtendril_cuda.so does it, for PyTorch may allocate where Python's lock is another thread's. It comes with
`make build` and `make install`, not with the wheel. TENDRIL_CUDA_LIBRARY names another place.
"""

import ctypes
import importlib
import os
import sys
import threading
from typing import TYPE_CHECKING, Any, Callable, Optional

from .errors import Invalid, NoDevice, Unsupported

if TYPE_CHECKING:
    from .client import Client
    from .cuda import Source

__all__ = ["for_cupy", "for_torch", "library"]

_NAME = "libtendril_cuda.so.0"
_SEALED, _COPY = 0, 1

_lock = threading.Lock()
_library: Optional[ctypes.CDLL] = None


def _places() -> "list[str]":
    told = os.environ.get("TENDRIL_CUDA_LIBRARY")
    if told:
        return [told]
    beside = [os.path.join(p, "lib", _NAME) for p in (sys.prefix, "/usr/local", "/usr")]
    return [_NAME] + [p for p in beside if os.path.exists(p)]


def _load() -> ctypes.CDLL:
    global _library
    with _lock:
        if _library is not None:
            return _library
        said = []
        for path in _places():
            try:
                found = ctypes.CDLL(path)
                break
            except OSError as e:
                said.append(str(e))
        else:
            raise Unsupported("no %s, which `make build` makes in bin/lib (TENDRIL_CUDA_LIBRARY names it): %s" % (
                _NAME, "; ".join(said)))
        found.tendril_cuda_use.argtypes = [ctypes.c_char_p]
        found.tendril_cuda_message.restype = ctypes.c_char_p
        found.tendril_cuda_seal.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t,
                                            ctypes.c_char_p]
        _library = found
        return found


def _message(of: ctypes.CDLL) -> str:
    text: bytes = of.tendril_cuda_message()
    return text.decode("utf-8", "replace")


def library(store: "Client") -> str:
    """The path of the library, loaded, which allocates from store's daemon from then on.

    Raises Unsupported if it is not there, Invalid if it allocates from another daemon already.
    """
    found = _load()
    store.ping()  # then it knows which daemon's it is
    if found.tendril_cuda_use(os.fsencode(store._path or "")):
        raise Invalid(_message(found))
    return str(found._name)


def for_torch(store: "Client") -> Any:
    """A torch.cuda.memory.CUDAPluggableAllocator, for change_current_allocator. Raises what library raises."""
    memory: Any = importlib.import_module("torch.cuda.memory")
    return memory.CUDAPluggableAllocator(library(store), "tendril_torch_alloc", "tendril_torch_free")


def for_cupy(store: "Client") -> "Callable[[int], Any]":
    """An allocator for cupy.cuda.set_allocator, or using_allocator. Raises what library raises."""
    cupy: Any = importlib.import_module("cupy")
    library(store)
    found = _load()
    address = [ctypes.cast(f, ctypes.c_void_p).value for f in (found.tendril_cupy_alloc, found.tendril_cupy_free)]
    malloc: Callable[[int], Any] = cupy.cuda.CFunctionAllocator(0, address[0], address[1], found).malloc
    return malloc


def take(source: "Source", meta: bytes) -> Optional[bytes]:
    """Seals the library's memory that an array is, with metadata: the object's id. None: it is to be copied.

    Raises NoDevice if the GPU's work on it has failed, or the daemon refused.
    """
    if _library is None:
        return None
    key = ctypes.create_string_buffer(16)
    said = _library.tendril_cuda_seal(source.address, source.size, meta, len(meta), key)
    if said == _COPY:
        return None
    if said != _SEALED:
        raise NoDevice(_message(_library))
    return key.raw

"""What a client returns: sealed objects, drafts that are being filled, and descriptions."""

from __future__ import annotations

import struct
import sys
import weakref
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Tuple

from . import memory, pages, wire
from .connection import Connection, Hold
from .data import opaque, value_of
from .errors import Disconnected, Invalid, Sealed, TendrilError, Unsupported
from .exporter import FORMAT, Exporter, released
from .source import Source

if TYPE_CHECKING:
    import numpy

    from .cuda import CudaArray, Memory


class ObjectID(bytes):
    """An object's id: 16 random bytes. Its text is 32 hexadecimal digits."""

    def __new__(cls, value: "bytes | str") -> "ObjectID":
        if isinstance(value, str):
            try:
                raw = bytes.fromhex(value[3:] if value.startswith("id:") else value)
            except ValueError:
                raise Invalid("%.60r is no object id: want 32 hexadecimal digits" % value) from None
        else:
            raw = bytes(value)
        if len(raw) != 16:
            raise Invalid("an object id has 16 bytes, not %d" % len(raw))
        return super().__new__(cls, raw)

    def __str__(self) -> str:
        return self.hex()

    def __repr__(self) -> str:
        return "ObjectID('%s')" % self.hex()


class IDText(str):
    """An object's id as text: 32 hexadecimal digits. As a key it is the id, and no name of that spelling."""


@dataclass(frozen=True)
class Info:
    """The daemon's description of an object. Sizes are bytes, times are RFC 3339. id is an IDText."""

    id: str
    name: str = ""
    kind: str = "host"
    lifetime: str = ""  # the daemon's "class", which is a keyword of Python
    state: str = ""
    size_bytes: int = 0
    tenant: str = ""
    refs: int = 0
    created: str = ""
    sealed: str = ""
    creator_pid: int = 0
    creator: str = ""
    strict: bool = False
    meta: Any = None
    labels: Dict[str, str] = field(default_factory=dict)
    expires: str = ""
    pinned: bool = False
    on_disk: bool = False
    moving: Any = None  # {"to": "disk" or "memory", "done_bytes": N} while it is spilled or restored
    members: Any = None  # of a composite: [{"name", "id"}]
    fault: str = ""  # why its copy on disk cannot be used, or what is damaged
    checksum: bool = False  # it has checksums, which the daemon checks
    device: str = ""  # of kinds cuda and opencl: the UUID of the device in whose memory it is
    published: str = ""  # what this node's replica or copy of a published object is published under; it has no name
    nodes: Any = None  # the names of those that have it, if this one does not: a get brings it here
    copied_from_node: str = ""  # nodes that it came from, where this daemon brought it here
    copied_from: str = ""  # of which kind that is where it was made: "cuda" or "opencl", or as here
    holders: Any = None  # of top(): [{"pid", "program", "tenant", "refs", "since"}]

    @classmethod
    def of(cls, told: Dict[str, Any]) -> "Info":
        """From the daemon's JSON. Fields that this client does not know are ignored."""
        known = {f.name for f in fields(cls)}
        values = {k: v for k, v in told.items() if k in known and v is not None}
        values["lifetime"], values["id"] = told.get("class", ""), IDText(told["id"])
        return cls(**values)


class Object(Exporter):
    """A sealed object, which this process holds a reference to. Its memory is shared and read-only.

    The reference lasts until release() or the end of a with block, and until the last view of the memory is gone
    (memoryviews and arrays). So every view stays valid. Any number of threads may use an object, but release() is for
    one.

    name is the name by which it was put or got, empty if it was another key; others may have renamed it since.
    """

    name = ""

    def __init__(self, hold: Hold, part: Any, meta: Optional[Dict[str, Any]], path: Optional[str] = None) -> None:
        """Only clients make objects. size is bytes; meta is the metadata, None if there is none."""
        self._hold = hold
        self._path = path
        self._part = part
        self.size = len(part)
        self.meta = meta

    @property
    def id(self) -> ObjectID:
        return ObjectID(self._hold.object_id)

    @property
    def shape(self) -> Tuple[int, ...]:
        """The shape that the metadata describes. Without metadata: one dimension of size bytes."""
        told = (self.meta or {}).get("shape")
        return (self.size // self.dtype.itemsize,) if told is None else tuple(told)

    @property
    def dtype(self) -> "numpy.dtype[Any]":
        """The dtype that the metadata describes. Without metadata: uint8. Raises Invalid if there is no such type."""
        from . import arrays
        return arrays.dtype_of(self.meta)

    @property
    def gone(self) -> bool:
        """Whether the client came back to a daemon that no longer has the object. Its memory stays readable."""
        return self._hold.gone

    @property
    def data(self) -> memoryview:
        """The bytes, read-only and without a copy. Raises Invalid after release()."""
        if self._part is None:
            raise self._released()
        return memory.view(self._part, False)

    @property
    def device(self) -> str:
        """Where the bytes lie: "host", or the UUID of a GPU."""
        return "host"

    def cuda(self) -> "CudaArray":
        """The array in the memory of a GPU (see CudaObject). Raises Unsupported for an object in host memory."""
        raise Unsupported("object %s is in host memory: to('cuda:0') copies it" % self.id.hex())

    def to(self, device: str) -> "Object":
        """A copy in the memory of a GPU ("cuda:N" in the daemon's order, or a UUID), or in "host" memory.

        The daemon's keeper copies. The copy is ephemeral; Client.copy can name it. Release it. Raises Invalid from host
        to host, and what Client.copy raises.
        """
        if self._part is None or self._path is None:
            raise Invalid("object %s was released" % self.id.hex())
        copied: Object = client_of(self._path).copy(self, device)
        return copied

    def __buffer__(self, flags: int) -> memoryview:
        """The buffer protocol: memoryview(object), numpy.frombuffer, hashlib, files. Read-only, without a copy.

        Who asks for a format, as memoryview does, gets the array that the metadata describes, as from numpy(). Others
        get the bytes, as does everyone without NumPy. Raises what numpy() raises, and ValueError for a dtype that
        buffers do not have (datetime64, bfloat16).
        """
        if not flags & FORMAT or not self.meta:
            return self.data
        self._is_array()
        try:
            from . import arrays
        except ImportError:
            return self.data
        return arrays.exported(self.numpy()) if "dtype" in self.meta else self.data

    def _released(self) -> Invalid:
        return Invalid("object %s was released" % self.id.hex())

    def __len__(self) -> int:
        return self.size

    def bytes(self) -> bytes:
        """A copy of the bytes."""
        part = self._part
        if part is None:
            raise self._released()
        return bytes(part)

    def __array__(self, dtype: Any = None, copy: Optional[bool] = None) -> "numpy.ndarray[Any, Any]":
        """numpy(), for numpy.asarray(object). Another dtype, or copy=True, makes a copy."""
        from . import arrays
        return arrays.as_asked(self.numpy(), dtype, copy)

    def numpy(self) -> "numpy.ndarray[Any, Any]":
        """The array that the metadata describes, read-only and without a copy. Without metadata: uint8.

        Raises Invalid if the metadata does not fit the object, if the object holds a data frame, a table or another
        value (load() gives it), or after release().
        """
        from . import arrays
        self._is_array()
        return arrays.over(self.data, self.meta)

    def _is_array(self) -> None:
        what = opaque(self.meta)
        if what:
            raise Invalid("object %s holds %s and no array: use load()" % (self.id.hex(), what))

    def tendril_source(self) -> Source:
        """What put stores of an object: its bytes and metadata."""
        whole = self.data
        return Source(len(whole), self.meta, ((0, whole),))

    def populate(self) -> None:
        """Maps all pages with one system call: for a large object that will be read whole. Does nothing below 1 MiB."""
        if self._part is not None and self.size:
            memory.populate(memory.address_of(self._part), self.size, False)

    def __dlpack__(self, **options: Any) -> Any:
        """A read-only tensor for another library's from_dlpack (see dlpack.py).

        Without a copy for libraries with DLPack 1.0. Older ones, which could write to it, get a copy.
        """
        from . import dlpack, layouts
        kind = None
        if self.meta and "dlpack" in self.meta:
            kind = layouts.layout(self.meta, self.size).kind
        return dlpack.export(self.numpy(), kind=kind, **options)

    def __dlpack_device__(self) -> Tuple[int, int]:
        return 1, 0  # kDLCPU

    def load(self) -> Any:
        """Returns the value that put or dump stored. What lies in the store's memory is read-only.

        An array is numpy(), plain bytes are data, an Arrow table comes without a copy. Data frames and what dump stored
        are pickles. Unpickling runs code that the pickle names: use it only if you trust the object's creator.
        Client.load checks the tenant. Raises Invalid if the object does not hold what its metadata says.
        """
        return value_of(self.data, self.meta)

    def __reduce__(self) -> Any:
        """Pickles a reference: unpickling gets the object from the same daemon. Hold the object until then."""
        if self._part is None or self._path is None:
            raise Invalid("object %s was released" % self.id.hex())
        return _get_again, (self._path, bytes(self.id))

    def release(self) -> bool:
        """Releases the reference, or leaves that to the last view and returns False. A second call does nothing."""
        if self._part is None:
            return True
        last = sys.getrefcount(self._part) <= 2
        last = last and (not hasattr(self._part, "keeps") or sys.getrefcount(self._part.keeps) <= 2)
        self._part = None
        self._refuse_buffers()
        return last

    def _refuse_buffers(self) -> None:
        """After the release: before Python 3.12 only a class says why there is no buffer."""
        if Exporter is not object:
            self.__class__ = released(type(self), _was_released)

    def __enter__(self) -> "Object":
        return self

    def __exit__(self, *_: Any) -> None:
        self.release()

    def __repr__(self) -> str:
        state = "released" if self._part is None else "%d bytes" % self.size
        return "<tendril.Object %s, %s>" % (self.id.hex(), state)


def _was_released(o: Object) -> None:
    raise Invalid("object %s was released" % o.id.hex())


class CudaObject(Object):
    """A sealed object in the memory of a GPU.

    cuda() is the array there, without a copy. What an Object in host memory has works as well: data, numpy(), bytes()
    and load() read one copy in host memory, which the daemon's keeper makes when it is first needed. It takes an object
    of the store. So a program without CUDA can read the bytes.

    The hardware lets everyone write who has the memory: nothing keeps a reader from it, and nothing faults.
    """

    def __init__(self, client: Any, hold: Hold, lease: Any, memory_: "Memory", meta: Optional[Dict[str, Any]],
                 path: str) -> None:
        super().__init__(hold, lease, meta, path)
        self._client, self._uuid = client, memory_.uuid
        self._memory: "Optional[Memory]" = memory_
        self._host: Optional[Object] = None
        self.size = memory_.size

    @property
    def device(self) -> str:
        return self._uuid.hex()

    def cuda(self) -> "CudaArray":
        """The array that the metadata describes, in the GPU's memory, mapped in this process. Without metadata: uint8.

        Raises Unsupported if this process has no CUDA driver or may not use that GPU, NoDevice if the driver fails,
        Invalid if the metadata does not fit the object, or after release().
        """
        from . import cuda, layouts
        if self._memory is None:
            raise Invalid("object %s was released" % self.id.hex())
        return cuda.CudaArray(self._memory, layouts.layout(self.meta, self.size), False)

    def to(self, device: str) -> Object:
        if self._part is None:
            raise Invalid("object %s was released" % self.id.hex())
        copied: Object = self._client.copy(self, device)
        return copied

    def _copy(self) -> Object:
        if self._host is None:
            self._host = self.to("host")
        return self._host

    @property
    def data(self) -> memoryview:
        """The bytes of the copy in host memory, read-only. Raises what Client.copy raises, and Invalid after release().
        """
        return self._copy().data

    def bytes(self) -> bytes:
        return self._copy().bytes()

    def numpy(self) -> "numpy.ndarray[Any, Any]":
        """The array that the metadata describes, read-only, in the copy in host memory. Without metadata: uint8."""
        return self._copy().numpy()

    def populate(self) -> None:
        """Does nothing: pages of a GPU's memory need no mapping by page faults."""

    @property
    def __cuda_array_interface__(self) -> Dict[str, Any]:
        return self.cuda().__cuda_array_interface__

    def __dlpack__(self, **options: Any) -> Any:
        """cuda().__dlpack__(), or of the copy in host memory if dl_device says so."""
        wanted = options.get("dl_device")
        if wanted is not None and tuple(wanted) == (1, 0):
            return self._copy().__dlpack__(**options)
        return self.cuda().__dlpack__(**options)

    def __dlpack_device__(self) -> Tuple[int, int]:
        return self.cuda().__dlpack_device__()

    def release(self) -> bool:
        """Releases the reference, or leaves that to the last array and returns False. A second call does nothing."""
        if self._part is None:
            return True
        lease = weakref.ref(self._part)
        if self._host is not None:
            self._host.release()
        self._part = self._host = self._memory = None
        self._refuse_buffers()
        return lease() is None

    def __repr__(self) -> str:
        if self._part is None:
            return super().__repr__()
        return "<tendril.CudaObject %s, %d bytes on device %s>" % (self.id.hex(), self.size, self.device)


class Unsealed:
    """An object that this process fills: what Draft and Part have in common. For one thread at a time."""

    def __init__(self, connection: Connection, hold: Hold, ref: wire.Ref, part: Any,
                 meta: Optional[Dict[str, Any]]) -> None:
        self._connection, self._hold, self._ref, self._part, self.meta = connection, hold, ref, part, meta
        self.size = len(part)

    @property
    def id(self) -> ObjectID:
        return ObjectID(self._hold.object_id)


class Draft(Unsealed):
    """An unsealed object that this process made. The end of a with block seals it; an exception aborts it."""

    # A small object shares pages with others that are still being filled, so these pages cannot be made read-only. If
    # the program asks for its data, it gets memory of this process alone, which the seal copies into the store.

    _finish: "Optional[Callable[[Any], Any]]" = None  # what the seal does with the object before it returns it

    def __init__(self, connection: Connection, hold: Hold, ref: wire.Ref, part: Any, meta: Optional[Dict[str, Any]],
                 whole: bool = False, strict: bool = False) -> None:
        super().__init__(connection, hold, ref, part, meta)
        self._strict = strict
        self._whole = whole or strict  # it has a segment of its own
        self._in_place = self._whole or self.size >= pages.WHOLE_FROM or self.size == 0
        self._scratch: Optional[memory.Scratch] = None
        self._views: "List[weakref.ref[memoryview]]" = []

    @property
    def open(self) -> bool:
        """Whether it is neither sealed nor aborted."""
        return self._part is not None

    @property
    def device(self) -> str:
        """Where the bytes lie: "host", or the UUID of a GPU."""
        return "host"

    def cuda(self) -> "CudaArray":
        """The array in the memory of a GPU (see CudaDraft). Raises Unsupported for an object in host memory."""
        raise Unsupported("object %s is in host memory: create(device='cuda:0') makes one on a GPU" % self.id.hex())

    @property
    def data(self) -> memoryview:
        """The bytes, writable. The seal releases this view: later use raises ValueError. Raises Sealed afterwards."""
        if self._part is None:
            raise Sealed("object %s is sealed or aborted" % self.id.hex())
        if not self._in_place and self._scratch is None:
            self._scratch = memory.Scratch(self.size)
            self._scratch.part.keeps = self._part  # views keep the draft
        whole = memory.view(self._part if self._scratch is None else self._scratch.part, True)
        self._views.append(weakref.ref(whole))
        return whole

    def _memory(self) -> memoryview:
        """The store's own memory, for a copy that keeps no view."""
        return memory.view(self._part, True)

    def seal(self, strict: Optional[bool] = None) -> Object:
        """Makes the object immutable and visible, and binds its name. Release the object that it returns.

        Earlier views end: memoryviews raise ValueError, and the memory of arrays becomes read-only. A write to it
        through another array or library is a SIGSEGV (see explain_faults). No other thread may use views meanwhile.
        strict: None is what create was given. True raises Invalid unless create was given strict or shared.

        Raises Exists if the name is taken; then the draft stays, to be sealed again or aborted. Raises Sealed after a
        seal or abort. After Disconnected the draft is lost.
        """
        if self._part is None:
            raise Sealed("object %s is sealed or aborted" % self.id.hex())
        strict = self._strict if strict is None else strict
        return self._sealed(wire.SEAL, self._hold.object_id + bytes([strict]), strict)

    def seal_filled(self, timeout: Optional[float] = None, despite: bool = False) -> Object:
        """seal(), after waiting until nobody else fills the object (create(shared=True)).

        timeout: seconds; None: wait without limit. Raises Timeout, or Busy with timeout 0. Raises Aborted if a process
        ended before it had filled its part; with despite the object is sealed anyway. Otherwise as seal().
        """
        if self._part is None:
            raise Sealed("object %s is sealed or aborted" % self.id.hex())
        body = self._hold.object_id + struct.pack("<BBI", self._strict, despite, wire.wait_ms(timeout))
        return self._sealed(wire.SEAL_FILLED, body, self._strict)

    def _sealed(self, kind: int, body: bytes, strict: bool) -> Object:
        self._connection.may_wait()
        seen = self._end_views()
        # Sealed or not, if this is interrupted: the daemon takes it as an abort of an unsealed object.
        self._hold.ends_with = wire.RELEASE
        try:
            if strict and self.size:
                part = self._seal_strictly(lambda: self._connection.call(kind, body, wire.nothing))
            else:
                part = self._connection.sealed_face(self._ref, self._part)
                self._connection.call(kind, body, wire.nothing, meanwhile=lambda: self._shut(seen))
        except BaseException as e:
            if isinstance(e, TendrilError) and not isinstance(e, Disconnected):
                self._hold.ends_with = wire.ABORT
                self._open_again()
            else:
                self._shut(seen)  # the daemon may have sealed it
            raise
        self._part = self._scratch = None
        made = Object(self._hold, part, self.meta, self._connection.path)
        return made if self._finish is None else self._finish(made)  # type: ignore[no-any-return]

    def _seal_strictly(self, ask: Callable[[], None]) -> Any:
        if not self._whole:
            raise Invalid("object %s cannot be sealed strictly: create it with strict=True" % self.id.hex())
        self._shut(False)
        self._connection.seal_strictly(self._ref, ask)
        return self._part

    def _end_views(self) -> bool:
        """Ends the program's views. Returns what to call _shut with: whether views of the store's memory are left."""
        memory.release_views(self._views)
        if self._scratch is None:
            return sys.getrefcount(self._part) > 2
        memory.copy(self._part, self._scratch.part)
        if sys.getrefcount(self._scratch.part) > 2:
            self._scratch.allow(False)
        return False

    def _shut(self, seen: bool) -> None:
        """Ends the filling. With seen, writes to the object's pages fault from now on. A second call does nothing."""
        self._connection.shut(self._hold, seen)

    def _open_again(self) -> None:
        """Makes the memory writable again, after a seal that was refused."""
        self._connection.reopen(self._hold, self._ref, self.size)
        if self._scratch is not None:
            self._scratch.allow(True)

    def abort(self) -> None:
        """Aborts the object, once its last view is gone. A draft that is dropped is aborted, too."""
        self._part = self._scratch = None

    def __enter__(self) -> "Draft":
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        if self._part is None:
            return
        if kind is None:
            self.seal().release()
        else:
            self.abort()

    def __repr__(self) -> str:
        return "<tendril.Draft %s, %d bytes>" % (self.id.hex(), self.size)


class CudaDraft(Draft):
    """An unsealed object in the memory of a GPU. Fill cuda() with another library, then seal it.

    Its memory is zero, or holds what objects that this client made before left in it.
    The end of a with block seals it; an exception aborts it.
    """

    def __init__(self, client: Any, connection: Connection, hold: Hold, lease: Any, memory_: "Memory",
                 meta: Optional[Dict[str, Any]]) -> None:
        super().__init__(connection, hold, wire.Ref(0, 0, 0), lease, meta)
        self._client = client
        self._gpu: "Optional[Memory]" = memory_
        self.size = memory_.size

    def _allocation(self) -> "Memory":
        if self._gpu is None:
            raise Sealed("object %s is sealed or aborted" % self.id.hex())
        return self._gpu

    @property
    def device(self) -> str:
        return self._allocation().uuid.hex()

    def cuda(self) -> "CudaArray":
        """The array that the metadata describes, in the GPU's memory, writable. Without metadata: uint8.

        Raises Sealed afterwards, and what CudaObject.cuda raises.
        """
        from . import cuda, layouts
        return cuda.CudaArray(self._allocation(), layouts.layout(self.meta, self.size), True)

    @property
    def __cuda_array_interface__(self) -> Dict[str, Any]:
        return self.cuda().__cuda_array_interface__

    def __dlpack__(self, **options: Any) -> Any:
        return self.cuda().__dlpack__(**options)

    def __dlpack_device__(self) -> Tuple[int, int]:
        return self.cuda().__dlpack_device__()

    def fill_from(self, source: Any, at: int = 0, offset: int = 0, size: Optional[int] = None) -> None:
        """Has the daemon copy bytes of a sealed object into this one, and waits for it. No driver is needed here.

        source: an object, its id or its name. offset: where in it; size: how many bytes, None: to its end. at: where
        they go. Raises Invalid for what does not fit, or from host to host memory, NoDevice if the driver fails.
        """
        self._allocation()
        info = self._client.stat(source)
        count = info.size_bytes - offset if size is None else size
        if min(at, offset, count) < 0:
            raise Invalid("bytes [%d, +%d) of an object of %d, at %d" % (offset, count, info.size_bytes, at))
        body = self._hold.object_id + struct.pack("<Q", at) + bytes(ObjectID(info.id)) + wire.str16("")
        self._connection.call(wire.COPY_OBJECT, body + struct.pack("<QQ", offset, count), wire.nothing)

    @property
    def data(self) -> memoryview:
        """Raises Unsupported: the bytes are in the memory of a device."""
        raise Unsupported("object %s is in the memory of a device: fill cuda(), or fill_from() another object" %
                          self.id.hex())

    def seal(self, strict: Optional[bool] = None) -> CudaObject:
        """Waits for the work that this process has given to the GPU, if cuda() was used, and seals the object.

        Release the object that it returns. Arrays from before lie in the same memory and must not be written any more;
        the hardware does not prevent it. Raises Exists if the name is taken; then the draft stays. Raises NoDevice if
        work on the GPU has failed, Unsupported for strict, Sealed after a seal or abort.
        """
        gpu = self._allocation()
        if strict:
            raise Unsupported("a strict seal in the memory of a device: the hardware cannot take the right to write")
        gpu.synchronize()
        self._hold.ends_with = wire.RELEASE  # as in Draft
        try:
            self._connection.call(wire.SEAL, self._hold.object_id + b"\0", wire.nothing)
        except TendrilError:
            self._hold.ends_with = wire.ABORT
            raise
        lease, self._part, self._gpu = self._part, None, None
        made = CudaObject(self._client, self._hold, lease, gpu, self.meta, self._connection.path)
        return made if self._finish is None else self._finish(made)  # type: ignore[no-any-return]

    def seal_filled(self, timeout: Optional[float] = None, despite: bool = False) -> Object:
        """Raises Unsupported: one process fills an object in the memory of a GPU."""
        raise Unsupported("object %s is in the memory of a device: one process fills it" % self.id.hex())

    def abort(self) -> None:
        super().abort()
        self._gpu = None

    def __repr__(self) -> str:
        return "<tendril.CudaDraft %s, %d bytes>" % (self.id.hex(), self.size)


class Part(Unsealed):
    """Another process's unsealed object that this one helps to fill. The processes agree on who fills which bytes.

    The end of a with block calls done(), but not after an exception. A part that is never done keeps the object from
    being sealed while this connection lasts. When the connection ends, sealing raises Aborted.
    """

    @property
    def data(self) -> memoryview:
        """All bytes of the object, writable. Raises Invalid after done()."""
        if self._part is None:
            raise Invalid("this part of object %s is done" % self.id.hex())
        return memory.view(self._part, True)

    def numpy(self) -> "numpy.ndarray[Any, Any]":
        """The whole array that the metadata describes, writable. Without metadata: uint8."""
        from . import arrays
        return arrays.over(self.data, self.meta)

    def done(self) -> None:
        """Unmaps the memory and says that this process has filled its part. Raises Invalid while views are in use."""
        if self._part is None:
            return
        if sys.getrefcount(self._part) > 2:
            raise Invalid("views of object %s are still in use" % self.id.hex())
        self._part = None
        if self.size:
            self._connection.freeze(self._ref.segment)
        self._connection.call(wire.FILLED, self._hold.object_id, wire.nothing)

    def __enter__(self) -> "Part":
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        if kind is None:
            self.done()

    def __repr__(self) -> str:
        return "<tendril.Part %s, %d bytes>" % (self.id.hex(), self.size)


@dataclass(frozen=True)
class Tree:
    """A composite and its members by name, or a plain object: then members is empty. A with block releases all."""

    object: Object
    members: "Dict[str, Tree]" = field(default_factory=dict)

    def release(self) -> None:
        """Releases the object and all members. Views that were taken stay valid."""
        for part in self.members.values():
            part.release()
        self.object.release()

    def __getitem__(self, name: str) -> "Tree":
        return self.members[name]

    def __enter__(self) -> "Tree":
        return self

    def __exit__(self, *_: Any) -> None:
        self.release()


def _get_again(path: str, key: bytes) -> Object:
    """Unpickles an Object: a get through the client that this process keeps for the socket."""
    found: Object = client_of(path).get(key)
    return found


def _no_client(path: str) -> Any:
    raise TendrilError("tendril.client was not imported")


# client.py sets this to its function shared. It imports this module, so this one cannot import it.
client_of: Callable[[str], Any] = _no_client

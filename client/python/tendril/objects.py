"""What a client gets: sealed objects, drafts that are still filled, and descriptions."""

from __future__ import annotations

import struct
import sys
import weakref
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Tuple

from . import memory, pages, wire
from .connection import Connection, Hold
from .errors import Disconnected, Invalid, Sealed, TendrilError

if TYPE_CHECKING:
    import numpy


class ObjectID(bytes):
    """128 random bits; text is 32 hexadecimal digits."""

    def __new__(cls, value: "bytes | str") -> "ObjectID":
        raw = bytes.fromhex(value) if isinstance(value, str) else bytes(value)
        if len(raw) != 16:
            raise Invalid("an object ID has 16 bytes, not %d" % len(raw))
        return super().__new__(cls, raw)

    def __str__(self) -> str:
        return self.hex()

    def __repr__(self) -> str:
        return "ObjectID('%s')" % self.hex()


@dataclass(frozen=True)
class Info:
    """What the daemon tells about an object; sizes in bytes, times RFC 3339."""

    id: str
    name: str = ""
    kind: str = "host"
    # "class" is a word of the language
    lifetime: str = ""
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
    moving: Any = None  # {"to": "disk" or "memory", "done_bytes": N} while it is on its way
    members: Any = None  # of a composite: [{"name", "id"}]
    fault: str = ""  # why its copy on disk cannot be used, or what is damaged
    checksum: bool = False  # checksums of its bytes are known, and compared
    holders: Any = None  # of top(): [{"pid", "program", "tenant", "refs", "since"}]

    @classmethod
    def of(cls, told: Dict[str, Any]) -> "Info":
        known = {f.name for f in fields(cls)}
        values = {k: v for k, v in told.items() if k in known and v is not None}
        values["lifetime"] = told.get("class", "")
        return cls(**values)


class Object:
    """A sealed object, read-only and shared.

    The daemon's reference lasts until release() (or the end of a with block) and until the last
    memoryview and array taken from it is gone: what you still hold stays valid.
    """

    def __init__(self, hold: Hold, part: Any, meta: Optional[Dict[str, Any]], path: Optional[str] = None) -> None:
        self._hold = hold
        self._path = path
        self._part = part
        self.size = len(part)
        self.meta = meta

    @property
    def id(self) -> ObjectID:
        return ObjectID(self._hold.object_id)

    @property
    def gone(self) -> bool:
        """Whether the client came back to a daemon that does not have the object any more. What is held stays readable."""
        return self._hold.gone

    @property
    def data(self) -> memoryview:
        """The bytes, without a copy, read-only."""
        if self._part is None:
            raise Invalid("object %s was released" % self.id.hex())
        return memory.view(self._part, False)

    def __buffer__(self, flags: int) -> memoryview:  # Python 3.12: memoryview(object) works
        return self.data

    def __len__(self) -> int:
        return self.size

    def bytes(self) -> bytes:
        """A copy of the bytes."""
        return bytes(self.data)

    def numpy(self) -> "numpy.ndarray[Any, Any]":
        """The array that the metadata describes (without any: uint8), without a copy, read-only."""
        from . import arrays
        return arrays.over(self.data, self.meta)

    def populate(self) -> None:
        """Enters all pages into this process's page table at once: for a large object that is about to be read whole."""
        if self._part is not None and self.size:
            memory.populate(memory.address_of(self._part), self.size, False)

    def __dlpack__(self, **options: Any) -> Any:
        """The tensor for another library (from_dlpack), without a copy, read-only: see tendril.dlpack."""
        from . import dlpack
        return dlpack.export(self.numpy(), **options)

    def __dlpack_device__(self) -> Tuple[int, int]:
        return 1, 0  # kDLCPU

    def load(self) -> Any:
        """The Python value that Client.dump stored: arrays in it are read-only views of the store's memory.

        Unpickling runs what the pickle says: only for objects of somebody you trust. Client.load checks whose it is.
        """
        from . import pickles
        return pickles.restore(self.data)

    def __reduce__(self) -> Any:
        """By reference: whoever unpickles it gets the object from the same daemon, as long as it is held here."""
        if self._part is None or self._path is None:
            raise Invalid("object %s was released" % self.id.hex())
        return _get_again, (self._path, bytes(self.id))

    def release(self) -> bool:
        """Gives up this handle. Returns False if views still keep the reference, which goes with the last of them."""
        if self._part is None:
            return True
        last = sys.getrefcount(self._part) <= 2 and (not hasattr(self._part, "keeps") or sys.getrefcount(self._part.keeps) <= 2)
        self._part = None
        return last

    def __enter__(self) -> "Object":
        return self

    def __exit__(self, *_: Any) -> None:
        self.release()

    def __repr__(self) -> str:
        state = "released" if self._part is None else "%d bytes" % self.size
        return "<tendril.Object %s, %s>" % (self.id.hex(), state)


class Unsealed:
    """An object's memory that this process writes: what Draft and Part have in common."""

    def __init__(self, connection: Connection, hold: Hold, ref: wire.Ref, part: Any, meta: Optional[Dict[str, Any]]) -> None:
        self._connection, self._hold, self._ref, self._part, self.meta = connection, hold, ref, part, meta
        self.size = len(part)

    @property
    def id(self) -> ObjectID:
        return ObjectID(self._hold.object_id)


class Draft(Unsealed):
    """An object that is being filled. As a context manager it is sealed at the end, or aborted by an exception."""

    # A small object shares its pages with others that are still filled, and they cannot be made read-only. So where the
    # program wants to see its bytes they are filled in memory of this process alone, and copied by the seal.

    def __init__(self, connection: Connection, hold: Hold, ref: wire.Ref, part: Any, meta: Optional[Dict[str, Any]],
                 whole: bool = False, strict: bool = False) -> None:
        super().__init__(connection, hold, ref, part, meta)
        self._strict = strict
        self._whole = whole or strict  # its segment is its own
        self._in_place = self._whole or self.size >= pages.WHOLE_FROM or self.size == 0
        self._scratch: Optional[memory.Scratch] = None
        self._views: "List[weakref.ref[memoryview]]" = []

    @property
    def data(self) -> memoryview:
        """The bytes, writable until the object is sealed. Then this view is released: its use raises ValueError."""
        if self._part is None:
            raise Sealed("object %s is sealed or aborted" % self.id.hex())
        if not self._in_place and self._scratch is None:
            self._scratch = memory.Scratch(self.size)
            self._scratch.part.keeps = self._part  # what is seen keeps the draft
        whole = memory.view(self._part if self._scratch is None else self._scratch.part, True)
        self._views.append(weakref.ref(whole))
        return whole

    def _memory(self) -> memoryview:
        """The store's own memory, for a copy at once."""
        return memory.view(self._part, True)

    def seal(self, strict: Optional[bool] = None) -> Object:
        """Makes the object immutable and visible, and binds its name.

        Views that were taken before end: memoryviews raise ValueError, the memory of arrays is read-only, and a store to it by another way
        (another array over it, another library) is a SIGSEGV: see explain_faults. strict asks for memory that the kernel refuses
        to write at all: what create was told, and only for a draft that it was told for. No other thread may use views meanwhile.
        """
        if self._part is None:
            raise Sealed("object %s is sealed or aborted" % self.id.hex())
        strict = self._strict if strict is None else strict
        return self._sealed(wire.SEAL, self._hold.object_id + bytes([strict]), strict)

    def seal_filled(self, timeout: Optional[float] = None, despite: bool = False) -> Object:
        """seal() that first waits until nobody else fills the object (create(shared=True)): timeout in seconds, None for ever.

        Raises Timeout; Busy with timeout 0; Aborted where somebody ended in the middle, unless despite says to seal it as it is.
        """
        if self._part is None:
            raise Sealed("object %s is sealed or aborted" % self.id.hex())
        return self._sealed(wire.SEAL_FILLED, self._hold.object_id + struct.pack("<BBI", self._strict, despite, wire.wait_ms(timeout)), self._strict)

    def _sealed(self, kind: int, body: bytes, strict: bool) -> Object:
        seen = self._end_views()
        try:
            if strict and self.size:
                part = self._seal_strictly(lambda: self._connection.call(kind, body, wire.nothing))
            else:
                part = self._connection.sealed_face(self._ref, self._part)
                self._connection.call(kind, body, wire.nothing, meanwhile=lambda: self._shut(seen))
        except BaseException as e:
            if isinstance(e, TendrilError) and not isinstance(e, Disconnected):
                self._open_again()
            else:
                self._shut(seen)  # it may have been sealed
            raise
        self._hold.ends_with = wire.RELEASE
        self._part = self._scratch = None
        return Object(self._hold, part, self.meta, self._connection.path)

    def _seal_strictly(self, ask: Callable[[], None]) -> Any:
        if not self._whole:
            raise Invalid("object %s cannot be sealed strictly: that is for create(strict=True)" % self.id.hex())
        self._shut(False)
        self._connection.seal_strictly(self._ref, ask)
        return self._part

    def _end_views(self) -> bool:
        """What the program has of the object's memory can alter it no more, once _shut was called with what this returns."""
        memory.release_views(self._views)
        if self._scratch is None:
            return sys.getrefcount(self._part) > 2
        memory.copy(self._part, self._scratch.part)
        if sys.getrefcount(self._scratch.part) > 2:
            self._scratch.allow(False)
        return False

    def _shut(self, seen: bool) -> None:
        """Stores to the object's pages fault from here on, if anything has seen them. The second call does nothing."""
        self._connection.shut(self._hold, seen)

    def _open_again(self) -> None:
        """After a seal that was refused."""
        self._connection.reopen(self._hold, self._ref, self.size)
        if self._scratch is not None:
            self._scratch.allow(True)

    def abort(self) -> None:
        """Gives the object up. Without seal() or abort() that happens when the draft and its views are gone."""
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


class Part(Unsealed):
    """Another process's unsealed object that this one helps to fill: which bytes are whose is for them to agree on.

    A context manager that ends with done(), unless by an exception. A part that is never done keeps the object from being
    sealed while this connection lasts; when that ends the seal is Aborted.
    """

    @property
    def data(self) -> memoryview:
        """The whole object's bytes, writable."""
        if self._part is None:
            raise Invalid("this part of object %s is done" % self.id.hex())
        return memory.view(self._part, True)

    def numpy(self) -> "numpy.ndarray[Any, Any]":
        """The whole array that the metadata describes (without any: uint8), writable."""
        from . import arrays
        return arrays.over(self.data, self.meta)

    def done(self) -> None:
        """Unmaps the memory and says that this process has filled its part. Views of it must be gone: Invalid otherwise."""
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
    """A composite with what it has, or a plain object: then members is empty. A context manager that releases all."""

    object: Object
    members: "Dict[str, Tree]" = field(default_factory=dict)

    def release(self) -> None:
        """Releases the object and everything below it; views that were taken stay good."""
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
    """Unpickles an Object: a get by a client that this process has for the socket, or makes and keeps."""
    found: Object = client_of(path).get(key)
    return found


def _no_client(path: str) -> Any:
    raise TendrilError("tendril.client was not imported")


client_of: Callable[[str], Any] = _no_client  # client.shared, which client.py puts here: it imports this module, and not the reverse

"""The client: puts, gets and names objects."""

from __future__ import annotations

import json
import os
import struct
import threading
import weakref
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence, Union

from . import connection, wire
from .connection import Connection, Hold
from .errors import Disconnected, Full, Invalid, Protocol, Quota, Timeout
from .objects import Draft, Info, Object, ObjectID

if TYPE_CHECKING:
    import numpy

    from .arrays import Filling

Key = Union[str, bytes, Object, Draft]

_CLASSES = {"ephemeral": 0, "ttl": 1, "named": 2, "persisted": 3}
_COPY_STEP = 64 << 20  # bytes copied at a time, so that an interrupt is heard

_clients: "weakref.WeakSet[Client]" = weakref.WeakSet()


def connect(socket: Optional[str] = None) -> "Client":
    """A client of the daemon at socket (default: $TENDRIL_SOCKET, then the usual places)."""
    client = Client(socket)
    client.ping()
    return client


class Client:
    """The store, as seen by one process. Safe for any number of threads.

    A forked child may go on using it: its first request opens a connection of its own. References,
    drafts and objects that the parent holds stay the parent's; the child may read them as long as
    the parent holds them.
    """

    def __init__(self, socket: Optional[str] = None) -> None:
        self._path = socket or connection.default_socket()
        self._lock = threading.Lock()
        self._live: Optional[Connection] = None
        self._closed = False
        _clients.add(self)

    # Connection -----------------------------------------------------------

    def _connection(self) -> Connection:
        live = self._live
        if live is not None and live.pid == os.getpid():
            return live
        with self._lock:
            if self._closed:
                raise Disconnected("this client was closed")
            live = self._live
            if live is not None and live.pid == os.getpid():
                return live
            if live is not None:
                live.abandon()
            self._live = Connection(self._path)
            return self._live

    def _forked(self) -> None:
        """In a forked child: a lock that another thread held belongs to nobody now."""
        self._lock = threading.Lock()
        if self._live is not None:
            self._live.abandon()
            self._live = None

    def ping(self) -> None:
        """Opens the connection if there is none. Raises Disconnected if there is no daemon."""
        self._connection()

    def close(self) -> None:
        """Ends the connection: unsealed objects and references are gone, views stay readable."""
        with self._lock:
            self._closed = True
            live, self._live = self._live, None
        if live is not None and live.pid == os.getpid():
            live.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    @property
    def tenant(self) -> str:
        return str(self._connection().tenant)

    @property
    def daemon_version(self) -> str:
        return str(self._connection().daemon_version)

    @property
    def capacity_bytes(self) -> int:
        return int(self._connection().capacity_bytes)

    # Making objects -------------------------------------------------------

    def create(self, size: int, name: str = "", *, lifetime: Optional[str] = None, strict: bool = False,
               meta: Optional[Dict[str, Any]] = None) -> Draft:
        """An object of size bytes to fill in place. lifetime: ephemeral (default), or named (default with a name)."""
        if size < 0 or size >= 1 << 63:
            raise Invalid("size %d" % size)
        chosen = lifetime or ("named" if name else "ephemeral")
        if chosen not in _CLASSES:
            raise Invalid("lifetime %r is none of %s" % (chosen, ", ".join(_CLASSES)))
        raw = b"" if meta is None else json.dumps(meta, separators=(",", ":")).encode()
        if len(raw) > wire.MAX_META:
            raise Invalid("metadata of %d bytes exceeds %d" % (len(raw), wire.MAX_META))
        body = struct.pack("<QBB", size, _CLASSES[chosen], strict) + wire.str16(name) + wire.bytes32(raw)
        live = self._connection()
        live.sweep()

        def decode(f: wire.Fields) -> Draft:
            hold = Hold(f.id(), wire.ABORT)
            ref = f.ref()
            return Draft(live, hold, ref, live.attach(f, ref, size, hold, True), meta)

        try:
            return live.call(wire.CREATE, body, decode)  # type: ignore[no-any-return]
        except (Full, Quota):
            live.sweep(now=True)
            return live.call(wire.CREATE, body, decode)  # type: ignore[no-any-return]

    def empty(self, shape: "int | Sequence[int]", dtype: Any = "f8", name: str = "", *, order: str = "C",
              lifetime: Optional[str] = None) -> "Filling":
        """An array in the store to fill in place; its seal() makes the object. Contents are undefined before."""
        from . import arrays
        dims, kind, size, meta = arrays.measure(shape, dtype, order)
        draft = self.create(size, name, lifetime=lifetime, meta=meta)
        return arrays.fillable(draft.data, dims, kind, order, draft)

    def put(self, data: Any, name: str = "", *, lifetime: Optional[str] = None,
            meta: Optional[Dict[str, Any]] = None) -> Object:
        """Copies bytes, any buffer, or an array (with dtype and shape) into a new sealed object."""
        if hasattr(data, "__array_interface__"):
            from . import arrays
            array = arrays.dense(data)
            described = arrays.describe(array)
            described.update(meta or {})
            source, meta = arrays.flat(array), described
        else:
            whole = memoryview(data)
            source = whole.cast("B") if whole.c_contiguous and whole.nbytes else memoryview(whole.tobytes())
        draft = self.create(source.nbytes, name, lifetime=lifetime, meta=meta)
        try:
            target = draft.data
            for at in range(0, source.nbytes, _COPY_STEP):
                target[at:at + _COPY_STEP] = source[at:at + _COPY_STEP]
            del target
            return draft.seal()
        except BaseException:
            draft.abort()
            raise

    # Getting objects ------------------------------------------------------

    def get(self, key: Key, timeout: Optional[float] = 0.0) -> Object:
        """The sealed object of a name, or of an ID (an ObjectID, 16 bytes or 32 hexadecimal digits).

        timeout in seconds: how long to wait until it is there; None waits for ever. Raises NotFound, NotSealed, Timeout.
        """
        live = self._connection()
        live.sweep()
        while True:
            wait = wire.MAX_WAIT_MS if timeout is None else int(max(0.0, min(timeout * 1000, float(wire.MAX_WAIT_MS))))
            try:
                return self._get(live, key, wait)
            except Timeout:
                if timeout is not None:
                    raise

    def _get(self, live: Connection, key: Key, wait_ms: int) -> Object:
        def decode(f: wire.Fields) -> Object:
            hold = Hold(f.id(), wire.RELEASE)
            ref, size = f.ref(), f.u64()
            f.u8()
            raw = f.bytes32()
            return Object(hold, live.attach(f, ref, size, hold, False), _meta(raw))

        return live.call(wire.GET, _key(key) + struct.pack("<I", wait_ms), decode)  # type: ignore[no-any-return]

    # Names and facts ------------------------------------------------------

    def bind(self, key: Key, name: str, replace: bool = False) -> None:
        """Names a sealed object; with replace a name that is taken moves in one step."""
        if not isinstance(key, (Object, Draft)):
            key = ObjectID(key)
        self._plain(wire.BIND, bytes(key.id if not isinstance(key, bytes) else key) + wire.str16(name) + bytes([replace]))

    def delete(self, key: Key) -> None:
        """Takes the name away; the memory goes with the last reference."""
        self._plain(wire.DELETE, _key(key))

    def stat(self, key: Key) -> Info:
        """What the daemon knows about one object."""
        told = self._json(wire.STAT, _key(key))
        if not isinstance(told, dict):
            raise Protocol("Stat's reply is no JSON object")
        return Info.of(told)

    def list(self, prefix: str = "", all: bool = False) -> "List[Info]":
        """The tenant's objects whose name starts with prefix; all includes what others are still filling."""
        return [Info.of(o) for o in self._json(wire.LIST, wire.str16(prefix) + bytes([all]), many=True)]

    def status(self) -> Dict[str, Any]:
        """The node: store, drivers, sessions, workers, and what is not as good as it could be."""
        return self._json(wire.STATUS, b"")  # type: ignore[no-any-return]

    def devices(self) -> Any:
        """The platforms and devices that programs can be given."""
        return self._json(wire.DEVICES, b"")

    def _plain(self, kind: int, body: bytes) -> None:
        self._connection().call(kind, body, lambda f: None)

    def _json(self, kind: int, body: bytes, many: bool = False) -> Any:
        raw: bytes = self._connection().call(kind, body, _rest)
        try:
            return _documents(raw.decode("utf-8")) if many else json.loads(raw)
        except ValueError as e:
            raise Protocol("reply %d is no JSON: %s" % (kind, e)) from None


def _rest(f: wire.Fields) -> bytes:
    return f.rest()


def _documents(text: str) -> List[Any]:
    """The elements of the arrays that text holds one after another (a page each)."""
    decoder, at, found = json.JSONDecoder(), 0, []
    while at < len(text):
        part, at = decoder.raw_decode(text, at)
        if not isinstance(part, list):
            raise ValueError("not an array")
        found.extend(part)
    return found


def _key(key: Key) -> bytes:
    """id and name of a request: one of the two is empty."""
    if isinstance(key, (Object, Draft)):
        return bytes(key.id) + wire.str16("")
    if isinstance(key, bytes):
        return bytes(ObjectID(key)) + wire.str16("")
    if len(key) == 32 and all(c in "0123456789abcdefABCDEF" for c in key):
        return bytes(ObjectID(key)) + wire.str16("")
    if not key:
        raise Invalid("an empty name")
    return wire.ZERO_ID + wire.str16(key)


def _meta(raw: bytes) -> Optional[Dict[str, Any]]:
    """An object's metadata; what is not a JSON object is another program's and stays out."""
    if not raw:
        return None
    try:
        meta = json.loads(raw)
    except ValueError:
        return None
    return meta if isinstance(meta, dict) else None


def _after_fork() -> None:
    for client in list(_clients):
        client._forked()


os.register_at_fork(after_in_child=_after_fork)

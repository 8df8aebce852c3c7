"""The client: puts, gets and names objects."""

from __future__ import annotations

import json
import os
import random
import struct
import threading
import time
import weakref
from itertools import islice
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, TypeVar, Union

from . import connection, objects, wire
from .connection import Connection, Hold
from .data import fill, meta_of, source_of
from .errors import Disconnected, Full, Invalid, Limit, Permission, Protocol, Quota, Timeout, Unsupported
from .objects import Draft, Info, Object, ObjectID, Part, Tree

if TYPE_CHECKING:
    import numpy

    from .arrays import Filling
    from .streams import Reader, Writer
    from .watch import Watch

Key = Union[str, bytes, Object, Draft]

_T = TypeVar("_T")
_U32 = struct.Struct("<I")

_CLASSES = {"ephemeral": 0, "ttl": 1, "named": 2, "persisted": 3}

_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 2.0  # seconds between tries to connect, doubled and spread
_FULL_PAUSES = (0.0, 0.02, 0.08, 0.3)  # other clients let go some 250 ms after their last use
_LEAVING_TRIES, _LEAVING_PAUSE = 40, 0.2  # while the daemon says that memory is on its way back
_LONGEST_TTL = 1 << 53  # ms
_GET_AHEAD = 32  # gets under way at once: a batch costs one round trip

_clients: "weakref.WeakSet[Client]" = weakref.WeakSet()
_shared: Dict[str, "Client"] = {}
_shared_lock = threading.Lock()


def connect(socket: Optional[str] = None, *, patience: float = 0.0, reconnect: bool = True, background: bool = True) -> "Client":
    """A client of the daemon at socket . Without one: at $TENDRIL_SOCKET, or where that is not set at that of
    this user's own daemon, and where none answers at the system's.

    patience in seconds: how long to try, with growing, random pauses, when there is no daemon. reconnect: a request on a connection that
    broke opens a new one, with the same patience; one that was under way is made again if it alters nothing, others raise Disconnected. It claims the references that are still held: a daemon that took
    over from the one before has all objects, one that was started after a crash those on disk. See Object.gone.
    background: a thread gives back what the client keeps mapped without need while the program asks for nothing (it is
    not there while the process forks); without it only the client's own calls do.
    """
    client = Client(socket, patience=patience, reconnect=reconnect, background=background)
    client.ping()
    return client


def shared(path: str) -> "Client":
    """The client through which this process unpickles objects of the daemon at path."""
    with _shared_lock:
        client = _shared.get(path)
        if client is None:
            client = _shared[path] = Client(path)
        return client


objects.client_of = shared


class Client:
    """The store, as seen by one process. Safe for any number of threads.

    A forked child may go on using it: its first request opens a connection of its own. References,
    drafts and objects that the parent holds stay the parent's; the child may read them as long as
    the parent holds them.
    """

    def __init__(self, socket: Optional[str] = None, *, patience: float = 0.0, reconnect: bool = True, background: bool = True) -> None:
        self._path = socket or None  # None until a daemon was found
        self._patience, self._reconnect, self._background = patience, reconnect, background
        self._lock = threading.Lock()
        self._live: Optional[Connection] = None
        self._closed = False
        _clients.add(self)

    # Connection -----------------------------------------------------------

    def _connection(self) -> Connection:
        live = self._live
        if live is not None and live.pid == os.getpid() and (live.alive or not self._reconnect):
            return live
        with self._lock:
            if self._closed:
                raise Disconnected("this client was closed")
            live = self._live
            if live is not None and live.pid == os.getpid() and (live.alive or not self._reconnect):
                return live
            if live is not None and live.pid != os.getpid():
                live.abandon()
            self._live = self._reopen(live)
            return self._live

    def _reopen(self, before: Optional[Connection]) -> Connection:
        """A new connection, with the references of a lost one of this process."""
        live = self._open()
        if before is not None and before.pid == os.getpid():
            try:
                live.claim(before)
            except BaseException:
                live.close()
                raise
        return live

    def _open(self) -> Connection:
        """A new connection. The pauses between tries are random, so that a daemon that comes back is not overrun."""
        deadline, pause = time.monotonic() + self._patience, _FIRST_PAUSE
        while True:
            try:
                live = Connection(self._path, self._background)
                self._path = live.path  # what comes after it is the same daemon, or its successor
                return live
            except Disconnected:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise
            time.sleep(min(left, pause * random.uniform(0.5, 1.5)))
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _before_fork(self) -> Optional[Connection]:
        """Ends the background thread; the connection that had one."""
        live = self._live
        return live if live is not None and live.rest() else None

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

    def create(self, size: int, name: str = "", *, lifetime: Optional[str] = None, ttl: Optional[float] = None,
               labels: Optional[Mapping[str, str]] = None, strict: bool = False, shared: bool = False,
               meta: Optional[Dict[str, Any]] = None, checksum: bool = False) -> Draft:
        """An object of size bytes to fill in place. shared: other processes of the tenant may help (fill, seal_filled).

        strict: the seal leaves nobody a mapping that can be written, and the kernel makes no other; see the package's words on sealed objects.
        checksum: the daemon makes checksums at the seal, which takes longer, and compares them from then on (tendril scrub).
        lifetime: ephemeral (default), ttl (default with a ttl, in seconds from the seal on), named (default with a name), or
        persisted: on disk once sealed. labels: at most 16, for list().
        """
        if size < 0 or size >= 1 << 63:
            raise Invalid("size %d" % size)
        chosen = _lifetime(lifetime, name, ttl)
        raw = _raw_meta(meta)
        kind, body = wire.CREATE, struct.pack("<QBB", size, chosen, strict | shared << 1 | checksum << 2) + wire.str16(name) + wire.bytes32(raw)
        if ttl is not None or labels:
            kind, body = wire.CREATE_WITH, body + struct.pack("<Q", _milliseconds(ttl or 0.0, _LONGEST_TTL)) + wire.labels(labels)

        def ask(live: Connection) -> Draft:
            def decode(f: wire.Fields) -> Draft:
                hold = Hold(f.id(), wire.ABORT)
                ref = f.ref()
                return Draft(live, hold, ref, live.attach(f, ref, size, hold, True), meta, shared, strict)

            live.sweep()
            return self._until_room(live, lambda: live.call(kind, body, decode))

        return self._request(ask, True)

    def _request(self, ask: "Callable[[Connection], _T]", repeatable: bool) -> "_T":
        """Makes a request; once more, on a new connection, where it had not left, or alters nothing and its connection broke meanwhile."""
        live = self._connection()
        try:
            return ask(live)
        except Disconnected as e:
            if live.alive or self._closed or not self._reconnect or not (repeatable or e.unsent):
                raise
        return ask(self._connection())

    def _until_room(self, live: Connection, ask: "Callable[[], _T]") -> "_T":
        """Asks again while the store is full and what this and other clients keep mapped without need may be what is missing."""
        for attempt in range(len(_FULL_PAUSES) + _LEAVING_TRIES):
            try:
                return ask()
            except Limit:
                raise  # no memory helps
            except (Full, Quota) as e:
                if attempt >= len(_FULL_PAUSES) and not self._memory_leaves(isinstance(e, Quota)):
                    break  # what was on its way may just have arrived: once more
            time.sleep(_FULL_PAUSES[attempt] if attempt < len(_FULL_PAUSES) else _LEAVING_PAUSE)
            live.sweep(now=True)
        return ask()

    def _memory_leaves(self, own: bool) -> bool:
        """Whether the daemon waits for memory that is of no use any more; own: for the tenant's own, where the daemon tells it apart."""
        store = self.status().get("store")
        if not isinstance(store, dict):
            return False
        whole = store.get("leaving_bytes")
        return bool(store.get("tenant_leaving_bytes", whole) if own else whole)

    def empty(self, shape: "int | Sequence[int]", dtype: Any = "f8", name: str = "", *, order: str = "C",
              lifetime: Optional[str] = None, ttl: Optional[float] = None, labels: Optional[Mapping[str, str]] = None,
              strict: bool = False) -> "Filling":
        """An array in the store to fill in place; its seal() makes the object. Contents are undefined before. strict: as create's."""
        from . import arrays
        dims, kind, size, meta = arrays.measure(shape, dtype, order)
        draft = self.create(size, name, lifetime=lifetime, ttl=ttl, labels=labels, strict=strict, meta=meta)
        return arrays.fillable(draft.data, dims, kind, order, draft)

    def put(self, data: Any, name: str = "", *, lifetime: Optional[str] = None, ttl: Optional[float] = None,
            labels: Optional[Mapping[str, str]] = None, meta: Optional[Dict[str, Any]] = None, strict: bool = False,
            checksum: bool = False) -> Object:
        """Copies bytes, any buffer, or an array (with dtype and shape) into a new sealed object. strict, checksum: as create's."""
        source, meta = source_of(data, meta)
        draft = self.create(source.nbytes, name, lifetime=lifetime, ttl=ttl, labels=labels, strict=strict, meta=meta, checksum=checksum)
        return _seal_full(draft, [(0, source)])

    def dump(self, value: Any, name: str = "", *, lifetime: Optional[str] = None, ttl: Optional[float] = None,
             labels: Optional[Mapping[str, str]] = None, strict: bool = False) -> Object:
        """Pickles value (protocol 5) into one object: the buffers of arrays in it are copied once and never serialised. strict: as create's."""
        from . import pickles
        size, parts = pickles.plan(value)
        return _seal_full(self.create(size, name, lifetime=lifetime, ttl=ttl, labels=labels, strict=strict, meta=pickles.META), parts)

    def load(self, key: Key, timeout: Optional[float] = 0.0, *, foreign: bool = False) -> Any:
        """The value that dump stored; arrays in it are read-only views of the store's memory.

        Unpickling runs what the pickle says, so another tenant's object is Permission unless foreign is set.
        """
        found = self.get(key, timeout)
        if not foreign and self.stat(found).tenant != self.tenant:
            raise Permission("object %s is another tenant's: unpickling it would run that tenant's code (foreign=True allows it)" % found.id.hex())
        return found.load()

    def fill(self, key: Key) -> Part:
        """Joins in filling an object that another process made with create(shared=True); its name finds it before it is sealed."""
        live = self._connection()

        def decode(f: wire.Fields) -> Part:
            found, ref, size, raw = f.got()
            hold = Hold(found, wire.FILLED)
            hold.ends_with = None  # done() says it; a part that is dropped is not done
            return Part(live, hold, ref, live.attach(f, ref, size, hold, True), meta_of(raw))

        return live.call(wire.FILL, _key(key), decode)

    def compose(self, members: "Mapping[str, Key]", name: str = "", *, lifetime: Optional[str] = None, ttl: Optional[float] = None,
                labels: Optional[Mapping[str, str]] = None, meta: Optional[Dict[str, Any]] = None) -> Object:
        """A composite: an object without bytes of its own that keeps its members, sealed objects of this tenant (not their names)."""
        if not 1 <= len(members) <= wire.MAX_MEMBERS:
            raise Invalid("a composite of %d members: want 1 to %d" % (len(members), wire.MAX_MEMBERS))
        body = bytes([_lifetime(lifetime, name, ttl)]) + wire.str16(name) + wire.bytes32(_raw_meta(meta))
        body += struct.pack("<Q", _milliseconds(ttl or 0.0, _LONGEST_TTL)) + wire.labels(labels) + struct.pack("<H", len(members))
        for part, key in members.items():
            body += wire.str16(part) + bytes(key.id if isinstance(key, (Object, Draft)) else ObjectID(key))
        live = self._connection()

        def decode(f: wire.Fields) -> Object:
            hold = Hold(f.id(), wire.RELEASE)
            return Object(hold, live.attach(f, wire.Ref(0, 0, 0), 0, hold, False), meta, live.path)

        return live.call(wire.COMPOSE, body, decode)

    def tree(self, key: Key, timeout: Optional[float] = 0.0) -> Tree:
        """An object and, where it is a composite, its members and theirs; timeout is get's, for the object itself."""
        top = Tree(self.get(key, timeout))
        if top.object.size == 0:
            for member in self.stat(top.object).members or ():
                top.members[member["name"]] = self.tree(ObjectID(member["id"]))
        return top

    # Streams --------------------------------------------------------------

    def writer(self, name: str, *, frames: int = 0, size: int = 0, drop_oldest: bool = False, keep: bool = False,
               new: bool = False, existing: bool = False) -> "Writer":
        """Opens a stream to push into, and makes it where it is missing.

        frames and size (bytes) bound what may wait (0: as it is; a new stream: 16 frames); a push into a full stream waits,
        or with drop_oldest drops the frame that waits longest. keep: it stays when nobody has it open and nothing waits. new: it must not
        be there yet (Exists); existing: it must be there (NotFound).
        """
        from . import streams
        return self._open_stream(streams.Writer, name, streams.open_body(name, True, frames, size, drop_oldest, keep, new, existing))

    def reader(self, name: str, *, keep: bool = False, new: bool = False, existing: bool = False) -> "Reader":
        """Opens a stream to pop from: each frame goes to one of its readers."""
        from . import streams
        return self._open_stream(streams.Reader, name, streams.open_body(name, False, 0, 0, False, keep, new, existing))

    def _open_stream(self, kind: "Callable[[Client, Connection, str, int], _T]", name: str, body: bytes) -> "_T":
        live = self._connection()
        return kind(self, live, name, live.call(wire.STREAM_OPEN, body, lambda f: (f.u64(), f.u32(), f.u64()))[0])

    def streams(self, prefix: str = "") -> "List[Dict[str, Any]]":
        """The tenant's streams whose name begins with prefix: name, state, frames, bytes, pushed, popped, dropped, who has them open."""
        return list(self._listing(wire.STREAM_PAGE, wire.str16(prefix), wire.STREAM_LIST, wire.str16(prefix)))

    def remove_stream(self, name: str) -> None:
        """Ends a stream for everybody, with Aborted, and drops what waits in it."""
        self._plain(wire.STREAM_REMOVE, wire.ZERO_ID + wire.str16(name))

    # Getting objects ------------------------------------------------------

    def get(self, key: Key, timeout: Optional[float] = 0.0) -> Object:
        """The sealed object of a name, or of an ID (an ObjectID, 16 bytes or 32 hexadecimal digits).

        timeout in seconds: how long to wait until it is there; None waits for ever. Raises NotFound, NotSealed, Timeout.
        """
        while True:
            wait = wire.MAX_WAIT_MS if timeout is None else int(max(0.0, min(timeout * 1000, float(wire.MAX_WAIT_MS))))
            try:
                return self._request(lambda live: self._get(live, key, wait), True)
            except Timeout:
                if timeout is not None:
                    raise

    def _get(self, live: Connection, key: Key, wait_ms: int) -> Object:
        live.sweep()
        body, decode = _key(key) + _U32.pack(wait_ms), _Got(live)
        return self._until_room(live, lambda: live.call(wire.GET, body, decode))

    def get_many(self, keys: Sequence[Key], timeout: Optional[float] = 0.0) -> List[Object]:
        """All objects, in order, or none; timeout in seconds bounds the wait for all together (None: for ever)."""
        return self._request(lambda live: self._get_many(live, keys, timeout), True)

    def _get_many(self, live: Connection, keys: Sequence[Key], timeout: Optional[float]) -> List[Object]:
        live.sweep()
        if timeout is None or timeout > 0:
            deadline = None if timeout is None else time.monotonic() + timeout
            for at in range(0, len(keys), wire.MAX_WANTED):
                self._await_many(live, [_key(k) for k in keys[at:at + wire.MAX_WANTED]], deadline)
        found: List[Object] = []
        for at in range(0, len(keys), _GET_AHEAD):
            batch = keys[at:at + _GET_AHEAD]
            for key, got in zip(batch, live.call_many(wire.GET, [_key(k) + _U32.pack(0) for k in batch], _Got(live))):
                if isinstance(got, (Full, Quota)) and not isinstance(got, Limit):  # it comes from disk, and memory is short
                    got = self.get(key)
                if isinstance(got, BaseException):
                    raise got  # what was found goes with the list
                found.append(got)
        return found

    def _await_many(self, live: Connection, wanted: List[bytes], deadline: Optional[float]) -> None:
        while True:
            left = wire.MAX_WAIT_MS if deadline is None else max(1, _milliseconds(deadline - time.monotonic()))
            try:
                live.call(wire.AWAIT_MANY, struct.pack("<IH", left, len(wanted)) + b"".join(wanted), wire.nothing)
                return
            except Timeout:
                if deadline is not None:
                    raise

    def read(self, key: Key, offset: int = 0, size: Optional[int] = None) -> bytes:
        """A copy of size bytes from offset on (None: to the end), by way of the socket: maps nothing, brings nothing back from disk."""
        size = self.stat(key).size_bytes - offset if size is None else size
        if offset < 0 or size < 0:
            raise Invalid("%d bytes at %d" % (size, offset))
        out = bytearray()
        while True:
            n = min(size - len(out), wire.MAX_READ)
            body = _key(key) + struct.pack("<QI", offset + len(out), n)
            part: bytes = self._request(lambda live: live.call(wire.READ_RANGE, body, _rest), True)
            if len(part) != n:
                raise Protocol("%d of %d bytes" % (len(part), n))
            out += part
            if len(out) == size:
                return bytes(out)

    def checksum(self, key: Key) -> int:
        """XXH64 (seed 0) of the object's bytes, computed by the daemon, also from disk."""
        return int(self._request(lambda live: live.call(wire.CHECKSUM, _key(key), wire.Fields.u64), True))

    # Names and facts ------------------------------------------------------

    def bind(self, key: Key, name: str, replace: bool = False) -> None:
        """Names a sealed object; with replace a name that is taken moves in one step."""
        if not isinstance(key, (Object, Draft)):
            key = ObjectID(key)
        self._plain(wire.BIND, bytes(key.id if not isinstance(key, bytes) else key) + wire.str16(name) + bytes([replace]))

    def rename(self, name: str, to: str, replace: bool = False) -> None:
        """Gives the object that is called name the name to, in one step for all."""
        self._plain(wire.RENAME, wire.str16(name) + wire.str16(to) + bytes([replace]))

    def update(self, key: Key, *, pinned: Optional[bool] = None, ttl: Optional[float] = None,
               labels: Optional[Mapping[str, str]] = None, persist: bool = False) -> None:
        """Alters a sealed object of the own tenant; what is None stays.

        pinned: stays in memory whatever is short of it. ttl: seconds from now on, 0 for no end any more. labels take the
        place of all. persist: on disk when this comes back.
        """
        what = (0 if pinned is None else 1 if pinned else 2) | (0 if ttl is None else 4) | (0 if labels is None else 8) | 16 * persist
        self._plain(wire.UPDATE, _key(key) + struct.pack("<BQ", what, _milliseconds(ttl or 0.0, _LONGEST_TTL)) + wire.labels(labels))

    def share(self, key: Key, to: str) -> None:
        """Lets others read the object: to is "uid:N", "gid:N" or "all". They find it as TENANT/NAME, or by its ID."""
        self._plain(wire.GRANT, _key(key) + b"\0" + wire.str16(to))

    def unshare(self, key: Key, to: str) -> None:
        """Ends that for new readers."""
        self._plain(wire.GRANT, _key(key) + b"\1" + wire.str16(to))

    def delete(self, key: Key) -> None:
        """Takes the name away; the memory goes with the last reference."""
        self._plain(wire.DELETE, _key(key))

    def stat(self, key: Key) -> Info:
        """What the daemon knows about one object."""
        told = self._json(wire.STAT, _key(key))
        if not isinstance(told, dict):
            raise Protocol("Stat's reply is no JSON object")
        return Info.of(told)

    def list(self, prefix: str = "", all: bool = False, *, labels: Optional[Mapping[str, str]] = None,
             shared: bool = False) -> "List[Info]":
        """The tenant's objects whose name starts with prefix and that have all the labels, oldest first.

        all includes what others are still filling; shared: other tenants' objects that may be read, instead of the own ones.
        """
        return list(self.objects(prefix, all, labels=labels, shared=shared))

    def objects(self, prefix: str = "", all: bool = False, *, labels: Optional[Mapping[str, str]] = None,
                shared: bool = False) -> "Iterator[Info]":
        """What list() gives, one by one: they come from the daemon page by page, as they are asked for.

        An object that is there all the while comes once; what comes or goes meanwhile may be among them or not.
        """
        body = wire.str16(prefix) + bytes([all, shared]) + wire.labels(labels)
        old, whole = (wire.LIST_WHERE, body) if labels or shared else (wire.LIST, wire.str16(prefix) + bytes([all]))
        return (Info.of(o) for o in self._listing(wire.LIST_PAGE, body, old, whole))

    def top(self, limit: int = 20) -> "List[Info]":
        """The tenant's largest objects, and in holders who holds them since when."""
        found = self._listing(wire.TOP_PAGE, wire.str16(""), wire.TOP, struct.pack("<Q", limit), limit)
        return [Info.of(o) for o in islice(found, max(limit, 0))]

    def _listing(self, kind: int, body: bytes, old: int, whole: bytes, most: int = 0) -> Iterator[Dict[str, Any]]:
        """The entries of a listing, page by page; a daemon that knows no pages (old is what it knows) is asked for the whole."""
        cursor = ""
        while True:
            request = body + struct.pack("<I", min(most, 0xFFFFFFFF)) + wire.str16(cursor)
            try:
                after, raw = self._request(lambda live: live.call(kind, request, _page), True)
            except Unsupported:
                if cursor:
                    raise
                yield from self._json(old, whole, many=True)
                return
            try:
                items = json.loads(raw)
            except ValueError as e:
                raise Protocol("a page is no JSON: %s" % e) from None
            if not isinstance(items, list) or after and after == cursor:
                raise Protocol("a page is no array, or ends where it began")
            yield from items
            if not after:
                return
            cursor = after

    def watch(self, prefix: str = "") -> "Watch":
        """What happens to the objects whose name begins with prefix, from now on, on a connection of its own."""
        from .watch import Watch
        return Watch(self._path, prefix)

    def status(self) -> Dict[str, Any]:
        """The node: store, drivers, sessions, workers, and what is not as good as it could be."""
        return self._json(wire.STATUS, b"")  # type: ignore[no-any-return]

    def devices(self) -> Any:
        """The platforms and devices that programs can be given."""
        return self._json(wire.DEVICES, b"")

    def _plain(self, kind: int, body: bytes) -> None:
        self._request(lambda live: live.call(kind, body, wire.nothing), False)

    def _json(self, kind: int, body: bytes, many: bool = False) -> Any:
        raw: bytes = self._request(lambda live: live.call(kind, body, _rest), True)
        try:
            return _documents(raw.decode("utf-8")) if many else json.loads(raw)
        except ValueError as e:
            raise Protocol("reply %d is no JSON: %s" % (kind, e)) from None


class _Got:
    """Decodes the reply to a get."""

    __slots__ = ("live",)

    def __init__(self, live: Connection) -> None:
        self.live = live

    def __call__(self, f: wire.Fields) -> Object:
        key, ref, size, raw = f.got()
        hold = Hold(key, wire.RELEASE)
        return Object(hold, self.live.attach(f, ref, size, hold, False), meta_of(raw), self.live.path)


def _seal_full(draft: Draft, parts: "Sequence[tuple[int, memoryview]]") -> Object:
    """Copies the parts to their offsets and seals."""
    try:
        fill(draft, parts)
        return draft.seal()
    except BaseException:
        draft.abort()
        raise


def _lifetime(told: Optional[str], name: str, ttl: Optional[float]) -> int:
    """A life-time's number; without one told: ttl with a ttl, named with a name."""
    chosen = told or ("ttl" if ttl is not None else "named" if name else "ephemeral")
    if chosen not in _CLASSES:
        raise Invalid("lifetime %r is none of %s" % (chosen, ", ".join(_CLASSES)))
    return _CLASSES[chosen]


def _raw_meta(meta: Optional[Dict[str, Any]]) -> bytes:
    raw = b"" if meta is None else json.dumps(meta, separators=(",", ":")).encode()
    if len(raw) > wire.MAX_META:
        raise Invalid("metadata of %d bytes exceeds %d" % (len(raw), wire.MAX_META))
    return raw


def _milliseconds(seconds: float, most: int = wire.MAX_WAIT_MS) -> int:
    """Rounded up, at most what the message's field holds."""
    return int(max(0.0, min(-(-seconds * 1000 // 1), float(most))))



def _page(f: wire.Fields) -> "tuple[str, bytes]":
    after, items = f.str16(), f.bytes32()
    f.end()
    return after, items


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


_resting: List[Connection] = []  # whose threads a fork under way has ended


def _before_fork() -> None:
    _resting[:] = [live for live in (client._before_fork() for client in list(_clients)) if live is not None]


def _after_fork_in_parent() -> None:
    while _resting:
        _resting.pop().begin_again()


def _after_fork() -> None:
    _resting.clear()
    for client in list(_clients):
        client._forked()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork)

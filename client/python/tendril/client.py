"""The client: makes, gets, names and lists objects, and opens streams."""

from __future__ import annotations

import _thread
import grp
import json
import os
import pwd
import random
import struct
import sys
import threading
import time
import weakref
from functools import lru_cache, partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Set, TypeVar, Union

from . import connection, objects, wire
from .connection import Connection, Hold, opened
from .data import is_pickle, meta_of, pickled, source_of
from .errors import (
    Busy, Disconnected, Full, Invalid, Limit, NoDevice, NotFound, NotSealed, Permission, Protocol, Quota,
    TendrilError, Timeout, Unsupported,
)
from .objects import CudaDraft, CudaObject, Draft, IDText, Info, Object, ObjectID, Part, Tree
from .source import Source

if TYPE_CHECKING:
    import numpy

    from .arrays import Filling
    from .cuda import IPCHandle, Memory
    from .streams import Reader, Writer
    from .watch import Watch

Key = Union[str, bytes, Object, Draft]

_T = TypeVar("_T")
_AT_ONCE = bytes(4)  # no time to wait
_U32, _U64, _PUT_HEAD = struct.Struct("<I"), struct.Struct("<Q"), struct.Struct("<BB")

_CLASSES = {"ephemeral": 0, "ttl": 1, "named": 2, "persisted": 3}

_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 2.0  # seconds between tries to connect; doubled each time, and randomised
_FULL_PAUSES = (0.0, 0.02, 0.08, 0.3)  # seconds; other clients unmap what they do not use after some 250 ms
_LEAVING_TRIES, _LEAVING_PAUSE = 40, 0.2  # count and seconds, while the daemon says that memory is being freed
_RETURN_SECONDS = 150.0  # more than a daemon keeps the references of clients that do not come back
_LONGEST_TTL = 1 << 53  # ms
_ON_GPUS = 4096  # keys, at most
_MOST_REPEATS = 4  # of a request: the connection that replaced a broken one may break at once, too
_GET_AHEAD = 32  # gets in progress at once: a batch costs one round trip

_HEXADECIMAL = frozenset("0123456789abcdefABCDEF")

_clients: "weakref.WeakSet[Client]" = weakref.WeakSet()
_shared: Dict[str, "Client"] = {}
_shared_lock = threading.Lock()


def connect(socket: Optional[str] = None, *, patience: float = 0.0, reconnect: bool = True,
            background: bool = True) -> "Client":
    """Connects to a daemon. Close the client with close(), or use it as a context manager.

    socket: the path of the daemon's socket. None: $TENDRIL_SOCKET if it is set, and no other; else this user's own
    daemon, else the system's.
    patience: for how many seconds to try if there is no daemon, with growing, random pauses. 0: one try.
    reconnect: the next request replaces a connection that broke, with the same patience. A request that was in
    progress is repeated, up to four times, if it changes nothing, or if it had not left. Others raise Disconnected. The
    new connection claims the references that are still held: a daemon that took over has all objects; one that was
    started after a crash has those on disk (Object.gone).
    background: a thread unmaps what the client no longer uses while the program asks for nothing. It ends before a
    fork and begins again afterwards. False: only the client's own calls unmap.

    Raises Disconnected if there is no daemon, Permission if its socket may not be used, Version if the two share no
    protocol version, Unsupported if socket names another machine.
    """
    client = Client(socket, patience=patience, reconnect=reconnect, background=background)
    client.ping()
    return client


def shared(path: str) -> "Client":
    """The client that this process uses to unpickle objects of the daemon at path. It stays open."""
    with _shared_lock:
        client = _shared.get(path)
        if client is None:
            client = _shared[path] = Client(path)
        return client


objects.client_of = shared


class Client:
    """The store, as seen by one process. Any number of threads may use it at once.

    A forked child may go on using it: its first request opens a connection of its own. References and drafts of the
    parent stay the parent's. The child may read them as long as the parent holds them.

    Sizes and offsets are bytes, times are seconds. A key is a name, an id (ObjectID, 16 bytes, Info.id, or
    "id:" and 32 hexadecimal digits), an Object or a Draft. The digits alone are a name if an object has it, else an
    id, which takes a request more. Objects that a method returns hold a reference: release them, or drop them and all
    views of them. All methods may raise Disconnected, Invalid (an argument is out of range), Protocol, Internal and
    Unsupported (an older daemon). Those with a key may raise NotFound, NotSealed, and Permission (the object belongs to
    another tenant). Further errors are named at the method.
    """

    def __init__(self, socket: Optional[str] = None, *, patience: float = 0.0, reconnect: bool = True,
                 background: bool = True) -> None:
        """Arguments as connect's. The first request opens the connection."""
        self._path = socket or None  # None until a daemon was found
        self._patience, self._reconnect, self._background = patience, reconnect, background
        self._lock: Any = threading.RLock()  # it knows whose it is, and no thread takes it twice
        self._live: Optional[Connection] = None
        self._closed = False
        self._returns = False  # a thread connects again, to release what was released meanwhile
        self._puts = True  # the daemon knows Put, as far as this client knows
        self._on_gpus: Set[bytes] = set()  # keys whose object was in the memory of a GPU: asked for there first
        _clients.add(self)

    # Connection -----------------------------------------------------------

    def _connection(self) -> Connection:
        live = self._live
        if live is not None and live.pid == connection.process and (live.alive or not self._reconnect):
            return live
        self._may_wait()
        with self._lock:
            if self._closed:
                raise Disconnected("this client was closed")
            live = self._live
            if live is not None and live.pid == connection.process and (live.alive or not self._reconnect):
                return live
            if live is not None and live.pid != connection.process:
                live.abandon()
                live = None
            self._live = self._reopen(live)
            return self._live

    def _may_wait(self) -> None:
        """Raises Busy where the caller's own thread connects, or has what whoever connects again waits for: a __del__
        method or a signal handler interrupts it.
        """
        live = self._live
        if self._lock._is_owned() or live is not None and live.pid == connection.process and live.is_interrupted():
            raise Busy("a __del__ method or a signal handler that interrupts a connect, or the loss of a connection, "
                       "cannot use the client, too")

    def _reopen(self, before: Optional[Connection]) -> Connection:
        """A new connection, which claims the references of a lost one of this process."""
        live = self._open()
        if before is not None and before.pid == connection.process:
            try:
                live.claim(before)
            except BaseException:
                live.close()
                raise
        return live

    def _open(self) -> Connection:
        """A new connection. The pauses between tries are random, so that not all clients come at once."""
        deadline, pause = time.monotonic() + self._patience, _FIRST_PAUSE
        while True:
            try:
                live = opened(self._path, self._background, _Lost(self))
                self._path = live.path  # later connections go to the same daemon, or its successor
                return live
            except Disconnected:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise
            time.sleep(min(left, pause * random.uniform(0.5, 1.5)))
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _lost(self) -> None:
        """Connects again in a thread, since no request may follow. Called in any thread and under any lock."""
        if self._reconnect and self._background and not self._closed and not self._returns:
            self._returns = True
            begins = _thread.allocate_lock()
            begins.acquire()
            try:
                _thread.start_new_thread(_return, (weakref.ref(self), begins))
            except RuntimeError:  # the interpreter ends, or there are too many threads: the next request connects
                self._returns = False
                return
            # Until it has begun, Python before 3.12 takes it for this thread: what an interrupted end raises later
            # (memory.when_gone) would be raised there, and lost. In an interpreter that ends it does not begin.
            if not sys.is_finalizing():
                begins.acquire()

    def _before_fork(self) -> Optional[Connection]:
        """Ends the background thread. Returns the connection, or None if it had no thread."""
        live = self._live
        return live if live is not None and live.rest() else None

    def _forked(self) -> None:
        """In a forked child: makes new locks, because threads that held the old ones do not exist here."""
        self._lock, self._returns = threading.RLock(), False
        if self._live is not None:
            self._live.abandon()
            self._live = None

    def ping(self) -> None:
        """Opens the connection if there is none. Sends nothing otherwise."""
        self._connection()

    def close(self) -> None:
        """Ends the connection, and with it unsealed objects and references. Views of sealed objects stay readable.

        Later requests raise Disconnected. A second call does nothing. Raises Busy in a __del__ method or a signal
        handler that interrupts a call.
        """
        self._may_wait()
        with self._lock:
            self._closed = True
            live, self._live = self._live, None
        if live is not None and live.pid == connection.process:
            try:
                live.close()
            except Busy:
                self._closed, self._live = False, live
                raise

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    @property
    def tenant(self) -> str:
        """This process's tenant: whom the daemon charges."""
        return str(self._connection().tenant)

    @property
    def daemon_version(self) -> str:
        """The daemon's version."""
        return str(self._connection().daemon_version)

    @property
    def capacity_bytes(self) -> int:
        """How much the store may hold, in bytes."""
        return int(self._connection().capacity_bytes)

    # Making objects -------------------------------------------------------

    def create(self, size: int, name: str = "", *, lifetime: Optional[str] = None, ttl: Optional[float] = None,
               labels: Optional[Mapping[str, str]] = None, strict: bool = False, shared: bool = False,
               meta: Optional[Dict[str, Any]] = None, checksum: bool = False, device: str = "host",
               replace: bool = False) -> Draft:
        """Makes an object of size bytes to fill in place. Seal or abort the draft.

        name: bound by the seal. lifetime: "ephemeral" (gone with its last reference; the default), "ttl" (gone after
        ttl seconds from the seal on; the default with a ttl), "named" (kept by its name; the default with a name) or
        "persisted" (on disk once sealed).
        labels: at most 16, for list(). meta: stored as JSON, at most 4 KiB.
        strict: the seal leaves no writable mapping, and none can be made (see the package's docstring).
        shared: other processes of the tenant may help to fill it (fill, seal_filled).
        checksum: the daemon computes checksums at the seal, which takes longer, and checks them later (tendril scrub).
        device: "host", or the device in whose memory the object lies: "cuda:N" in the order of gpus(), "opencl:N" in
        that of devices(), or a UUID. Then the draft is a CudaDraft: fill its cuda(). Only copies reach what lies on an
        OpenCL device (kind "opencl"): fill it with fill_from(), or make it with put() or copy(). strict, shared,
        checksum and "persisted" are Unsupported there, as is a node without such memory, and NoDevice says that the
        driver failed.
        replace: the seal takes the name from the object that has it, at once for all, as put's. Not with shared.

        Raises Full or Quota if there is no room. Before that it waits some seconds at most for memory that is being
        freed. Raises Limit, without waiting, if the tenant may have no more objects or segments.
        """
        if replace:
            if not name or shared:
                raise Invalid("replace without a name, or with shared: others fill the object by its name")
            draft = self.create(size, lifetime=_before_name(lifetime), ttl=ttl, labels=labels, strict=strict, meta=meta,
                                checksum=checksum, device=device)
            draft._finish = partial(self._take_name, name)
            return draft
        if device != "host":
            if strict or shared or checksum:
                raise Unsupported("strict, shared or checksum for an object in the memory of a device")
            return self._create_device(size, self.find_gpu(device), name, lifetime, ttl, labels, meta)
        return self._create(size, name, lifetime, ttl, labels, meta, strict, shared, checksum, strict)

    def _create(self, size: int, name: str, lifetime: Optional[str], ttl: Optional[float],
                labels: Optional[Mapping[str, str]], meta: Optional[Dict[str, Any]], strict: bool, shared: bool,
                checksum: bool, own: bool) -> Draft:
        """create, in host memory. own: in a segment of its own."""
        if size < 0 or size >= 1 << 63:
            raise Invalid("size %d is out of range" % size)
        chosen = _lifetime(lifetime, name, ttl)
        raw = _raw_meta(meta)
        body = struct.pack("<QBB", size, chosen, own | shared << 1 | checksum << 2)
        kind, body = wire.CREATE, body + wire.new_name(name) + wire.bytes32(raw)
        if ttl is not None or labels:
            expiry = struct.pack("<Q", _ttl_ms(ttl))
            kind, body = wire.CREATE_WITH, body + expiry + wire.labels(labels)

        def ask(live: Connection) -> Draft:
            def decode(f: wire.Fields) -> Draft:
                hold = Hold(f.id(), wire.ABORT)
                ref = f.ref()
                return Draft(live, hold, ref, live.attach(f, ref, size, hold, True), meta, shared or own, strict)

            live.sweep()
            return self._until_room(live, lambda: live.call(kind, body, decode))

        return self._request(ask, True)

    def _create_device(self, size: int, uuid: bytes, name: str, lifetime: Optional[str], ttl: Optional[float],
                       labels: Optional[Mapping[str, str]], meta: Optional[Dict[str, Any]]) -> CudaDraft:
        """create, in the memory of a GPU."""
        if size <= 0 or size >= 1 << 63:
            raise Invalid("size %d is out of range for an object in the memory of a device" % size)
        body = struct.pack("<Q16sB", size, uuid, _lifetime(lifetime, name, ttl)) + wire.new_name(name)
        body += wire.bytes32(_raw_meta(meta)) + struct.pack("<Q", _ttl_ms(ttl))
        body += wire.labels(labels)

        def ask(live: Connection) -> CudaDraft:
            def decode(f: wire.Fields) -> CudaDraft:
                hold, lease, memory, _ = _gpu_memory(live, f, wire.ABORT)
                return CudaDraft(self, live, hold, lease, memory, meta)

            return live.call(wire.CREATE_DEVICE, body, decode)

        return self._request(ask, True)

    def ipc_handle(self, key: Key) -> "IPCHandle":
        """Copies an object in the memory of a GPU for programs that open a cudaIpcMemHandle_t, and gives the handle.

        Raises Unsupported for an object in other memory or a driver without handles, Full, Quota, Limit (64 a
        connection), NoDevice.
        """
        from .cuda import IPCHandle
        return self._request(lambda live: live.call(wire.IPC_HANDLE, self._key(key), partial(IPCHandle, live)), True)

    def gpus(self) -> "List[Dict[str, Any]]":
        """The GPUs in whose memory objects can lie: index, uuid, name, memory_bytes, shares. Raises Unsupported."""
        found = self._json(wire.GPUS, b"")
        if not isinstance(found, list):
            raise Protocol("the reply to GPUs is not a JSON array")
        return found

    def find_gpu(self, text: str) -> bytes:
        """The UUID of the device that text names.

        "cuda:N", in the order of gpus(), "cuda" for the first, "opencl:N", in the order of devices(), or a UUID.
        Of a UUID it does not ask whether this node has it. Raises NoDevice if there is no N-th, Invalid for other
        texts.
        """
        from . import cuda
        if text.startswith("opencl:") and text[7:].isdecimal():
            shown = self.devices()
            if int(text[7:]) < len(shown):
                return bytes.fromhex(shown[int(text[7:])]["uuid"])
            raise NoDevice("%r: this node has %d OpenCL device%s, the first is 'opencl:0'" % (
                text, len(shown), "" if len(shown) == 1 else "s"))
        uuid = cuda.uuid_of(text)
        if uuid is not None:
            return uuid
        found = self.gpus()
        for gpu in found:
            if gpu.get("index") == int(text[5:] or 0):
                return bytes.fromhex(gpu["uuid"])
        raise NoDevice("%r: this node has %d GPU%s, the first is 'cuda:0'" % (
            text, len(found), "" if len(found) == 1 else "s"))

    def copy(self, key: Key, device: str, name: str = "", *, lifetime: Optional[str] = None,
             ttl: Optional[float] = None, labels: Optional[Mapping[str, str]] = None) -> Object:
        """Copies a sealed object between host memory and that of GPUs. The daemon's keeper copies.

        device: "host", "cuda:N" in the order of gpus(), or a GPU's UUID. The metadata is copied, too. Release the
        object that it returns. What only other nodes have comes into host memory here first. With "host" that is what
        is returned, as by get(), unless other arguments ask for an object of its own.
        Raises Invalid if an object of this node is in host memory already (put() copies it), NoDevice if the driver
        fails, Exists if the name is taken. Other arguments and errors as create's.
        """
        info = self.stat(key)
        if device == "host" and info.nodes:
            found = self.get(ObjectID(info.id))
            if not (name or lifetime or labels or ttl is not None):
                return found
            with found:
                return self.put(found, name, lifetime=lifetime, ttl=ttl, labels=labels)
        if device == "host" and info.kind == "host":
            raise Invalid("object %s is in host memory already: put() copies its data" % info.id)
        if device == "host":
            draft = self._create(info.size_bytes, name, lifetime, ttl, labels, info.meta, False, False, False, True)
        else:
            draft = self._create_device(info.size_bytes, self.find_gpu(device), name, lifetime, ttl, labels, info.meta)
        body = bytes(draft.id) + bytes(8) + bytes(ObjectID(info.id)) + wire.str16("")
        body += struct.pack("<QQ", 0, info.size_bytes)
        try:
            self._plain(wire.COPY_OBJECT, body)
            return draft.seal()
        except BaseException:
            draft.abort()
            raise

    def _request(self, ask: "Callable[[Connection], _T]", repeatable: bool) -> "_T":
        """Makes a request, and repeats it on a new connection if that is safe: it had not left, or is repeatable."""
        for _ in range(_MOST_REPEATS):
            live = self._connection()
            try:
                return ask(live)
            except Disconnected as e:
                if live.alive or self._closed or not self._reconnect or not (repeatable or e.unsent):
                    raise
        return ask(self._connection())

    def _until_room(self, live: Connection, ask: "Callable[[], _T]") -> "_T":
        """Asks again while the store is full and memory is being freed: clients unmap what they do not use."""
        for attempt in range(len(_FULL_PAUSES) + _LEAVING_TRIES):
            try:
                return ask()
            except Limit:
                raise  # no memory helps
            except (Full, Quota) as e:
                if attempt >= len(_FULL_PAUSES) and not self._memory_leaves(isinstance(e, Quota)):
                    break  # the last of that memory may just have been freed: ask once more
            time.sleep(_FULL_PAUSES[attempt] if attempt < len(_FULL_PAUSES) else _LEAVING_PAUSE)
            live.sweep(now=True)
        return ask()

    def _memory_leaves(self, own: bool) -> bool:
        """Whether memory is being freed: clients have yet to unmap it. own: the tenant's own, if the daemon says."""
        store = self.status().get("store")
        if not isinstance(store, dict):
            return False
        whole = store.get("leaving_bytes")
        return bool(store.get("tenant_leaving_bytes", whole) if own else whole)

    def empty(self, shape: "int | Sequence[int]", dtype: Any = "f8", name: str = "", *, order: str = "C",
              lifetime: Optional[str] = None, ttl: Optional[float] = None, labels: Optional[Mapping[str, str]] = None,
              strict: bool = False, replace: bool = False) -> "Filling":
        """An array in the store's memory to fill in place. Its contents are undefined. Call its seal() or abort().

        order: "C" or "F". Other arguments and errors as create's.
        """
        from . import arrays
        dims, kind, size, meta = arrays.measure(shape, dtype, order)
        draft = self.create(size, name, lifetime=lifetime, ttl=ttl, labels=labels, strict=strict, meta=meta,
                            replace=replace)
        return arrays.fillable(draft.data, dims, kind, order, draft)

    def empty_cuda(self, shape: "int | Sequence[int]", dtype: Any = "<f4", name: str = "", *, device: str = "cuda:0",
                   order: str = "C", lifetime: Optional[str] = None, ttl: Optional[float] = None,
                   labels: Optional[Mapping[str, str]] = None, replace: bool = False) -> CudaDraft:
        """An array in the memory of a GPU, with undefined contents: fill the draft's cuda(), then seal or abort it.

        dtype: a NumPy dtype, or its text. device: as create's. Other arguments and errors as empty's and create's.
        """
        from . import layouts
        how = layouts.new_layout(shape, dtype, order)
        uuid = self.find_gpu(device)
        if not replace:
            return self._create_device(how.nbytes, uuid, name, lifetime, ttl, labels, how.meta())
        if not name:
            raise Invalid("replace without a name")
        draft = self._create_device(how.nbytes, uuid, "", _before_name(lifetime), ttl, labels, how.meta())
        draft._finish = partial(self._take_name, name)
        return draft

    def put(self, data: Any, name: str = "", *, lifetime: Optional[str] = None, ttl: Optional[float] = None,
            labels: Optional[Mapping[str, str]] = None, meta: Optional[Dict[str, Any]] = None, strict: bool = False,
            checksum: bool = False, device: Optional[str] = None, replace: bool = False) -> Object:
        """Copies data into a new sealed object: bytes, a buffer, an array (NumPy's, or what has __array__ or DLPack), a
        data frame, series or index of pandas, a table or record batch of Arrow, an Object.

        What Object.load needs becomes metadata: an array's dtype, shape and strides. What is pandas' is pickled. Raises
        Unstorable if something of data would be lost: masks, units, values that are no bytes. dump() keeps those.
        An array in the memory of a GPU (with __cuda_array_interface__, or DLPack) is copied on that GPU, after the work
        of its stream, into an object there. It must lie densely. What tendril.allocators gave is not copied.
        replace: take the name from the object that has it, at once for all. Else Exists is raised if it is taken.
        device: where the object lies, if not where the data are: "host", "cuda:N" in the order of gpus(), or a GPU's
        UUID. Then the daemon's keeper copies once more. Other arguments and errors as create's.
        """
        if not isinstance(data, (bytes, bytearray, memoryview)) and not hasattr(data, "__array_interface__"):
            from . import cuda
            if cuda.is_cuda(data):
                if strict or checksum:
                    raise Unsupported("strict or checksum for an object in the memory of a device")
                if replace:
                    return self._replacing(name, lifetime, lambda anew: self._put_cuda(
                        data, "", anew, ttl, labels, meta, device))
                return self._put_cuda(data, name, lifetime, ttl, labels, meta, device)
        if device is not None and device != "host":
            with self.put(data, meta=meta) as there:
                if replace:
                    place = device
                    return self._replacing(name, lifetime, lambda anew: self.copy(
                        there, place, lifetime=anew, ttl=ttl, labels=labels))
                return self.copy(there, device, name, lifetime=lifetime, ttl=ttl, labels=labels)
        return self._store(source_of(data, meta), name, lifetime, ttl, labels, strict, checksum, replace)

    def _store(self, source: Source, name: str, lifetime: Optional[str], ttl: Optional[float],
               labels: Optional[Mapping[str, str]], strict: bool, checksum: bool, replace: bool) -> Object:
        """A sealed object of a source in host memory: with one message if it is small, else created, filled, sealed."""
        if replace and not name:
            raise Invalid("replace without a name")
        if source.size <= wire.MAX_PUT and self._puts and not (strict or checksum or lifetime == "persisted"):
            body = _PUT_HEAD.pack(_lifetime(lifetime, name, ttl), replace) + wire.new_name(name)
            body += wire.bytes32(_raw_meta(source.meta)) + _U64.pack(_ttl_ms(ttl))
            body += (wire.labels(labels) if labels else b"\0\0") + _U32.pack(source.size)
            body = b"".join((body, source.bytes()))
            try:
                return self._request(lambda live: self._put(live, body, source, name), False)
            except Unsupported:
                self._puts = False  # the daemon is of an earlier release
        if replace:
            return self._replacing(name, lifetime, lambda anew: self._store(
                source, "", anew, ttl, labels, strict, checksum, False))
        draft = self.create(source.size, name, lifetime=lifetime, ttl=ttl, labels=labels, strict=strict,
                            meta=source.meta, checksum=checksum)
        return _named(_seal_full(draft, source), name)

    def _put(self, live: Connection, body: bytes, source: Source, name: str) -> Object:
        """_store with one message, which the daemon copies into the store's memory."""
        def decode(f: wire.Fields) -> Object:
            key, ref = f.placed()
            hold = Hold(key, wire.RELEASE)
            found = Object(hold, live.attach(f, ref, source.size, hold, False), source.meta, live.path)
            found.name = name
            return found

        live.sweep()
        return self._until_room(live, lambda: live.call(wire.PUT, body, decode))

    def _replacing(self, name: str, lifetime: Optional[str], make: "Callable[[Optional[str]], Object]") -> Object:
        """An object without a name, which then takes the name. lifetime: of the object; make gets one without names."""
        return self._take_name(name, make(_before_name(lifetime)))

    def _take_name(self, name: str, made: Object) -> Object:
        """Gives a new object a name that another may have, or releases it."""
        try:
            self.bind(made, name, True)
        except BaseException:
            made.release()
            raise
        return _named(made, name)

    def _put_cuda(self, data: Any, name: str, lifetime: Optional[str], ttl: Optional[float],
                  labels: Optional[Mapping[str, str]], meta: Optional[Dict[str, Any]], device: Optional[str]) -> Object:
        """put of an array in the memory of a GPU."""
        from . import allocators, cuda
        source = cuda.source_of(data)
        uuid = cuda.driver().uuid(source.ordinal)
        described = dict(source.how.meta(), **(meta or {}))
        if device is not None and (device == "host" or self.find_gpu(device) != uuid):
            with self._put_cuda(data, "", None, None, None, meta, None) as there:
                return self.copy(there, device, name, lifetime=lifetime, ttl=ttl, labels=labels)
        key = None if lifetime == "persisted" else allocators.take(source, _raw_meta(described))
        if key is not None:
            return self._put_in_place(key, name, ttl, labels)
        draft = self._create_device(source.size, uuid, name, lifetime, ttl, labels, described)
        try:
            draft._allocation().fill(source)
            return draft.seal()
        except BaseException:
            draft.abort()
            raise

    def _put_in_place(self, key: bytes, name: str, ttl: Optional[float],
                      labels: Optional[Mapping[str, str]]) -> Object:
        """What remains of a put whose bytes lie in the store, sealed (allocators.py)."""
        made = self.get(ObjectID(key))
        try:
            if ttl is not None or labels:
                self.update(made, ttl=ttl, labels=labels)
            if name:
                self.bind(made, name)
        except BaseException:
            made.release()
            raise
        return _named(made, name)

    def dump(self, value: Any, name: str = "", *, lifetime: Optional[str] = None, ttl: Optional[float] = None,
             labels: Optional[Mapping[str, str]] = None, strict: bool = False, replace: bool = False) -> Object:
        """Pickles value (protocol 5) into one new sealed object. Buffers of arrays in it are copied, not serialised.

        replace as put's. Raises what pickle raises, and Exists if the name is taken. Other arguments and errors as
        create's.
        """
        return self._store(pickled(value, "", None), name, lifetime, ttl, labels, strict, False, replace)

    def load(self, key: Key, timeout: Optional[float] = 0.0, *, foreign: bool = False) -> Any:
        """Returns the value that put or dump stored: an array, bytes, a data frame, a table, or any value.

        Arrays in it are read-only views of the store's memory. Unpickling a data frame, or what dump stored, runs code
        that the pickle names. So another tenant's raises Permission unless foreign is set. timeout and errors as get's.
        Raises Invalid if the object does not hold what its metadata says.
        """
        found = self.get(key, timeout)
        if not foreign and is_pickle(found.data, found.meta) and self.stat(found).tenant != self.tenant:
            raise Permission("object %s is another tenant's: unpickling it would run that tenant's code "
                             "(foreign=True allows it)" % found.id.hex())
        return found.load()

    def fill(self, key: Key) -> Part:
        """Joins in filling an object that another process of the tenant made with create(shared=True).

        The key may be its future name. Call the part's done().
        """
        live = self._connection()

        def decode(f: wire.Fields) -> Part:
            found, ref, size, raw = f.got()
            hold = Hold(found, wire.FILLED)
            hold.ends_with = None  # done() sends it: a part that is dropped is not done
            return Part(live, hold, wire.Ref(*ref), live.attach(f, ref, size, hold, True), meta_of(raw))

        return live.call(wire.FILL, self._key(key), decode)

    def compose(self, members: "Mapping[str, Key]", name: str = "", *, lifetime: Optional[str] = None,
                ttl: Optional[float] = None, labels: Optional[Mapping[str, str]] = None,
                meta: Optional[Dict[str, Any]] = None) -> Object:
        """Makes a composite: an object without bytes of its own that keeps its members, sealed objects of this tenant.

        members: 1 to 1,024; the keys are the members' names in the composite, the values ids, Objects or Drafts. A
        member's own name in the store is not kept. Other arguments and errors as put's.
        """
        if not 1 <= len(members) <= wire.MAX_MEMBERS:
            raise Invalid("a composite of %d members: want 1 to %d" % (len(members), wire.MAX_MEMBERS))
        body = bytes([_lifetime(lifetime, name, ttl)]) + wire.new_name(name) + wire.bytes32(_raw_meta(meta))
        body += struct.pack("<Q", _ttl_ms(ttl)) + wire.labels(labels)
        body += struct.pack("<H", len(members))
        for part, key in members.items():
            body += wire.str16(part) + _id_of(key)
        live = self._connection()

        def decode(f: wire.Fields) -> Object:
            hold = Hold(f.id(), wire.RELEASE)
            return Object(hold, live.attach(f, wire.Ref(0, 0, 0), 0, hold, False), meta, live.path)

        return live.call(wire.COMPOSE, body, decode)

    def tree(self, key: Key, timeout: Optional[float] = 0.0) -> Tree:
        """Gets an object and, if it is a composite, its members, and theirs. timeout is get's, for the object itself.

        Release the tree.
        """
        top = Tree(self.get(key, timeout))
        if top.object.size == 0:
            for member in self.stat(top.object).members or ():
                top.members[member["name"]] = self.tree(ObjectID(member["id"]))
        return top

    # Streams --------------------------------------------------------------

    def writer(self, name: str, *, frames: int = 0, size: int = 0, drop_oldest: bool = False, keep: bool = False,
               new: bool = False, existing: bool = False) -> "Writer":
        """Opens a stream to push into, and creates it if it does not exist.

        frames, size: how many frames and bytes may wait. 0: unchanged; a new stream has room for 16 frames. One frame
        may always wait.
        drop_oldest: a push into a full stream drops the oldest frame. Without it the push waits.
        keep: the stream stays when nobody has it open and nothing waits in it.
        new: raises Exists if the stream exists. existing: raises NotFound if it does not.
        """
        from . import streams
        body = streams.open_body(name, True, frames, size, drop_oldest, keep, new, existing)
        return self._open_stream(streams.Writer, name, body)

    def reader(self, name: str, *, keep: bool = False, new: bool = False, existing: bool = False) -> "Reader":
        """Opens a stream to pop from, and creates it if it does not exist. Each frame goes to one reader.

        Close the reader, or use a with block: a stream that has ended keeps its name while anybody has it open. A
        reader that is dropped is closed.
        keep, new, existing as writer's.
        """
        from . import streams
        body = streams.open_body(name, False, 0, 0, False, keep, new, existing)
        return self._open_stream(streams.Reader, name, body)

    def _open_stream(self, kind: "Callable[[Client, Connection, str, int], _T]", name: str, body: bytes) -> "_T":
        live = self._connection()

        def decode(f: wire.Fields) -> "_T":
            number = f.u64()
            f.take(12)  # its bounds
            return kind(self, live, name, number)

        return live.call(wire.STREAM_OPEN, body, decode)

    def streams(self, prefix: str = "") -> "List[Dict[str, Any]]":
        """The tenant's streams whose name begins with prefix: fields as StreamInfo of ipc/PROTOCOL.md."""
        return list(self._listing(wire.STREAM_PAGE, wire.str16(prefix), wire.STREAM_LIST, wire.str16(prefix)))

    def remove_stream(self, name: str) -> None:
        """Ends a stream for everybody, with Aborted, and drops its waiting frames."""
        self._plain(wire.STREAM_REMOVE, wire.ZERO_ID + wire.str16(name))

    # Getting objects ------------------------------------------------------

    def get(self, key: Key, timeout: Optional[float] = 0.0) -> Object:
        """Takes a reference to a sealed object and maps it. Nothing is copied.

        timeout: how many seconds to wait until it exists and is sealed. 0: do not wait; None: wait without limit.
        Another tenant's object that is shared with this user has the name TENANT/NAME.
        One in the memory of a GPU is a CudaObject: its cuda() is the array there, numpy() and data are copies.
        Raises Timeout; with timeout 0 NotFound or NotSealed. Storage, Full or Quota if the object is on disk and cannot
        be restored.
        """
        live = self._live
        if timeout == 0 and live is not None and live.alive and live.pid == connection.process:
            text = key if type(key) is str else ""
            raw = _text_key(text) if text and len(text) <= wire.MAX_NAME_BYTES else _key(key)
            if not (self._on_gpus and raw in self._on_gpus) and not (len(text) == 32 and _may_be_both(text)):
                live.sweep()
                try:
                    at_once = live.call(wire.GET, raw + _AT_ONCE, partial(_got, live))
                    return _named(at_once, text) if text else at_once
                except Limit:
                    raise
                except (Full, Quota, Unsupported, Disconnected):
                    pass  # below it is tried in all ways
        while True:
            wait = wire.MAX_WAIT_MS if timeout is None else int(max(0.0, min(timeout * 1000, float(wire.MAX_WAIT_MS))))
            try:
                found = self._request(lambda live: self._get(live, key, wait), True)
                return _named(found, key) if type(key) is str else found
            except Timeout:
                if timeout is not None:
                    raise

    def _get(self, live: Connection, key: Key, wait_ms: int) -> Object:
        live.sweep()
        raw, decode = self._key(key), partial(_got, live)
        if raw in self._on_gpus:
            try:
                return live.call(wire.GET_DEVICE, raw, _GotDevice(self, live))
            except (NotFound, NotSealed, Unsupported):
                self._on_gpus.discard(raw)  # it is gone, or the name another object's
        try:
            return self._until_room(live, lambda: live.call(wire.GET, raw + _U32.pack(wait_ms), decode))
        except Unsupported as e:
            try:
                found = live.call(wire.GET_DEVICE, raw, _GotDevice(self, live))
            except Unsupported:
                raise e from None  # the daemon is of an earlier release
            if len(self._on_gpus) >= _ON_GPUS:
                self._on_gpus.clear()
            self._on_gpus.add(raw)
            return found

    async def aget(self, key: Key, timeout: Optional[float] = 0.0) -> Object:
        """get(), for asyncio. Any number of tasks may wait, without a thread each; beyond 64 they ask again now and
        then.

        A task that is cancelled gets nothing.
        """
        from . import aio
        return await aio.get(self, key, timeout)

    async def aload(self, key: Key, timeout: Optional[float] = 0.0, *, foreign: bool = False) -> Any:
        """load(), for asyncio."""
        from . import aio
        found = await aio.get(self, key, timeout)
        return await aio.apart(self.load, found, foreign=foreign)

    async def aput(self, data: Any, name: str = "", **options: Any) -> Object:
        """put(), for asyncio, in the loop's executor. options are put's."""
        from . import aio
        return await aio.apart(self.put, data, name, **options)

    def get_many(self, keys: Sequence[Key], timeout: Optional[float] = 0.0) -> List[Object]:
        """Gets all objects, in the order of the keys, or none. timeout bounds the wait for all. Errors as get's."""
        return self._request(lambda live: self._get_many(live, keys, timeout), True)

    def _get_many(self, live: Connection, keys: Sequence[Key], timeout: Optional[float]) -> List[Object]:
        live.sweep()
        if timeout is None or timeout > 0:
            deadline = None if timeout is None else time.monotonic() + timeout
            for at in range(0, len(keys), wire.MAX_WANTED):
                self._await_many(live, [self._key(k) for k in keys[at:at + wire.MAX_WANTED]], deadline)
        found: List[Object] = []
        for at in range(0, len(keys), _GET_AHEAD):
            batch = keys[at:at + _GET_AHEAD]
            bodies = [self._key(k) + _U32.pack(0) for k in batch]
            for key, got in zip(batch, live.call_many(wire.GET, bodies, partial(_got, live))):
                # Full, Quota: it is on disk, and memory is short. get waits for memory. Unsupported: it is on a GPU.
                if isinstance(got, (Full, Quota, Unsupported)) and not isinstance(got, Limit):
                    got = self.get(key)
                if isinstance(got, BaseException):
                    try:
                        raise got
                    finally:
                        del got  # its traceback has this frame: the objects in found are released with it
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
        """Copies size bytes from offset on over the socket. It maps nothing and restores nothing from disk.

        size None: to the end. Raises Invalid if the range does not lie in the object.
        """
        size = self.stat(key).size_bytes - offset if size is None else size
        if offset < 0 or size < 0:
            raise Invalid("cannot read %d bytes at offset %d" % (size, offset))
        out = bytearray()
        while True:
            n = min(size - len(out), wire.MAX_READ)
            body = self._key(key) + struct.pack("<QI", offset + len(out), n)
            part: bytes = self._request(lambda live: live.call(wire.READ_RANGE, body, _rest), True)
            if len(part) != n:
                raise Protocol("the daemon sent %d bytes of an object instead of %d" % (len(part), n))
            out += part
            if len(out) == size:
                return bytes(out)

    def checksum(self, key: Key) -> int:
        """XXH64 (seed 0) of the object's bytes. The daemon computes it, also of an object on disk."""
        return int(self._request(lambda live: live.call(wire.CHECKSUM, self._key(key), wire.Fields.u64), True))

    def _key(self, key: Key) -> bytes:
        """The id and the name of a request. Asks what 32 hexadecimal digits are."""
        if _may_be_both(key):
            for found in (_key(key), _key("id:" + str(key))):
                try:
                    self._request(lambda live: live.call(wire.STAT, found, _rest), True)
                    return found
                except NotFound:
                    pass
        return _key(key)

    # Like a dict ----------------------------------------------------------

    def __getitem__(self, key: Key) -> Object:
        """get(key). Raises NotFound, which is a KeyError."""
        return self.get(key)

    def __setitem__(self, name: str, value: Any) -> None:
        """put(value, name, replace=True)."""
        self.put(value, name, replace=True).release()

    def __delitem__(self, key: Key) -> None:
        """delete(key)."""
        self.delete(key)

    def __contains__(self, key: Key) -> bool:
        """Whether a get would find the object: it is there and sealed."""
        try:
            return self.stat(key).state != "open"
        except NotFound:
            return False

    def __iter__(self) -> "Iterator[str]":
        """keys()."""
        return self.keys()

    def keys(self, prefix: str = "") -> "Iterator[str]":
        """The names of the tenant's sealed objects that begin with prefix, oldest first. Fetched page by page.

        There is no len(), values() or items(): each would ask for all objects, or hold them. objects() describes them.
        """
        return (info.name for info in self.objects(prefix) if info.name)

    def __reduce__(self) -> Any:
        """A client for the same daemon. It opens its own connection with the first request."""
        path = os.path.abspath(self._path) if self._path else None
        return _again, (type(self), path, self._patience, self._reconnect, self._background)

    # Names and facts ------------------------------------------------------

    def bind(self, key: Key, name: str, replace: bool = False) -> None:
        """Names a sealed object. key is an id or an Object, not a name.

        Raises Exists if the name is taken. With replace the object takes the name over, atomically.
        """
        self._plain(wire.BIND, _id_of(key) + wire.new_name(name) + bytes([replace]))

    def rename(self, name: str, to: str, replace: bool = False) -> None:
        """Renames the object named name to to, atomically. Raises Exists if to is taken, unless replace is set."""
        self._plain(wire.RENAME, wire.str16(name) + wire.new_name(to) + bytes([replace]))

    def update(self, key: Key, *, pinned: Optional[bool] = None, ttl: Optional[float] = None,
               labels: Optional[Mapping[str, str]] = None, persist: bool = False) -> None:
        """Changes a sealed object of the own tenant. What is None is left as it is.

        pinned: keep it in memory, even when memory is short. ttl: seconds from now on; 0: no limit. labels replace all
        old ones. persist: it is on disk when the call returns. Raises Storage, Full or Quota if that fails.
        """
        what = 0 if pinned is None else 1 if pinned else 2
        what |= (0 if ttl is None else 4) | (0 if labels is None else 8) | 16 * persist
        body = struct.pack("<BQ", what, _ttl_ms(ttl)) + wire.labels(labels)
        self._plain(wire.UPDATE, self._key(key) + body)

    def share(self, key: Key, to: str) -> None:
        """Lets others read the object: to is a user, a ":group", "uid:N", "gid:N" or "all".

        They get it as TENANT/NAME, or by its id.
        """
        self._plain(wire.GRANT, self._key(key) + b"\0" + wire.str16(_principal(to)))

    def unshare(self, key: Key, to: str) -> None:
        """Admits no new readers. Who holds the object already keeps it."""
        self._plain(wire.GRANT, self._key(key) + b"\1" + wire.str16(_principal(to)))

    def delete(self, key: Key) -> None:
        """Deletes a sealed object and its name. Its memory is freed with the last reference."""
        self._plain(wire.DELETE, self._key(key))

    def stat(self, key: Key) -> Info:
        """Describes one object."""
        info = self._json(wire.STAT, self._key(key))
        if not isinstance(info, dict):
            raise Protocol("the reply to Stat is not a JSON object")
        return Info.of(info)

    def list(self, prefix: str = "", all: bool = False, *, labels: Optional[Mapping[str, str]] = None,
             shared: bool = False) -> "List[Info]":
        """Describes the tenant's objects whose name begins with prefix and that have all the labels, oldest first.

        all: also objects that other connections still fill. shared: other tenants' objects that this user may read,
        instead of the own ones.
        """
        return list(self.objects(prefix, all, labels=labels, shared=shared))

    def objects(self, prefix: str = "", all: bool = False, *, labels: Optional[Mapping[str, str]] = None,
                shared: bool = False) -> "Iterator[Info]":
        """list(), one object at a time: a generator that fetches page by page, in bounded memory.

        An object that exists all the time comes once. One that is made or deleted meanwhile may come or not.
        """
        body = wire.str16(prefix) + bytes([all, shared]) + wire.labels(labels)
        old, whole = (wire.LIST_WHERE, body) if labels or shared else (wire.LIST, wire.str16(prefix) + bytes([all]))
        return (Info.of(o) for o in self._listing(wire.LIST_PAGE, body, old, whole))

    def top(self, limit: int = 20) -> "List[Info]":
        """Describes the tenant's largest objects, at most limit. Info.holders says who holds them, and since when."""
        found = self._listing(wire.TOP_PAGE, wire.str16(""), wire.TOP, struct.pack("<Q", limit), limit)
        return [Info.of(o) for o in islice(found, max(limit, 0))]

    def _listing(self, kind: int, body: bytes, old: int, whole: bytes, most: int = 0) -> Iterator[Dict[str, Any]]:
        """The entries of a listing, page by page. A daemon without pages is asked for the whole (message old)."""
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
                raise Protocol("a page of a listing is not JSON: %s" % e) from None
            if not isinstance(items, list) or after and after == cursor:
                raise Protocol("a page of a listing is not an array, or its cursor is the one that was sent")
            yield from items
            if not after:
                return
            cursor = after

    def watch(self, prefix: str = "") -> "Watch":
        """Reports events of the tenant's objects whose name begins with prefix, on a connection of its own.

        No event after the return is missed. It goes on with the next daemon if the client reconnects. Close the watch.
        """
        from .watch import Watch
        return Watch(self._path, prefix, self._reconnect)

    def status(self) -> Dict[str, Any]:
        """The daemon's status: store, drivers, sessions, workers and fallbacks, as `tendril status --json` shows it."""
        return self._json(wire.STATUS, b"")  # type: ignore[no-any-return]

    def devices(self) -> "List[Dict[str, Any]]":
        """The OpenCL devices that programs may use, as `tendril devices --json` lists them.

        Fields: index, name, platform, type, memory_bytes, compute_units, uuid, vendor, version, driver, in_place, and
        in_place_reason if it is not in place.
        """
        from . import devices
        return devices.listed(self._json(wire.DEVICES, b""))

    def _plain(self, kind: int, body: bytes) -> None:
        self._request(lambda live: live.call(kind, body, wire.nothing), False)

    def _json(self, kind: int, body: bytes, many: bool = False) -> Any:
        raw: bytes = self._request(lambda live: live.call(kind, body, _rest), True)
        try:
            return _documents(raw.decode("utf-8")) if many else json.loads(raw)
        except ValueError as e:
            raise Protocol("the reply to message %d is not JSON: %s" % (kind, e)) from None


class _Lost:
    """Tells a client that its connection is lost, and does not keep it alive."""

    __slots__ = ("client",)

    def __init__(self, client: Client) -> None:
        self.client = weakref.ref(client)

    def __call__(self) -> None:
        client = self.client()
        if client is not None:
            client._lost()


def _return(ref: "weakref.ref[Client]", begins: "_thread.LockType") -> None:
    """Connects a client again, as long as a daemon keeps its references for it. Releases begins at once."""
    begins.release()
    deadline, pause = time.monotonic() + _RETURN_SECONDS, _FIRST_PAUSE
    while True:
        client = ref()
        if client is None or client._closed:
            return
        try:
            client._connection()
        except (TendrilError, OSError):
            if time.monotonic() < deadline:
                del client
                time.sleep(pause * random.uniform(0.5, 1.5))
                pause = min(2 * pause, _LONGEST_PAUSE)
                continue
        client._returns = False
        return


def _got(live: Connection, f: wire.Fields) -> Object:
    """Decodes the reply to a get."""
    key, ref, size, raw = f.got()
    hold = Hold(key, wire.RELEASE)
    return Object(hold, live.attach(f, ref, size, hold, False), meta_of(raw) if raw else None, live.path)


class _GotDevice:
    """Decodes the reply to a get of an object in the memory of a GPU."""

    __slots__ = ("client", "live")

    def __init__(self, client: Client, live: Connection) -> None:
        self.client, self.live = client, live

    def __call__(self, f: wire.Fields) -> Object:
        hold, lease, memory, meta = _gpu_memory(self.live, f, wire.RELEASE)
        return CudaObject(self.client, hold, lease, memory, meta, self.live.path)


def _gpu_memory(live: Connection, f: wire.Fields,
                ends_with: int) -> "tuple[Hold, Any, Memory, Optional[Dict[str, Any]]]":
    """A reply about memory of a GPU: this process's reference to the object, and where it lies."""
    from . import cuda
    key, uuid, size, whole, meta, file = cuda.reply_of(f)
    hold = Hold(key, ends_with)
    lease = live.attach(f, wire.Ref(0, 0, 0), 0, hold, False)
    return hold, lease, cuda.Memory(uuid, size, whole, lease, file), meta_of(meta)


def _again(kind: "Callable[..., Client]", path: Optional[str], patience: float, reconnect: bool,
           background: bool) -> Client:
    """Unpickles a client."""
    return kind(path, patience=patience, reconnect=reconnect, background=background)


def _named(found: Object, name: str) -> Object:
    if not name.startswith("id:"):
        found.name = name
    return found


def _principal(to: str) -> str:
    """Whom a grant names, as the daemon wants it. Raises Invalid for a user or group that this machine lacks."""
    if to == "all" or to.startswith(("uid:", "gid:")):
        return to
    try:
        if to.startswith(":"):
            return "gid:%d" % grp.getgrnam(to[1:]).gr_gid
        return "uid:%d" % pwd.getpwnam(to).pw_uid
    except KeyError:
        raise Invalid("there is no %s %s on this machine: give a user, a :group, uid:N, gid:N or all" % (
            ("group", to[1:]) if to.startswith(":") else ("user", to))) from None


def _seal_full(draft: Draft, source: Source) -> Object:
    """Copies the source into the draft and seals it; aborts it if that fails."""
    try:
        source.write(draft._memory())
        return draft.seal()
    except BaseException:
        draft.abort()
        raise


def _lifetime(lifetime: Optional[str], name: str, ttl: Optional[float]) -> int:
    """The number of a lifetime. None is ttl with a ttl, named with a name, else ephemeral."""
    chosen = lifetime or ("ttl" if ttl is not None else "named" if name else "ephemeral")
    if chosen not in _CLASSES:
        raise Invalid("unknown lifetime %r: use one of %s" % (chosen, ", ".join(_CLASSES)))
    return _CLASSES[chosen]


def _before_name(lifetime: Optional[str]) -> Optional[str]:
    """The lifetime of an object that gets its name after its seal: only one with a name can be "named"."""
    return None if lifetime == "named" else lifetime


def _raw_meta(meta: Optional[Dict[str, Any]]) -> bytes:
    raw = b"" if meta is None else json.dumps(meta, separators=(",", ":")).encode()
    if len(raw) > wire.MAX_META:
        raise Invalid("metadata of %d bytes exceeds %d" % (len(raw), wire.MAX_META))
    return raw


def _milliseconds(seconds: float, most: int = wire.MAX_WAIT_MS) -> int:
    """Seconds as milliseconds, rounded up, at most what the message's field holds."""
    return int(max(0.0, min(-(-seconds * 1000 // 1), float(most))))


def _ttl_ms(ttl: Optional[float]) -> int:
    """A time to live in milliseconds, 0 for none. Raises Invalid for less."""
    if ttl is not None and ttl < 0:
        raise Invalid("a time to live of %g s is less than 0" % ttl)
    return _milliseconds(ttl or 0.0, _LONGEST_TTL)


def _page(f: wire.Fields) -> "tuple[str, bytes]":
    after, items = f.str16(), f.bytes32()
    f.end()
    return after, items


def _rest(f: wire.Fields) -> bytes:
    return f.rest()


def _documents(text: str) -> List[Any]:
    """The elements of the arrays that text holds, one array after another."""
    decoder, at, found = json.JSONDecoder(), 0, []
    while at < len(text):
        part, at = decoder.raw_decode(text, at)
        if not isinstance(part, list):
            raise ValueError("not an array")
        found.extend(part)
    return found


def _may_be_both(key: Key) -> bool:
    """Whether a key may be a name or an id."""
    return type(key) is str and len(key) == 32 and all(c in _HEXADECIMAL for c in key)


def _id_of(key: Key) -> bytes:
    """The id of a key that may not be a name."""
    if isinstance(key, (Object, Draft)):
        return bytes(key.id)
    try:
        return bytes(ObjectID(key))
    except Invalid as e:
        raise Invalid("%s, and no name is taken here: get() gives the object of a name" % e) from None


def _key(key: Key) -> bytes:
    """The id and the name of a request: one of the two is empty."""
    if isinstance(key, (Object, Draft)):
        return bytes(key.id) + wire.str16("")
    if isinstance(key, (bytes, IDText)):
        return bytes(ObjectID(key)) + wire.str16("")
    if not isinstance(key, str):
        raise TypeError("%.60r is no key: want a name, an id, an Object or a Draft" % (key,))
    return _text_key(key) if len(key) <= wire.MAX_NAME_BYTES else _text_key.__wrapped__(key)


@lru_cache(1024)
def _text_key(key: str) -> bytes:
    """_key of a text. Those used last are kept, if they are no longer than names may be."""
    if key.startswith("id:"):
        return bytes(ObjectID(key)) + wire.str16("")
    if not key:
        raise Invalid("the name is empty")
    return wire.ZERO_ID + wire.str16(key)


_resting: List[Connection] = []  # whose threads were ended for a fork that is in progress


def _before_fork() -> None:
    _resting[:] = [live for live in (client._before_fork() for client in list(_clients)) if live is not None]


def _after_fork_in_parent() -> None:
    while _resting:
        _resting.pop().begin_again()


def _after_fork() -> None:
    connection.forked()
    _resting.clear()
    for client in list(_clients):
        client._forked()


# Before a function of Python, in which an interrupt may come first: the child is not its parent.
os.register_at_fork(after_in_child=partial(setattr, connection, "process", 0))
os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork)

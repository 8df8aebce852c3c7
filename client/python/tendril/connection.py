"""One connection of one process: frames, descriptors and mapped segments.

Trust: the connection trusts what the daemon says, but checks every length.

Threads: any number. One of the threads that wait for a reply reads the socket, and delivers the replies of the others
too. Lock order: _sending, then _turn. _turn also guards the segment table. A lease can end in a garbage collection, in
a thread that holds either lock. So its end only appends to a deque, and tries to send without waiting. A connection
that has mapped something has a thread of its own (tidy.py). It unmaps idle segments while the program asks for nothing.

A lease is this process's use of an object's memory, a hold its reference to the object. A segment is idle while it has
no leases.
"""

from __future__ import annotations

import _socket
import collections
import os
import select
import socket
import struct
import sys
import threading
import time
from functools import partial
from typing import Any, Callable, Deque, Dict, Iterator, List, NoReturn, Optional, Set, TypeVar

from . import memory, pages, tidy, wire
from .errors import Busy, Disconnected, Full, Invalid, Permission, Protocol, TendrilError, Unsupported, from_code

_HELLO_SECONDS = 30.0
_MAX_REPLY = 256 << 20  # bytes of one reply in all its frames
_MAX_FDS = 8            # descriptors that may wait for their frames
_KEEP_BYTES = 4 << 30   # idle segments of other writers that stay mapped for the next get; the longest idle goes first
_KEEP_LITTLE_SECONDS = 0.1  # how often a client with a background thread looks at that
_KEEP_SECONDS = 5.0     # the longest time that one stays mapped
_ALONE_KEEP_BYTES = 64 << 20  # the largest that stays mapped without a background thread
# A release that follows the last one so soon goes with the next request, or after that time: a message of its own costs
# as much as half a get. What was released stays mapped for longer anyway.
_LATE_SECONDS, _LATE_MOST = 0.005, 64
_MOST_UNCONFIRMED = 4096  # releases without a request after them, that the next connection would repeat
_SWEEP_SECONDS = 1.0    # how often a client with idle segments asks which the daemon no longer needs

# Plain integers, because the | of the socket module's enumerations is slow.
_NOSIGNAL, _DONTWAIT, _CLOEXEC = int(socket.MSG_NOSIGNAL), int(socket.MSG_DONTWAIT), int(socket.MSG_CMSG_CLOEXEC)
_CTRUNC = int(socket.MSG_CTRUNC)
_CONTROL = socket.CMSG_SPACE(4 * 16)

# An interrupt (Ctrl-C) is raised between two steps of the interpreter, also between a call into C and what is done with
# its value. What was sent, or received, must not be forgotten then. So a chain of iterators, which is one step, runs
# these calls and notes their values: see _push and _receive. Nor must a lock stay taken: "with" takes a lock, and gives
# it back, in one step each, but a Condition has functions of Python for that.
_RECEIVE = (1 << 16,), (_CONTROL,), (_CLOEXEC,)
_SEND, _SEND_NOW = (_NOSIGNAL,), (_NOSIGNAL | _DONTWAIT,)
_FIRST, _NOW = (0,), (False,)  # arguments of pop, and of acquire
_WITHOUT_REPLY = wire.STREAM_UNPOP, wire.STREAM_CLOSE
_run: Callable[[Any], None] = collections.deque(maxlen=0).extend
_step: Any = partial.__call__

_HEADER_BYTES, _pack_header, _unpack_header = wire.HEADER.size, wire.HEADER.pack, wire.HEADER.unpack_from
_RELEASE_HEAD = wire.HEADER.pack(16, wire.RELEASE, 0, 0)

_T = TypeVar("_T")
Decode = Callable[[wire.Fields], Any]


_PACKAGE = __name__.rpartition(".")[0] + "."


def interrupts(thing: object) -> bool:
    """Whether what calls the caller interrupted a method of thing in this thread: a __del__ method, in a garbage
    collection, or a signal handler. Such a method may hold locks, which it gives back afterwards only.
    """
    frame, apart = sys._getframe(1), False
    while frame is not None:
        if not str(frame.f_globals.get("__name__")).startswith(_PACKAGE):
            apart = True
        elif apart and frame.f_locals.get("self") is thing:
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


# This process's number. A fork brings another one: to ask the kernel with each request would cost a system call more.
process = os.getpid()


def forked() -> None:
    """In a forked child, before anything else of this package."""
    global process
    process = os.getpid()


_SYSTEM_SOCKET = "/run/tendril/tendril.sock"


def sockets() -> List[str]:
    """Where to look for a daemon: $TENDRIL_SOCKET alone, else the user's own, then the system's (ipc/PROTOCOL.md)."""
    only = os.environ.get("TENDRIL_SOCKET")
    if only:
        return [only]
    if os.getuid() == 0:
        return [_SYSTEM_SOCKET]
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    own = os.path.join(runtime, "tendril") if runtime else "/tmp/tendril-%d" % os.getuid()
    return [os.path.join(own, "tendril.sock"), _SYSTEM_SOCKET]


def _descriptors(data: bytes) -> "tuple[int, ...]":
    """Those of a message's SCM_RIGHTS."""
    return struct.unpack("%di" % (len(data) // 4), data[: len(data) // 4 * 4])


class Pending:
    """A request whose reply has not come yet. _turn guards its fields.

    What most requests leave as it is belongs to the class: one is made for each request.
    """

    each: Optional[Callable[[bytes], None]] = None  # called with every frame of a reply without end
    then: "Optional[Callable[[Pending], None]]" = None  # called under _turn when done, if no thread waits
    pages: Optional[List[bytes]] = None  # of a reply in several frames, those that have come
    size = 0  # bytes of them
    done = False
    pushes: "Optional[Hold]" = None  # of a push: the reference that it gives to the stream
    value: Any = None
    error: Optional[BaseException] = None

    def __init__(self, kind: int, decode: Decode) -> None:
        self.kind, self.decode = kind, decode

    def fail(self, whole: bool) -> NoReturn:
        """Raises the error. The request does not keep it: its traceback has the frames that have the request, and what
        else is in those, such as an object in the memory of a GPU, would stay until a garbage collection.
        """
        error, self.error = self.error or Disconnected("the request has failed before"), None
        try:
            raise error if whole else _unsent(error)
        finally:
            del error


class Hold:
    """This process's reference to an object. When its lease ends, the message ends_with releases it."""

    __slots__ = ("object_id", "ends_with", "body", "claimed_by", "gone", "filling", "pushing", "left")

    def __init__(self, object_id: bytes, ends_with: int) -> None:
        self.object_id = object_id
        self.ends_with: Optional[int] = ends_with  # RELEASE; ABORT while unsealed; None: there is no reference any more
        self.body: Optional[bytes] = None  # the payload of STREAM_UNPOP; other messages carry the id
        self.claimed_by: "Optional[Connection]" = None  # who claimed the reference after its connection was lost
        self.gone = False  # the daemon that this client came back to does not have the object
        # Segment, offset and size while this process fills the object. _turn guards it.
        self.filling: "Optional[tuple[int, int, int]]" = None
        self.pushing = 0  # pushes of it without a reply yet: the last one says whether the reference is still here
        self.left = False  # the lease ended meanwhile


class _Segment:
    """A segment that this connection knows: its descriptor and its mappings.

    One that this connection fills is mapped writable, and once more read-only when the first object in it is sealed.
    """

    __slots__ = ("number", "file", "size", "mapping", "shown", "table", "leases", "writable", "idle_since")

    def __init__(self, number: int, file: memory.Descriptor, size: int, writable: bool) -> None:
        self.number, self.file, self.size, self.writable = number, file, size, writable
        self.mapping: Optional[memory.Mapping] = None
        self.shown: Optional[memory.Mapping] = None  # the read-only mapping beside a writable one
        self.table = pages.Table(0)  # the pages of a writable mapping
        self.leases = 0
        self.idle_since = time.monotonic()  # only if leases is 0

    def filled(self) -> memory.Mapping:
        """The mapping in which unsealed objects lie."""
        if self.mapping is None:
            self.mapping = memory.Mapping(self.file.fileno(), self.size, self.writable)
            self.table = pages.Table(self.size if self.writable else 0)
        return self.mapping

    def read(self) -> memory.Mapping:
        """The mapping in which sealed objects lie. It is read-only."""
        if not self.writable:
            return self.filled()
        if self.shown is None:
            self.shown = memory.Mapping(self.file.fileno(), self.size, False)
        return self.shown

    def enter(self, offset: int, size: int) -> None:
        """Makes an unsealed object's pages writable. Raises Full if the kernel refuses."""
        new = self.table.is_new(offset, size)
        shut = self.table.enter(offset, size)
        if shut is not None and not self._protect(shut, True):
            self.table.open_all()  # the process has too many mappings: to open the whole segment takes none
            if not self.filled().protect(0, self.size, True):
                self.table.leave(offset, size, False)
                raise Full("cannot make %d bytes writable: the process has too many mappings" % size)
        if new:
            memory.populate(self.filled().address + offset, size, True)

    def leave(self, offset: int, size: int, shut: bool) -> None:
        """Notes that the object is sealed or aborted. With shut, writes to its pages fault from now on."""
        if self.mapping is None or not self.writable:
            return
        found = self.table.leave(offset, size, shut)
        if found is not None:
            self._protect(found, False)  # if that fails, the table calls a writable page read-only: no harm

    def _protect(self, found: pages.Range, stores: bool) -> bool:
        return self.filled().protect(found[0] * pages.BYTES, min((found[1] + 1) * pages.BYTES, self.size), stores)

    def close(self) -> None:
        """Closes the descriptor, and unmaps if there are no leases."""
        if self.leases == 0:
            for mapping in (self.mapping, self.shown):
                if mapping is not None:
                    mapping.close()
            self.mapping = self.shown = None
        self.file.close()


class Connection:
    """A live connection to the daemon. Belongs to the process that made it."""

    def __init__(self, path: Optional[str], background: bool = True,
                 lost: "Optional[Callable[[], None]]" = None) -> None:
        """path None: the first of sockets() where a daemon answers. background: a thread unmaps idle segments.

        lost is called, in any thread and under any lock, when a release did not reach the daemon because the connection
        is broken: the next one claims the reference, and releases it.
        """
        self.pid = process
        self._tidier = tidy.Tidier(self) if background else None
        self._arrived: Deque[Any] = collections.deque()  # what recvmsg returned; the reader's
        self._end = memory.End(partial(_dropped, self._tidier, self._arrived))
        self._sending = threading.Lock()
        self._turn_lock = threading.Lock()  # of _turn; to take it directly is faster
        self._turn = threading.Condition(self._turn_lock)
        self._unread = 0  # requests for which no thread waits
        self._attended = False  # a thread reads for them
        self._waiting = 0  # threads that wait for _turn to be notified
        self._reading: Any = None  # the request for which a thread reads
        self._pending: Dict[int, Pending] = {}
        self._next = 1
        self._out = bytearray()  # guarded by _sending
        self._in: Any = b""  # bytes or a bytearray; the reader's, as what follows
        self._halfway = False  # a message that arrived is being delivered
        self._fds: Deque[memory.Descriptor] = collections.deque()
        self._segments: Dict[int, _Segment] = {}
        self._holds: Set[Hold] = set()  # of leases that have not ended
        # Released, and the number of the next request then: a reply to that one, or to a later one, says that the
        # daemon has read the release. Guarded by _turn, as is what follows.
        self._unconfirmed: Deque["tuple[int, Hold]"] = collections.deque(maxlen=_MOST_UNCONFIRMED)
        self._unreleased: List[Hold] = []  # whose releases the daemon did not get
        self._lost = lost
        self._ended: Deque["tuple[int, Hold]"] = collections.deque()  # segment and reference of leases that ended
        self._popped: Deque[Hold] = collections.deque()  # of popped frames that are to be acknowledged
        self._swept = self._last_end = self._kept_little = time.monotonic()
        self._late = False  # the background thread knows that releases wait
        self._idle = False  # a segment became idle, which the background thread is not told yet
        self._dead: Optional[TendrilError] = None
        self.alive = True  # until there is an error in _dead
        self._sock, self.path = _find(path)
        try:
            self._hello()
        except BaseException:
            self.close()
            raise

    # Life -----------------------------------------------------------------

    def _hello(self) -> None:
        name = os.path.basename(sys.argv[0] if sys.argv and sys.argv[0] else "python")[:200] or "python"
        body = struct.pack("<IHH", wire.MAGIC, wire.LOWEST_VERSION, wire.VERSION)
        body += wire.str16(name.encode("utf-8", "replace").decode("utf-8"))
        deadline = time.monotonic() + _HELLO_SECONDS
        (self.version, self.daemon_version, self.incarnation, self.tenant, self.daemon_pid,
         self.capacity_bytes) = self.call(wire.HELLO, body, _decode_hello, deadline)
        if not wire.LOWEST_VERSION <= self.version <= wire.VERSION:
            raise Protocol("the daemon chose version %d; this client offered %d to %d" % (
                self.version, wire.LOWEST_VERSION, wire.VERSION))

    def may_wait(self) -> None:
        """Raises Busy where the caller would wait for a lock that its own thread holds, or for a reply that its own
        thread reads: see interrupts.
        """
        if (self._reading is not None or self._turn_lock.locked() or self._sending.locked()) and interrupts(self):
            raise _busy()

    def is_interrupted(self) -> bool:
        """Whether the caller interrupted a method of this connection in its own thread, which may have the lock that
        whoever connects again takes: see interrupts.
        """
        return self._turn_lock.locked() and interrupts(self)

    def close(self) -> None:
        """Ends the connection. Memory that is in use stays mapped until its last view is gone. Raises Busy."""
        if self.is_interrupted():
            raise _busy()
        self._flush_ended()
        self._fail(Disconnected("the connection was closed"))

    def abandon(self) -> None:
        """In a forked child: closes the inherited descriptors and makes new locks. The parent notices nothing."""
        self._sending, self._turn_lock = threading.Lock(), threading.Lock()
        self._turn, self._waiting = threading.Condition(self._turn_lock), 0
        self._reading, self._attended = None, False
        self._out = bytearray()  # another thread of the parent may have been sending the old one
        self.pid = process
        self._dead, self.alive = None, True
        self._fail(Disconnected("the connection belongs to the parent process"), hang_up=False)

    def _fail(self, error: TendrilError, hang_up: bool = True) -> None:
        with self._turn_lock:
            if self._dead is not None:
                return
            self._dead, self.alive = error, False
            self._unreleased += [hold for _, hold in self._unconfirmed]
            self._unconfirmed.clear()
            self._popped.clear()
            if hang_up:
                try:
                    self._sock.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass
            if self._reading is None:  # else the reader, woken by the hang-up, does this
                self._drop_received()
            for segment in self._segments.values():
                segment.close()
            for p in self._pending.values():
                if p.pushes is not None:  # nobody knows: it is claimed, as others are
                    p.pushes.pushing = 1
                    self._pushed(p.pushes, False)
            self._settle()
            for p in self._pending.values():
                p.error, was, p.done = p.error or error, p.done, True
                if p.then is not None and not was:
                    self._unread -= 1
                    p.then(p)
            self._pending.clear()
            self._turn.notify_all()
        if self._tidier is not None:
            self._tidier.end()
        self._say_lost()

    def _drop_received(self) -> None:
        """Called under _turn, on a broken connection that nobody reads: closes it, and what no frame took."""
        self._sock.close()
        while self._arrived:
            _own(self._arrived, self._fds)
        while self._fds:
            self._fds.popleft().close()

    def _say_lost(self) -> None:
        """On a broken connection: says that there is something to release."""
        if self._unreleased and self._lost is not None and self._dead is not None and self.pid == process:
            self._lost()

    # Requests -------------------------------------------------------------

    def call(self, kind: int, payload: bytes, decode: "Callable[[wire.Fields], _T]", deadline: Optional[float] = None,
             meanwhile: "Optional[Callable[[], None]]" = None, pushes: Optional[Hold] = None) -> _T:
        """Sends a request and returns what decode makes of its reply. Raises the error of the reply.

        Whichever thread reads calls decode, under _turn and in the order of the replies. decode must not block.
        meanwhile is called between sending and waiting. pushes: the reference that the stream has if this succeeds,
        also if the caller is interrupted.
        """
        if self._reading is not None or self._turn_lock.locked() or self._sending.locked():
            self.may_wait()
        p, number = Pending(kind, decode), 0
        unsent = [b""]  # the request, until it is among what is sent
        whole = False
        if self._halfway and self._reading is None:
            self._end_torn()
        try:
            with self._turn_lock:
                if self._dead is not None:
                    self._check()
                number = self._next
                self._next = number + 1
                self._pending[number] = p
                if pushes is not None:
                    pushes.pushing += 1
                    p.pushes = pushes
            if len(payload) > wire.MAX_PAYLOAD:
                wire.frame(kind, number, payload)  # raises Protocol
            unsent[0] = _pack_header(len(payload), kind, 0, number) + payload
            whole = self._send(unsent)
            if meanwhile is not None:
                meanwhile()
            self._await(p, deadline)
        except BaseException:
            with self._turn_lock:
                # The reply is still read and decoded. Nobody takes its value, so its lease ends.
                p.done = True
                if unsent and self._pending.pop(number, None) is not None and p.pushes is not None:
                    self._pushed(p.pushes, False)  # nobody answers what was not sent
            raise
        finally:
            if self._ended and not self._late:
                self._flush_ended()
        if self._tidier is not None and not self._tidier.started:
            self._begin_to_tidy()
        if p.error is not None:
            p.fail(whole)
        value: _T = p.value
        return value

    def call_many(self, kind: int, payloads: List[bytes], decode: Decode) -> List[Any]:
        """Sends requests in one write. Returns for each what decode makes of its reply, or the reply's error."""
        self.may_wait()
        calls, raw = [Pending(kind, decode) for _ in payloads], b""
        unsent = [b""]  # as in call
        try:
            with self._turn_lock:
                self._check()
                for p, payload in zip(calls, payloads):
                    raw += wire.frame(kind, self._next, payload)
                    self._pending[self._next] = p
                    self._next += 1
            unsent[0] = raw
            self._send(unsent)
            for p in calls:
                self._await(p, None)
        except BaseException:
            with self._turn_lock:
                for p in calls:
                    p.done = True
                for number in [n for n, p in self._pending.items() if p in calls] if unsent else []:
                    del self._pending[number]  # nobody answers what was not sent
            raise
        finally:
            self._flush_ended()
        self._begin_to_tidy()
        return [p.value if p.error is None else p.error for p in calls]

    def begin(self, kind: int, payload: bytes, decode: Decode, then: "Callable[[Pending], None]") -> Pending:
        """Sends a request for which no thread waits. then is called once, in any thread, when its reply has come."""
        self.may_wait()
        p = Pending(kind, decode)
        p.then = then
        number, begins = 0, False
        unsent = [b""]  # as in call
        try:
            with self._turn_lock:
                self._check()
                number, self._next = self._next, self._next + 1
                self._pending[number] = p
                self._unread += 1
                begins, self._attended = not self._attended, True
            unsent[0] = wire.frame(kind, number, payload)
            self._send(unsent)
            self._begin_to_tidy()
            if begins:
                threading.Thread(target=self._attend, name="tendril reader", daemon=True).start()
        except BaseException:
            with self._turn_lock:
                if self._pending.get(number) is p and not p.done:
                    p.done, self._unread = True, self._unread - 1
                    if unsent:
                        del self._pending[number]
            if begins:  # perhaps a second one: each ends once there is nothing to read for
                threading.Thread(target=self._attend, name="tendril reader", daemon=True).start()
            raise
        return p

    def unwanted(self, decode: Decode) -> List[Pending]:
        """The requests with this decode whose replies have not come, and are taken by nobody."""
        self.may_wait()
        with self._turn_lock:
            return [p for p in self._pending.values() if p.done and p.decode == decode]

    def outlast(self, requests: List[Pending]) -> None:
        """Waits for the replies of unwanted requests, and releases what they bring before anything is sent."""
        with self._turn_lock:
            for p in requests:
                p.done, p.then = p not in self._pending.values(), None
        for p in requests:
            self._await(p, None)
            p.value = None
        with self._sending:
            while not self._take_ended():
                time.sleep(0)
            self._push(_SEND)

    def forgo(self, p: Pending) -> None:
        """Says that nobody takes the reply any more. It is still read and decoded; what it holds is released."""
        with self._turn_lock:
            if not p.done:
                p.done, self._unread = True, self._unread - 1
        p.value = None

    def _attend(self) -> None:
        """A thread that reads replies as long as there are requests for which no thread waits."""
        while True:
            with self._turn_lock:
                p = None
                if self._unread:
                    p = next((q for q in self._pending.values() if q.then is not None and not q.done), None)
                if p is None:
                    self._attended = False
                    return
            self._await(p, None)

    def stream(self, kind: int, payload: bytes, each: Callable[[bytes], None]) -> Pending:
        """Sends a request whose reply goes on until the connection ends. pump calls each with its frames."""
        self.may_wait()
        p = Pending(kind, wire.nothing)
        p.each = each
        with self._turn_lock:
            self._check()
            number, self._next = self._next, self._next + 1
            self._pending[number] = p
        self._send([wire.frame(kind, number, payload)])
        return p

    def pump(self, p: Pending, deadline: Optional[float]) -> bool:
        """Receives once, and delivers the frames of p's reply. False: nothing came in time. Raises what ended it."""
        if not p.done and not self._ready(deadline):
            return False
        try:
            if not p.done:
                self._receive(None)
                while self._deliver():
                    pass
        except Protocol as e:
            self._fail(e)
        except OSError as e:
            self._fail(e if isinstance(e, Disconnected) else _hung_up("lost the daemon at %s: %s" % (self.path, e)))
        if p.done:
            raise p.error or Disconnected("the daemon ended the stream")
        return True

    def _ready(self, deadline: Optional[float]) -> bool:
        if self._dead is not None:
            return True
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        return bool(poll.poll(None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000))

    def fileno(self) -> int:
        """The socket's descriptor, for poll."""
        return self._sock.fileno()

    def _check(self) -> None:
        if self._dead is not None:
            raise _unsent(self._dead)

    def _send(self, raw: List[bytes]) -> bool:
        """Sends the one entry of raw, after the releases that wait. False: the daemon does not get all of it.

        raw is empty from when the entry is among what is sent, if not by this call, then by the next.
        """
        with self._sending:
            if self._ended or self._popped:
                self._take_ended()
            _run(map(self._out.extend, map(raw.pop, _FIRST)))
            return self._push(_SEND)

    def _push(self, flags: "tuple[int]") -> bool:
        """Writes _out. What a full socket does not take stays there. False: the socket failed."""
        out = self._out
        while out:
            try:  # del out[:send(out, flags)]
                _run(map(out.__delitem__, map(slice, map(self._sock.send, (out,), flags))))
            except (BlockingIOError, InterruptedError):
                return True
            except OSError as e:
                self._out.clear()
                with self._turn_lock:
                    # EPIPE and ECONNRESET: the daemon may have sent its reason before it hung up. A reader sees it.
                    read = bool(self._pending) and e.errno in (32, 104)
                if not read:
                    self._fail(Disconnected("cannot write to the daemon at %s: %s" % (self.path, e)))
                return False
        return True

    def _await(self, p: Pending, deadline: Optional[float]) -> None:
        while True:
            try:
                with self._turn_lock:
                    while not p.done and self._reading is not None:
                        self._waiting += 1
                        try:
                            self._turn.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
                        finally:
                            self._waiting -= 1
                    if p.done:
                        return
                    self._reading = p
                self._read_until(p, deadline)
            finally:
                if self._reading is p:  # else the reply came, and _read_until ended the reading with it
                    with self._turn_lock:
                        self._reading = None
                        if self._dead is not None:
                            self._drop_received()
                        if self._waiting:
                            self._turn.notify_all()
            if p.done:
                return

    # Reading --------------------------------------------------------------

    def _read_until(self, p: Pending, deadline: Optional[float]) -> None:
        """Reads until p is done. Most often that takes one message with one whole frame, without descriptors: this is
        delivered where it lies, and ends the reading with the same turn of the lock.
        """
        try:
            if self._halfway:
                raise self._torn()
            if deadline is None and not self._in:
                if not self._arrived:
                    self._arrived.extend(map(self._sock.recvmsg, *_RECEIVE))
                self._halfway = True
                raw, anc, flags, _ = self._arrived[0]
                if anc:
                    _own(self._arrived, self._fds)
                else:
                    self._arrived.popleft()
                delivered = False
                if len(raw) >= _HEADER_BYTES and not anc and not flags & _CTRUNC:
                    size, kind, marks, number = _unpack_header(raw)
                    if not marks and len(raw) == _HEADER_BYTES + size:
                        with self._turn_lock:
                            found = self._pending.get(number)
                            if found is not None and kind == found.kind | wire.REPLY and found.pages is None:
                                delivered = True
                                self._decode(number, found, wire.Fields(raw, None, _HEADER_BYTES))
                                if found is p and self._dead is None:
                                    self._halfway, self._reading = False, None  # from here on they are another's
                if not delivered:
                    self._received(raw, flags)
                if self._reading is p:
                    self._halfway = False
                if self._ended and not self._late:
                    self._flush_ended()
            while not p.done:
                while not p.done and self._deliver():
                    pass
                if not p.done:
                    self._receive(deadline)
        except Protocol as e:
            self._fail(e)
        except OSError as e:
            if isinstance(e, Disconnected):
                self._fail(e)
            else:
                self._fail(_hung_up("lost the daemon at %s: %s" % (self.path, e)))
        except BaseException:
            if self._halfway and self._reading is p:
                self._flush_ended()  # acknowledges the frames that did come
                self._fail(self._torn())
            raise

    def _torn(self) -> Disconnected:
        return Disconnected("a reply of the daemon at %s was interrupted" % self.path)

    def _end_torn(self) -> None:
        """Ends a connection whose reply was interrupted: a second interrupt kept the first from it."""
        with self._turn_lock:
            torn = self._halfway and self._reading is None
        if torn:
            self._fail(self._torn())

    def _receive(self, deadline: Optional[float]) -> None:
        if deadline is not None and not self._arrived:
            left = deadline - time.monotonic()
            poll = select.poll()
            poll.register(self._sock, select.POLLIN)
            if left <= 0 or not poll.poll(left * 1000):
                raise Disconnected("no answer from %s within %g s: is it a Tendril daemon?" % (
                    self.path, _HELLO_SECONDS))
        if not self._arrived:
            self._arrived.extend(map(self._sock.recvmsg, *_RECEIVE))
        self._halfway = True
        raw, _, flags, _ = self._arrived[0]
        _own(self._arrived, self._fds)
        self._received(raw, flags)
        self._halfway = False

    def _received(self, raw: bytes, flags: int) -> None:
        """Takes the bytes of what recvmsg returned."""
        if flags & _CTRUNC or len(self._fds) > _MAX_FDS:
            raise Protocol("the daemon sent more descriptors than frames may carry")
        if not raw:
            raise _hung_up("the daemon at %s closed the connection" % self.path)
        if self._in:
            self._in = bytearray(self._in) if type(self._in) is bytes else self._in
            self._in += raw
        else:
            self._in = raw  # most often one whole frame, which is then read in place

    def _deliver(self) -> bool:
        """Handles one frame. False: no whole frame has arrived."""
        if len(self._in) < wire.HEADER.size:
            return False
        size, kind, flags, number = wire.HEADER.unpack_from(self._in)
        if size > wire.MAX_PAYLOAD:
            raise Protocol("frame of %d bytes exceeds %d" % (size, wire.MAX_PAYLOAD))
        if flags & ~(wire.FLAG_FD | wire.FLAG_FD2 | wire.FLAG_MORE):
            raise Protocol("frame with unknown flags %#x" % flags)
        end = wire.HEADER.size + size
        if len(self._in) < end:
            return False
        self._halfway = True
        if len(self._in) == end:
            payload, self._in = bytes(self._in[wire.HEADER.size:]), b""
        else:
            if type(self._in) is bytes:
                self._in = bytearray(self._in)
            payload = bytes(memoryview(self._in)[wire.HEADER.size:end])
            del self._in[:end]
        fds = [self._take_fd() for _ in range((flags & wire.FLAG_FD) + (flags & wire.FLAG_FD2))] if flags & 3 else []
        try:
            self._dispatch(kind, number, payload, flags, fds)
        finally:
            for fd in fds:  # no segment took these
                fd.close()
        self._halfway = False
        if self._ended and not self._late:
            self._flush_ended()
        return True

    def _take_fd(self) -> memory.Descriptor:
        if not self._fds:
            raise Protocol("a frame announced a descriptor but carried none")
        memory.untrack(self._fds[0])
        return self._fds.popleft()

    def _dispatch(self, kind: int, number: int, payload: bytes, flags: int,
                  fds: List[memory.Descriptor]) -> None:
        with self._turn_lock:
            p = self._pending.get(number)
            if kind == wire.ERROR:
                code, text = wire.error_of(payload)
                error = from_code(code, text)
                if p is None:
                    kind_of = Protocol if isinstance(error, Protocol) else Disconnected
                    raise kind_of("the daemon ended the connection: %s" % text)
                self._finish(number, p, None, error)
                return
            if p is None or kind != p.kind | wire.REPLY:
                raise Protocol("unexpected reply %#x to request %d" % (kind, number))
            if p.each is not None and flags & wire.FLAG_MORE:
                p.each(payload)
                return
            if p.pages is not None or flags & wire.FLAG_MORE:
                p.size += len(payload)
                if p.size > _MAX_REPLY:
                    raise Protocol("reply of more than %d bytes" % _MAX_REPLY)
                p.pages = p.pages or []
                p.pages.append(payload)
                if flags & wire.FLAG_MORE:
                    return
                payload = b"".join(p.pages)
            self._decode(number, p, wire.Fields(payload, fds))

    def _decode(self, number: int, p: Pending, fields: wire.Fields) -> None:
        """Called under _turn: ends a request whose whole reply has come."""
        value = error = None
        try:
            value = p.decode(fields)
            fields.end()
        except Protocol:
            raise
        except TendrilError as e:
            value, error = None, e
        self._finish(number, p, value, error)

    def _finish(self, number: int, p: Pending, value: Any, error: Optional[BaseException]) -> None:
        del self._pending[number]
        if p.pushes is not None:
            self._pushed(p.pushes, error is None)
        unconfirmed = self._unconfirmed
        while unconfirmed and unconfirmed[0][0] <= number:
            unconfirmed.popleft()
        if not p.done:  # else its caller was interrupted, and the value is dropped here
            p.value, p.error, p.done = value, error, True
            if p.then is not None:
                self._unread -= 1
                p.then(p)
        if self._waiting:
            self._turn.notify_all()

    def _pushed(self, hold: Hold, happened: bool) -> None:
        """Called under _turn: the reply to a push has come."""
        hold.pushing -= 1
        if happened:
            hold.ends_with = None  # the reference is the stream's, or by now a reader's, perhaps here
        if hold.left and not hold.pushing:
            hold.left = False
            self._ended.append((0, hold))

    # Segments -------------------------------------------------------------

    def attach(self, fields: wire.Fields, ref: "tuple[int, int, int]", size: int, hold: Hold, writable: bool) -> Any:
        """Called by a decode: a lease of size bytes at ref, a wire.Ref or its fields. Its end releases hold.

        Raises Protocol, or Full.
        """
        number, whole, offset = ref
        segment = self._adopt(fields, ref, writable) if fields.fds else self._segments.get(number)
        if size == 0:
            part: Any = memory.nothing(self.at_end(0, hold))
            self._holds.add(hold)
            return part
        if offset + size > whole or offset % 64:
            raise Protocol("object of %d bytes at %d does not lie in a segment of %d" % (size, offset, whole))
        if segment is None:
            raise Protocol("segment %d came without a descriptor" % number)
        if segment.size != whole:
            raise Protocol("segment %d has %d bytes, not %d" % (number, segment.size, whole))
        if writable and not segment.writable:
            raise Protocol("this connection may not write to segment %d" % number)
        mapping = segment.mapping if not segment.writable else None
        if mapping is None:
            try:
                mapping = segment.filled() if writable else segment.read()
                if writable:
                    segment.enter(offset, size)
                    hold.filling = number, offset, size
            except Full:
                self._ended.append((0, hold))
                raise
        segment.leases += 1
        part = mapping.lease(offset, size, self.at_end(number, hold))
        self._holds.add(hold)  # behind the lease, which takes it out: none without a lease is claimed
        return part

    def freeze(self, number: int) -> None:
        """Unmaps an object's own segment. From now on it is mapped read-only. Raises Invalid if it has leases."""
        self.may_wait()
        with self._sending:
            while not self._take_ended():
                time.sleep(0)
            with self._turn_lock:
                segment = self._segments.get(number)
                if segment is None or segment.leases or not segment.writable:
                    raise Invalid("views of the object are still in use, or it has no segment of its own")
                if segment.mapping is not None:
                    segment.mapping.close()
                    segment.mapping = None
                segment.writable = False

    def sealed_face(self, ref: wire.Ref, lease: Any) -> Any:
        """An object's bytes after its seal, read-only. It keeps lease, through which the object was filled."""
        if len(lease) == 0:
            return lease
        with self._turn_lock:
            self._check()
            return self._segments[ref.segment].read().other_face(ref.offset, lease)

    def shut(self, hold: Hold, tight: bool) -> None:
        """Ends the filling of hold's object. With tight, writes to its pages fault from now on."""
        self.may_wait()
        with self._turn_lock:
            self._leave(hold, tight)

    def reopen(self, hold: Hold, ref: wire.Ref, size: int) -> None:
        """Makes the object's pages writable again, after a seal that was refused."""
        with self._turn_lock:
            segment = self._segments.get(ref.segment)
            if self._dead is None and segment is not None and size and hold.filling is None:
                segment.enter(ref.offset, size)
                hold.filling = ref.segment, ref.offset, size

    def _leave(self, hold: Hold, tight: bool) -> None:
        """Called under _turn."""
        if hold.filling is None:
            return
        (number, offset, size), hold.filling = hold.filling, None
        segment = self._segments.get(number)
        if segment is not None:
            segment.leave(offset, size, tight)

    def seal_strictly(self, ref: wire.Ref, seal: Callable[[], None]) -> None:
        """Calls seal while the object's own segment is not mapped, then maps it read-only in the same place.

        The kernel refuses F_SEAL_WRITE while there is a writable mapping, and counts some read-only ones as such. If
        the seal fails, the segment is mapped as before.
        """
        with self._turn_lock:
            self._check()
            segment = self._segments[ref.segment]
            mapping = segment.filled()
            files: List[memory.Descriptor] = []  # another one, since the segment's may be closed meanwhile
            _run(map(files.append, map(memory.Descriptor, map(os.dup, (segment.file.fileno(),)))))
        sealed, file = False, files.pop()
        try:
            with self._turn_lock:
                mapping.empty()
            seal()
            sealed = True
        finally:
            with self._turn_lock:
                try:
                    mapping.map_again(file.fileno(), not sealed)
                except Full:
                    mapping.map_again(file.fileno(), False)  # it was sealed, but the reply did not arrive
                segment.writable = mapping.writable
            file.close()

    def drop(self, hold: Hold) -> None:
        """Releases a reference that has no lease."""
        self._ended.append((0, hold))
        self._flush_ended()

    def _adopt(self, fields: wire.Fields, ref: "tuple[int, int, int]", writable: bool) -> _Segment:
        """The segment of ref. Takes the descriptor that came with this frame."""
        number, whole, _ = ref
        known, file = self._segments.get(number), fields.fds.pop()
        if known is not None:
            file.close()
            return known
        segment = _Segment(number, file, whole, writable)
        self._segments[number] = segment
        if writable:
            # Now, because the kernel refuses a writable mapping once the first object in it is sealed.
            try:
                segment.filled()
            except TendrilError:
                segment.close()
                del self._segments[number]
                raise
        return segment

    def claim(self, before: "Connection") -> None:
        """Claims the references of the lost connection before this one. An object that the daemon lacks is gone."""
        with before._turn_lock:
            holds = [h for h in before._holds if h.ends_with == wire.RELEASE] + before._unreleased
            before._unreleased = []
        for at in range(0, len(holds), wire.MAX_CLAIMS):
            some = holds[at:at + wire.MAX_CLAIMS]
            # Segments are not claimed: later gets bring their descriptors again.
            body = struct.pack("<H", len(some)) + b"".join(h.object_id + bytes(8) for h in some)
            verdicts = self.call(wire.RECLAIM, body, _decode_verdicts)
            if len(verdicts) != len(some):
                raise Protocol("the daemon answered %d of %d claims" % (len(verdicts), len(some)))
            with before._turn_lock:
                for hold, verdict in zip(some, verdicts):
                    if not verdict:
                        hold.gone = True
                    elif hold in before._holds:
                        hold.claimed_by = self
                        self._holds.add(hold)
                    else:  # released meanwhile
                        self._ended.append((0, hold))
        before._flush_ended()
        self._flush_ended()

    def at_end(self, segment: int, hold: Hold) -> Callable[[], None]:
        """What ends this process's use of hold: for when_gone and leases. segment 0: there is none."""
        return partial(self._left, iter(((segment, hold),)))

    def _left(self, ended: "Iterator[tuple[int, Hold]]") -> None:
        """ended has one element; none when this is called again, after an interrupt."""
        self._ended.extend(ended)
        now = time.monotonic()
        soon, self._last_end = now - self._last_end < _LATE_SECONDS, now
        if not soon or not (self._late and self.alive and len(self._ended) < _LATE_MOST or self._may_be_late()):
            self._flush_ended()

    def _may_be_late(self) -> bool:
        """Whether a release, soon after the last, waits for the next request. If none comes, the background thread
        sends it.
        """
        if self._tidier is None or not self._tidier.started or len(self._ended) >= _LATE_MOST:
            return False
        if not self._late:
            self._be_late(self._tidier)
        return self._dead is None

    def _be_late(self, tidier: tidy.Tidier) -> None:
        """Has the background thread send what waits, if no request does. One that was not told is not relied on."""
        self._late = True
        try:
            tidier.hurry()
        except BaseException:
            self._late = False
            raise

    def popped(self, hold: Hold) -> None:
        """Before a pop returns: its frame is acknowledged by what is sent next, or by the background thread.
        The caller then makes RELEASE what hold ends with, and returns: no interrupt comes in between.
        Raises Disconnected if the daemon cannot hear of it: it gives the frame to another reader.
        """
        self._check()
        if self.version >= wire.ACKS_VERSION:
            self._popped.append(hold)
            if not self._late and self._tidier is not None and self._tidier.started:
                self._be_late(self._tidier)

    def flush_late(self) -> None:
        """Sends the releases that wait for a request."""
        self._late = False
        self._flush_ended()

    def _flush_ended(self) -> None:
        """Sends the releases of ended leases. Never waits: who holds a lock now sends them afterwards."""
        if self.pid != process:
            return
        once = bool(self._popped or self._out)  # an interrupt may have left something in _out
        while (self._ended or once) and self._dead is None:
            once = False
            taken: List[bool] = []
            try:
                _run(map(taken.append, map(self._sending.acquire, _NOW)))
                if not taken[0] or not self._take_ended():
                    return
                self._push(_SEND_NOW)
            finally:
                if True in taken:
                    self._sending.release()
        if self._ended:
            taken = []
            try:
                _run(map(taken.append, map(self._turn_lock.acquire, _NOW)))
                if taken[0]:
                    self._settle()
            finally:
                if True in taken:
                    self._turn_lock.release()
            if taken[0]:
                self._say_lost()

    def _take_ended(self) -> bool:
        """Called under _sending: appends to _out what acknowledges popped frames, then the releases of ended leases.
        A release does not acknowledge by itself: this process may hold its object otherwise. False: _turn is taken.
        """
        if not self._ended and not self._popped:
            return True
        taken: List[bool] = []
        try:
            _run(map(taken.append, map(self._turn_lock.acquire, _NOW)))
            if not taken[0]:
                return False
            if self._popped:
                self._acknowledge()
            self._settle()
            if self._tidier is None or self._last_end - self._kept_little > _KEEP_LITTLE_SECONDS:
                self._kept_little = self._last_end
                self._keep_little()
        finally:
            if True in taken:
                self._turn_lock.release()
        return True

    def _acknowledge(self) -> None:
        """Called under both locks: appends to _out what acknowledges popped frames. No interrupt divides a frame's."""
        for _ in range(len(self._popped)):
            hold, message = self._popped[0], b""
            if hold.ends_with == wire.STREAM_UNPOP:
                if hold in self._holds:
                    self._popped.rotate(-1)  # its pop has not returned
                    continue
            elif hold.body is not None:
                message = (wire.frame(wire.FRAME_ACK, 0, hold.body) if self.version >= wire.FRAME_ACKS_VERSION
                           else wire.frame(wire.STREAM_ACK, 0, hold.body[8:]))
            self._out += message
            self._popped.popleft()

    def has_idle(self) -> bool:
        """Whether a segment is idle."""
        return self._dead is None and any(s.leases == 0 for s in list(self._segments.values()))

    def _begin_to_tidy(self) -> None:
        """Called without locks: starts the background thread if it has something to do."""
        if self._tidier is not None and not self._tidier.started and self._segments and self._dead is None:
            self._tidier.start()

    def rest(self) -> bool:
        """Before a fork: ends the background thread. True: there was one, and the parent calls begin_again."""
        rests = self._tidier is not None and self._tidier.rest()
        if rests:
            self.flush_late()
        return rests

    def begin_again(self) -> None:
        """In the parent, after a fork: starts the background thread again."""
        self._begin_to_tidy()

    def _keep_little(self) -> None:
        """Called under both locks: forgets idle segments of other writers beyond _KEEP_BYTES."""
        if self._pending:
            return
        idle = [s for s in self._segments.values() if s.leases == 0 and not s.writable]
        if self._tidier is None:
            for s in idle:
                if s.size > _ALONE_KEEP_BYTES:
                    self._forget(s)
            return
        too_much = sum(s.size for s in idle) - _KEEP_BYTES
        if too_much > 0:
            for s in sorted(idle, key=lambda s: s.idle_since):
                if too_much > 0:
                    self._forget(s)
                    too_much -= s.size

    def tidy(self) -> bool:
        """Forgets idle segments that the daemon no longer needs, or that were idle for long. False: none is left."""
        try:
            self.sweep(now=True)
        except TendrilError:
            return False
        with self._sending:
            self._take_ended()
            with self._turn_lock:
                long_ago = time.monotonic() - _KEEP_SECONDS
                if not self._pending and self._dead is None:
                    idle = [s for s in self._segments.values() if s.leases == 0 and not s.writable]
                    for s in [s for s in idle if s.idle_since < long_ago]:
                        self._forget(s)
                left = self.has_idle()
            self._push(_SEND_NOW)
        self._flush_ended()
        return left

    def _settle(self) -> None:
        """Called under _turn, and under _sending while the connection lives: takes ended leases off their segments, and
        appends to _out what releases their references.

        An interrupt comes before all that changes with a lease, or behind it: from "dead" to popleft nothing is called.
        """
        while self._ended:
            number, hold = self._ended[0]
            segment, ends_with, claimer = self._segments.get(number), hold.ends_with, hold.claimed_by
            if hold.filling is not None:
                self._leave(hold, False)
            self._holds.discard(hold)
            idle = segment is not None and segment.leases == 1
            if idle and segment is not None:
                segment.idle_since = time.monotonic()
            asked, message = None, b""
            if ends_with is not None and ends_with != wire.RELEASE and not hold.pushing:
                if ends_with not in _WITHOUT_REPLY:
                    asked = Pending(ends_with, wire.nothing)
                    asked.done = True  # nobody waits for its reply
                message = wire.frame(ends_with, self._next if asked is not None else 0, _end_payload(hold))
            dead = self._dead is not None
            if dead and claimer is not None and claimer is not self:
                claimer._ended += ((0, hold),)
            elif dead and ends_with == wire.RELEASE and not hold.gone:
                self._unreleased += (hold,)
            elif dead:
                pass
            elif hold.pushing:
                hold.left = True  # the reply says whose the reference is
            elif ends_with == wire.RELEASE:
                self._out += _RELEASE_HEAD + hold.object_id
                self._unconfirmed += ((self._next, hold),)
            else:
                self._out += message
                if asked is not None:
                    self._pending[self._next] = asked
                    self._next += 1
            if segment is not None:
                segment.leases -= 1
            self._idle = self._idle or idle
            self._ended.popleft()
            if dead and idle and segment is not None:
                segment.close()
            if dead and claimer is not None and claimer is not self:
                claimer._flush_ended()
        if self._idle and self._dead is None and self._tidier is not None and self._tidier.asleep:
            self._tidier.wake()
        self._idle = False

    def _forget(self, segment: _Segment) -> None:
        """Called under both locks, while no request is in progress: unmaps an idle segment and tells the daemon."""
        del self._segments[segment.number]
        segment.close()
        self._out += wire.frame(wire.FORGET, 0, segment.number.to_bytes(8, "little"))

    def sweep(self, now: bool = False) -> None:
        """Forgets idle segments that the daemon no longer needs. At most once a second, unless now is set."""
        if not now and (time.monotonic() - self._swept < _SWEEP_SECONDS
                        or all(s.leases for s in list(self._segments.values()))):
            return
        self._swept = time.monotonic()
        numbers = self.call(wire.SWEEP, b"", _decode_sweep)
        with self._sending:
            self._take_ended()
            with self._turn_lock:
                if self._pending:
                    return
                for number in numbers:
                    segment = self._segments.get(number)
                    if segment is not None and segment.leases == 0:
                        self._forget(segment)
            self._push(_SEND)
        self._flush_ended()


def _busy() -> Busy:
    return Busy("a __del__ method or a signal handler that interrupts a call to this connection cannot call, too")


def _own(arrived: Deque[Any], fds: "Deque[memory.Descriptor]") -> None:
    """Takes the first of what arrived, whose descriptors get their owners with the same step."""
    steps = [partial(fds.extend, map(memory.Descriptor, _descriptors(data)))
             for level, kind, data in arrived[0][1] if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS]
    _run(map(_step, steps + [partial(arrived.popleft)]))


def _dropped(tidier: Optional[tidy.Tidier], arrived: Deque[Any]) -> None:
    """The end of a connection, perhaps of one that nobody closed. What else it has goes with its owners."""
    if tidier is not None:
        tidier.end()
    while arrived:
        _own(arrived, collections.deque())


def opened(path: Optional[str], background: bool = True, lost: "Optional[Callable[[], None]]" = None) -> Connection:
    """A Connection. If the daemon ends it before its first answer, without a reason, it is made once more: the daemon
    was taken over then, and nothing had been asked of it. A refusal comes with its reason, and counts.
    """
    try:
        return Connection(path, background, lost)
    except Disconnected as e:
        if not e.hung_up:
            raise
    return Connection(path, background, lost)


def _hung_up(text: str) -> Disconnected:
    error = Disconnected(text)
    error.hung_up = True
    return error


def _unsent(why: BaseException) -> Disconnected:
    error = Disconnected(str(why))
    error.unsent, error.hung_up = True, isinstance(why, Disconnected) and why.hung_up
    return error


def _find(path: Optional[str]) -> "tuple[socket.socket, str]":
    """Connects to path, or to the first of sockets() that answers. Returns the socket and its path."""
    tried: List[str] = []
    refused: List[TendrilError] = []
    for at in [path] if path else sockets():
        try:
            return _dial(at), at
        except Permission as e:
            refused.append(e)
            tried.append("%s (%s)" % (at, e))
        except (OSError, ValueError) as e:
            tried.append("%s (%s)" % (at, e.strerror if isinstance(e, OSError) and e.strerror else e))
            if isinstance(e, PermissionError):
                refused.append(Disconnected(""))
    if path and ("://" in path or ":" in path and "/" not in path) and not os.path.exists(path):
        raise Unsupported(
            "%s: Python speaks with the daemon of its own machine, whose memory it maps: have that one join the "
            "other's cluster, or use the command, as in tendril --server %s get NAME" % (path, path))
    advice = "ask who runs the daemon there to let you in" if refused else "start one with: tendril daemon"
    text = "no daemon answers at %s: %s" % (" or ".join(tried), advice)
    raise (Permission(text) if any(isinstance(e, Permission) for e in refused) else Disconnected(text)) from None


class _Socket(socket.socket):
    """A socket that is closed with its connection, if nobody closed that. The socket's own end would warn."""

    __del__ = _socket.socket.close  # see memory.Descriptor


def _dial(path: str) -> socket.socket:
    sock = _Socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    memory.untrack(sock)
    try:
        sock.connect(path)
        _check_owner(sock, path)
    except BaseException:
        sock.close()
        raise
    return sock


def _check_owner(sock: socket.socket, path: str) -> None:
    """Accepts a socket under /tmp only from this user or root, because anybody can make one there."""
    if not path.startswith("/tmp/"):
        return
    _, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    if uid not in (0, os.getuid()):
        raise Permission("the daemon at %s belongs to user %d" % (path, uid))


def _end_payload(hold: Hold) -> bytes:
    return hold.body if hold.ends_with == wire.STREAM_UNPOP and hold.body is not None else hold.object_id


def _decode_hello(f: wire.Fields) -> Any:
    return f.u16(), f.str16(), f.id(), f.str16(), f.u32(), f.u64()


def _decode_verdicts(f: wire.Fields) -> bytes:
    verdicts = f.take(f.u16())
    if any(v > 2 for v in verdicts):
        raise Protocol("unknown verdict %d on a claim" % max(verdicts))
    return verdicts


def _decode_sweep(f: wire.Fields) -> List[int]:
    return [f.u64() for _ in range(f.u32())]

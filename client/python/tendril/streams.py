"""Streams: bounded channels of sealed objects between processes of one tenant."""

from __future__ import annotations

import struct
from functools import partial
from typing import TYPE_CHECKING, Any, Dict, Iterator, Optional, Sequence, Tuple

from . import memory, wire
from .connection import Connection, Hold
from .data import meta_of, source_of
from .errors import Ended, Invalid, Sealed, Unsupported
from .objects import Draft, Object

if TYPE_CHECKING:
    from .arrays import Filling
    from .client import Client

_READS, _WRITES, _NEW, _EXISTING, _DROP_OLDEST, _KEEP = 1, 2, 4, 8, 16, 32
_MAX_FRAMES = 65536


class Frame(Object):
    """An object popped from a stream. number counts from 1 in the order of the pushes.

    Missing numbers were dropped, or popped by others.
    """

    number = 0


class _End:
    """What writers and readers have in common: the connection on which the stream is open, and its number there.

    If that connection breaks, calls raise Disconnected: close this end and open the stream again. An end that is
    dropped is closed.
    """

    def __init__(self, client: "Client", live: Connection, name: str, number: int) -> None:
        self._client, self._live, self.name, self._number = client, live, name, number
        self._closed = False
        self._hold = Hold(self._body(), wire.STREAM_CLOSE)
        self._end = memory.End(live.at_end(0, self._hold))

    def _body(self) -> bytes:
        if self._closed:
            raise Invalid("this end of stream %r is closed" % self.name)
        return self._number.to_bytes(8, "little")

    def close(self) -> None:
        """Closes this end. The stream goes on for others. Popped frames stay. A second call does nothing."""
        if not self._closed and self._live.alive:
            self._await_late()
            self._live.call(wire.STREAM_CLOSE, self._body(), wire.nothing)
        self._hold.ends_with = None
        self._closed = True

    def _await_late(self) -> None:
        """Before the close: undoes what nobody waits for any more."""


class Writer(_End):
    """Pushes frames into a stream. For one thread at a time. The end of a with block ends the stream; an exception
    aborts it.

    If the process of the last writer ends without end() or close(), readers get the waiting frames, then Aborted.
    """

    def create(self, size: int, *, meta: Optional[Dict[str, Any]] = None) -> Draft:
        """Makes an object of size bytes for the next frame: fill its data, then push it. Errors as Client.create's."""
        return self._client.create(size, meta=meta)

    def empty(self, shape: "int | Sequence[int]", dtype: Any = "u1", *, order: str = "C") -> "Filling":
        """Makes an array for the next frame: fill it, then push it. Errors as Client.create's."""
        return self._client.empty(shape, dtype, order=order)

    def push(self, frame: Any, timeout: Optional[float] = None, *, meta: Optional[Dict[str, Any]] = None) -> None:
        """Puts a frame into the stream.

        frame: what create or empty returned, which is sealed; an Object, whose reference goes with it; or bytes, a
        buffer or an array, which are copied. Afterwards the frame and arrays over it must not be used: a later frame
        gets the memory, which is read-only until then.
        timeout: for how many seconds to wait while the stream is full; None: without limit. After Timeout the frame
        may be pushed again, unchanged.

        Raises Timeout, Ended, Aborted (the stream was removed), Disconnected; Sealed if the frame was pushed already.
        """
        whole, made = self._whole(frame, meta)
        try:
            self._push(whole, timeout)
        except BaseException:
            if made is not None:
                made.abort()
            raise
        if whole is not frame and made is None:
            frame.close()

    async def apush(self, frame: Any, timeout: Optional[float] = None, *,
                    meta: Optional[Dict[str, Any]] = None) -> None:
        """push(), for asyncio, in the loop's executor. A task that is cancelled may have pushed the frame."""
        from . import aio
        whole, made = await aio.apart(self._whole, frame, meta)
        try:
            await aio.push(lambda wait: self._push(whole, wait), timeout)
        except BaseException:
            if made is not None:
                made.abort()
            raise
        if whole is not frame and made is None:
            frame.close()

    def _whole(self, frame: Any, meta: Optional[Dict[str, Any]]) -> "Tuple[Any, Optional[Draft]]":
        """What to push of a frame, and the draft if it was copied into one."""
        if isinstance(frame, (Draft, Object)):
            return frame, None
        if isinstance(getattr(frame, "draft", None), Draft):
            return frame.draft, None
        made = self._copy(frame, meta)
        return made, made

    def _copy(self, data: Any, meta: Optional[Dict[str, Any]]) -> Draft:
        source = source_of(data, meta)
        draft = self._client.create(source.size, meta=source.meta)
        source.write(draft._memory())
        return draft

    def _push(self, frame: Any, timeout: Optional[float]) -> None:
        if frame._part is None:
            raise Sealed("frame %s was pushed, aborted or released already" % frame.id.hex())
        hold: Hold = frame._hold
        if hold.ends_with is None:  # by a push that was interrupted
            raise Sealed("frame %s was pushed already" % frame.id.hex())
        draft = isinstance(frame, Draft)
        if draft:
            frame._shut(frame._end_views())  # also if the push fails: it may only be pushed again unchanged
            if hold.ends_with == wire.ABORT:
                hold.ends_with = wire.RELEASE  # sealed or not: the daemon takes it as an abort of an unsealed object
        body = self._body() + hold.object_id + struct.pack("<BII", draft, wire.wait_ms(timeout), 0)
        self._live.call(wire.STREAM_PUSH, body, wire.nothing, pushes=hold)
        if draft:
            frame.abort()  # ends this handle only
        else:
            frame._part = None

    def end(self) -> None:
        """Ends the stream for all writers. Readers get the waiting frames, then Ended. Closes this writer."""
        self._finish(False)

    def abort(self) -> None:
        """Drops the waiting frames; all writers and readers get Aborted. Closes this writer."""
        self._finish(True)

    def _finish(self, abort: bool) -> None:
        if self._closed:
            return
        try:
            self._live.call(wire.STREAM_END, self._body() + bytes([abort]), wire.nothing)
        finally:
            self.close()

    def __enter__(self) -> "Writer":
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        if kind is None:
            self.end()
        elif not self._closed and self._live.alive:
            self.abort()


class Reader(_End):
    """Pops frames from a stream. An iterator until the stream's end, and a context manager. Threads may share it."""

    def __init__(self, client: "Client", live: Connection, name: str, number: int) -> None:
        super().__init__(client, live, name, number)
        self._decode = partial(_popped, live, self._body())  # it does not keep the reader, which may be dropped

    def pop(self, timeout: Optional[float] = None) -> Frame:
        """Takes the oldest frame. Release it; then the writer may use its memory again.

        timeout: for how many seconds to wait for a frame; None: without limit.
        Raises Timeout, Ended (there are no more frames), Aborted (the stream was removed, or its last writer's process
        ended), Disconnected.
        """
        body = self._body() + struct.pack("<I", wire.wait_ms(timeout))
        frame: Frame = self._live.call(wire.STREAM_POP, body, self._decode)
        self._live.popped(frame._hold)
        frame._hold.ends_with = wire.RELEASE
        return frame

    def _await_late(self) -> None:
        """A frame that is on its way to a pop that was interrupted goes back before the close, for the next reader."""
        late = self._live.unwanted(self._decode)
        if late:
            try:
                self._live.call(wire.STREAM_CANCEL, self._body(), wire.nothing)  # then they are answered
            except Unsupported:
                return  # the daemon is of an earlier release
            self._live.outlast(late)

    async def apop(self, timeout: Optional[float] = None) -> Frame:
        """pop(), for asyncio; `async for` works, too. A task that is cancelled takes no frame."""
        from . import aio
        return await aio.pop(self, timeout)

    def __aiter__(self) -> "Reader":
        return self

    async def __anext__(self) -> Frame:
        try:
            return await self.apop()
        except Ended:
            raise StopAsyncIteration from None

    def unpop(self, frame: Frame) -> None:
        """Puts a frame back in its place, for the next pop, once its last view is gone. Raises Invalid if released."""
        if frame._part is None:
            raise Invalid("frame %d was released" % frame.number)
        frame._hold.ends_with = wire.STREAM_UNPOP
        frame.release()

    def __iter__(self) -> Iterator[Frame]:
        return self

    def __next__(self) -> Frame:
        try:
            return self.pop()
        except Ended:
            raise StopIteration from None

    def __enter__(self) -> "Reader":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def _popped(live: Connection, stream: bytes, f: wire.Fields) -> Frame:
    """The frame of a reply. Until pop returns, its end puts it back, so that an interrupted pop loses no frame."""
    number = f.u64()
    key, ref, size, raw = f.got()
    hold = Hold(key, wire.STREAM_UNPOP)
    hold.body = stream + key + number.to_bytes(8, "little")
    frame = Frame(hold, live.attach(f, ref, size, hold, False), meta_of(raw), live.path)
    frame.number = number
    return frame


def open_body(name: str, writes: bool, frames: int, size: int, drop_oldest: bool, keep: bool, new: bool,
              existing: bool) -> bytes:
    """The payload of StreamOpen."""
    if not 0 <= frames <= _MAX_FRAMES or size < 0:
        raise Invalid("a stream of %d frames and %d bytes: at most %d frames" % (frames, size, _MAX_FRAMES))
    flags = (_WRITES if writes else _READS) | new * _NEW | existing * _EXISTING
    flags |= drop_oldest * _DROP_OLDEST | keep * _KEEP
    return struct.pack("<BIQ", flags, frames, size) + wire.str16(name)

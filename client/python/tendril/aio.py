"""asyncio: requests that wait at the daemon without a thread each; what would block runs in the loop's executor."""

from __future__ import annotations

import asyncio
import functools
import random
import struct
import time
from typing import TYPE_CHECKING, Any, Callable, Optional, TypeVar

from . import wire
from .connection import Connection, Pending
from .errors import Busy, Disconnected, NotFound, NotSealed, Timeout

if TYPE_CHECKING:
    from .client import Client
    from .objects import Object
    from .streams import Frame, Reader
    from .watch import Event, Watch

_T = TypeVar("_T")
# How long the daemon is asked to wait at a time: so long it waits for a task that was cancelled.
_WAIT_SECONDS = 5.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.01, 0.5  # seconds between looks of a task for which the daemon does not wait
_PUSH_SECONDS = 0.2  # the same for a push, which waits in a thread of the executor


async def apart(call: "Callable[..., _T]", *args: Any, **more: Any) -> "_T":
    """Calls in the loop's executor. When the task is cancelled, the call goes on, and its value is dropped."""
    return await asyncio.get_running_loop().run_in_executor(None, functools.partial(call, *args, **more))


async def request(live: Connection, kind: int, payload: bytes, decode: "Callable[[wire.Fields], _T]") -> "_T":
    """Connection.call, for a task. When the task is cancelled, the reply is dropped."""
    loop = asyncio.get_running_loop()
    answered: "asyncio.Future[None]" = loop.create_future()  # the value is the request's alone, for forgo to drop

    def settle(p: Pending) -> None:
        if answered.done():
            return
        if p.error is not None:
            answered.set_exception(p.error)
        else:
            answered.set_result(None)

    def then(p: Pending) -> None:
        try:
            loop.call_soon_threadsafe(settle, p)
        except RuntimeError:  # the loop was closed
            pass

    sent = live.begin(kind, payload, decode, then)
    try:
        await answered
    except asyncio.CancelledError:
        live.forgo(sent)
        raise
    value: "_T" = sent.value
    sent.value = None
    return value


def _left(deadline: Optional[float], most: float) -> float:
    """How long to wait now. Raises Timeout after the deadline."""
    left = most if deadline is None else deadline - time.monotonic()
    if left <= 0:
        raise Timeout("it did not come within the timeout")
    return min(left, most)


async def get(client: "Client", key: Any, timeout: Optional[float]) -> "Object":
    """Client.aget."""
    deadline, pause = None if timeout is None else time.monotonic() + timeout, _FIRST_PAUSE
    while True:
        try:
            return await apart(client.get, key)
        except (NotFound, NotSealed):
            if timeout == 0:
                raise
        body = struct.pack("<IH", wire.wait_ms(_left(deadline, _WAIT_SECONDS)), 1) + await apart(client._key, key)
        try:
            await request(await apart(client._connection), wire.AWAIT_MANY, body, wire.nothing)
        except Timeout:
            pass
        except Busy:  # as many wait as one connection may: this one looks by itself
            await asyncio.sleep(min(_left(deadline, _LONGEST_PAUSE), pause * random.uniform(0.5, 1.5)))
            pause = min(2 * pause, _LONGEST_PAUSE)
        except Disconnected:
            if not client._reconnect:
                raise  # else the get connects again


async def pop(reader: "Reader", timeout: Optional[float] = None) -> "Frame":
    """Reader.apop."""
    deadline = None if timeout is None else time.monotonic() + timeout
    while True:
        wait = _WAIT_SECONDS if deadline is None else max(0.0, min(deadline - time.monotonic(), _WAIT_SECONDS))
        body = reader._body() + struct.pack("<I", wire.wait_ms(wait))
        try:
            frame: Frame = await request(reader._live, wire.STREAM_POP, body, reader._decode)
        except Timeout:
            if deadline is not None and time.monotonic() >= deadline:
                raise
            continue
        reader._live.popped(frame._hold)
        frame._hold.ends_with = wire.RELEASE
        return frame


async def push(try_once: "Callable[[float], None]", timeout: Optional[float]) -> None:
    """Calls try_once with a time to wait until it does not raise Timeout."""
    deadline = None if timeout is None else time.monotonic() + timeout
    while True:
        wait = _PUSH_SECONDS if deadline is None else max(0.0, min(deadline - time.monotonic(), _PUSH_SECONDS))
        try:
            return await apart(try_once, wait)
        except Timeout:
            if deadline is not None and time.monotonic() >= deadline:
                raise


async def event(watch: "Watch", timeout: Optional[float] = None) -> "Event":
    """Watch.anext."""
    deadline = None if timeout is None else time.monotonic() + timeout
    while True:
        try:
            return watch.next(0)
        except Timeout:
            pass
        left = _left(deadline, _WAIT_SECONDS)
        if watch.fileno() >= 0:
            await _readable(watch.fileno(), left)
            continue
        try:  # there is no daemon: it tries to connect
            return await apart(watch.next, min(left, _PUSH_SECONDS))
        except Timeout:
            pass


async def _readable(fd: int, seconds: float) -> None:
    """Waits until the descriptor can be read, or for so long."""
    loop = asyncio.get_running_loop()
    ready: "asyncio.Future[None]" = loop.create_future()
    loop.add_reader(fd, lambda: None if ready.done() else ready.set_result(None))
    try:
        await asyncio.wait((ready,), timeout=seconds)
    finally:
        loop.remove_reader(fd)

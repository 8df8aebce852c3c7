"""Events of objects, on a connection of their own."""

from __future__ import annotations

import json
import random
import time
from dataclasses import dataclass
from typing import Any, Deque, Iterator, Optional
import collections

from . import wire
from .connection import opened
from .errors import Busy, Disconnected, Protocol, Timeout
from .objects import IDText

_BEGIN_SECONDS = 30.0  # as for a Hello: on a machine that is busy
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 2.0  # seconds between tries to connect; doubled each time, and randomised
_DISCONNECTED, _LOST = b'{"event":"disconnected"}', b'{"event":"lost"}'


@dataclass(frozen=True)
class Event:
    """An event of an object. Ignore kinds that you do not know.

    kind: "sealed", "named", "unnamed" (the object lost that name: it was renamed, another took the name, or it was
    deleted and a composite keeps it), "gone" (the last event of an object), "spilled", "restored"; "published",
    "unpublished": the tenant's name in the cluster, at whichever node; "lost": events are missing, list again: this
    process was slow, or the daemon was away; "disconnected": the daemon ended. at: the time, RFC 3339.
    """

    kind: str
    id: str = ""
    name: str = ""
    size_bytes: int = 0
    at: str = ""

    @classmethod
    def of(cls, raw: bytes) -> "Event":
        try:
            told = json.loads(raw)
            return cls(str(told["event"]), IDText(told.get("id", "")), str(told.get("name", "")),
                       int(told.get("size_bytes", 0)), str(told.get("at", "")))
        except (ValueError, KeyError, TypeError, AttributeError) as e:
            raise Protocol("malformed event: %s" % e) from None


class Watch:
    """The events of the objects whose name begins with a prefix, in order. For one thread at a time.

    An iterator without end, and a context manager. When the daemon ends, the next event is "disconnected"; next() then
    waits for the daemon that follows, and the event after that is "lost": list again. With reconnect=False next()
    raises Disconnected instead.
    """

    def __init__(self, path: Optional[str], prefix: str, reconnect: bool = True) -> None:
        self._prefix, self._reconnect = prefix, reconnect
        self._events: Deque[bytes] = collections.deque()
        self._away = self._closed = False
        self._listen(path)

    def _listen(self, path: Optional[str]) -> None:
        """Begins to listen to the daemon at path."""
        self._connection = opened(path, background=False)
        try:
            self._request = self._connection.stream(wire.WATCH, wire.str16(self._prefix), self._events.append)
            deadline = time.monotonic() + _BEGIN_SECONDS
            while not self._events:
                if not self._connection.pump(self._request, deadline):
                    raise Timeout("the daemon does not begin to report events")
            self._events.popleft()  # an empty event: no later event is missed
        except BaseException:
            self._connection.close()
            raise

    def _take(self, deadline: Optional[float]) -> bytes:
        while not self._events:
            if self._away:
                self._come_back(deadline)
                return _LOST
            try:
                if not self._connection.pump(self._request, deadline):
                    raise Timeout("no event within the timeout")
            except Disconnected:
                if self._closed or not self._reconnect:
                    raise
                self._away = True
                self._events.append(_DISCONNECTED)
        return self._events.popleft()

    def _come_back(self, deadline: Optional[float]) -> None:
        """Listens to the next daemon, after random pauses until there is one."""
        pause = _FIRST_PAUSE
        while self._away:
            if self._closed:
                raise Disconnected("this watch was closed")
            try:
                self._listen(self._connection.path)
                self._away = False
            except (Disconnected, Busy, Timeout):
                left = pause if deadline is None else deadline - time.monotonic()
                if left <= 0:
                    raise Timeout("no daemon within the timeout") from None
                time.sleep(min(left, pause * random.uniform(0.5, 1.5)))
                pause = min(2 * pause, _LONGEST_PAUSE)

    def next(self, timeout: Optional[float] = None) -> Event:
        """The next event. timeout: seconds; None: wait without limit. Raises Timeout; Disconnected after close()."""
        return Event.of(self._take(None if timeout is None else time.monotonic() + timeout))

    async def anext(self, timeout: Optional[float] = None) -> Event:
        """next(), for asyncio; `async for` works, too."""
        from . import aio
        return await aio.event(self, timeout)

    def __aiter__(self) -> "Watch":
        return self

    async def __anext__(self) -> Event:
        return await self.anext()

    def fileno(self) -> int:
        """A descriptor for select and poll: readable when next(0) is worth calling. The watch owns it.

        Then call next(0) until it raises Timeout. After the event "disconnected" it is -1: call next() until there is a
        daemon again, which has another descriptor.
        """
        return -1 if self._away else self._connection.fileno()

    def close(self) -> None:
        """Ends the watch and its connection. A second call does nothing."""
        self._closed = True
        self._connection.close()

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        return self.next()

    def __enter__(self) -> "Watch":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

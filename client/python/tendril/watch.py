"""Watching what happens to objects, on a connection of its own."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any, Deque, Iterator, Optional
import collections

from . import wire
from .connection import Connection
from .errors import Protocol, Timeout

_BEGIN_SECONDS = 10.0


@dataclass(frozen=True)
class Event:
    """Something that happened to an object: sealed, named, unnamed (it has that name no more: it was renamed, another took its name, or it
    was deleted and a composite has it), gone (its last), spilled, restored; or lost: some events are missing, list again."""

    kind: str
    id: str = ""
    name: str = ""
    size_bytes: int = 0
    at: str = ""

    @classmethod
    def of(cls, raw: bytes) -> "Event":
        try:
            told = json.loads(raw)
            return cls(str(told["event"]), str(told.get("id", "")), str(told.get("name", "")),
                       int(told.get("size_bytes", 0)), str(told.get("at", "")))
        except (ValueError, KeyError, TypeError, AttributeError) as e:
            raise Protocol("an event that makes no sense: %s" % e) from None


class Watch:
    """The events of the objects whose name begins with a prefix, in order: an iterator without end, and a context manager. For one thread at a time."""

    def __init__(self, path: Optional[str], prefix: str) -> None:
        self._connection = Connection(path, background=False)
        self._events: Deque[bytes] = collections.deque()
        try:
            self._request = self._connection.stream(wire.WATCH, wire.str16(prefix), self._events.append)
            self._take(time.monotonic() + _BEGIN_SECONDS)  # empty: listening has begun
        except BaseException:
            self.close()
            raise

    def _take(self, deadline: Optional[float]) -> bytes:
        while not self._events:
            if not self._connection.pump(self._request, deadline):
                raise Timeout("no event in time")
        return self._events.popleft()

    def next(self, timeout: Optional[float] = None) -> Event:
        """The next event; timeout in seconds (None: for ever). Raises Timeout, Disconnected."""
        return Event.of(self._take(None if timeout is None else time.monotonic() + timeout))

    def fileno(self) -> int:
        """For select and poll: readable when next(0) is worth calling."""
        return self._connection.fileno()

    def close(self) -> None:
        self._connection.close()

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        return self.next()

    def __enter__(self) -> "Watch":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

"""Events of objects, on a connection of their own."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any, Deque, Iterator, Optional
import collections

from . import wire
from .connection import Connection
from .errors import Protocol, Timeout
from .objects import IDText

_BEGIN_SECONDS = 10.0


@dataclass(frozen=True)
class Event:
    """An event of an object. Ignore kinds that you do not know.

    kind: "sealed", "named", "unnamed" (the object lost that name: it was renamed, another took the name, or it was
    deleted and a composite keeps it), "gone" (the last event of an object), "spilled", "restored"; "lost": this process
    was slow and events are missing, list again. at: the time, RFC 3339.
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

    An iterator without end, and a context manager. A watch does not reconnect: after Disconnected open a new one.
    """

    def __init__(self, path: Optional[str], prefix: str) -> None:
        self._connection = Connection(path, background=False)
        self._events: Deque[bytes] = collections.deque()
        try:
            self._request = self._connection.stream(wire.WATCH, wire.str16(prefix), self._events.append)
            self._take(time.monotonic() + _BEGIN_SECONDS)  # an empty event: no later event is missed
        except BaseException:
            self.close()
            raise

    def _take(self, deadline: Optional[float]) -> bytes:
        while not self._events:
            if not self._connection.pump(self._request, deadline):
                raise Timeout("no event within the timeout")
        return self._events.popleft()

    def next(self, timeout: Optional[float] = None) -> Event:
        """The next event. timeout: seconds; None: wait without limit. Raises Timeout, Disconnected."""
        return Event.of(self._take(None if timeout is None else time.monotonic() + timeout))

    def fileno(self) -> int:
        """A descriptor for select and poll: readable when next(0) is worth calling. The watch owns it.

        Then call next(0) until it raises Timeout.
        """
        return self._connection.fileno()

    def close(self) -> None:
        """Ends the watch and its connection. A second call does nothing."""
        self._connection.close()

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        return self.next()

    def __enter__(self) -> "Watch":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

"""A connection's background thread: it gives idle mappings back while the program asks for nothing, so that the daemon gets the memory.

It sleeps until something is idle, and ends with its connection, which it does not keep alive. A process that forks has
ended it before, so that the child finds no lock that a thread held, and begins it again.
"""

from __future__ import annotations

import _thread
import threading
import weakref
from typing import TYPE_CHECKING, Any, Optional

if TYPE_CHECKING:
    from .connection import Connection

_FIRST_PAUSE, _LONGEST_PAUSE = 0.25, 1.0  # seconds between questions, doubled
_REST_SECONDS = 2.0  # how long a fork waits for a question that is under way


class Tidier:
    """wake may be called in a garbage collection, under any lock: it takes none, but releases one that is there for that."""

    def __init__(self, owner: "Connection") -> None:
        self._wakes = _thread.allocate_lock()
        self._wakes.acquire()
        self._owner: "weakref.ref[Connection]" = weakref.ref(owner, self._orphaned)
        self._thread: Optional[threading.Thread] = None
        self._starting = _thread.allocate_lock()
        self._over = False
        self._asleep = False  # nothing is idle as far as it knows; else it looks by itself, and waking it would cost each release a switch

    @property
    def started(self) -> bool:
        return self._thread is not None

    def wake(self) -> None:
        """Something is idle."""
        if self._asleep:
            self._kick()

    def _kick(self) -> None:
        try:
            self._wakes.release()
        except RuntimeError:  # it is kicked already
            pass

    def start(self) -> None:
        with self._starting:
            if self._thread is None and not self._over:
                self._thread = threading.Thread(target=self._run, name="tendril tidier", daemon=True)
                try:
                    self._thread.start()
                except RuntimeError:  # the interpreter ends, or there can be no more threads: calls do it then
                    self._thread = None

    def end(self) -> None:
        """Ends it for good, and waits for nothing."""
        self._over = True
        self._kick()

    def rest(self) -> bool:
        """Ends it until start, and waits for that."""
        with self._starting:
            thread = self._thread
            if thread is None or self._over or thread is threading.current_thread():
                return False
            self._over = True
            self._kick()
            thread.join(_REST_SECONDS)
            self._thread, self._over = None, False
            return True

    def _orphaned(self, _: Any) -> None:
        self.end()

    def _run(self) -> None:
        while not self._over:
            self._asleep = True
            if not self._has_idle():  # looked at after the flag was set: who makes something idle later wakes it
                self._wakes.acquire()
            self._asleep = False
            pause, left = _FIRST_PAUSE, True
            while left and not self._over:
                self._wakes.acquire(timeout=pause)
                left = not self._over and self._ask()
                pause = min(2 * pause, _LONGEST_PAUSE)

    def _has_idle(self) -> bool:
        owner = self._owner()
        return owner is not None and owner.has_idle()

    def _ask(self) -> bool:
        owner = self._owner()
        return owner is not None and owner.alive and owner.tidy()

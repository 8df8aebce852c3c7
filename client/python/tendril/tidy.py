"""A connection's background thread. It unmaps idle segments while the program asks for nothing, so that the daemon can
free their memory.

It sleeps until a segment is idle. It ends with its connection, which tells it to and which it does not keep alive. It
ends before a fork, so that no lock in the child is held by a thread that does not exist there. The parent starts it
again.
"""

from __future__ import annotations

import _thread
import threading
import time
import weakref
from typing import TYPE_CHECKING, Optional

if TYPE_CHECKING:
    from .connection import Connection

_FIRST_PAUSE, _LONGEST_PAUSE = 0.25, 1.0  # seconds between questions, doubled
_LATE_PAUSE = 0.005  # seconds that a release waits for a request
_REST_SECONDS, _REST_LOOKS = 2.0, 40  # how long a fork waits for a question that is in progress, and in how many looks


class Tidier:
    """Owns the thread. wake may be called in a garbage collection and under any lock, because it takes none."""

    def __init__(self, owner: "Connection") -> None:
        self._wakes = _thread.allocate_lock()  # releasing it wakes the thread
        self._wakes.acquire()
        self._owner: "weakref.ref[Connection]" = weakref.ref(owner)
        self._thread: Optional[threading.Thread] = None
        self.started = False  # there is a thread
        self._starting = _thread.allocate_lock()
        self._over = False
        self.asleep = False  # nothing is idle: wake it. If not, the thread looks by itself
        self._late = False  # releases wait

    def wake(self) -> None:
        """Says that a segment is idle."""
        self._kick()

    def hurry(self) -> None:
        """Says that releases wait, which no request may take along."""
        self._late = True
        self._kick()

    def _kick(self) -> None:
        try:
            self._wakes.release()
        except RuntimeError:  # it was woken already
            pass

    def start(self) -> None:
        """Starts the thread, unless it runs or end was called, or somebody starts or ends it just now."""
        if self._starting.locked():
            return  # perhaps by this very thread, in a garbage collection: a later call starts it
        with self._starting:
            if self._thread is None and not self._over:
                self._thread = threading.Thread(target=self._run, name="tendril tidier", daemon=True)
                self.started = True
                try:
                    self._thread.start()
                except RuntimeError:  # the interpreter ends, or there are too many threads: calls unmap then
                    self._thread, self.started = None, False

    def end(self) -> None:
        """Ends the thread for good. Does not wait for it."""
        self._over = True
        self._kick()

    def rest(self) -> bool:
        """Ends the thread until start, and waits for its end. Returns whether there was one."""
        with self._starting:
            thread = self._thread
            if thread is None or self._over or thread is threading.current_thread():
                return False
            self._over = True
            self._kick()
            for _ in range(_REST_LOOKS):  # one look alone would be over for a process that had no processor for as long
                thread.join(_REST_SECONDS / _REST_LOOKS)
                if not thread.is_alive():
                    break
            self._thread, self.started, self._over = None, False, False
            return True

    def _run(self) -> None:
        while not self._over:
            self.asleep = True
            if not self._has_idle():  # asked after _asleep was set: whoever makes a segment idle later wakes it
                self._wait(None)
            self.asleep = False
            pause, left = _FIRST_PAUSE, True
            while left and not self._over:
                self._wait(pause)
                left = not self._over and self._ask()
                pause = min(2 * pause, _LONGEST_PAUSE)

    def _wait(self, pause: Optional[float]) -> None:
        """Waits for so many seconds, or to be woken, and sends releases meanwhile."""
        end = None if pause is None else time.monotonic() + pause
        while True:
            if end is None:
                self._wakes.acquire()
            else:
                self._wakes.acquire(timeout=max(0.0, end - time.monotonic()))
            while self._late and not self._over:
                time.sleep(_LATE_PAUSE)
                self._late = False  # before the look: who is late from now on says so again
                self._send_late()
            if self._over or (self._has_idle() if end is None else time.monotonic() >= end):
                return

    def _send_late(self) -> None:
        owner = self._owner()
        if owner is not None:
            owner.flush_late()

    def _has_idle(self) -> bool:
        owner = self._owner()
        return owner is not None and owner.has_idle()

    def _ask(self) -> bool:
        owner = self._owner()
        return owner is not None and owner.alive and owner.tidy()

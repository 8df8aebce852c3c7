"""Exceptions of the store, one for each error code of the local protocol."""

from __future__ import annotations

from typing import Dict, Type


class TendrilError(Exception):
    """Base of all errors of this package."""

    code = 0


class Protocol(TendrilError):
    """A frame broke a rule of the protocol; the connection is over."""

    code = 1


class Invalid(TendrilError, ValueError):
    """An argument is out of range."""

    code = 2


class NotFound(TendrilError, LookupError):
    """No object has this name or ID."""

    code = 3


class Exists(TendrilError):
    """The name is taken."""

    code = 4


class NotSealed(TendrilError):
    """The object is still being filled."""

    code = 5


class Sealed(TendrilError):
    """The object is sealed and can no longer change."""

    code = 6


class Full(TendrilError, MemoryError):
    """The store has no room for the object."""

    code = 7


class Quota(TendrilError, MemoryError):
    """The tenant may hold no more memory."""

    code = 8


class Limit(Quota):
    """The tenant may have no more objects, segments or streams: waiting for memory does not help."""

    code = 16


class Permission(TendrilError, PermissionError):
    """The object belongs to another tenant."""

    code = 9


class Unsupported(TendrilError):
    """The daemon cannot do this; the text says why."""

    code = 10


class Timeout(TendrilError, TimeoutError):
    """A waiting get ran out of time."""

    code = 11


class Busy(TendrilError):
    """The daemon, or what was asked for, is in use."""

    code = 12


class Version(TendrilError):
    """Client and daemon share no protocol version."""

    code = 13


class Internal(TendrilError):
    """The daemon failed; its log says more."""

    code = 14


class NoDevice(TendrilError):
    """No such device, driver or worker."""

    code = 15


class Storage(TendrilError, OSError):
    """The object's copy on disk cannot be used (an I/O error, a wrong checksum), or its bytes in memory are damaged."""

    code = 64


class Ended(TendrilError, EOFError):
    """The stream has ended: there was the last frame."""

    code = 80


class Aborted(TendrilError):
    """The stream was removed or lost its last writer; or somebody ended in the middle of filling the object."""

    code = 81


class Disconnected(TendrilError, ConnectionError):
    """There is no daemon, or it is gone, and unsealed objects with it."""

    unsent = False  # the request had not left: it is known that it did not take place


_CLASSES = (
    Protocol, Invalid, NotFound, Exists, NotSealed, Sealed, Full, Quota,
    Permission, Unsupported, Timeout, Busy, Version, Internal, NoDevice, Limit, Storage, Ended,
    Aborted,
)  # type: tuple[Type[TendrilError], ...]
_BY_CODE: Dict[int, Type[TendrilError]] = {c.code: c for c in _CLASSES}


def from_code(code: int, text: str) -> TendrilError:
    """The exception for a code of the wire; a code of a newer daemon becomes a plain TendrilError."""
    cls = _BY_CODE.get(code)
    if cls is None:
        return TendrilError("error %d: %s" % (code, text))
    return cls(text)

"""The exceptions of this package, one for each error code of ipc/PROTOCOL.md."""

from __future__ import annotations

from typing import Dict, Type


class TendrilError(Exception):
    """Base of all errors of this package."""

    code = 0

    __str__ = Exception.__str__  # not KeyError's, which shows the text in quotes


class Protocol(TendrilError):
    """A message broke a rule of the protocol. This ended the connection."""

    code = 1


class Invalid(TendrilError, ValueError):
    """An argument is out of range."""

    code = 2


class Unstorable(Invalid, TypeError):
    """The value is no bytes, or something of it would be lost. dump() keeps any value."""


class NotFound(TendrilError, KeyError):
    """There is no object with this name or id, or no such stream."""

    code = 3


class Exists(TendrilError):
    """The name is taken."""

    code = 4


class NotSealed(TendrilError):
    """The object is still being filled."""

    code = 5


class Sealed(TendrilError):
    """The object is sealed or aborted, and can no longer change."""

    code = 6


class Full(TendrilError, MemoryError):
    """The store has no room for the object, or the process no room for a mapping."""

    code = 7


class Quota(TendrilError, MemoryError):
    """The tenant's quota is used up."""

    code = 8


class Limit(Quota):
    """The tenant may have no more objects, segments or streams: waiting for memory does not help."""

    code = 16


class Permission(TendrilError, PermissionError):
    """The daemon does not allow it: the object, or the daemon's socket, belongs to somebody else."""

    code = 9


class Unsupported(TendrilError):
    """The daemon cannot do this; the text says why."""

    code = 10


class Timeout(TendrilError, TimeoutError):
    """A wait ran out of time."""

    code = 11


class Busy(TendrilError):
    """The daemon, or the object, is in use."""

    code = 12


class Version(TendrilError):
    """Client and daemon have no protocol version in common."""

    code = 13


class Internal(TendrilError):
    """The daemon failed; its log says more."""

    code = 14


class NoDevice(TendrilError):
    """No such device, driver or worker."""

    code = 15


class Storage(TendrilError, OSError):
    """The object's copy on disk cannot be used (an I/O error, a wrong checksum), or its bytes are damaged."""

    code = 64


class Ended(TendrilError, EOFError):
    """The stream has ended: there are no more frames."""

    code = 80


class Aborted(TendrilError):
    """The stream was removed or lost its last writer; or an object was filled only in part."""

    code = 81


class Disconnected(TendrilError, ConnectionError):
    """There is no daemon, or the connection broke. Unsealed objects and streams are lost; sealed ones stay readable."""

    unsent = False  # the request had not left, so it did not take place
    hung_up = False  # the daemon ended the connection, and gave no reason


_CLASSES = (
    Protocol, Invalid, NotFound, Exists, NotSealed, Sealed, Full, Quota,
    Permission, Unsupported, Timeout, Busy, Version, Internal, NoDevice, Limit, Storage, Ended,
    Aborted,
)  # type: tuple[Type[TendrilError], ...]
_BY_CODE: Dict[int, Type[TendrilError]] = {c.code: c for c in _CLASSES}


def from_code(code: int, text: str) -> TendrilError:
    """The exception for an error code of a message. An unknown code (a newer daemon's) is a plain TendrilError."""
    cls = _BY_CODE.get(code)
    if cls is None:
        return TendrilError("error %d: %s" % (code, text))
    return cls(text)

"""Frames and fields of the protocol between client and daemon (ipc/PROTOCOL.md). It uses no socket."""

from __future__ import annotations

import struct
from typing import Any, List, Mapping, NamedTuple, Optional

from .errors import Invalid, Protocol

MAGIC = 0x4C524454
LOWEST_VERSION = 1
VERSION = 4  # the highest
ACKS_VERSION = 3  # from here on popped frames are acknowledged
FRAME_ACKS_VERSION = 4  # and the stream of each is named
HEADER = struct.Struct("<IHHQ")
MAX_PAYLOAD = 1 << 20
MAX_META = 4096
MAX_WAIT_MS = 0xFFFFFFFF
MAX_NAME_BYTES = 255
MAX_LABELS, MAX_LABEL_BYTES = 16, 128
MAX_WANTED = 2048
MAX_READ = 1 << 20
MAX_MEMBERS = 1024

FLAG_FD, FLAG_FD2, FLAG_MORE = 1, 2, 4

HELLO, CREATE, SEAL, GET, RELEASE, DELETE, ABORT = 1, 2, 3, 4, 5, 6, 7
PUT, MAX_PUT = 27, 64 << 10
LIST, STAT, STATUS, DEVICES, BIND, FORGET, SWEEP = 8, 9, 10, 11, 12, 13, 14
CREATE_WITH, UPDATE, GRANT, LIST_WHERE, RENAME, AWAIT_MANY = 64, 65, 66, 67, 68, 69
CHECKSUM, READ_RANGE, WATCH, TOP = 70, 71, 72, 73
STREAM_OPEN, STREAM_PUSH, STREAM_POP, STREAM_END, STREAM_CLOSE = 80, 81, 82, 83, 84
STREAM_UNPOP, STREAM_LIST, STREAM_REMOVE, STREAM_CANCEL = 85, 86, 87, 88
FILL, FILLED, SEAL_FILLED, COMPOSE = 89, 90, 91, 92
RECLAIM, MAX_CLAIMS, STREAM_ACK, FRAME_ACK = 93, 4096, 95, 96
LIST_PAGE, STREAM_PAGE, TOP_PAGE = 145, 146, 150
CREATE_DEVICE, GET_DEVICE, COPY_OBJECT, GPUS = 160, 161, 162, 163
IPC_HANDLE, CLOSE_IPC = 165, 166
REPLY, ERROR = 0x8000, 0xFFFF

ZERO_ID = bytes(16)

_U16, _U32 = struct.Struct("<H"), struct.Struct("<I")
_REF = struct.Struct("<QQQ")
_GOT = struct.Struct("<16sQQQQBI")
_PLACED = struct.Struct("<16sQQQ")


class Ref(NamedTuple):
    """Where an object lies. Sizes and offset are bytes."""

    segment: int
    segment_bytes: int
    offset: int


def frame(kind: int, request: int, payload: bytes) -> bytes:
    """One frame without descriptors, because clients send none. Raises Protocol if the payload is too large."""
    if len(payload) > MAX_PAYLOAD:
        raise Protocol("payload of %d bytes exceeds %d" % (len(payload), MAX_PAYLOAD))
    return HEADER.pack(len(payload), kind, 0, request) + payload


def _utf8(text: str) -> bytes:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:  # a file's name that is no UTF-8 is such a text
        raise Invalid("%.100r is no text: it has half of a character" % text) from None
    except AttributeError:
        raise TypeError("%.100r is no text: want a str" % (text,)) from None


def new_name(name: str) -> bytes:
    """The name of an object that is made or named, as str16. Raises Invalid if no key would find it."""
    if isinstance(name, str) and name.startswith("id:"):
        raise Invalid("%.60r is no name: what begins with id: is an object's id" % name)
    return str16(name)


def str16(text: str) -> bytes:
    """A text with its length in 16 bits. Raises Invalid if it is longer than any name or prefix may be."""
    raw = _utf8(text)
    if len(raw) > 0xFFFF:
        raise Invalid("a name of %d bytes: names have at most %d" % (len(raw), MAX_NAME_BYTES))
    return _U16.pack(len(raw)) + raw


def bytes32(raw: bytes) -> bytes:
    """Bytes with their length in 32 bits."""
    return _U32.pack(len(raw)) + raw


def wait_ms(seconds: Optional[float]) -> int:
    """A wait in milliseconds, rounded up. None: without limit."""
    if seconds is None:
        return MAX_WAIT_MS
    return int(max(0.0, min(-(-seconds * 1000 // 1), float(MAX_WAIT_MS - 1))))


def labels(values: Optional[Mapping[str, str]]) -> bytes:
    """Labels, with their keys in the order of their bytes. Raises Invalid if there are too many, or one is too long."""
    pairs = sorted((_utf8(k), _utf8(v)) for k, v in (values or {}).items())
    if len(pairs) > MAX_LABELS or any(max(len(k), len(v)) > MAX_LABEL_BYTES for k, v in pairs):
        raise Invalid("at most %d labels of %d bytes each" % (MAX_LABELS, MAX_LABEL_BYTES))
    out = _U16.pack(len(pairs))
    for pair in pairs:
        for part in pair:
            out += _U16.pack(len(part)) + part
    return out


class Fields:
    """Reads a payload from front to back. It checks every length before it uses it, and raises Protocol.

    fds are the descriptors of the payload's frame (memory.Descriptor). Whoever takes one removes it; the connection
    closes the others.
    """

    __slots__ = ("_raw", "_at", "fds")

    def __init__(self, payload: bytes, fds: "Optional[List[Any]]" = None, at: int = 0) -> None:
        """at: where the payload begins in what is given."""
        self._raw, self._at = payload, at
        self.fds = fds if fds is not None else []

    def take(self, n: int) -> bytes:
        """The next n bytes."""
        end = self._at + n
        if end > len(self._raw):
            raise Protocol("field of %d bytes at %d exceeds a payload of %d" % (n, self._at, len(self._raw)))
        part = self._raw[self._at:end]
        self._at = end
        return part

    def u8(self) -> int:
        return self.take(1)[0]

    def u16(self) -> int:
        return int(_U16.unpack(self.take(2))[0])

    def u32(self) -> int:
        return int(_U32.unpack(self.take(4))[0])

    def u64(self) -> int:
        return int.from_bytes(self.take(8), "little")

    def id(self) -> bytes:
        return self.take(16)

    def str16(self) -> str:
        raw = self.take(self.u16())
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as e:
            raise Protocol("text is not UTF-8: %s" % e) from None

    def bytes32(self) -> bytes:
        return self.take(self.u32())

    def ref(self) -> Ref:
        return Ref(*_REF.unpack(self.take(_REF.size)))

    def got(self) -> "tuple[bytes, tuple[int, int, int], int, bytes]":
        """The reply to a get: id, place, size in bytes, metadata. Decoded at once, because it is the most frequent."""
        raw, at = self._raw, self._at
        end = at + _GOT.size
        if end > len(raw):
            self.take(_GOT.size)  # raises Protocol
        key, segment, size, offset, object_size, _, meta = _GOT.unpack_from(raw, at)
        self._at = end
        return key, (segment, size, offset), object_size, self.take(meta) if meta else b""

    def placed(self) -> "tuple[bytes, tuple[int, int, int]]":
        """An id and a place: the reply to a put."""
        raw = self.take(_PLACED.size)
        key, segment, size, offset = _PLACED.unpack(raw)
        return key, (segment, size, offset)

    def rest(self) -> bytes:
        """All bytes that were not read yet."""
        return self.take(len(self._raw) - self._at)

    def end(self) -> None:
        """Checks that all was read."""
        if self._at != len(self._raw):
            raise Protocol("the payload is %d bytes too long" % (len(self._raw) - self._at))


def nothing(_: Fields) -> None:
    """Decodes the reply to a request whose reply is empty."""


def error_of(payload: bytes) -> "tuple[int, str]":
    """The code and the text of an error message."""
    f = Fields(payload)
    code, text = f.u16(), f.str16()
    f.end()
    return code, text

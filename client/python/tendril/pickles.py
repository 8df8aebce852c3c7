"""Python objects as one store object: pickle protocol 5 with its buffers out of band (PEP 574).

    header   magic "TDLPKL5\\n", u64 n, n × (u64 offset, u64 bytes): the stream first, then each buffer, aligned to 64
    stream   the pickle
    buffers  the bytes of NumPy arrays and other exporters: copied once by dump, read in place by load

Unpickling runs code that the pickle names. Whoever can create objects as this tenant can run code as this tenant
anyway. Another tenant's pickle is refused, unless the caller allows it.
"""

from __future__ import annotations

import pickle
import struct
from typing import Any, List, Tuple

from .errors import Invalid

MAGIC = b"TDLPKL5\n"
META = {"pickle": 5}
_ALIGN = 64
_HEAD = struct.Struct("<8sQ")
_PART = struct.Struct("<QQ")
_MAX_PARTS = 1 << 20


def plan(value: Any) -> Tuple[int, List[Tuple[int, memoryview]]]:
    """The size in bytes of value's object, and its parts with their offsets. The parts alias value's memory."""
    buffers: List[memoryview] = []

    def keep(buffer: pickle.PickleBuffer) -> bool:
        try:
            buffers.append(buffer.raw())
            return False
        except BufferError:  # not contiguous
            return True

    stream = memoryview(pickle.dumps(value, protocol=5, buffer_callback=keep))
    parts = [stream, *buffers]
    at = _HEAD.size + _PART.size * len(parts)
    places, table = [], _HEAD.pack(MAGIC, len(parts))
    for part in parts:
        at = -(-at // _ALIGN) * _ALIGN
        places.append((at, part))
        table += _PART.pack(at, part.nbytes)
        at += part.nbytes
    return at, [(0, memoryview(table)), *places]


def restore(data: memoryview) -> Any:
    """The value that plan laid out. Its buffers are views of data. Raises Invalid if data is no such object."""
    if len(data) < _HEAD.size:
        raise Invalid("the object holds no pickled value")
    magic, count = _HEAD.unpack_from(data)
    end = _HEAD.size + _PART.size * count
    if magic != MAGIC or not 1 <= count <= _MAX_PARTS or end > len(data):
        raise Invalid("the object holds no pickled value")
    parts = []
    for offset, size in _PART.iter_unpack(data[_HEAD.size:end]):
        if offset < end or offset > len(data) or size > len(data) - offset:
            raise Invalid("a part of %d bytes at %d does not lie in the object" % (size, offset))
        parts.append(data[offset:offset + size])
    return pickle.loads(parts[0], buffers=parts[1:])

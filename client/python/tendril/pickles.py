"""Python objects as one store object: pickle protocol 5 with its buffers out of band (PEP 574).

    header   magic "TDLPKL5\\n", u64 n, n × (u64 offset, u64 bytes): the stream first, then each buffer, aligned to 64
    stream   the pickle
    buffers  NumPy arrays' and other exporters' bytes: written once, and read in place by load

Unpickling runs what the pickle says. Who may create objects as this tenant may do what this tenant may; another
tenant's pickle is refused unless the caller says otherwise.
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
    """Size of the object that value makes, and what goes where. The parts alias value's memory."""
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
    """What plan made of a value; its buffers are read-only views of data. Every place is checked."""
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

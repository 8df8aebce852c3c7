"""Arrow's tables and record batches, as Arrow's stream format in one object. Imported only when they are used."""

from __future__ import annotations

from typing import Any, Dict, Tuple

import pyarrow
import pyarrow.ipc

from .errors import Invalid, Unstorable
from .source import Meta, Source


class _Stream(Source):
    """A table that is written straight to its place."""

    __slots__ = ("table",)

    def __init__(self, table: Any, size: int, meta: Meta) -> None:
        super().__init__(size, meta, ())
        self.table = table

    def write(self, target: memoryview) -> None:
        """Writes the stream to target: one copy."""
        sink = pyarrow.FixedSizeBufferWriter(pyarrow.py_buffer(target))
        try:
            _write(sink, self.table)
        finally:
            sink.close()


def _write(sink: Any, table: Any) -> None:
    with pyarrow.ipc.new_stream(sink, table.schema) as out:
        out.write(table)


def source(data: Any, meta: Meta) -> Source:
    """How to store a table or record batch. Raises Unstorable for anything else of the library."""
    if not isinstance(data, (pyarrow.Table, pyarrow.RecordBatch)):
        raise Unstorable("put takes Arrow's tables, record batches and buffers, no %s: dump() keeps it" %
                         type(data).__name__)
    counted = pyarrow.MockOutputStream()
    _write(counted, data)
    described: Dict[str, Any] = {"arrow": "table" if isinstance(data, pyarrow.Table) else "batch"}
    described.update(meta or {})
    return _Stream(data, counted.size(), described)


def value(data: memoryview, meta: Meta) -> Any:
    """The table or record batch whose stream data holds. Its columns lie in the store's memory. Raises Invalid."""
    try:
        with pyarrow.ipc.open_stream(pyarrow.py_buffer(data)) as stream:
            whole = stream.read_all()
        if meta is None or meta.get("arrow") != "batch":
            return whole
        batches: Tuple[Any, ...] = tuple(whole.to_batches())
        return batches[0] if len(batches) == 1 else pyarrow.RecordBatch.from_pydict(
            whole.to_pydict(), schema=whole.schema)
    except (pyarrow.ArrowException, ValueError, OSError) as e:
        raise Invalid("the object holds no Arrow stream: %s" % e) from None

"""Readers and writers of records. User code imports this package.

:class:`Writer` and :func:`serialize_example` write RecordIO files, and :func:`open_reader` and :func:`parse_example`
read them.
:class:`Reader`, :class:`Source` and :class:`Metadata` are the types that a model module's ``custom_data_reader``
returns. ``docs/bring-your-own-data.md`` shows how to use them. Everything else here is internal to EDL.

Built-in readers count and read records without TensorFlow, and each name is imported when it is first used.

May import: edl.numerics, edl.jobfile, edl.retry, edl.core, edl.api.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edl.data.reader import (
        BlockReader,
        BlockSizes,
        CorruptRange,
        CorruptRecordError,
        Metadata,
        OnCorrupt,
        Reader,
        Record,
        Source,
    )
    from edl.data.reader_factory import open_reader
    from edl.data.recordio.writer import Writer
    from edl.data.tf_example import parse_example, serialize_example

__all__ = [
    "BlockReader",
    "BlockSizes",
    "CorruptRange",
    "CorruptRecordError",
    "Metadata",
    "OnCorrupt",
    "Reader",
    "Record",
    "Source",
    "Writer",
    "open_reader",
    "parse_example",
    "serialize_example",
]

# modules are imported on use: tf_example needs protobuf, for example, and readers do not
_HOMES = {
    "Writer": "recordio.writer",
    "parse_example": "tf_example",
    "serialize_example": "tf_example",
    "open_reader": "reader_factory",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"edl.data.{_HOMES.get(name, 'reader')}"), name)

"""Readers and writers of records: what a source is, and what a record range means.

What a user's own code needs stands here, typed: :class:`Writer` and :func:`serialize_example` write RecordIO files,
:func:`open_reader` reads them, and :class:`Reader`, :class:`Source` and :class:`Metadata` say what a model module's
``custom_data_reader`` returns. ``docs/bring-your-own-data.md`` shows them at work; the rest of this package is EDL's
own.

Built-in readers count and read records without TensorFlow; each name is imported on use. May import: edl.jobfile,
edl.core.
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
    from edl.data.tf_example import serialize_example

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
    "serialize_example",
]

_HOMES = {"Writer": "recordio.writer", "serialize_example": "tf_example", "open_reader": "reader_factory"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"edl.data.{_HOMES.get(name, 'reader')}"), name)

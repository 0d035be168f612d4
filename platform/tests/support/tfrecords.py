"""Writes TFRecord files without TensorFlow."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path

from edl.data.tfrecord_format import masked_crc32c


def write_tfrecord(path: Path, records: Iterable[bytes]) -> Path:
    """Write the records; returns the path."""
    with path.open("wb") as stream:
        for record in records:
            length = struct.pack("<Q", len(record))
            stream.write(length + struct.pack("<I", masked_crc32c(length)))
            stream.write(record + struct.pack("<I", masked_crc32c(record)))
    return path

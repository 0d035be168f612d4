"""The journal's bytes, read a second time: by nothing but docs/design/0003-journal-and-checkpoint-formats.md.

Tests hold the master's ledger against what stands on the disk. A reader that shared code with the writer would share
its mistakes, so this module imports nothing of EDL.
"""

from __future__ import annotations

import json
import re
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Entry = dict[str, Any]

_NAME = re.compile(r"(\d{6})-(\d{6})\.edlj")
_HEADER = struct.Struct("<8sIIII")
_RECORD = struct.Struct("<II")
_LENGTH_BITS = 0x7FFFFFFF


class MalformedJournalError(Exception):
    """The bytes are not what the format says."""


def read_entries(folder: Path) -> list[Entry]:
    """Every entry that counts, oldest first. Works while a master writes; changes nothing.

    Raises:
        JournalDamagedError: a byte that counts is not intact, or the journal was compacted and its history is gone.
    """
    segments = sorted(path for path in folder.iterdir() if _NAME.fullmatch(path.name))
    if not segments:
        return []
    opening, *entries = _records(segments[-1], None)
    if "snapshot" in opening:
        raise MalformedJournalError(f"{segments[-1].name}: compacted, what led to the snapshot is gone")
    before = [entry for name, length in opening["fence"].items() for entry in _records(folder / name, length)[1:]]
    return before + entries


def _records(segment: Path, length: int | None) -> list[Entry]:
    """All records of a segment: exactly up to ``length`` bytes, or to the first one that is not whole."""
    data = segment.read_bytes()
    _check_header(segment, data)
    if length is not None and len(data) < length:
        raise MalformedJournalError(f"{segment.name}: {len(data)} bytes where a later segment counts {length}")
    intact = list(_intact(data[:length]))
    end = intact[-1][0] if intact else 0
    if not intact or (length is not None and end != length):
        raise MalformedJournalError(f"{segment.name}: intact up to byte {end} only")
    return [entry for _, entry in intact]


def _check_header(segment: Path, data: bytes) -> None:
    if len(data) < _HEADER.size:
        raise MalformedJournalError(f"{segment.name}: shorter than a header")
    magic, version, incarnation, number, checksum = _HEADER.unpack_from(data)
    if magic != b"EDLJRNL\n" or version != 1 or checksum != zlib.crc32(data[:20]):
        raise MalformedJournalError(f"{segment.name}: not a segment of format version 1")
    if segment.name != f"{incarnation:06}-{number:06}.edlj":
        raise MalformedJournalError(f"{segment.name}: its header says {incarnation}-{number}")


def _intact(data: bytes) -> Iterator[tuple[int, Entry]]:
    """Records up to the first that is not whole, each with the byte at which it ends."""
    at = _HEADER.size
    while at + _RECORD.size <= len(data):
        word, checksum = _RECORD.unpack_from(data, at)
        begin = at + _RECORD.size
        at = begin + (word & _LENGTH_BITS)
        payload = data[begin:at]
        if at > len(data) or at - begin < 2 or zlib.crc32(payload) != checksum:
            return
        yield at, json.loads(payload)

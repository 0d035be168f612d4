"""A large chunk of RecordIO is verified whole once; a range then reads only what it needs of it."""

from __future__ import annotations

import io
import os
from pathlib import Path

import numpy as np
import pytest

from edl.data.reader import CorruptRange, CorruptRecordError
from edl.data.recordio.chunk import HEADER_BYTES
from edl.data.recordio.reader import ChunkMemory, RecordFile, RecordIOReader
from edl.data.recordio.writer import Writer

RECORDS = [b"%d|" % number + bytes(number % 90) for number in range(4000)]
FIRST_CHUNK = 3000


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two chunks that count as large."""
    monkeypatch.setattr("edl.data.recordio.reader._LARGE_CHUNK", 1000)
    for name, part in (("a", RECORDS[:FIRST_CHUNK]), ("b", RECORDS[FIRST_CHUNK:])):
        with Writer(tmp_path / name, chunk_limit=1 << 20) as writer:
            for record in part:
                writer.write(record)
    path = tmp_path / "data.recordio"
    path.write_bytes((tmp_path / "a").read_bytes() + (tmp_path / "b").read_bytes())
    return path


@pytest.fixture
def verified(file: Path) -> RecordFile:
    """All chunks were verified, and none is in memory."""
    opened = RecordFile(file)
    assert len(opened.index.headers) == 2
    assert opened.read() == RECORDS
    opened.drop_cached_chunk()
    return opened


@pytest.mark.parametrize("first", [0, 1, 255, 256, 257, 2990, 2999, 3000, 3900])
@pytest.mark.parametrize("count", [0, 1, 2, 256, 600])
def test_any_range_is_read_from_parts(verified: RecordFile, first: int, count: int) -> None:
    assert verified.read(first, first + count) == RECORDS[first : first + count]


def test_a_small_range_reads_a_small_part(verified: RecordFile, monkeypatch: pytest.MonkeyPatch) -> None:
    read, sizes = RecordFile._read_stored_bytes, list[int]()

    def note(file: RecordFile, number: int, begin: int, end: int) -> bytes:
        sizes.append(end - begin)
        return read(file, number, begin, end)

    monkeypatch.setattr(RecordFile, "_read_stored_bytes", note)
    assert verified.read(1000, 1010) == RECORDS[1000:1010]
    assert len(sizes) == 1
    assert sizes[0] < verified.index.headers[0].size / 10


@pytest.mark.parametrize("lost", [0, 1500, 2999])
def test_a_byte_that_changes_later_makes_the_chunk_corrupt(verified: RecordFile, lost: int) -> None:
    status = verified.path.stat()
    content = bytearray(verified.path.read_bytes())
    place = HEADER_BYTES + sum(4 + len(record) for record in RECORDS[:lost])
    content[place + 4] ^= 1
    verified.path.write_bytes(content)
    os.utime(verified.path, ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(CorruptRecordError, match="checksum"):
        verified.read(lost, lost + 1)
    corrupt: list[CorruptRange] = []
    assert verified.read(lost, lost + 1, corrupt.append) == []
    assert [(each.start, each.end, each.chunk, each.whole) for each in corrupt] == [(lost, lost + 1, 0, (0, 3000))]


def test_a_chunk_with_a_wrong_checksum_is_reported_when_it_is_first_needed(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[HEADER_BYTES + 20] ^= 1
    file.write_bytes(content)
    opened, corrupt = RecordFile(file), list[CorruptRange]()
    for _ in range(2):
        assert opened.read(2990, 3010, corrupt.append) == RECORDS[3000:3010]
        opened.drop_cached_chunk()
    assert {(each.start, each.end, each.chunk) for each in corrupt} == {(2990, 3000, 0)}
    assert len(corrupt) == 2
    assert "checksum" in corrupt[0].reason


def address_of(content: bytes) -> int:
    return int(np.frombuffer(content, np.uint8).ctypes.data)


def test_memory_of_a_chunk_is_used_again_when_nobody_holds_it() -> None:
    memory = ChunkMemory()
    first = memory.read(io.BytesIO(b"a" * 50_000), 50_000)
    place = address_of(first)
    del first
    second = memory.read(io.BytesIO(b"b" * 50_000), 50_000)
    assert (second, address_of(second)) == (b"b" * 50_000, place)


def test_memory_of_a_chunk_that_somebody_holds_keeps_its_content() -> None:
    memory, chunks = ChunkMemory(), []
    for number, size in enumerate((3000, 3000, 2000, 0, 5000, 1)):
        content = bytes([number]) * size
        chunks.append((memory.read(io.BytesIO(content + b"rest"), size), content))
    assert all(chunk == content for chunk, content in chunks)


@pytest.mark.parametrize("rest", [0, 1, 999])
def test_a_stream_that_ends_gives_fewer_bytes(rest: int) -> None:
    memory = ChunkMemory()
    memory.read(io.BytesIO(bytes(5000)), 5000)
    assert memory.read(io.BytesIO(b"x" * rest), 1000) == b"x" * rest


def test_memory_can_be_used_after_an_error() -> None:
    class Broken(io.BytesIO):
        def readinto(self, view: object) -> int:
            self.held = view
            raise OSError("gone")

    memory, broken = ChunkMemory(), Broken(b"abc")
    with pytest.raises(OSError, match="gone"):
        memory.read(broken, 3)
    assert memory.read(io.BytesIO(b"abcd"), 4) == b"abcd"


def test_packed_records_stay_while_other_chunks_are_read(file: Path) -> None:
    reader = RecordIOReader([file])
    name = str(file)
    packed = reader.packed_records(name, 0, FIRST_CHUNK)
    assert packed is not None
    assert reader.read(name, FIRST_CHUNK, 4000) == RECORDS[FIRST_CHUNK:]
    again = reader.packed_records(name, FIRST_CHUNK, 4000)
    assert again is not None
    reader.read(name, 0, 10)
    reader.read(name, 3500, 3510)
    assert [*packed, *again] == RECORDS

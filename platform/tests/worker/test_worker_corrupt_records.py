"""How many corrupt records a job has to allow: what the error says is enough, whatever part of a chunk was read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.data.reader import CorruptRange, CorruptRecordError
from edl.data.recordio.reader import RecordIOReader
from edl.data.recordio.writer import Writer
from edl.worker.record_stream import CorruptRecordSkipper

CHUNK, CHUNKS, WINDOW = 5, 4, 3
RECORDS = CHUNK * CHUNKS
RECORD = 40


@pytest.fixture(scope="module")
def intact_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("records") / "intact"
    with Writer(path, chunk_limit=CHUNK * RECORD) as writer:
        for index in range(RECORDS):
            writer.write(bytes([index]) * RECORD)
    return path


def damaged(intact_file: Path, chunks: Sequence[int]) -> RecordIOReader:
    """A copy with a flipped byte in each of these chunks."""
    data = bytearray(intact_file.read_bytes())
    for chunk in chunks:
        data[data.index(bytes([chunk * CHUNK + 1]) * RECORD)] ^= 0xFF
    path = intact_file.with_name("damaged")
    path.write_bytes(data)
    return RecordIOReader([path])


def read_all(reader: RecordIOReader, allowed: int) -> int:
    """Records that were skipped."""
    corrupt, (source,) = CorruptRecordSkipper(allowed), reader.sources()
    assert source.records == RECORDS
    ends = ((start, min(start + WINDOW, RECORDS)) for start in range(0, RECORDS, WINDOW))
    return sum(corrupt.read(reader, source.name, *window).skipped_records for window in ends)


@given(chunks=st.sets(st.integers(0, CHUNKS - 1), min_size=1))
def test_following_the_hint_leads_past_a_chunk_at_a_time(intact_file: Path, chunks: set[int]) -> None:
    reader, allowed = damaged(intact_file, sorted(chunks)), 0
    for chunk_count in range(1, len(chunks) + 1):
        with pytest.raises(CorruptRecordError) as caught:
            read_all(reader, allowed)
        match = re.search(r"at least (\d+)", str(caught.value))
        assert match is not None
        allowed = int(match[1])
        assert allowed == chunk_count * CHUNK
    assert read_all(reader, allowed) == len(chunks) * CHUNK


def test_a_single_record_is_named_in_the_singular(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class OneIsCorrupt(RecordIOReader):
        def read(self, source: str, start: int, end: int, on_corrupt: Any = None) -> Any:
            on_corrupt(CorruptRange(source, 2, 3, None, 0, "no value of x"))
            on_corrupt(CorruptRange(source, 4, 6, None, 0, "no value of x"))
            return [b"1", b"2", b"3"]

    with Writer(tmp_path / "a.recordio") as writer:
        writer.write(b"")
    CorruptRecordSkipper(9).read(OneIsCorrupt([tmp_path / "a.recordio"]), "a", 0, 6)
    assert "a: record 2 is corrupt (no value of x): skipped, 1 of 9 allowed so far" in caplog.text
    assert "a: records 4 to 5 are corrupt (no value of x)" in caplog.text

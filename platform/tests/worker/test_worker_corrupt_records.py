"""How many corrupt records a job has to allow: what the error says is enough, whatever part of a chunk was read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.data.reader import CorruptRecordError
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
    for found in range(1, len(chunks) + 1):
        with pytest.raises(CorruptRecordError) as caught:
            read_all(reader, allowed)
        said = re.search(r"at least (\d+)", str(caught.value))
        assert said is not None
        allowed = int(said[1])
        assert allowed == found * CHUNK
    assert read_all(reader, allowed) == len(chunks) * CHUNK

"""Whatever was written comes back, for any records, compression, chunk limit and range; damage is never silent."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.api.errors import BadInputError, EdlError, StorageError
from edl.data.reader import CorruptRange
from edl.data.reader_factory import open_reader
from edl.data.recordio.chunk import HEADER_BYTES, Compression, encode_chunk
from edl.data.recordio.reader import RecordFile
from edl.data.recordio.writer import Writer

compressions = st.sampled_from(["none", "snappy", "gzip"])
record_lists = st.lists(st.binary(max_size=50), max_size=60)


@contextmanager
def a_file(records: list[bytes], compression: Compression, limit: int) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "data.recordio")
        with Writer(path, compression=compression, chunk_limit=limit) as writer:
            for record in records:
                writer.write(record)
        yield path


@given(record_lists, compressions, st.integers(51, 400), st.data())
def test_any_range_is_that_slice(
    records: list[bytes], compression: Compression, limit: int, data: st.DataObject
) -> None:
    with a_file(records, compression, limit) as path:
        reader = open_reader(path)
        assert [(source.name, source.records) for source in reader.sources()] == [(str(path), len(records))]
        for _ in range(4):
            start = data.draw(st.integers(0, len(records)))
            end = data.draw(st.integers(start, len(records)))
            assert reader.read(str(path), start, end) == records[start:end]


@given(record_lists, st.integers(51, 400))
def test_chunks_follow_the_rule(records: list[bytes], limit: int) -> None:
    with a_file(records, "none", limit) as path:
        file, position = RecordFile(path), 0
        sizes = []
        for header in file.index.headers:
            assert header.records > 0
            sizes.append(sum(map(len, records[position : position + header.records])))
            position += header.records
            if position < len(records):
                assert sizes[-1] + len(records[position]) > limit, "flushed before it had to be"
        assert position == len(records)
        assert all(size <= limit for size in sizes)


@given(st.lists(st.binary(min_size=1, max_size=50), min_size=1, max_size=60), compressions, st.data())
def test_a_flipped_payload_bit_costs_its_chunk_and_is_counted(
    records: list[bytes], compression: Compression, data: st.DataObject
) -> None:
    with a_file(records, compression, 100) as path:
        index = RecordFile(path).index
        number = data.draw(st.integers(0, len(index.headers) - 1))
        within = data.draw(st.integers(0, index.headers[number].size - 1))
        flip(path, index.offsets[number] + HEADER_BYTES + within)
        start = data.draw(st.integers(0, len(records)))
        end = data.draw(st.integers(start, len(records)))
        reported: list[CorruptRange] = []
        records_read = open_reader(path).read(str(path), start, end, reported.append)
        bad = {index for corrupt in reported for index in range(corrupt.start, corrupt.end)}
        assert bad == set(range(index.first_records[number], index.first_records[number + 1])) & set(range(start, end))
        assert records_read == [records[position] for position in range(start, end) if position not in bad]


@given(st.lists(st.binary(max_size=50), min_size=1, max_size=30), compressions, st.data())
def test_any_damage_is_an_error_and_never_other_records(
    records: list[bytes], compression: Compression, data: st.DataObject
) -> None:
    with a_file(records, compression, 100) as path:
        content = path.read_bytes()
        if data.draw(st.booleans()):
            path.write_bytes(content[: data.draw(st.integers(0, len(content) - 1))])
        else:
            flip(path, data.draw(st.integers(0, len(content) - 1)))
        file = RecordFile(path)
        try:
            records_read = file.read()
        except EdlError:
            return
        # A file cut between two chunks is a legal, shorter file.
        assert records_read == records[: len(records_read)]
        assert path.stat().st_size < len(content)


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0x10
    path.write_bytes(bytes(data))


def test_lengths_that_do_not_add_up_are_corrupt_in_spite_of_a_right_checksum(tmp_path: Path) -> None:
    path = tmp_path / "x.recordio"
    chunk = bytearray(encode_chunk([b"abc", b"de"], "none"))
    chunk[16] = 3
    path.write_bytes(chunk)
    with pytest.raises(BadInputError, match="3 records"):
        RecordFile(path).read()


def test_an_unknown_compressor_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.recordio"
    chunk = bytearray(encode_chunk([b"abc"], "none"))
    chunk[8] = 9
    path.write_bytes(chunk)
    with pytest.raises(BadInputError, match="unknown compressor 9"):
        RecordFile(path).read()


def test_a_damaged_size_is_not_allocated(tmp_path: Path) -> None:
    path = tmp_path / "x.recordio"
    chunk = bytearray(encode_chunk([b"abc"], "none"))
    chunk[12:16] = b"\xff\xff\xff\xff"
    path.write_bytes(chunk)
    with pytest.raises(BadInputError, match="truncated: 7 of 4294967295 bytes"):
        RecordFile(path).read()


def test_a_file_that_changes_under_the_reader_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "x.recordio"
    path.write_bytes(encode_chunk([b"abc"], "none"))
    file = RecordFile(path)
    assert file.records == 1
    path.write_bytes(encode_chunk([b"xyz"], "none"))
    with pytest.raises(BadInputError, match="changed while it was in use"):
        file.read()


def write_all(path: Path, records: list[bytes | None]) -> None:
    with Writer(path, chunk_limit=10) as writer:
        for record in records:
            writer.write(record)  # type: ignore[arg-type]


def test_a_file_appears_only_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "x.recordio"
    path.write_bytes(b"the old one")
    with pytest.raises(ValueError, match="pass bytes"):
        write_all(path, [b"12345"] * 10 + [None])
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.recordio"]
    assert path.read_bytes() == b"the old one"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_a_storage_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edl.data.recordio.writer.temporary_path", lambda path: tmp_path / "full")
    (tmp_path / "full").symlink_to("/dev/full")
    writer = Writer(tmp_path / "x.recordio")
    writer.write(b"abc")
    with pytest.raises(StorageError, match="No space left"):
        writer.close()
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_is_missing_is_a_storage_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot be written"):
        Writer(tmp_path / "nowhere" / "x.recordio")

"""A saved index is used while it fits its file; otherwise it costs a walk and nothing else."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from edl.data.data_files import decode_index, encode_index
from edl.data.reader_factory import open_reader
from edl.data.recordio.reader import ChunkIndex, load_index
from edl.data.recordio.writer import Writer


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "data.recordio"
    write(path, 10)
    return path


def write(path: Path, records: int) -> None:
    with Writer(path, chunk_limit=20) as writer:
        for number in range(records):
            writer.write(b"%08d" % number)


def side(file: Path) -> Path:
    return file.with_name(file.name + ".idx")


def no_walk(*_: object) -> None:
    raise AssertionError("the saved index was not used")


def test_is_kept_in_memory_unless_asked_for(file: Path) -> None:
    load_index(file)
    assert not side(file).exists()


def test_a_saved_index_spares_the_walk(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    walked = load_index(file, save=True)
    monkeypatch.setattr("edl.data.recordio.reader._walk_headers", no_walk)
    assert load_index(file) == walked
    assert walked.record_count == 10


def test_the_reader_option_saves_it_and_the_directory_passes_it_over(file: Path) -> None:
    reader = open_reader(file.parent, {"index": "file"})
    assert [source.records for source in reader.sources()] == [10]
    assert side(file).exists()
    assert [source.name for source in open_reader(file.parent).sources()] == [str(file)]


def test_another_size_makes_it_stale(file: Path) -> None:
    load_index(file, save=True)
    write(file, 12)
    assert load_index(file).record_count == 12


def test_another_modification_time_makes_it_stale(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load_index(file, save=True)
    os.utime(file, ns=(0, 12345))
    monkeypatch.setattr("edl.data.recordio.reader._walk_headers", lambda *_: [])
    assert load_index(file) == ChunkIndex.from_headers([])


def _version(saved: dict[str, object]) -> None:
    saved["version"] = 99


def _no_chunks(saved: dict[str, object]) -> None:
    del saved["chunks"]


def _text_chunks(saved: dict[str, object]) -> None:
    saved["chunks"] = [["a", "b", "c", "d"]]


def _short_chunks(saved: dict[str, object]) -> None:
    saved["chunks"] = [[1, 2]]


def _negative(saved: dict[str, object]) -> None:
    saved["chunks"] = [[1, 0, -5, 3]]


@pytest.mark.parametrize("damage", [_version, _no_chunks, _text_chunks, _short_chunks, _negative])
def test_one_that_cannot_be_understood_is_rebuilt(file: Path, damage: Callable[[dict[str, object]], None]) -> None:
    walked = load_index(file, save=True)
    saved = dict(decode_index(side(file).read_bytes()))
    damage(saved)
    side(file).write_bytes(encode_index(saved))
    assert load_index(file, save=True) == walked
    assert json.loads(side(file).read_text())["version"] == 1


@pytest.mark.parametrize("content", [b"", b"\xff\x00", b"[]", b"null", b'{"version": 1', b"[" * 100_000])
def test_one_that_is_no_index_is_rebuilt(file: Path, content: bytes) -> None:
    side(file).write_bytes(content)
    assert load_index(file).record_count == 10


def test_one_that_cannot_be_written_is_no_error(file: Path) -> None:
    side(file).mkdir()
    assert load_index(file, save=True).record_count == 10
    assert sorted(entry.name for entry in file.parent.iterdir()) == ["data.recordio", "data.recordio.idx"]


def test_finds_the_chunks_of_a_range(file: Path) -> None:
    index = load_index(file)  # chunks of two records
    assert index.first_records == (0, 2, 4, 6, 8, 10)
    assert list(index.chunks_of_range(0, 10)) == [0, 1, 2, 3, 4]
    assert list(index.chunks_of_range(3, 5)) == [1, 2]
    assert list(index.chunks_of_range(4, 6)) == [2]
    assert list(index.chunks_of_range(4, 4)) == []

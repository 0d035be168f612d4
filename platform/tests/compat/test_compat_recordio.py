"""The package ``recordio``: files of the original, its three classes, and what cannot be read."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

import recordio
from edl.api.errors import BadInputError
from edl.data import open_reader

RECORDS = [b"Hello", b"World,", b"", b"RecordIO!", b"a" * 40]


@pytest.fixture
def file(tmp_path: Path) -> str:
    """The records in chunks of two or three."""
    path = str(tmp_path / "data.recordio")
    with closing(recordio.Writer(path, chunk_limit=41)) as writer:
        for record in RECORDS:
            writer.write(record)
    return path


def scanned(scanner: recordio.Scanner) -> list[bytes]:
    with closing(scanner):
        return list(iter(scanner.record, None))


def test_what_is_written_is_counted_and_read(file: str) -> None:
    with closing(recordio.Index(file)) as index:
        assert index.num_records() == 5
    assert scanned(recordio.Scanner(file)) == RECORDS
    assert open_reader(file).read(file, 0, 5) == RECORDS


@pytest.mark.parametrize(
    ("start", "count", "expected"),
    [(0, -1, RECORDS), (2, -1, RECORDS[2:]), (1, 3, RECORDS[1:4]), (4, 9, RECORDS[4:]), (9, 1, []), (1, 0, [])],
)
def test_a_range_is_read(file: str, start: int, count: int, expected: list[bytes]) -> None:
    assert scanned(recordio.Scanner(file, start, count)) == expected
    assert scanned(recordio.Scanner(file, start=start, len=count, index=recordio.Index(file))) == expected


def test_an_empty_record_is_not_the_end(file: str) -> None:
    scanner = recordio.Scanner(file, 2)
    assert scanner.record() == b""
    assert scanner.record() == b"RecordIO!"


def test_a_closed_scanner_says_so(file: str) -> None:
    scanner = recordio.Scanner(file)
    scanner.close()
    with pytest.raises(ValueError, match="closed"):
        scanner.record()


def test_only_bytes_are_written(tmp_path: Path) -> None:
    with closing(recordio.Writer(str(tmp_path / "data"))) as writer, pytest.raises(ValueError, match="str"):
        writer.write("text")  # type: ignore[arg-type]


def test_a_file_that_cannot_be_read_is_a_runtime_error_with_its_name(tmp_path: Path) -> None:
    missing, other = tmp_path / "missing", tmp_path / "text"
    other.write_text("no chunks are in this file")
    for path in (missing, other):
        with pytest.raises(RuntimeError, match=path.name) as caught:
            recordio.Index(str(path))
        assert isinstance(caught.value, BadInputError)
        with pytest.raises(RuntimeError, match=path.name):
            recordio.Scanner(str(path))

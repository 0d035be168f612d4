"""Which files are a data set, in which format, and what is refused."""

import errno
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.text_keys import missing_keys

from edl.api.errors import BadInputError, EdlError, RetryableError
from edl.data.reader import Metadata
from edl.data.reader_factory import open_reader
from edl.data.recordio.writer import Writer


def recordio(path: Path, records: int = 3) -> Path:
    with Writer(path, chunk_limit=64) as writer:
        for number in range(records):
            writer.write(b"%08d" % number)
    return path


def names(paths: object, **options: object) -> list[str]:
    return [Path(source.name).name for source in open_reader(paths, options).sources()]  # type: ignore[arg-type]


def test_a_file_a_directory_and_a_list_of_both(tmp_path: Path) -> None:
    (tmp_path / "part").mkdir()
    for name in ("part/b.recordio", "part/a.recordio", "z.recordio"):
        recordio(tmp_path / name)
    assert names(tmp_path / "z.recordio") == ["z.recordio"]
    assert names(str(tmp_path / "part")) == ["a.recordio", "b.recordio"]
    assert names([tmp_path / "z.recordio", str(tmp_path / "part")]) == ["z.recordio", "a.recordio", "b.recordio"]


def test_hidden_files_index_files_and_directories_are_passed_over(tmp_path: Path) -> None:
    recordio(tmp_path / "a.recordio")
    (tmp_path / "a.recordio.idx").write_text("{}")
    (tmp_path / ".a.recordio.1.tmp").write_bytes(b"half")
    (tmp_path / "more").mkdir()
    assert names(tmp_path) == ["a.recordio"]


def test_the_format_is_known_by_the_first_bytes_too(tmp_path: Path) -> None:
    recordio(tmp_path / "data-00000")
    (tmp_path / "data-00001").write_bytes(b"")
    reader = open_reader(tmp_path)
    assert reader.metadata == Metadata(format="recordio")
    assert [source.records for source in reader.sources()] == [3, 0]


def test_the_format_can_be_given(tmp_path: Path) -> None:
    (tmp_path / "table.txt").write_text("a,b\n1,2\n")
    reader = open_reader(tmp_path, {"format": "csv"})
    assert reader.metadata == Metadata("csv", ("a", "b"), {"a": "string", "b": "string"})


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda path: path / "missing", "no such file"),
        (lambda path: path, "no data files"),
        (lambda path: [], "empty"),
    ],
)
def test_no_training_data_is_refused(tmp_path: Path, make: object, what: str) -> None:
    with pytest.raises(BadInputError, match=what):
        open_reader(make(tmp_path))  # type: ignore[operator]


def test_a_directory_of_directories_says_which(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    (tmp_path / "test").mkdir()
    with pytest.raises(BadInputError, match="test, train"):
        open_reader(tmp_path)


def test_a_missing_path_names_the_nearest_directory(tmp_path: Path) -> None:
    with pytest.raises(BadInputError) as caught:
        open_reader(tmp_path / "a" / "b")
    assert not missing_keys(caught.value.hint or "", str(tmp_path))


@pytest.mark.parametrize(
    ("code", "kind"), [(errno.EACCES, BadInputError), (errno.EIO, RetryableError), (errno.ESTALE, RetryableError)]
)
def test_a_file_that_cannot_be_read_is_refused_and_a_volume_may_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, kind: type[EdlError]
) -> None:
    path = recordio(tmp_path / "a.recordio")
    reader = open_reader(path)
    reader.sources()

    def refuse(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(kind, match=os.strerror(code)):
        open_reader(path)
    with pytest.raises(kind, match=os.strerror(code)):
        reader.read(str(path), 0, 1)


def test_a_file_listed_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="listed twice"):
        open_reader([recordio(tmp_path / "a.recordio"), tmp_path])


def test_unknown_and_mixed_formats_are_refused(tmp_path: Path) -> None:
    recordio(tmp_path / "a.recordio")
    (tmp_path / "README").write_text("hello")
    with pytest.raises(BadInputError, match="unknown data format") as caught:
        open_reader(tmp_path)
    assert caught.value.where == str(tmp_path / "README")
    (tmp_path / "README").rename(tmp_path / "b.csv")
    with pytest.raises(BadInputError, match=r"a\.recordio is recordio, b\.csv is csv"):
        open_reader(tmp_path)


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"format": "parqet"}, "unknown data format .parqet."),
        ({"indx": "file"}, "did you mean index"),
        ({"index": "disk"}, "memory, file"),
        ({"index": 3}, "3 is not allowed"),
        ({"format": "csv", "header": "yes"}, "true or false"),
        ({"format": "csv", "sep": ";;"}, "one character"),
        ({"format": "csv", "columns": "a"}, "a list of names"),
        ({"format": "csv", "columns": ["a", "a"]}, "names that differ"),
    ],
)
def test_wrong_options_are_refused(tmp_path: Path, options: dict[str, object], what: str) -> None:
    with pytest.raises(BadInputError, match=what):
        open_reader(recordio(tmp_path / "a.recordio"), options)


def test_a_range_or_a_source_that_is_not_there_is_refused(tmp_path: Path) -> None:
    path = str(recordio(tmp_path / "a.recordio"))
    reader = open_reader(path)
    for start, end in ((0, 4), (-1, 2), (2, 1)):
        with pytest.raises(BadInputError, match="were requested"):
            reader.read(path, start, end)
    with pytest.raises(BadInputError, match="no such source"):
        reader.read("other", 0, 1)


def test_a_file_that_vanishes_is_bad_input(tmp_path: Path) -> None:
    path = recordio(tmp_path / "a.recordio")
    reader = open_reader(path)
    assert reader.sources()[0].records == 3
    path.unlink()
    with pytest.raises(BadInputError, match="No such file"):
        reader.read(str(path), 0, 1)


def test_threads_may_share_a_reader(tmp_path: Path) -> None:
    path = str(recordio(tmp_path / "a.recordio", 500))
    reader = open_reader(path)
    ranges = [(start * 7 % 490, start * 7 % 490 + 10) for start in range(200)]
    with ThreadPoolExecutor(8) as pool:
        records = list(pool.map(lambda span: reader.read(path, *span), ranges))
    assert records == [[b"%08d" % number for number in range(*span)] for span in ranges]


def test_counting_and_reading_load_neither_numpy_nor_tensorflow(tmp_path: Path) -> None:
    recordio(tmp_path / "a.recordio")
    (tmp_path / "csv").mkdir()
    (tmp_path / "csv" / "b.csv").write_text("a\n1\n")
    script = (
        "import sys; from edl.data.reader_factory import open_reader\n"
        "for path in sys.argv[1:]:\n"
        "    reader = open_reader(path)\n"
        "    [reader.read(s.name, 0, s.records) for s in reader.sources()]\n"
        "print([m for m in ('numpy', 'tensorflow', 'keras', 'google.protobuf', 'grpc') if m in sys.modules])\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "a.recordio"), str(tmp_path / "csv")]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout == "[]\n"

"""What of a data set's files a run keeps, to find out whether they were replaced."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from edl.api.errors import BadInputError
from edl.data.file_digests import MAX_GROUPS, FileCheck, digest_file, digest_sources
from edl.data.mixed_reader import MixedPart, MixedReader
from edl.data.reader_factory import open_reader
from edl.data.remote_files import BlockStore, RemotePath


def test_a_copy_with_another_time_has_the_same_digest(tmp_path: Path) -> None:
    file, copy = tmp_path / "a", tmp_path / "b"
    file.write_bytes(bytes(100_000))
    shutil.copyfile(file, copy)
    os.utime(copy, (1, 1))
    assert digest_file(copy) == digest_file(file)


@pytest.mark.parametrize("size", [1, 9_000, 65_536, 65_537, 1 << 20])
def test_other_bytes_at_the_beginning_or_the_end_or_another_size_have_another_digest(tmp_path: Path, size: int) -> None:
    file, content = tmp_path / "a", bytes(size)
    digests = set()
    for changed in (content, b"x" + content[1:], content[:-1] + b"y", content + b"\0"):
        file.write_bytes(changed)
        digests.add(digest_file(file))
    assert len(digests) == 4


def test_digests_of_many_files_stay_short_and_name_the_neighbours_of_a_changed_one(tmp_path: Path) -> None:
    for number in range(MAX_GROUPS * 2 + 1):
        (tmp_path / f"{number:03}.txt").write_text(f"{number}\n")
    digests = digest_sources(open_reader(tmp_path, {"format": "text"}))
    assert len(digests) == 8 * MAX_GROUPS
    (tmp_path / "005.txt").write_text("6\n")
    reader = open_reader(tmp_path, {"format": "text"})
    FileCheck(lambda: reader).check(digests, str(tmp_path / "000.txt"))
    with pytest.raises(BadInputError, match=r"one of .*004.txt to .*005.txt: the data has changed"):
        FileCheck(lambda: reader).check(digests)


def test_another_number_of_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("1\n")
    digests = digest_sources(open_reader(tmp_path, {"format": "text"}))
    (tmp_path / "b.txt").write_text("1\n")
    with pytest.raises(BadInputError, match="it has 2 sources now, and had another number"):
        FileCheck(lambda: open_reader(tmp_path, {"format": "text"})).check(digests)


def test_a_mixed_reader_has_the_digests_of_its_parts_and_none_if_one_has_none(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("1\n2\n")
    part = MixedPart("a", open_reader(file, {"format": "text"}), repeat=2)
    mixed = MixedReader([part])
    assert list(mixed.source_digests()) == [source.name for source in mixed.sources()]
    assert not MixedReader([part, MixedPart("b", SimpleNamespace())]).source_digests()


def test_records_are_not_counted_for_a_digest(tmp_path: Path) -> None:
    """A worker that reads one of many large files does not read the others."""
    (tmp_path / "a.csv").write_text("x\n1\n")
    reader = open_reader(tmp_path / "a.csv")
    digest_sources(reader)
    assert "index" not in vars(next(iter(reader._files.values())))  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("first", "second", "is_noticed"),
    [
        ({"ETag": '"5d41402abc4b2a76b9719d911017c592"'}, {"ETag": '"7d793037a0760186574b0282f2f435e7"'}, True),
        ({"md5Hash": "abc", "etag": "1"}, {"md5Hash": "abc", "etag": "2"}, False),
        ({"ETag": '"5d41402abc4b2a76b9719d911017c592-2"'}, {"ETag": '"7d793037a0760186574b0282f2f435e7-2"'}, False),
        ({"ETag": 'W/"1"', "size": 5}, {"ETag": 'W/"2"', "size": 6}, True),
    ],
    ids=["MD5 of S3", "copy in another bucket", "written in several parts", "other size"],
)
def test_remote_objects_are_compared_by_size_and_checksum_and_not_by_version(
    monkeypatch: pytest.MonkeyPatch, first: dict[str, object], second: dict[str, object], is_noticed: bool
) -> None:
    def digest(info: dict[str, object]) -> bytes:
        system = SimpleNamespace(info=lambda url: {"size": 5, **info})
        monkeypatch.setattr("edl.data.remote_files._file_system", lambda scheme: system)
        return digest_file(RemotePath("s3://bucket/a", BlockStore()))  # type: ignore[arg-type]

    assert (digest(first) != digest(second)) is is_noticed

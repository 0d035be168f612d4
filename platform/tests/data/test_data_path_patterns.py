"""Patterns in paths stand for files."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.format_files import (
    PNG,
)

from edl.api.errors import BadInputError
from edl.data.reader_factory import open_reader


def touch(*files: Path) -> None:
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("a\n")


def names_of(path: Path | list[Path]) -> list[str]:
    return [Path(source.name).name for source in open_reader(path).sources()]


def test_a_pattern_stands_for_its_files_in_sorted_order(tmp_path: Path) -> None:
    touch(*(tmp_path / name for name in ("t-2.txt", "t-10.txt", "t-1.txt", "v-1.txt", ".t-0.txt", "t-1.txt.idx")))
    assert names_of(tmp_path / "t-*") == ["t-1.txt", "t-10.txt", "t-2.txt"]
    assert names_of(tmp_path / "[tv]-1.txt") == ["t-1.txt", "v-1.txt"]
    assert names_of([tmp_path / "v-?.txt", tmp_path / "t-?.txt"]) == ["v-1.txt", "t-1.txt", "t-2.txt"]


def test_a_pattern_of_folders_has_the_files_below(tmp_path: Path) -> None:
    touch(*(tmp_path / name for name in ("day=1/a.txt", "day=2/b.txt", "day=2/deep/c.txt", "other/d.txt")))
    assert names_of(tmp_path / "day=*") == ["a.txt", "b.txt"]
    assert names_of(tmp_path / "**" / "*.txt") == ["a.txt", "b.txt", "c.txt", "d.txt"]
    assert names_of(tmp_path / "day=2" / "**") == ["b.txt", "c.txt"]


def test_a_pattern_of_image_folders_has_each_as_a_source(tmp_path: Path) -> None:
    for name in ("p1/cat/a.png", "p2/dog/b.png"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_bytes(PNG)
    assert names_of(tmp_path / "p*") == ["p1", "p2"]


def test_a_pattern_that_matches_nothing_is_an_error(tmp_path: Path) -> None:
    touch(tmp_path / "in" / "a.txt")
    with pytest.raises(BadInputError, match="no file matches the pattern") as refused:
        open_reader(tmp_path / "in" / "b-*" / "c.txt")
    assert refused.value.where == str(tmp_path / "in" / "b-*" / "c.txt")
    assert refused.value.hint == f"the nearest directory that exists is {tmp_path / 'in'}"


def test_a_file_whose_name_looks_like_a_pattern_is_itself(tmp_path: Path) -> None:
    touch(tmp_path / "a[1].txt", tmp_path / "a1.txt")
    assert names_of(tmp_path / "a[1].txt") == ["a[1].txt"]


def test_a_file_that_two_patterns_match_is_refused(tmp_path: Path) -> None:
    touch(tmp_path / "a.txt")
    with pytest.raises(BadInputError, match="listed twice"):
        open_reader([tmp_path / "*.txt", tmp_path / "a*"])

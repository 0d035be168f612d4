"""What a journal says after its files were cut off, damaged, or written to by a master that had been replaced."""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples

from edl.api.errors import RefusedError, StorageError
from edl.storage.journal import Journal
from edl.storage.journal_reader import JournalDamagedError, read_journal
from edl.storage.segment_chain import HEADER_STRUCT, SegmentId, encode_record, encode_segment_header, find_record_end

Entry = dict[str, Any]

values = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=12)
entries = st.dictionaries(st.text(max_size=5), values, max_size=3)
groups_of_entries = st.lists(st.lists(entries, min_size=1, max_size=4), min_size=1, max_size=4)


@contextmanager
def folder() -> Iterator[Path]:
    """A folder for one example: hypothesis runs many in one test."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def write(directory: Path, groups: list[list[Entry]]) -> Path:
    """Journal ``groups``, each durable before the next begins; the segment's path."""
    journal, _ = Journal.open(directory, holder="test")
    for group in groups:
        journal.wait_until_durable([journal.append(entry) for entry in group][-1])
    journal.close()
    return directory / SegmentId(journal.incarnation, 1).file_name


def ends(path: Path) -> list[int]:
    """Where the header's and every record's bytes end: the opening first, then the entries."""
    data = memoryview(path.read_bytes())
    offsets = [HEADER_STRUCT.size]
    while offsets[-1] < len(data):
        offsets.append(find_record_end(data, offsets[-1], len(data)))
    return offsets[1:]


def test_an_empty_journal_says_nothing(tmp_path: Path) -> None:
    journal_content = read_journal(tmp_path / "missing")

    assert (
        journal_content.snapshot,
        list(journal_content.entries),
        journal_content.incarnation,
        journal_content.torn_bytes,
    ) == (None, [], 0, 0)


@settings(max_examples=examples(20), deadline=None)
@given(groups_of_entries)
def test_entries_come_back_in_order_over_incarnations(groups: list[list[Entry]]) -> None:
    with folder() as directory:
        for group in groups:
            write(directory, [group])
        journal_content = read_journal(directory)

        assert list(journal_content.entries) == [entry for group in groups for entry in group]
        assert len(journal_content.entries) == sum(map(len, groups))
        assert journal_content.incarnation == len(groups)


@settings(max_examples=examples(20), deadline=None)
@given(groups_of_entries)
def test_a_journal_cut_off_anywhere_keeps_every_entry_before_the_cut(groups: list[list[Entry]]) -> None:
    appended = [entry for group in groups for entry in group]
    with folder() as directory:
        path = write(directory, groups)
        content, (opening, *boundaries) = path.read_bytes(), ends(path)
        for length in range(opening, len(content) + 1):
            path.write_bytes(content[:length])
            journal_content = read_journal(directory)

            survivors = sum(end <= length for end in boundaries)
            assert list(journal_content.entries) == appended[:survivors]
            assert journal_content.torn_bytes == length - [opening, *boundaries][survivors]


def test_a_segment_without_its_opening_record_is_no_crash_but_damage(tmp_path: Path) -> None:
    path = write(tmp_path, [[{"a": 1}]])
    content, (opening, *_) = path.read_bytes(), ends(path)
    for length in range(opening):
        path.write_bytes(content[:length])
        with pytest.raises(StorageError, match=path.name):
            read_journal(tmp_path)


@settings(max_examples=examples(15), deadline=None)
@given(groups_of_entries, st.integers(1, 255))
def test_a_changed_byte_is_found_or_costs_at_most_the_last_group(groups: list[list[Entry]], mask: int) -> None:
    appended = [entry for group in groups for entry in group]
    with folder() as directory:
        path = write(directory, groups)
        content = path.read_bytes()
        for offset in range(len(content)):
            path.write_bytes(content[:offset] + bytes([content[offset] ^ mask]) + content[offset + 1 :])
            try:
                entries_read = list(read_journal(directory).entries)
            except StorageError:
                continue
            assert entries_read == appended[: len(entries_read)]
            assert len(entries_read) >= len(appended) - len(groups[-1])


def test_zeros_that_a_crash_left_are_a_torn_tail(tmp_path: Path) -> None:
    path = write(tmp_path, [[{"a": 1}]])
    with path.open("ab") as file:
        file.write(bytes(4096))

    journal_content = read_journal(tmp_path)

    assert list(journal_content.entries) == [{"a": 1}]
    assert journal_content.torn_bytes == 4096


def test_a_torn_tail_stays_where_it_is_and_the_next_incarnation_goes_on_behind_it(tmp_path: Path) -> None:
    path = write(tmp_path, [[{"a": 1}]])
    with path.open("ab") as file:
        file.write(encode_record({"torn": 1})[:-1])
    torn = path.read_bytes()

    write(tmp_path, [[{"b": 2}]])

    assert path.read_bytes() == torn
    assert list(read_journal(tmp_path).entries) == [{"a": 1}, {"b": 2}]


def test_damage_in_an_older_segment_names_file_and_byte(tmp_path: Path) -> None:
    path = write(tmp_path, [[{"a": 1}], [{"b": 2}]])
    write(tmp_path, [[{"c": 3}]])
    last = ends(path)[-2]
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)

    with pytest.raises(StorageError, match=f"{path.name}: .*checksum is wrong at byte {last}"):
        read_journal(tmp_path)


@pytest.mark.parametrize("how", ["removed", "shortened"])
def test_an_older_segment_that_lost_bytes_is_an_error(tmp_path: Path, how: str) -> None:
    path = write(tmp_path, [[{"a": 1}]])
    write(tmp_path, [[{"b": 2}]])
    if how == "removed":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-1])

    with pytest.raises(StorageError, match=path.name):
        read_journal(tmp_path)


def test_another_format_version_is_refused_with_both_versions(tmp_path: Path) -> None:
    path = write(tmp_path, [[{"a": 1}]])
    header = bytearray(encode_segment_header(SegmentId(1, 1)))
    header[8:12] = struct.pack("<I", 7)
    header[-4:] = struct.pack("<I", __import__("zlib").crc32(header[:-4]))
    path.write_bytes(bytes(header) + path.read_bytes()[HEADER_STRUCT.size :])

    with pytest.raises(StorageError, match=r"version 7\b.*version 1\b"):
        read_journal(tmp_path)


@pytest.mark.parametrize("byte", [2, 9, 20])
def test_a_damaged_header_gets_the_hint_of_other_damage(tmp_path: Path, byte: int) -> None:
    path = write(tmp_path, [[{"a": 1}]])
    data = bytearray(path.read_bytes())
    data[byte] ^= 8
    path.write_bytes(data)

    with pytest.raises(JournalDamagedError) as caught:
        read_journal(tmp_path)
    assert "--from-checkpoint" in (caught.value.hint or "")
    assert caught.value.where == str(path)


def test_a_segment_under_another_name_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, [[{"a": 1}]])
    path.rename(tmp_path / SegmentId(4, 1).file_name)

    with pytest.raises(StorageError, match=path.name):
        read_journal(tmp_path)


def test_a_length_beyond_the_limit_is_damage_before_anything_is_allocated(tmp_path: Path) -> None:
    path = write(tmp_path, [[{"a": 1}]])
    with path.open("ab") as file:
        file.write(struct.pack("<II", 0x7FFFFFFF, 0))

    assert read_journal(tmp_path).torn_bytes == 8


class TestZombie:
    """Without working locks (some NFS) a replaced master may still write: here its LOCK is removed under it."""

    @pytest.fixture
    def zombie(self, tmp_path: Path) -> Iterator[Journal]:
        journal, _ = Journal.open(tmp_path, holder="old master")
        journal.wait_until_durable(journal.append({"n": 1}))
        (tmp_path / "LOCK").unlink()
        yield journal
        journal.close()

    def test_what_it_writes_is_never_acknowledged_and_never_read(self, zombie: Journal, tmp_path: Path) -> None:
        write(tmp_path, [[{"n": 2}]])

        lsn = zombie.append({"n": "zombie"})
        with pytest.raises(RefusedError, match="incarnation 2"):
            zombie.wait_until_durable(lsn)

        assert b"zombie" in (tmp_path / SegmentId(1, 1).file_name).read_bytes()
        assert list(read_journal(tmp_path).entries) == [{"n": 1}, {"n": 2}]
        with pytest.raises(RefusedError):
            zombie.append({"n": 3})

    def test_its_compaction_removes_nothing_and_is_never_read(self, zombie: Journal, tmp_path: Path) -> None:
        write(tmp_path, [[{"n": 2}]])

        lsn = zombie.compact({"state": "zombie"})
        with pytest.raises(RefusedError):
            zombie.wait_until_durable(lsn)

        journal_content = read_journal(tmp_path)
        assert (journal_content.snapshot, list(journal_content.entries)) == (None, [{"n": 1}, {"n": 2}])

    def test_bytes_behind_the_fence_are_ignored_by_every_later_incarnation(
        self, zombie: Journal, tmp_path: Path
    ) -> None:
        write(tmp_path, [[{"n": 2}]])
        with (tmp_path / SegmentId(1, 1).file_name).open("ab") as file:
            file.write(encode_record({"n": "zombie"}))
        write(tmp_path, [[{"n": 3}]])

        assert list(read_journal(tmp_path).entries) == [{"n": 1}, {"n": 2}, {"n": 3}]

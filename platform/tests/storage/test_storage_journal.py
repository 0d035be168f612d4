"""Writing a journal: order, groups, waiting, failing, compacting; and who may."""

from __future__ import annotations

import errno
import json
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from edl.api.errors import BadInputError, RefusedError, RetryableError, StorageError
from edl.storage.journal import Journal
from edl.storage.journal_reader import read_journal
from edl.storage.segment_chain import encode_record


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    opened, _ = Journal.open(tmp_path, holder="the test")
    yield opened
    opened.close()


class SyncGate:
    """Stands in for fdatasync: counts the calls and holds them until it is opened."""

    def __init__(self) -> None:
        self.entered = threading.Semaphore(0)
        self.open = threading.Event()
        self.calls = 0

    def __call__(self, descriptor: int) -> None:
        self.calls += 1
        self.entered.release()
        self.open.wait()


@pytest.fixture
def gate(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> Iterator[SyncGate]:
    sync_gate = SyncGate()
    monkeypatch.setattr(os, "fdatasync", sync_gate)
    yield sync_gate
    sync_gate.open.set()


def test_entries_that_gather_during_a_sync_share_the_next_one(journal: Journal, gate: SyncGate, tmp_path: Path) -> None:
    journal.append({"n": 0})
    gate.entered.acquire()
    last = [journal.append({"n": n}) for n in range(1, 50)][-1]
    gate.open.set()
    journal.wait_until_durable(last)

    assert gate.calls == 2
    assert [entry["n"] for entry in read_journal(tmp_path).entries] == list(range(50))


def test_nothing_is_acknowledged_before_it_is_synced(journal: Journal, gate: SyncGate) -> None:
    lsn = journal.append({"n": 0})
    gate.entered.acquire()

    with pytest.raises(RetryableError, match="not synced within"):
        journal.wait_until_durable(lsn, timeout=0.01)
    gate.open.set()
    journal.wait_until_durable(lsn)


def test_the_order_of_lsn_is_the_order_in_the_file(journal: Journal, tmp_path: Path) -> None:
    noted: list[tuple[int, int]] = []

    def work(thread: int) -> None:
        for count in range(100):
            number = thread * 1000 + count
            noted.append((journal.append({"n": number}), number))
        journal.wait_until_durable(noted[-1][0])

    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    journal.wait_until_durable(max(noted)[0])

    assert [entry["n"] for entry in read_journal(tmp_path).entries] == [number for _, number in sorted(noted)]
    assert sorted(lsn for lsn, _ in noted) == list(range(1, 801))


def test_close_writes_what_nobody_waited_for(tmp_path: Path) -> None:
    journal, _ = Journal.open(tmp_path, holder="the test")
    for n in range(100):
        journal.append({"n": n})
    journal.close()
    journal.close()

    assert len(read_journal(tmp_path).entries) == 100
    assert journal.failure is None
    with pytest.raises(StorageError, match="closed"):
        journal.append({})


def test_size_counts_the_entries_behind_the_snapshot_over_incarnations(tmp_path: Path) -> None:
    size = len(encode_record({"n": 1}))
    for incarnation in (1, 2):
        journal, journal_content = Journal.open(tmp_path, holder="the test")
        assert journal_content.size_bytes == size * (incarnation - 1)
        journal.append({"n": 1})
        assert journal.size_bytes == size * incarnation
        journal.close()
    journal, _ = Journal.open(tmp_path, holder="the test")
    journal.compact({})
    assert journal.size_bytes == 0
    journal.close()


def test_sync_latency_is_measured(journal: Journal) -> None:
    assert journal.fsync_latency.count == 0
    for n in range(3):
        journal.wait_until_durable(journal.append({"n": n}))

    latency = journal.fsync_latency
    assert latency.count == 3
    assert 0 < latency.median <= latency.p99


@pytest.mark.parametrize("entry", [{"loss": float("nan")}, {"who": object()}])
def test_an_entry_that_is_not_json_is_refused_at_once_and_harms_nothing(
    journal: Journal, entry: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises((TypeError, ValueError)):
        journal.append(entry)
    journal.wait_until_durable(journal.append({"n": 1}))

    assert list(read_journal(tmp_path).entries) == [{"n": 1}]


def test_waiting_for_an_lsn_that_was_never_given_out_is_a_mistake(journal: Journal) -> None:
    with pytest.raises(ValueError, match="never given out"):
        journal.wait_until_durable(1)


def test_a_second_opener_is_told_who_holds_the_journal(journal: Journal, tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="in use by the test") as caught:
        Journal.open(tmp_path, holder="another")
    assert isinstance(caught.value, BadInputError)
    assert caught.value.exit_code == 2


def test_the_lock_is_free_again_after_close_and_after_a_failed_open(tmp_path: Path) -> None:
    journal, _ = Journal.open(tmp_path, holder="first")
    journal.close()
    segment = tmp_path / "000001-000001.edlj"
    content = segment.read_bytes()
    segment.write_bytes(b"garbage")
    with pytest.raises(StorageError, match="first bytes are damaged"):
        Journal.open(tmp_path, holder="second")
    segment.write_bytes(content)

    journal, _ = Journal.open(tmp_path, holder="third")
    assert journal.incarnation == 2
    journal.close()


def test_what_was_read_is_durable_before_the_fence_says_that_it_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A killed writer leaves bytes that only the page cache knows, and the machine may be lost after the next open."""
    journal, _ = Journal.open(tmp_path, holder="first")
    journal.append({"n": 1})
    journal.close()
    calls: list[str] = []
    fsync, rename = os.fsync, os.rename

    def noted_fsync(descriptor: int) -> None:
        calls.append(f"sync {os.path.basename(os.readlink(f'/proc/self/fd/{descriptor}'))}")
        fsync(descriptor)

    def noted_rename(source: Path, target: Path) -> None:
        calls.append(f"name {target.name}")
        rename(source, target)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "rename", noted_rename)
    Journal.open(tmp_path, holder="second")[0].close()

    assert calls == [
        "sync 000001-000001.edlj",
        "sync 000002-000001.tmp",
        "name 000002-000001.edlj",
        f"sync {tmp_path.name}",
    ]


def test_the_light_client_reads_runs_and_journals_without_numpy() -> None:
    script = (
        "import sys, edl.storage.journal, edl.storage.run_directory, edl.storage.checkpoint_manifest; "
        "print('numpy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, timeout=60)

    assert done.stdout == b"False\n"


class TestDiskFull:
    def test_the_failed_group_is_cut_off_and_the_journal_fails_for_good(
        self, journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        journal.wait_until_durable(journal.append({"n": 1}))
        write = os.write

        def half(descriptor: int, data: memoryview) -> int:
            if len(data) > 10:
                return write(descriptor, data[:10])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with monkeypatch.context() as patch:
            patch.setattr(os, "write", half)
            lsn = journal.append({"n": 2, "padding": "x" * 100})
            with pytest.raises(StorageError, match="No space left on device") as caught:
                journal.wait_until_durable(lsn)
        assert "free some space" in (caught.value.hint or "")
        assert "000001-000001.edlj" in (caught.value.where or "")
        for later in (
            lambda: journal.append({"n": 3}),
            lambda: journal.wait_until_durable(lsn),
            lambda: journal.compact({}),
        ):
            with pytest.raises(StorageError) as again:
                later()
            assert again.value is caught.value

        journal_content = read_journal(tmp_path)
        assert (list(journal_content.entries), journal_content.torn_bytes) == ([{"n": 1}], 0)

    def test_a_sync_that_fails_acknowledges_nothing(self, journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
        def broken(descriptor: int) -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        monkeypatch.setattr(os, "fdatasync", broken)
        with pytest.raises(StorageError, match="Input/output error"):
            journal.wait_until_durable(journal.append({"n": 1}))

    def test_a_real_limit_on_the_file(self, tmp_path: Path) -> None:
        """The kernel takes a part of a group and refuses the rest, in a process with a file size limit."""
        script = """
import json, pathlib, resource, sys
from edl.api.errors import StorageError
from edl.storage.journal import Journal
journal, _ = Journal.open(pathlib.Path(sys.argv[1]), holder="limited")
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
acknowledged = 0
try:
    while True:
        journal.wait_until_durable(journal.append({"n": acknowledged, "padding": "x" * 700}))
        acknowledged += 1
except StorageError as error:
    print(json.dumps([acknowledged, str(error)]))
"""
        done = subprocess.run(
            [sys.executable, "-c", script, str(tmp_path)], capture_output=True, check=True, timeout=60
        )
        acknowledged, message = json.loads(done.stdout)
        journal_content = read_journal(tmp_path)

        assert acknowledged == 6
        assert [entry["n"] for entry in journal_content.entries] == list(range(acknowledged))
        assert journal_content.torn_bytes == 0
        assert "File too large" in message
        assert "ulimit -f" in message

    def test_a_journal_that_cannot_be_opened_leaves_the_old_one_valid(self, tmp_path: Path) -> None:
        journal, _ = Journal.open(tmp_path, holder="first")
        journal.append({"n": 1})
        journal.close()
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (50, hard))
        try:
            with pytest.raises(StorageError, match="cannot begin a journal segment"):
                Journal.open(tmp_path, holder="second")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

        assert sorted(path.name for path in tmp_path.iterdir()) == ["000001-000001.edlj", "LOCK"]
        assert list(read_journal(tmp_path).entries) == [{"n": 1}]


class TestCompaction:
    def test_the_snapshot_stands_for_what_came_before_and_later_entries_follow(
        self, journal: Journal, gate: SyncGate, tmp_path: Path
    ) -> None:
        """Also when all of it is queued at once."""
        journal.append({"n": 0})
        gate.entered.acquire()
        journal.append({"n": 1})
        journal.compact({"sum": 1})
        last = journal.append({"n": 2})
        gate.open.set()
        journal.wait_until_durable(last)

        journal_content = read_journal(tmp_path)
        assert journal_content.snapshot == {"sum": 1}
        assert list(journal_content.entries) == [{"n": 2}]
        assert [path.name for path in tmp_path.glob("*.edlj")] == ["000001-000002.edlj"]

    def test_a_snapshot_survives_the_next_incarnation(self, journal: Journal, tmp_path: Path) -> None:
        journal.compact({"sum": 1})
        journal.append({"n": 2})
        journal.close()
        following, journal_content = Journal.open(tmp_path, holder="next")
        following.append({"n": 3})
        following.close()

        assert (journal_content.snapshot, list(journal_content.entries)) == ({"sum": 1}, [{"n": 2}])
        again = read_journal(tmp_path)
        assert (again.snapshot, list(again.entries)) == ({"sum": 1}, [{"n": 2}, {"n": 3}])

    def test_a_reader_that_is_overtaken_by_a_compaction_begins_again(
        self, journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        journal.wait_until_durable(journal.append({"n": 1}))
        read = Path.read_bytes
        overtaken: list[int] = []

        def overtake(path: Path) -> bytes:
            if not overtaken:
                overtaken.append(journal.compact({"sum": 1}))
                journal.wait_until_durable(overtaken[0])
            return read(path)

        monkeypatch.setattr(Path, "read_bytes", overtake)

        assert read_journal(tmp_path).snapshot == {"sum": 1}

    @pytest.mark.parametrize("survives", range(11))
    def test_a_crash_at_every_step_leaves_the_old_journal_or_the_new_one(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, survives: int
    ) -> None:
        """After ``survives`` system calls of the compaction the machine is gone: no later call does anything."""
        for n in range(3):
            first, _ = Journal.open(tmp_path, holder="before")
            first.append({"n": n})
            first.close()
        journal, _ = Journal.open(tmp_path, holder="crashing")
        with monkeypatch.context() as patch:
            crash(patch, survives)
            lsn = journal.compact({"seen": [0, 1, 2]})
            try:
                journal.wait_until_durable(lsn)
                acknowledged = True
            except StorageError:
                acknowledged = False
            journal.close()

        following, journal_content = Journal.open(tmp_path, holder="after")
        following.append({"n": 3})
        following.close()

        assert state(journal_content) == [0, 1, 2]
        assert state(read_journal(tmp_path)) == [0, 1, 2, 3]
        assert following.incarnation == 5
        assert list(tmp_path.glob("*.tmp")) == []
        assert journal_content.snapshot is not None or not acknowledged
        assert acknowledged == (survives >= 9)


def state(found: Any) -> list[int]:
    return [*(found.snapshot or {"seen": []})["seen"], *(entry["n"] for entry in found.entries)]


def crash(patch: pytest.MonkeyPatch, survives: int) -> None:
    left = [survives]

    def failing_after(call: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **keywords: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                raise OSError(errno.EIO, "the machine is gone")
            return call(*args, **keywords)

        return step

    for name in ("write", "fsync", "rename", "unlink"):
        patch.setattr(os, name, failing_after(getattr(os, name)))


def test_where_no_lock_can_be_had_a_second_opener_replaces_the_first(tmp_path: Path) -> None:
    first, _ = Journal.open(tmp_path, holder="a master that is cut off", exclusive=False)
    first.wait_until_durable(first.append({"n": 1}))
    second, journal_content = Journal.open(tmp_path, holder="its successor", exclusive=False)
    assert [entry["n"] for entry in journal_content.entries] == [1]
    lsn = first.append({"n": "late"})
    with pytest.raises(RefusedError, match="has replaced this one"):
        first.wait_until_durable(lsn)
    second.wait_until_durable(second.append({"n": 2}))
    for journal in (first, second):
        journal.close()
    assert [entry["n"] for entry in read_journal(tmp_path).entries] == [1, 2]
    assert not (tmp_path / "LOCK").exists()


@pytest.mark.parametrize(("at_least", "incarnation"), [(0, 2), (2, 2), (9, 9)])
def test_an_incarnation_is_above_those_that_others_know_of(tmp_path: Path, at_least: int, incarnation: int) -> None:
    Journal.open(tmp_path, holder="the first")[0].close()
    journal, _ = Journal.open(tmp_path, holder="the second", minimum_incarnation=at_least)
    journal.close()
    assert journal.incarnation == incarnation
    assert read_journal(tmp_path).incarnation == incarnation

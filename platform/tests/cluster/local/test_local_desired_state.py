"""The desired state of a run of this machine: a file that ``edl scale`` replaces and the master polls."""

from __future__ import annotations

import itertools
import os
import threading
from pathlib import Path

import pytest
from support.text_keys import missing_keys

from edl.api.errors import BadInputError
from edl.cluster.local import desired_state_file
from edl.cluster.local.desired_state_file import DesiredStateFile
from edl.cluster.status_port import DesiredState

BOUNDS = (1, 4)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DesiredStateFile:
    monkeypatch.setattr(desired_state_file, "POLL_SECONDS", 0.001)
    return DesiredStateFile(tmp_path / "desired.json")


def test_without_a_request_the_numbers_are_those_of_the_job_file(file: DesiredStateFile) -> None:
    assert file.read() == DesiredState()


def test_requests_add_up_and_leave_no_other_file(file: DesiredStateFile, tmp_path: Path) -> None:
    assert file.update(DesiredState(max=6), BOUNDS) == DesiredState(max=6)
    assert file.update(DesiredState(min=5), BOUNDS) == DesiredState(5, 6)
    assert file.read() == DesiredState(5, 6)
    assert [path.name for path in tmp_path.iterdir()] == ["desired.json"]


def test_a_request_that_contradicts_itself_changes_nothing(file: DesiredStateFile) -> None:
    file.update(DesiredState(max=2), BOUNDS)
    with pytest.raises(BadInputError, match="more than max"):
        file.update(DesiredState(min=3), BOUNDS)
    assert file.read() == DesiredState(max=2)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b'{"max": 0}', "1 to 10000"),
        (b"{", "JSON"),
        (b'{"max": "\xff"}', "UTF-8"),
        (b" " * 5000, "4096 bytes"),
        (b"[" * 4000, "JSON|deep"),
    ],
)
def test_a_file_that_is_no_request_is_ignored_and_says_why(
    file: DesiredStateFile, tmp_path: Path, content: bytes, why: str
) -> None:
    (tmp_path / "desired.json").write_bytes(content)
    desired = file.read()
    assert (desired.min, desired.max, desired.stop) == (None, None, False)
    assert not missing_keys(desired.unreadable, str(tmp_path / "desired.json"), "ignored")
    assert any(word in desired.unreadable for word in why.split("|"))
    # The next request replaces it.
    assert file.update(DesiredState(max=3), BOUNDS) == DesiredState(max=3)


def test_what_is_no_regular_file_blocks_nobody(file: DesiredStateFile, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "desired.json")
    assert "not a file" in file.read().unreadable


def test_it_is_watched_until_it_is_closed(file: DesiredStateFile, tmp_path: Path) -> None:
    states = file.watch_desired_state()
    assert next(states) == DesiredState()
    file.update(DesiredState(max=6), BOUNDS)
    assert next(states) == DesiredState(max=6)
    (tmp_path / "desired.json").write_text("{")
    assert "JSON" in next(states).unreadable
    file.remove()
    assert next(states) == DesiredState()
    file.remove()
    file.close()
    assert list(itertools.islice(states, 1)) == []


def test_closing_wakes_whoever_watches(tmp_path: Path) -> None:
    file = DesiredStateFile(tmp_path / "desired.json")
    states = file.watch_desired_state()
    next(states)
    watcher = threading.Thread(target=lambda: list(states), daemon=True)
    watcher.start()
    file.close()
    watcher.join(30)
    assert not watcher.is_alive()


def test_a_master_that_starts_again_finds_the_request(file: DesiredStateFile) -> None:
    file.update(DesiredState(max=6), BOUNDS)
    assert next(file.watch_desired_state()) == DesiredState(max=6)

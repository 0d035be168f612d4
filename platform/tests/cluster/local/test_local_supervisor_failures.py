"""The supervisor when things around it fail: a master that never lives, a command that does not exist, a full disk."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from edl.cluster.local import supervisor
from edl.cluster.local.supervisor import RunLog, RuntimeDirectory, Supervisor
from edl.cluster.local.supervisor_server import EventLoop


def supervise(run_dir: Path, command: Sequence[str]) -> int:
    loop, runtime = EventLoop(), RuntimeDirectory()
    try:
        return Supervisor(loop, run_dir, runtime, lambda role, index: command).run()
    finally:
        runtime.close()
        loop.close()


@pytest.mark.parametrize(
    ("command", "line"),
    [
        ([sys.executable, "-I", "-S", "-c", "raise SystemExit(3)"], "ended: Error, exit code 3"),
        (["/nonexistent/python"], "the master cannot be started: "),
    ],
)
def test_master_that_never_lives_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Sequence[str], line: str
) -> None:
    monkeypatch.setattr(supervisor, "MAX_YOUNG_DEATHS", 3)
    assert supervise(tmp_path, command) == 1
    log = (tmp_path / "logs" / "supervisor.log").read_text()
    assert log.count(line) == 3
    assert "not started again" in log


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_full_disk_does_not_end_the_job_and_leaves_a_note(tmp_path: Path) -> None:
    record = RunLog(tmp_path)
    log = tmp_path / "logs" / "supervisor.log"
    log.symlink_to("/dev/full")
    record.write_line("one")
    record.write_line("two")
    log.unlink()
    record.write_line("three")
    record.write_line("four")
    lines = log.read_text().splitlines()
    assert lines[0].split()[0] == "2"  # the number of lines that were lost
    assert [line.split()[-1] for line in lines[1:]] == ["three", "four"]


def test_sockets_have_short_paths_also_below_a_deep_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    runtime = RuntimeDirectory()
    try:
        assert len(os.fsencode(runtime.path / "worker-99999.sock")) < 104
    finally:
        runtime.close()

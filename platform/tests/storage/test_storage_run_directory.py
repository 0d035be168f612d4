"""Run directories, the job's lock, and files of JSON."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.api.errors import BadInputError, RefusedError, StorageError
from edl.storage import run_directory
from edl.storage.durable_files import JsonLinesTail, LockHeldError, append_json_line, read_json, write_json
from edl.storage.run_directory import JobLock


def test_runs_are_numbered_and_the_newest_is_the_one_with_the_highest_number(tmp_path: Path) -> None:
    job = run_directory.locate_job_dir(tmp_path, "mnist")
    created = [run_directory.create_run(job) for _ in range(11)]

    assert [run.run_id for run in created] == [f"r{n}" for n in range(1, 12)]
    assert job == tmp_path / "local" / "mnist"
    assert run_directory.newest_run(job) == created[-1]
    assert run_directory.list_numbered_runs(job) == created
    assert created[0].journal.is_dir()
    assert created[0].checkpoints.is_dir()
    assert created[0].logs.is_dir()
    assert not created[0].export.exists()
    assert created[0].status == job / "r1" / "status.json"
    assert created[0].job_dir == job


def test_a_number_taken_in_between_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first_run = run_directory.create_run(tmp_path)
    monkeypatch.setattr(run_directory, "list_numbered_runs", lambda _: [])

    assert run_directory.create_run(tmp_path).run_id == "r2"
    assert first_run.run_id == "r1"


def test_a_run_is_resolved_by_id_or_as_the_newest(tmp_path: Path) -> None:
    first, second = run_directory.create_run(tmp_path), run_directory.create_run(tmp_path)
    (tmp_path / "rubbish").mkdir()

    assert run_directory.find_run(tmp_path, None) == second
    assert run_directory.find_run(tmp_path, "r1") == first
    with pytest.raises(BadInputError, match=r"'r9'[\s\S]*r1, r2"):
        run_directory.find_run(tmp_path, "r9")


def test_resolving_without_any_run_says_so(tmp_path: Path) -> None:
    assert run_directory.newest_run(tmp_path / "never") is None
    with pytest.raises(BadInputError, match="no run yet"):
        run_directory.find_run(tmp_path / "never", None)


def test_a_job_that_is_running_names_its_holder(tmp_path: Path) -> None:
    with JobLock(tmp_path) as lock:
        lock.describe_run("r3")
        with pytest.raises(LockHeldError, match=rf"process {os.getpid()}\b.*run r3\b") as caught:
            JobLock(tmp_path)
        assert caught.value.exit_code == 2
        assert isinstance(caught.value, RefusedError)
    JobLock(tmp_path, "r4").close()


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    script = """
import pathlib, sys, time
from edl.storage.run_directory import JobLock
lock = JobLock(pathlib.Path(sys.argv[1]), "r1")
print("held", flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(LockHeldError, match=f"process {other.pid} on .*, run r1"):
            JobLock(tmp_path)
        other.kill()
    JobLock(tmp_path).close()


def test_json_is_replaced_as_a_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "status.json"
    write_json(path, {"done": 1})
    write_json(path, {"done": 2}, fsync=True)

    def full(descriptor: int, data: memoryview) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(StorageError, match=r"status\.json: cannot write: No space left"):
        write_json(path, {"done": 3})

    assert read_json(path) == {"done": 2}
    assert os.listdir(tmp_path) == ["status.json"]


@pytest.mark.parametrize("depth", [100, 100_000])
def test_nesting_without_end_is_damage(tmp_path: Path, depth: int) -> None:
    path = tmp_path / "status.json"
    text = b'{"a": ' + b"[" * depth + b"]" * depth + b"}"
    path.write_bytes(text)
    with pytest.raises(StorageError, match=r"status\.json: .*nested"):
        read_json(path)
    path.write_bytes(text + b'\n{"n": 1}\n')
    follower = JsonLinesTail(path)
    assert follower.poll() == [{"n": 1}]
    assert follower.damaged_lines == 1


def test_a_file_that_is_no_json_is_named(tmp_path: Path) -> None:
    (tmp_path / "status.json").write_text("{")
    for name in ("status.json", "missing.json"):
        with pytest.raises(StorageError, match=name):
            read_json(tmp_path / name)


def test_a_line_that_does_not_fit_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "events.jsonl"
    append_json_line(path, {"n": 1})
    write = os.write

    def half(descriptor: int, data: memoryview) -> int:
        if len(data) > 4:
            return write(descriptor, data[:4])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", half)
        with pytest.raises(StorageError):
            append_json_line(path, {"n": 2})
    append_json_line(path, {"n": 3})

    assert JsonLinesTail(path).poll() == [{"n": 1}, {"n": 3}]


def test_a_tail_waits_for_the_file_and_leaves_out_what_is_no_object(tmp_path: Path) -> None:
    follower = JsonLinesTail(tmp_path / "events.jsonl")
    assert follower.poll() == []
    (tmp_path / "events.jsonl").write_bytes(b'{"n":1}\nrubbish\n[2]\n{"n":3}\n{"n"')

    assert follower.poll() == [{"n": 1}, {"n": 3}]
    assert follower.damaged_lines == 2


@given(st.lists(st.dictionaries(st.text(max_size=4), st.text(max_size=8), max_size=3), max_size=5), st.data())
def test_a_tail_sees_every_line_once_however_it_is_written(lines: list[dict[str, str]], data: st.DataObject) -> None:
    content = b"".join(json.dumps(line, ensure_ascii=False).encode() + b"\n" for line in lines)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(content)), max_size=6)))
    path = Path(tempfile.gettempdir()) / f"edl-tail-{os.getpid()}.jsonl"
    path.write_bytes(b"")
    try:
        follower, polled_lines = JsonLinesTail(path), []
        for begin, end in zip([0, *cuts], [*cuts, len(content)], strict=True):
            with path.open("ab") as file:
                file.write(content[begin:end])
            polled_lines += follower.poll()
    finally:
        path.unlink()

    assert polled_lines == lines
    assert follower.damaged_lines == 0


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o000])
@pytest.mark.parametrize(("folder", "spec"), [(run_directory.PRIVATE_MODE, 0o600), (run_directory.GROUP_MODE, 0o640)])
def test_a_spec_is_for_its_user_and_on_a_claim_for_the_group_of_the_job(
    tmp_path: Path, umask: int, folder: int, spec: int
) -> None:
    """It may hold passwords: variables of pods."""
    run = run_directory.RunDirectory(tmp_path / "digits" / "r1")
    before = os.umask(umask)
    try:
        run_directory.make_run_directory(run, folder)
        run_directory.write_run_spec(run, {"name": "digits"})
    finally:
        os.umask(before)
    assert (run.path.stat().st_mode & 0o777, run.spec.stat().st_mode & 0o777) == (folder, spec)
    assert read_json(run.spec) == {"name": "digits"}


def test_a_run_that_was_readable_for_all_is_not_once_it_is_resumed(tmp_path: Path) -> None:
    run = run_directory.RunDirectory(tmp_path / "r1")
    run.path.mkdir(mode=0o755)
    run.spec.write_text("{}")
    run_directory.make_run_directory(run)
    run_directory.write_run_spec(run, {})
    assert (run.path.stat().st_mode & 0o777, run.spec.stat().st_mode & 0o777) == (0o700, 0o600)


def test_a_volume_without_modes_of_its_own_is_written_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(target: object, mode: int) -> None:
        raise OSError(errno.ENOTSUP, "Operation not supported")

    monkeypatch.setattr(os, "chmod", refuse)
    run = run_directory.create_run(tmp_path / "digits")
    run_directory.write_run_spec(run, {"name": "digits"})
    assert read_json(run.spec) == {"name": "digits"}

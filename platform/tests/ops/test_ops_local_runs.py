"""Which process runs a run of this machine."""

from __future__ import annotations

import os
from pathlib import Path

from edl.ops import local_runs
from edl.storage.run_directory import JobLock, RunDirectory


def test_a_number_that_the_kernel_gave_to_another_program_is_no_process_that_runs_a_job(tmp_path: Path) -> None:
    """Seen twice: a killed job's number, in its LOCK, was that of a thread, and of another program, later."""
    run = RunDirectory(tmp_path / "r1")
    with JobLock(tmp_path, "r1"):
        assert local_runs._find_process(run) == os.getpid()
        named = (tmp_path / "LOCK").read_text()
    assert local_runs._find_process(run) is None
    (tmp_path / "LOCK").write_text(named)
    assert local_runs._find_process(run) is None, "this process lives, and does not hold the lock"
    assert not local_runs.interrupt_run(run)
    JobLock(tmp_path, "r1").close()  # asking has not kept the lock

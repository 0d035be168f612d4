"""Faults in synchronous mode: nobody waits for who is gone, and every record is in one update on every server."""

from __future__ import annotations

import time
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP

import numpy as np
import pytest
from faults.conftest import Measure
from jobs.plain_keras import QUIET
from support.job_process import JobProcess
from support.run_recount import recount
from support.signed_job import MINIBATCH, SignedJob, dense

from edl.simulation.ledger_recount import LedgerRecount, find_ledger_problems

pytestmark = [pytest.mark.faults, pytest.mark.tensorflow, pytest.mark.filterwarnings(QUIET), pytest.mark.timeout(400)]

RECORDS = 9600


@pytest.mark.repetition
def test_a_worker_and_then_the_master_are_killed(tmp_path: Path, measure: Measure) -> None:
    job = SignedJob.make(tmp_path, records=RECORDS, ps=2)
    with job.start() as run:
        run.wait_step(200)
        at = run.send("worker", min(run.training()), SIGKILL)
        step = run.wait_status(lambda status: status["updated"] > at)["step"]
        run.wait_step(step + 20)
        measure("worker SIGKILL in sync mode to 20 more steps", time.time() - at)
        run.send("master", 0, SIGKILL)
        run.wait_status(lambda status: status["incarnation"] == 2)
        counted, cuts = finished(run, lost=1)
    half = half_done(counted)
    assert len(half) <= MINIBATCH
    updates = check(job, cuts[-1], half)
    if not half:
        expected = job.in_keras(dense(cuts[0]), updates)
        for name, value in dense(cuts[-1]).items():
            np.testing.assert_allclose(value, expected[name], rtol=1e-3, atol=1e-5, err_msg=name)


@pytest.mark.repetition
def test_a_worker_stops_and_comes_back(tmp_path: Path) -> None:
    """Its connections stay open, as those of a lost node do: the master takes its leases, and rounds go on."""
    job = SignedJob.make(tmp_path, records=RECORDS, ps=2)
    with job.start() as run:
        run.wait_step(200)
        victim = min(run.training())
        run.send("worker", victim, SIGSTOP)
        revoked = run.wait_event("lease_revoked", worker=victim)
        step = run.wait_status(lambda status: status["updated"] > revoked["time"])["step"]
        run.wait_step(step + 20)
        run.send("worker", victim, SIGCONT)
        counted, cuts = finished(run, lost=0)
    check(job, cuts[-1], half_done(counted))


@pytest.mark.repetition
def test_the_first_server_is_killed(tmp_path: Path) -> None:
    """Its values go back to the newest checkpoint; the other one has every record in one update all the same."""
    job = SignedJob.make(tmp_path, records=RECORDS, ps=2, checkpoint={"every_steps": 150, "keep": 100})
    with job.start() as run:
        saved = run.wait_line(lambda line: line["event"] == "checkpoint_saved" and line["step"] > 0)
        run.wait_step(saved["step"] + 50)
        run.send("ps", 0, SIGKILL)
        run.wait_event("rolled_back")
        _, cuts = finished(run, lost=0)
    signatures = job.signatures(cuts[-1], 1)
    assert (signatures.odd, signatures.absent) == ([], [])


def half_done(found: LedgerRecount) -> set[int]:
    """The records of steps that some of the servers may have and others not."""
    return {record for step in found.partial_steps for _, record in step.source_records()}


def finished(run: JobProcess, *, lost: int) -> tuple[LedgerRecount, list[Path]]:
    """Wait for the end: the ledger is exact. Returns its recount, and the checkpoints in order."""
    summary = run.summary(200.0)
    assert summary["records_done"] == RECORDS
    assert summary["workers_lost"] == lost
    assert summary["records_repeated"] <= MINIBATCH
    counted = recount(run.run_dir)
    assert find_ledger_problems(counted, 1) == []
    return counted, sorted(path.parent for path in run.run_dir.glob("checkpoints/cut-*/manifest.json"))


def check(job: SignedJob, cut: Path, half: set[int]) -> dict[int, list[int]]:
    """Both servers made the same updates, and each record is in one of them; those of a half step may be in two."""
    first, second = (job.signatures(cut, part) for part in (0, 1))
    for signatures in (first, second):
        assert signatures.absent == []
        assert set(signatures.odd) <= half
    if not half:
        assert _sets(first.updates) == _sets(second.updates)
    return first.updates


def _sets(updates: dict[int, list[int]]) -> list[list[int]]:
    return [sorted(records) for records in updates.values()]

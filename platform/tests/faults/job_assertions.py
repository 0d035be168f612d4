"""What must be true of a job after any fault."""

from __future__ import annotations

from faults.linear_job import LinearJob
from support.job_process import JobProcess, Line

from edl.simulation.ledger_recount import LedgerRecount


def world_of(run: JobProcess, workers: int, after: int = 0) -> Line:
    """Wait for a round of AllReduce with so many workers, from line ``after`` on."""
    return run.wait_event("world_changed", after=after, workers=workers)


def finished(
    job: LinearJob, run: JobProcess, *, lost: int = 0, silent: int = 0, timeout: float = 90.0
) -> tuple[Line, LedgerRecount]:
    """Wait for the end; nothing is lost, little is repeated, ledger and parameters agree, nothing went back."""
    summary, counted = done(job, run, lost=lost, silent=silent, timeout=timeout)
    job.check_checkpoints(run.run_dir, counted)
    assert (summary["records_rolled_back"], summary["updates_rolled_back"]) == (0, 0)
    return summary, counted


def done(
    job: LinearJob, run: JobProcess, *, lost: int = 0, silent: int = 0, timeout: float = 90.0
) -> tuple[Line, LedgerRecount]:
    """Wait for the end; the summary says what an independent count of the journal says.

    Args:
        job: what was to be done.
        run: who does it.
        lost: workers that ended before their work did.
        silent: workers whose leases were taken back and that live: each costs a minibatch too.
        timeout: in seconds.
    """
    summary = run.summary(timeout)
    assert summary["records_lost"] == 0
    assert summary["records_done"] == summary["records_total"] == job.total
    assert summary["workers_lost"] == lost
    assert summary["records_repeated"] <= (lost + silent) * job.minibatch
    counted = job.check(run.run_dir)
    assert summary["records_repeated"] == counted.repeated_records
    assert summary["records_rolled_back"] == counted.rolled_back_records
    assert summary["updates_rolled_back"] == counted.updates_rolled_back
    assert summary["steps_not_applied"] == 0
    return summary, counted

"""However a job was submitted and removed, nothing with its label is left."""

from __future__ import annotations

import itertools
import time

import pytest
from e2e.jobs import ClusterJob, digits
from e2e.ledger import one_interval
from e2e.machine_speed import allowed_seconds
from e2e.namespaces import Namespace
from e2e.test_planned_ends import DELETE_SECONDS

from edl.cluster.kubernetes import names

SUBMIT = {"submitted": ClusterJob.submit, "applied": ClusterJob.submit_applied, "created": ClusterJob.submit_created}
REMOVE = {
    "edl-delete": lambda job: job.run_edl("delete", "--yes"),
    "kubectl-delete": lambda job: job.namespace.user.kubectl("delete", "job", names.master_name(job.name)),
}


PAIRS = list(itertools.product(SUBMIT, REMOVE))


@pytest.mark.xdist_group("removal")
@pytest.mark.in_turn(2)
def test_nothing_is_left(namespace: Namespace) -> None:
    """Every way of submission with every way of removal, while the jobs train."""
    jobs = {}
    for submitted, removed in PAIRS:
        spec = digits(f"{submitted}-{removed}", image=namespace.images.zoo, seconds=300, workers=1)
        jobs[submitted, removed] = job = ClusterJob.write(namespace, spec)
        SUBMIT[submitted](job)
    for (_, removed), job in jobs.items():
        job.wait_training(workers=1)
        REMOVE[removed](job)
    for job in jobs.values():
        job.wait_removed()


@pytest.mark.xdist_group("removal")
@pytest.mark.in_turn(1)
def test_several_are_deleted_together_and_those_of_a_phase(namespace: Namespace) -> None:
    """`edl delete --phase` leaves the others alone, and nothing of what is named is left."""
    jobs = [
        ClusterJob.write(namespace, digits(name, image=namespace.images.zoo, seconds=300, workers=1))
        for name in ("a", "b", "c")
    ]
    for job in jobs:
        job.submit()
    first, second, stopped = jobs
    stopped.wait_step(1)
    stopped.run_edl("stop", "--wait")
    phase = stopped.status()["phase"]
    for job in (first, second):
        job.wait_training(workers=1)
    delete_job(namespace, "--phase", phase)
    assert stopped.leftovers() == []
    assert [job.training_workers() for job in (first, second)] == [[0], [0]]
    began = time.monotonic()
    delete_job(namespace, first.name, second.name)
    assert time.monotonic() - began < allowed_seconds(DELETE_SECONDS)
    assert [*first.leftovers(), *second.leftovers()] == []
    assert f"is {phase}" in delete_job(namespace, "--phase", phase)


def delete_job(namespace: Namespace, *which: str) -> str:
    """`edl delete`."""
    done = namespace.user.edl("delete", *which, "--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_stopped_job_goes_on_later(namespace: Namespace) -> None:
    """`edl stop` ends it as Failed with its state kept; `edl submit --resume` goes on with the same run.

    It came from `edl render`: when it is over, the token that nobody owns is gone before its Job is.
    """
    job = ClusterJob.write(namespace, digits("stopped", image=namespace.images.zoo, seconds=40, workers=1))
    job.submit_created()
    job.wait_step(50)
    run = job.status()["run"]
    job.run_edl("stop")
    assert job.wait_end() == "Failed"
    done = job.status()["records_done"]
    assert f"secret/{names.token_secret(job.name)}" not in job.leftovers()
    REMOVE["kubectl-delete"](job)
    job.wait_removed()
    job.run_edl("submit", "--yes", "--resume", run)
    job.wait_training(workers=1)
    assert job.status()["run"] == run
    assert job.status()["records_done"] >= done - one_interval(job)
    job.run_edl("delete", "--yes")
    assert job.leftovers() == []

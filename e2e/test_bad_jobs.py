"""Jobs that cannot succeed: each ends or waits with the right reason, within a bound, without hundreds of pods."""

from __future__ import annotations

import pytest
from e2e.conftest import MakeNamespace
from e2e.images import MISSING
from e2e.jobs import ClusterJob, digits
from e2e.namespaces import Namespace
from e2e.observer import ADDED
from e2e.user_account import UserAccount

from edl.cluster.kubernetes import names

FEW = 40
"""Pods that a hopeless job may ask for."""


def asked_for(job: ClusterJob) -> int:
    """Pods that were ever made for a job."""
    added = (change for change in job.namespace.observer.changes() if change.type == ADDED)
    return len({change.uid for change in added if change.labels.get(names.JOB_LABEL) == job.name})


@pytest.mark.in_turn(1)
def test_a_job_that_never_fits_waits_and_says_why(namespace: Namespace) -> None:
    """More CPU than any node has: the workers stay Pending, and `edl why` has the scheduler's reason."""
    job = ClusterJob.write(namespace, digits("too-big", image=namespace.images.zoo, seconds=30, workers=2, cpu=4096))
    job.submit()
    job.wait_for("its workers are Pending", lambda: job.in_phase("Pending") == [0, 1] or None)
    why = job.wait_for(
        "edl why has the reason", lambda: text if "insufficient cpu" in (text := job.why()) else None, 30
    )
    assert "whether any node has that much" in why, "a data scientist may not list nodes, and is told so"
    viewer = UserAccount(namespace.name)
    assert "it can never start" in viewer.edl("why", job.name).stdout.lower()
    job.wait_for("it is called starved", lambda: job.status().get("starved"), 30)
    assert asked_for(job) <= FEW
    job.run_edl("delete", "--yes")
    assert job.leftovers() == []


@pytest.mark.in_turn(1)
def test_an_image_that_does_not_exist(make_namespace: MakeNamespace) -> None:
    """`edl submit` ends with code 1 and the kubelet's own message; nothing is left."""
    namespace = make_namespace(training=False)
    job = ClusterJob.write(namespace, digits("no-image", image=MISSING, seconds=30, workers=1))
    done = job.edl("submit", "--yes")
    assert done.returncode == 1, done.stdout + done.stderr
    assert MISSING in done.stdout + done.stderr
    assert "ImagePullBackOff" in done.stdout + done.stderr or "ErrImagePull" in done.stdout + done.stderr
    job.wait_removed()


@pytest.mark.parametrize("step", [1, pytest.param(3, marks=pytest.mark.matrix)])
@pytest.mark.in_turn(1)
def test_a_model_that_crashes_in_every_worker(namespace: Namespace, step: int) -> None:
    """The job fails by its own rules, and says what it met; also where every worker gets a few steps further."""
    spec = digits("crashing", image=namespace.images.zoo, seconds=10, workers=2)
    spec["model"]["definition"] = "crashing.custom_model"
    spec["pod"]["env"]["E2E_CRASH_STEP"] = str(step)
    job = ClusterJob.write(namespace, spec)
    job.submit()
    assert job.wait_end() == "Failed"
    failure = job.wait_for("its failure", lambda: job.page("failure.json"), 10)
    assert "crash" in str(failure).lower()
    assert "crash" in job.why()
    assert asked_for(job) <= FEW
    job.wait_for("its pods are gone", lambda: not (job.workers() or job.ps_uids()) or None, 15)
    job.run_edl("delete", "--yes")
    assert job.leftovers() == []

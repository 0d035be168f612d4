"""Parameter servers, nodes and the API server go, and some come back."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from e2e.baseline import Baseline
from e2e.capacity import home, only
from e2e.faults import cut_off, lost, no_api
from e2e.jobs import Job, delete_pod, digits
from e2e.ledger import finished, one_interval
from e2e.namespaces import Namespace
from e2e.observer import condition, phase

from edl.core.cluster import Role

AWAY_SECONDS = 60.0
DEAD_SECONDS = 150.0
"""A dead node is noticed, its pods' tolerations pass, a master's Lease runs out."""

Undisturbed = Callable[[int], Baseline]


def start(place: Namespace, name: str, *, seconds: float, workers: int = 2) -> Job:
    """Submit a job."""
    job = Job.write(place, digits(name, image=place.images.zoo, seconds=seconds, workers=workers))
    job.submit()
    return job


def gone(job: Job) -> None:
    """``edl delete`` leaves nothing."""
    job.must("delete", "--yes")
    assert job.leftovers() == []


def node_of(job: Job, role: Role, index: int = 0) -> str:
    """Where a pod runs."""
    pod = job.master() if role is Role.MASTER else job.place.observer.pod(job.pod_name(role, index))
    return str((pod or {})["spec"]["nodeName"])


def test_ps_pod_killed(place: Namespace, undisturbed: Undisturbed) -> None:
    """Replaced under the same index, restored from the newest checkpoint."""
    job = start(place, "ps-killed", seconds=50)
    job.wait_training(workers=2)
    job.wait_step(100)
    (name, uid), *_ = job.ps_uids().items()
    workers = job.worker_uids()
    delete_pod(place, name, "--grace-period=0", "--force")
    job.wait("another PS under the same name", lambda: job.ps_uids().get(name, uid) != uid or None, 60)
    job.wait_more_steps()
    assert job.worker_uids() == workers, "the workers go on"
    summary, run = finished(job, rolled_back=one_interval(job))
    assert run.ledger.rolled_back > 0
    undisturbed(2).check(summary)
    gone(job)


@pytest.mark.alone
@pytest.mark.breaks
def test_api_server_away(place: Namespace, undisturbed: Undisturbed) -> None:
    """Training does not stop while the API server is away for a minute."""
    job = start(place, "no-api", seconds=75)
    job.wait_training(workers=2)
    with no_api(place.site.faults):
        time.sleep(AWAY_SECONDS)  # the fault itself: there is nobody to ask
    before = job.worker_uids()
    done = job.wait("a status after the outage", lambda: _fresh(job), 60)
    assert done > 0.4 * job.status()["records_total"], "the job went on meanwhile"
    summary, _ = finished(job)
    undisturbed(2).check(summary)
    assert (summary["workers_lost"], summary["records_repeated"]) == (0, 0)
    assert before.keys() == {0, 1}
    gone(job)


def _fresh(job: Job) -> int | None:
    status = job.status()
    return int(status["records_done"]) if status and time.time() - status["updated"] < 5 else None


@pytest.mark.alone
@pytest.mark.breaks
@pytest.mark.timeout(600)
def test_nodes_cut_off_and_back(place: Namespace, undisturbed: Undisturbed) -> None:
    """One node loses its network with a job's master on it and with another job's worker; then it comes back."""
    node = home(place.api, place.volume.node)
    with only([other for other in _nodes() if other != node]):
        headless, crippled = start(place, "headless", seconds=65), start(place, "crippled", seconds=110)
        for job in (headless, crippled):
            job.wait_training(workers=2)
    with only([node]):
        before = headless.status()["incarnation"]
        delete_pod(place, headless.master()["metadata"]["name"])
        delete_pod(place, crippled.pod_name(Role.WORKER, 0))
        headless.wait_incarnation(before)
        crippled.wait("its replacement trains", lambda: crippled.training() == [1, 2] or None)
    assert node_of(headless, Role.MASTER) == node
    assert node_of(crippled, Role.WORKER, 2) == node
    pods, before = (headless.worker_uids(), headless.ps_uids()), headless.status()["incarnation"]

    with cut_off(place.site.faults, node):
        crippled.wait("a worker in its place", lambda: 3 in crippled.training() or None, DEAD_SECONDS)
        headless.wait_incarnation(before, DEAD_SECONDS)
        headless.wait_more_steps()
    headless.wait_more_steps()
    assert (headless.worker_uids(), headless.ps_uids()) == pods, "adopted, and the first master touches nothing more"

    summary, run = finished(crippled, lost=2)
    undisturbed(2).check(summary)
    assert "leases lost" in run.log(Role.WORKER, 2), "the worker came back, was late, and heard so"
    summary, run = finished(headless)
    undisturbed(2).check(summary)
    # A fourth is the first one's container again, started on the mended node: it finds the end, or waits in vain.
    assert run.incarnations()[:3] == [1, 2, 3], "masters wrote one after the other"
    for job in (crippled, headless):
        gone(job)


@pytest.mark.alone
@pytest.mark.breaks
@pytest.mark.timeout(600)
def test_node_lost(place: Namespace, undisturbed: Undisturbed) -> None:
    """A node is gone with a PS and a worker on it: both are replaced; a job is deleted while the node is still down."""
    node = home(place.api, place.volume.node)
    with only([other for other in _nodes() if other != node]):
        doomed, job = start(place, "doomed", seconds=300), start(place, "bereft", seconds=65)
        for each in (doomed, job):
            each.wait_training(workers=2)
    with only([node]):
        (ps, _), *_ = job.ps_uids().items()
        delete_pod(place, ps)
        for each in (job, doomed):
            delete_pod(place, each.pod_name(Role.WORKER, 0))
            each.wait("its replacement trains", lambda each=each: each.training() == [1, 2] or None)
    assert {node_of(job, Role.PS), node_of(job, Role.WORKER, 2), node_of(doomed, Role.WORKER, 2)} == {node}

    with lost(place.site.faults, node):
        job.wait("the PS is back elsewhere", lambda: _moved(job, ps, node), DEAD_SECONDS)
        job.wait("a worker in the lost one's place", lambda: 3 in job.training() or None, DEAD_SECONDS)
        job.wait_more_steps()
        leaving = job.change(lambda change: change.name == job.pod_name(Role.WORKER, 2) and change.leaving)
        assert leaving is not None
        assert (condition(leaving.object, "DisruptionTarget") or {})["reason"] == "DeletionByTaintManager"
        gone(doomed)
        summary, _ = finished(job, lost=2, rolled_back=2 * one_interval(job))
        undisturbed(2).check(summary)
        gone(job)


def _moved(job: Job, ps: str, node: str) -> bool | None:
    pod = job.place.observer.pod(ps)
    return (phase(pod) == "Running" and pod is not None and pod["spec"]["nodeName"] != node) or None


def _nodes() -> list[str]:
    from e2e import site

    return site.nodes()


@pytest.mark.matrix
@pytest.mark.parametrize("step", [1, 45, 600])
@pytest.mark.parametrize("role", [Role.PS, Role.WORKER])
def test_pods_killed_at_every_step(place: Namespace, undisturbed: Undisturbed, role: Role, step: int) -> None:
    job = start(place, f"{role}-{step}", seconds=60)
    job.wait_step(step)
    delete_pod(place, job.pod_name(role, 0), "--grace-period=0", "--force")
    summary, _ = finished(job, lost=1, rolled_back=one_interval(job))
    undisturbed(2).check(summary)
    gone(job)

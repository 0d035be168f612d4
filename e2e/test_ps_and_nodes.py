"""Parameter servers, nodes and the API server go, and some come back."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from e2e.baseline import UndisturbedBaseline
from e2e.capacity import restrict_new_pods, usable_node_names
from e2e.conftest import MakeNamespace
from e2e.faults import cut_off, lose_node, no_api
from e2e.jobs import ClusterJob, delete_pod, digits, in_container
from e2e.ledger import STORAGE, finish_and_count, one_interval
from e2e.machine_speed import allowed_seconds
from e2e.namespaces import Namespace
from e2e.observer import condition, phase
from e2e.programs import kubectl
from e2e.test_planned_ends import RARELY
from e2e.volume import MOUNT, READER
from e2e.waiting import wait_until

from edl.api.cluster_port import Role
from edl.cluster.kubernetes.kubeconfig import make_client

AWAY_SECONDS = 60.0
REPLACED_SECONDS = 45.0
"""From the moment in which the cluster notices that a PS's node is lost, until training goes on."""
DEAD_SECONDS = 150.0
"""A dead node is noticed, its pods' tolerations pass, a master's Lease runs out."""

Undisturbed = Callable[[int], UndisturbedBaseline]


def start_job(namespace: Namespace, name: str, *, seconds: float, workers: int = 2, **fields: Any) -> ClusterJob:
    """Submit a job."""
    job = ClusterJob.write(
        namespace, digits(name, image=namespace.images.zoo, seconds=seconds, workers=workers, **fields)
    )
    job.submit()
    return job


def check_deleted(job: ClusterJob) -> None:
    """``edl delete`` leaves nothing."""
    job.run_edl("delete", "--yes")
    assert job.leftovers() == []


def node_of(job: ClusterJob, role: Role, index: int = 0) -> str:
    """Where a pod runs."""
    pod = job.master() if role is Role.MASTER else job.namespace.observer.pod(job.pod_name(role, index))
    return str(((pod or {}).get("spec") or {}).get("nodeName"))


def test_ps_pod_killed(namespace: Namespace, undisturbed: Undisturbed) -> None:
    """Replaced under the same index, restored from the newest checkpoint."""
    job = start_job(namespace, "ps-killed", seconds=50)
    job.wait_training(workers=2)
    job.wait_step(100)
    (name, uid), *_ = job.ps_uids().items()
    workers = job.worker_uids()
    delete_pod(namespace, name, "--grace-period=0", "--force")
    job.wait_for("another PS under the same name", lambda: job.ps_uids().get(name, uid) != uid or None, 60)
    job.wait_more_steps()
    assert job.worker_uids() == workers, "the workers go on"
    summary, run = finish_and_count(job, rolled_back=one_interval(job))
    assert run.ledger.rolled_back_records > 0
    undisturbed(2).check_summary(summary)
    check_deleted(job)


@pytest.mark.alone
@pytest.mark.in_turn(0)
def test_a_node_is_drained(namespace: Namespace, undisturbed: Undisturbed) -> None:
    """``kubectl drain`` takes a job's pods without ``--force``: workers go at once, the PS hands over."""
    baseline = undisturbed(2)
    job = start_job(namespace, "drained", seconds=75, checkpoint=RARELY)
    job.wait_training(workers=2)
    job.wait_step(100)
    node, (name, uid) = node_of(job, Role.PS), next(iter(job.ps_uids().items()))
    drained_indices = [index for index in job.training_workers() if node_of(job, Role.WORKER, index) == node]
    try:
        selector = f"--pod-selector=edl.dev/job={job.name},edl.dev/role in (ps,worker)"
        kubectl("drain", node, "--delete-emptydir-data", "--timeout=60s", selector)
        for index in drained_indices:
            change = job.first_change(
                lambda change, index=index: change.name == job.pod_name(Role.WORKER, index) and change.being_deleted
            )
            assert change is not None, f"worker {index} was told to go"
        job.wait_for("another PS elsewhere", lambda: job.ps_uids().get(name, uid) != uid or None, 60)
        assert node_of(job, Role.PS) != node
        job.wait_more_steps()
    finally:
        kubectl("uncordon", node)
    summary, run = finish_and_count(job)
    assert (summary["updates_rolled_back"], summary["records_repeated"]) == (0, 0)
    assert (run.ledger.rollbacks, run.ledger.part_rollbacks) == ([], [])
    baseline.check_summary(summary)
    check_deleted(job)


@pytest.mark.alone
@pytest.mark.breaks
@pytest.mark.in_turn(1)
def test_a_ps_on_a_lost_node_is_replaced_as_soon_as_the_cluster_notices(make_namespace: MakeNamespace) -> None:
    """Nobody waits for its pod's tolerations and grace: the master deletes what neither it nor workers hear of."""
    dead, *safe = usable_node_names(make_client())
    with restrict_new_pods(safe):
        job = start_job(make_namespace(), "bereft-of-ps", seconds=300)
        job.wait_training(workers=2)
    with restrict_new_pods([dead]):
        (ps, _), *_ = job.ps_uids().items()
        delete_pod(job.namespace, ps)
        _is_on(dead, job, Role.PS)
        job.wait_more_steps()
    with lose_node(job.namespace.site.faults, dead):
        job.wait_for("the job says that it waits", lambda: _stall_reason(job), DEAD_SECONDS)
        with ThreadPoolExecutor() as people:  # all the time: a few seconds later it waits for the successor
            answers = [
                people.submit(_is_said, job, dead, *command)
                for command in (["list"], ["status", job.name], ["why", job.name])
            ]
            job.wait_for("the cluster has noticed", lambda: _is_unready(job, ps, dead), DEAD_SECONDS)
            noticed = time.monotonic()
            assert all("talled" in (text := each.result()) and "ps-0" in text for each in answers)
        job.wait_for("the PS is back elsewhere", lambda: _has_moved(job, ps, dead), REPLACED_SECONDS)
        job.wait_more_steps(1, REPLACED_SECONDS)
        assert time.monotonic() - noticed < allowed_seconds(REPLACED_SECONDS)
        _, run = finish_and_count(job, rolled_back=2 * one_interval(job))
        reasons = [event["reason"] for event in run.events_of("stalled")]
        assert any(f"waiting for ps-0, its node {dead} is unreachable since" in reason for reason in reasons), reasons
        (end,) = run.events_of("stall_ended")
        assert end["reason"] == "ps-0 serves again"
        assert end["seconds"] > REPLACED_SECONDS / 10
        check_deleted(job)


def _is_said(job: ClusterJob, node: str, *command: str) -> str:
    """Ask until it is said for want of which PS training stands, and since when its node is lost."""
    words = f"its node {node} is unreachable since"
    ask = lambda: text if words in (text := job.namespace.user.edl(*command).stdout) else None  # noqa: E731
    return wait_until(f"edl {' '.join(command)} says: {words}", ask, DEAD_SECONDS)


def _stall_reason(job: ClusterJob) -> str | None:
    status = job.status()
    return (
        str(status["reason"]) if status.get("phase") == "Stalled" and "waiting for ps-0" in status["reason"] else None
    )


def _is_unready(job: ClusterJob, ps: str, node: str) -> bool | None:
    """Whether the node controller has turned the PS's condition, or the PS is elsewhere already."""
    pod = job.namespace.observer.pod(ps)
    return (pod is None or pod["spec"].get("nodeName") != node or not condition(pod, "Ready")) or None


@pytest.mark.alone
@pytest.mark.breaks
@pytest.mark.in_turn(2)
def test_api_server_away(namespace: Namespace, undisturbed: Undisturbed) -> None:
    """Training does not stop while the API server is away for a minute."""
    baseline = undisturbed(2)
    job = start_job(namespace, "no-api", seconds=75)
    job.wait_training(workers=2)
    with no_api(namespace.site.faults):
        time.sleep(AWAY_SECONDS)  # the fault itself: there is nobody to ask
    before = job.worker_uids()
    done = job.wait_for("a status after the outage", lambda: _fresh_progress(job), 60)
    assert done > 0.4 * job.status()["records_total"], "the job went on meanwhile"
    summary, _ = finish_and_count(job)
    baseline.check_summary(summary)
    assert (summary["workers_lost"], summary["records_repeated"]) == (0, 0)
    assert before.keys() == {0, 1}
    check_deleted(job)


def _fresh_progress(job: ClusterJob) -> int | None:
    status = job.status()
    return int(status["records_done"]) if status and time.time() - status["updated"] < 5 else None


@pytest.mark.alone
@pytest.mark.breaks
@pytest.mark.timeout(600)
@pytest.mark.in_turn(0)
def test_nodes_lost_and_cut_off(make_namespace: MakeNamespace, undisturbed: Undisturbed) -> None:
    """Two nodes go at once, each with pods of two jobs: one for good, the other comes back.

    The lost one has the PS and a worker of ``bereft`` and a worker of ``doomed``, which is deleted while it is down.
    The one that is cut off has the master of ``headless`` and a worker of ``crippled``.
    """
    baseline = undisturbed(2)  # with all nodes, if nobody has asked for it before
    dead, cut, *safe = usable_node_names(make_client())
    assert safe, "this takes three nodes"
    with restrict_new_pods(safe):
        namespace = make_namespace()
        names = ("bereft", "doomed", "headless", "crippled")
        bereft, doomed, headless, crippled = jobs = [start_job(namespace, name, seconds=300) for name in names]
        for job in jobs:
            job.wait_training(workers=2)
    before = headless.status()["incarnation"]
    with restrict_new_pods([dead]):
        (ps, _), *_ = bereft.ps_uids().items()
        delete_pod(namespace, ps)
        for job in (bereft, doomed):
            delete_pod(namespace, job.pod_name(Role.WORKER, 0))
            _is_on(dead, job, Role.WORKER, 2)
        _is_on(dead, bereft, Role.PS)
    with restrict_new_pods([cut]):
        delete_pod(namespace, headless.master()["metadata"]["name"])
        delete_pod(namespace, crippled.pod_name(Role.WORKER, 0))
        headless.wait_incarnation(before)
        _is_on(cut, headless, Role.MASTER)
        _is_on(cut, crippled, Role.WORKER, 2)
    for job in (bereft, doomed, crippled):
        job.wait_for("its replacement trains", lambda job=job: job.training_workers() == [1, 2] or None)
    pods, before = (headless.worker_uids(), headless.ps_uids()), headless.status()["incarnation"]

    with lose_node(namespace.site.faults, dead):
        with cut_off(namespace.site.faults, cut):
            crippled.wait_for("a worker in its place", lambda: 3 in crippled.training_workers() or None, DEAD_SECONDS)
            headless.wait_incarnation(before, DEAD_SECONDS)
            headless.wait_more_steps()
            bereft.wait_for("the PS is back elsewhere", lambda: _has_moved(bereft, ps, dead), DEAD_SECONDS)
            bereft.wait_for(
                "a worker in the lost one's place", lambda: 3 in bereft.training_workers() or None, DEAD_SECONDS
            )
            bereft.wait_more_steps()
        headless.wait_more_steps()
        assert (headless.worker_uids(), headless.ps_uids()) == pods, "adopted; the first master touches nothing more"
        crippled.wait_for("the worker comes back, is late, and goes", lambda: _has_ended(crippled, 2), 90)
        leaving = bereft.first_change(
            lambda change: change.name == bereft.pod_name(Role.WORKER, 2) and change.being_deleted
        )
        assert leaving is not None
        assert (condition(leaving.object, "DisruptionTarget") or {})["reason"] == "DeletionByTaintManager"
        check_deleted(doomed)
        for job in (bereft, headless, crippled):
            job.finish_quickly()
        summary, _ = finish_and_count(bereft, lost=2, rolled_back=2 * one_interval(bereft))
        baseline.check_summary(summary)
        check_deleted(bereft)

    summary, _ = finish_and_count(crippled, lost=2)
    baseline.check_summary(summary)
    summary, run = finish_and_count(headless)
    baseline.check_summary(summary)
    # A fourth is the first one's container again, started on the mended node: it finds the end, or waits in vain.
    assert run.incarnations()[:3] == [1, 2, 3], "masters wrote one after the other"
    for job in (headless, crippled):
        check_deleted(job)


def _is_on(node: str, job: ClusterJob, role: Role, index: int = 0) -> None:
    """Wait until a pod of that name has its place on the node."""
    job.wait_for(f"{role}-{index} is on {node}", lambda: node_of(job, role, index) == node or None)


def _has_ended(job: ClusterJob, worker: int) -> bool | None:
    """Whether a worker that was away has gone: its log says so on the volume.

    It hears from the master that its leases are lost or, if the kubelet is back before the name of the master can be
    resolved again, that its pod was deleted. Either way what it still had counts for nothing: the ledger is checked.
    """
    path = f"{MOUNT}{STORAGE}/{job.namespace.name}/{job.name}/{job.uid}/logs/worker-{worker}.log"
    log = in_container(job.namespace, READER, "cat", path)
    return "leases lost" in log or "graceful_shutdown gone" in log or None


def _has_moved(job: ClusterJob, ps: str, node: str) -> bool | None:
    pod = job.namespace.observer.pod(ps)
    return (phase(pod) == "Running" and pod is not None and pod["spec"]["nodeName"] != node) or None


@pytest.mark.matrix
@pytest.mark.parametrize("step", [1, 45, 600])
@pytest.mark.parametrize("role", [Role.PS, Role.WORKER])
def test_pods_killed_at_every_step(namespace: Namespace, undisturbed: Undisturbed, role: Role, step: int) -> None:
    job = start_job(namespace, f"{role}-{step}", seconds=60)
    job.wait_step(step)
    delete_pod(namespace, job.pod_name(role, 0), "--grace-period=0", "--force")
    summary, _ = finish_and_count(job, lost=1, rolled_back=one_interval(job))
    undisturbed(2).check_summary(summary)
    check_deleted(job)

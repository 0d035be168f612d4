"""Why a job waits, is slow or has failed: evidence in, findings out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from support.in_memory_cluster import NOW, InMemoryCluster
from support.job_objects import (
    EVENTS,
    PUBLISHED,
    STATUS,
    TIMELINE,
    conditions,
    container,
    job_view,
    put_pod,
    unscheduled,
    with_status,
)
from support.text_keys import missing_keys

from edl.api.cluster_port import Role
from edl.api.run_events import (
    RecordsRequeued,
    RequeuedRecordsLeased,
    RoleEnded,
    RoleLeaving,
    RollbackDone,
    WarningRaised,
)
from edl.api.status import JobFailure, ParametersStatus, TableStatus, TimelinePoint, WorldStatus
from edl.api.strategy import Strategy
from edl.cluster.kubernetes.resource_kinds import Manifest
from edl.jobfile.published_status import PublishedStatus
from edl.ops.diagnosis import JobEvidence, average_workers, diagnose_job, diagnose_slowdown
from edl.ops.job_findings import JobFinding
from edl.ops.job_view import JobView, KubernetesEvent, select_job_events
from edl.ops.pod_problems import refusal_remedy

NO_CPU = "0/2 nodes are available: 2 Insufficient cpu."
CALM = PublishedStatus(replace(STATUS, workers_wanted=2))


def findings(
    job: JobView,
    pods: Sequence[Manifest] = (),
    kube_events: Sequence[KubernetesEvent] = (),
    nodes: Sequence[Manifest] | None = None,
) -> list[JobFinding]:
    return diagnose_job(JobEvidence(job, pods, kube_events, nodes, "mnist -n team"))


@pytest.fixture
def cluster() -> InMemoryCluster:
    return InMemoryCluster()


def test_a_job_that_runs_has_no_complaints(cluster: InMemoryCluster) -> None:
    pods = [put_pod(cluster, Role.MASTER), put_pod(cluster, Role.PS), put_pod(cluster, Role.WORKER, 1)]
    assert findings(job_view(CALM), pods) == []


def test_pods_that_wait_for_the_same_are_one_complaint(cluster: InMemoryCluster) -> None:
    pods = [put_pod(cluster, Role.WORKER, index, unscheduled(NO_CPU)) for index in range(6)]
    (finding,) = findings(job_view(CALM), [put_pod(cluster, Role.MASTER), *pods], nodes=[cluster.node("n1")])
    assert not missing_keys(finding.subject, "worker-0, worker-1, worker-2, worker-3", "2 more")
    assert not missing_keys(finding.text, "2 of 2 nodes", "cpu")
    assert finding.cluster_message == NO_CPU


def test_a_pod_larger_than_every_node_can_never_start(cluster: InMemoryCluster) -> None:
    pods = [put_pod(cluster, Role.MASTER), put_pod(cluster, Role.WORKER, 0, unscheduled(NO_CPU), cpu="64")]
    (finding,) = findings(job_view(CALM), pods, nodes=[cluster.node("n1"), cluster.node("n2")])
    assert not missing_keys(finding.text, "never", "64 CPU")
    assert "resources" in finding.remedy


def test_a_pod_that_fits_on_a_cordoned_node_only_may_start_later(cluster: InMemoryCluster) -> None:
    """As `edl submit` says it: a cordoned node comes back."""
    pods = [put_pod(cluster, Role.MASTER), put_pod(cluster, Role.WORKER, 0, unscheduled(NO_CPU), cpu="64")]
    nodes = [cluster.node("n1"), cluster.node("n2", cpu="96", unschedulable=True)]
    (finding,) = findings(job_view(CALM), pods, nodes=nodes)
    assert missing_keys(finding.text, "never")
    assert not missing_keys(finding.text, "cpu")


def test_pods_that_ended_or_leave_are_not_waited_for(cluster: InMemoryCluster) -> None:
    leaving = put_pod(cluster, Role.WORKER, 1, unscheduled(NO_CPU))
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    ended = put_pod(cluster, Role.WORKER, 2, {"phase": "Failed", "reason": "Preempted"})
    assert findings(job_view(CALM), [put_pod(cluster, Role.MASTER), leaving, ended]) == []


def test_a_master_that_cannot_be_made() -> None:
    message = 'pods "edl-mnist-master-x" is forbidden: error looking up service account team/edl-job-master: not found'
    refused = KubernetesEvent(NOW, "Job edl-mnist-master", "FailedCreate", message, True)
    (finding,) = findings(job_view(PublishedStatus(), status={}), kube_events=[refused])
    assert finding.subject == "master"
    assert message in finding.text
    assert "edl-job-master" in finding.remedy


def test_what_a_policy_refuses_is_not_mistaken_for_something_missing() -> None:
    """Its sentences name accounts and PriorityClasses, of which there is no lack."""
    refusal = (
        "ValidatingAdmissionPolicy 'edl-job-master-pods' with binding 'edl-job-master-pods' denied request: A pod may "
    )
    assert "pod.overrides" in refusal_remedy(f"{refusal}have no PriorityClass but high, low.")


def test_a_master_whose_image_is_not_there(cluster: InMemoryCluster) -> None:
    pod = put_pod(cluster, Role.MASTER, 0, container("nosuch:1", waiting={"reason": "ImagePullBackOff"}))
    (finding,) = findings(job_view(PublishedStatus(), status={}), [pod])
    assert (finding.subject, missing_keys(finding.text, "image", "pulled", "nosuch:1")) == ("master", [])


def test_a_submission_that_broke_off() -> None:
    (finding,) = findings(job_view(PublishedStatus(), status={}, spec={"suspend": True}))
    assert "edl delete mnist" in finding.remedy


def test_refusals_and_starvation(cluster: InMemoryCluster) -> None:
    refusal = 'pods "edl-mnist-worker-7" is forbidden: exceeded quota: team, requested: cpu=2'
    published = PublishedStatus(
        replace(STATUS, workers_wanted=2, starved=True, refusals={"worker-7": refusal, "worker-8": refusal})
    )
    refused, starved = findings(job_view(published), [put_pod(cluster, Role.MASTER)])
    assert (refused.subject, refusal in refused.text) == ("worker-7, worker-8", True)
    assert "quota" in refused.remedy
    assert not missing_keys(starved.text, "starved", "2 workers", "workers.min is 1")


def test_steps_that_were_reported_and_not_applied_are_said(cluster: InMemoryCluster) -> None:
    published = PublishedStatus(replace(STATUS, steps_not_applied=1139))
    (finding,) = findings(job_view(published), [put_pod(cluster, Role.MASTER)])
    assert not missing_keys(finding.text, "1,139 steps", "workers", "reported")


def test_updates_that_were_skipped_are_said(cluster: InMemoryCluster) -> None:
    (finding,) = findings(
        job_view(PublishedStatus(replace(STATUS, updates_skipped=8))), [put_pod(cluster, Role.MASTER)]
    )
    assert not missing_keys(finding.text, "8 updates", "skipped", "not finite", "train.on_nan")
    assert "edl logs" in finding.remedy


@pytest.mark.parametrize(
    ("running", "keys"),
    [
        (0, ("0 workers", "training waits")),
        (1, ("1 worker", "continues")),
        (2, ("2 workers", "continues")),
    ],
)
def test_what_starvation_means_depends_on_who_is_left(
    cluster: InMemoryCluster, running: int, keys: tuple[str, ...]
) -> None:
    published = PublishedStatus(replace(STATUS, starved=True, workers_min=3, workers=STATUS.workers[:running]))
    (starved,) = findings(job_view(published), [put_pod(cluster, Role.MASTER)])
    assert not missing_keys(starved.text, "starved", "workers.min is 3", *keys)


@pytest.mark.parametrize(("starved", "text"), [(False, "1 of 2"), (True, "workers.min is 3")])
def test_workers_that_run_and_do_not_train_together_are_found(
    cluster: InMemoryCluster, starved: bool, text: str
) -> None:
    world = WorldStatus(running=False, reason="1 of 2 workers are ready")
    published = PublishedStatus(replace(STATUS, starved=starved, workers_min=3, phase="Training", world=world))
    (waiting,) = findings(job_view(published), [put_pod(cluster, Role.MASTER)])
    assert not missing_keys(waiting.text, text, "no worker trains", "1 of 2 workers are ready")


def test_a_worker_for_which_the_others_wait_is_named(cluster: InMemoryCluster) -> None:
    world = WorldStatus(running=True, awaited="worker-2 has not finished its part of step 4 for 75 s")
    published = PublishedStatus(replace(STATUS, workers_wanted=2, phase="Training", world=world))
    (late,) = findings(job_view(published), [put_pod(cluster, Role.MASTER)])
    assert not missing_keys(late.text, "no step is made", "worker-2 has not finished its part of step 4")
    assert not missing_keys(late.remedy, "log", "an hour", "`command`")


def test_records_that_went_back_are_not_said_to_be_leased_before_they_are() -> None:
    back = RecordsRequeued(0, 512, "a", 1, "lost", time=NOW - 9)
    again = RequeuedRecordsLeased(0, 200, "a", 2, time=NOW - 8)
    (finding,) = diagnose_slowdown(job_view(replace(CALM, events=(back, again))), "mnist")
    assert not missing_keys(finding.text, "512 records", "200")


def test_what_parameter_servers_tell_comes_before_what_cost_time(cluster: InMemoryCluster) -> None:
    """tests/ops/exchange/*.txt has all that can be said of them."""
    full = ParametersStatus(Strategy(), tables=(TableStatus("users", 9, 900, 0, 9, 1.0),), tables_total=1)
    published = replace(PUBLISHED, status=replace(STATUS, parameters=full))
    table, slow, _ = findings(job_view(published), [put_pod(cluster, Role.MASTER)])
    assert not missing_keys(table.text, "users", "100 %", "ps.max_rows", "9 rows")
    assert not missing_keys(slow.text, "workers", "average")


def test_why_it_was_slow(cluster: InMemoryCluster) -> None:
    back = RollbackDone(512, 2, "ps-0: node lost", time=NOW - 30)
    published = replace(PUBLISHED, events=(*EVENTS, back, RoleEnded("worker", 1, None, "Completed", 0, time=NOW - 9)))
    slow, lost, rolled = findings(job_view(published), [put_pod(cluster, Role.MASTER)])
    assert not missing_keys(slow.text, "3.3", "workers", "average", "4", "33%")
    assert not missing_keys(lost.text, "workers lost", "1", "preempted")
    assert not missing_keys(lost.remedy, "edl events mnist -n team")
    assert not missing_keys(rolled.text, "rolled back", "1", "512 records", "ps-0: node lost")


def test_a_job_that_has_just_begun_is_not_slow() -> None:
    published = replace(
        CALM, timeline=(TimelinePoint(NOW - 500, 0, 4), TimelinePoint(NOW - 20, 1, 3), TimelinePoint(NOW, 1, 3))
    )
    assert list(diagnose_slowdown(job_view(published), "mnist")) == []


def test_workers_that_the_master_sent_away_are_not_lost() -> None:
    sent = RoleLeaving("worker", 3, "only 2 of 4 workers are wanted", time=NOW - 9)
    preempted = RoleLeaving("worker", 2, "preempted", "Preempted by a pod on node n1", time=NOW - 9)
    ends = [
        RoleEnded("worker", index, None, each.cause, 0, time=NOW - 5) for index, each in ((3, sent), (2, preempted))
    ]
    (finding,) = diagnose_slowdown(job_view(replace(CALM, events=(sent, preempted, *ends))), "mnist")
    assert not missing_keys(finding.text, "workers lost", "1", "preempted")


def test_a_failed_job_says_why_and_how_to_go_on() -> None:
    published = replace(
        with_status(phase="Failed", reason="the model crashes in every worker"),
        failure=JobFailure("crash", "the model crashes in every worker", "Traceback ...\nKeyError: 'x'"),
    )
    finding = findings(job_view(published, status=conditions(Failed="BackoffLimitExceeded")))[0]
    assert not missing_keys(finding.text, "failed", "the model crashes in every worker")
    assert "--resume 0a1b" in finding.remedy
    assert "KeyError" in finding.cluster_message


def test_a_job_without_a_word_of_its_master_fails_with_that_of_kubernetes() -> None:
    finding = findings(
        job_view(PublishedStatus(), status=conditions(Failed="Job was active longer than its deadline"))
    )[0]
    assert not missing_keys(finding.text, "failed", "Job was active longer than its deadline")


def test_a_job_that_is_done_is_done() -> None:
    assert findings(job_view(replace(CALM, timeline=()), status=conditions(Complete=""))) == []


@pytest.mark.parametrize(
    ("moments", "average"),
    [
        (TIMELINE, 2.5),
        ((TimelinePoint(0.0, 4), TimelinePoint(10.0, 0), TimelinePoint(40.0, 0)), 1.0),
        ((TimelinePoint(5.0, 3), TimelinePoint(5.0, 2)), 2.0),
    ],
)
def test_workers_on_average(moments: tuple[TimelinePoint, ...], average: float) -> None:
    assert average_workers(moments) == average


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("exceeded quota: q", "quota"),
        ('violates PodSecurity "restricted"', "pod.overrides"),
        ("no PriorityClass with name low was found", "PriorityClass"),
        ('error looking up service account team/edl-none: serviceaccount "edl-none" not found', "create the accounts"),
        ('pods is forbidden: User "system:serviceaccount:team:edl-job-master" cannot create resource "pods"', "bind"),
        ("who knows", ""),
    ],
)
def test_remedies(text: str, remedy: str) -> None:
    assert remedy in refusal_remedy(text)


@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("edl-mnist-worker-3", True),
        ("edl-mnist-ps-0", True),
        ("edl-mnist-master", True),
        ("edl-mnist-master-x7k2p", True),
        ("edl-mnist-worker-3-worker-1", False),
        ("edl-mnist-worker-x", False),
        ("edl-mnist-2-worker-3", False),
        ("other", False),
    ],
)
def test_which_of_kubernetes_events_are_the_jobs_own(name: str, own: bool) -> None:
    event = {"metadata": {}, "involvedObject": {"kind": "Pod", "name": name}, "message": "a\n b", "reason": "R"}
    assert [each.involved_object for each in select_job_events([event], "mnist")] == ([f"Pod {name}"] if own else [])


def test_both_kinds_of_events_are_read() -> None:
    old = {"lastTimestamp": "2026-01-01T00:00:02Z", "count": 3, "type": "Warning"}
    new = {"eventTime": "2026-01-01T00:00:01.500000Z", "series": None, "type": "Normal"}
    about = {"metadata": {}, "involvedObject": {"kind": "Pod", "name": "edl-mnist-ps-0"}, "reason": "R", "message": "m"}
    first, second = select_job_events([{**about, **old}, {**about, **new}], "mnist")
    assert second.last_seen - first.last_seen == 0.5
    assert (first.count, first.is_warning, second.count, second.is_warning) == (1, False, 3, True)


def test_a_warning_of_the_master_is_told_once() -> None:
    warned = WarningRaised("the job begins anew", time=NOW - 30)
    (finding,) = diagnose_slowdown(job_view(replace(CALM, events=(warned, replace(warned, time=NOW - 9)))), "mnist")
    assert finding.text == "the job begins anew"

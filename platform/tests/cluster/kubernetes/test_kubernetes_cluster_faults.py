"""Every fault of an API server, scripted by name: nothing is lost, nothing is told twice, nothing wrong is deleted."""

from __future__ import annotations

import pytest
from cluster.kubernetes.api_server import LONGEST_WAIT, ScriptedRefusal
from cluster.kubernetes.kube_cluster_harness import JOB, JOB_UID, NAMESPACE, KubeClusterHarness, owner, render
from support.cluster_contract import WatchThread, running
from support.sleep_clock import SleepClock

from edl.api.cluster_port import DEFAULT_OPTIONS, PodPhase, PodStatus, Role, TerminationCause
from edl.api.errors import BadInputError, RetryableError
from edl.api.job_spec import JobSpec, ModelSpec
from edl.cluster.kubernetes import names
from edl.cluster.kubernetes.api_client import NoRateLimiter, RateLimiter
from edl.cluster.kubernetes.api_errors import ForbiddenError
from edl.cluster.kubernetes.kube_cluster import KEPT_ENDED_PODS
from edl.cluster.kubernetes.lease_fence import LeaseFence
from edl.cluster.kubernetes.master_backend import KubeMasterBackend, MasterPodInfo
from edl.cluster.kubernetes.pod_watch import WatchSettings
from edl.cluster.kubernetes.rate_limiter import TokenBucketLimiter
from edl.core.backoff import ExponentialBackoff


def ends(watch: WatchThread) -> list[str]:
    return sorted(pod.uid for pod in watch.seen if pod.has_ended)


# ---------------------------------------------------------------------- watches


def test_what_happens_while_a_watch_has_ended_is_told_once(harness: KubeClusterHarness) -> None:
    watch = WatchThread(harness.cluster)
    killed, removed, alive = (running(harness, index) for index in range(3))
    watch.synced()
    watch.running(alive)
    harness.server.connection_refused()
    harness.kill(killed)
    harness.server.vanish(removed)
    harness.server.open()
    assert watch.ended(killed).exit_code == 137
    last = watch.ended(removed)
    assert (last.phase, last.cause, last.exit_code) == (PodPhase.GONE, TerminationCause.DELETED, None)
    harness.server.watch_ends()
    harness.kill(alive)
    watch.ended(alive)
    assert ends(watch) == sorted([killed, removed, alive])


def test_pod_that_lived_only_while_the_watch_was_away_is_told_to_have_ended(harness: KubeClusterHarness) -> None:
    watch = WatchThread(harness.cluster)
    watch.synced()
    harness.server.refuse(ScriptedRefusal(500, "list", None))
    harness.server.watch_ends()
    uid = running(harness)
    harness.server.vanish(uid)
    harness.server.accept_all()
    assert watch.ended(uid).cause == TerminationCause.DELETED
    assert ends(watch) == [uid]


def test_watch_that_ends_is_followed_by_a_list(harness: KubeClusterHarness) -> None:
    watch = WatchThread(harness.cluster)
    uid = running(harness)
    watch.synced()
    for _ in range(3):
        harness.server.watch_ends()
    harness.kill(uid)
    assert watch.ended(uid).exit_code == 137


def test_silent_watch_is_given_up(harness: KubeClusterHarness) -> None:
    watch = WatchThread(harness.cluster)
    uid = running(harness)
    watch.synced()
    watch.running(uid)
    harness.server.watch_silent()
    harness.kill(uid)
    assert watch.ended(uid).exit_code == 137


def test_watch_is_begun_again_after_410(harness: KubeClusterHarness) -> None:
    watch = WatchThread(harness.cluster)
    uid = running(harness)
    watch.synced()
    watch.running(uid)
    harness.server.watch_silent()
    harness.kill(uid)
    harness.server.gone_410()
    harness.server.watch_silent(False)
    assert watch.ended(uid).exit_code == 137


def test_event_that_was_lost_without_a_sign_is_found_by_the_next_list() -> None:
    harness = KubeClusterHarness(
        WatchSettings(timeout_seconds=1, idle_timeout=5, backoff=ExponentialBackoff(0.01, 0.05), jitter=lambda: 0.5)
    )
    watch = WatchThread(harness.cluster)
    uid = running(harness)
    watch.synced()
    watch.running(uid)
    harness.server.event_lost(names.pod_name(JOB, Role.WORKER, 0))
    harness.server.vanish(uid)
    assert watch.ended(uid).phase == PodPhase.GONE
    harness.close()


def test_bookmarks_say_nothing_but_that_the_watch_lives(harness: KubeClusterHarness) -> None:
    harness.server.bookmark_every = 0.01
    watch = WatchThread(harness.cluster)
    uid = running(harness)
    watch.synced()
    watch.running(uid)
    harness.server.bookmark_every = 0.001
    other = WatchThread(harness.connect())
    other.synced()
    harness.kill(uid)
    watch.ended(uid)
    other.ended(uid)
    assert sum(request.verb == "list" for request in harness.server.requests) == 2, "one for each watch"


@pytest.mark.parametrize("verb", ["list", "watch"])
def test_busy_server_is_asked_again(harness: KubeClusterHarness, verb: str) -> None:
    harness.server.error_500(verb, times=3)
    harness.server.too_many_429(0, verb)
    watch = WatchThread(harness.cluster)
    uid = running(harness)
    watch.synced()
    assert watch.running(uid).uid == uid


def test_server_that_is_starting_refuses_everybody_for_a_while(harness: KubeClusterHarness) -> None:
    harness.server.refuse(
        ScriptedRefusal(403, "list", 3, "Forbidden", 'pods is forbidden: User "x" cannot list resource "pods"')
    )
    harness.server.refuse(ScriptedRefusal(401, "list", 2, "Unauthorized", "Unauthorized"))
    uid = running(harness)
    assert [pod.uid for pod in WatchThread(harness.cluster).synced()] == [uid]


def test_watch_without_the_right_to_list_ends_with_the_reason() -> None:
    harness = KubeClusterHarness(
        WatchSettings(forbidden_timeout=0.0, backoff=ExponentialBackoff(0.01, 0.05), jitter=lambda: 0.5)
    )
    harness.server.refuse(ScriptedRefusal(403, "list", None, "Forbidden", 'User "x" cannot list resource "pods"'))
    with pytest.raises(ForbiddenError, match="cannot list"):
        next(harness.cluster.watch())
    harness.close()


def test_close_ends_a_watch_that_waits_for_the_server(harness: KubeClusterHarness) -> None:
    watch = WatchThread(harness.cluster)
    watch.synced()
    harness.server.connection_refused()
    harness.cluster.close()
    watch.wait_over()


# ---------------------------------------------------------------------- whose pods


def test_name_reused_with_another_uid_while_nobody_watched(harness: KubeClusterHarness) -> None:
    watch = WatchThread(harness.cluster)
    uid = running(harness)
    watch.synced()
    watch.running(uid)
    harness.server.connection_refused()
    harness.server.vanish(uid)
    again = harness.server.create_foreign(render(Role.WORKER, 0, DEFAULT_OPTIONS))["metadata"]["uid"]
    harness.server.open()
    assert watch.ended(uid).phase == PodPhase.GONE
    assert watch.running(again).index == 0
    harness.cluster.delete(uid, grace=0)
    assert harness.server.pod(again)["status"]["phase"] == "Running", "another pod of that name was deleted"


def test_deletion_names_the_uid(harness: KubeClusterHarness) -> None:
    uid = running(harness)
    harness.server.vanish(uid)
    again = harness.server.create_foreign(render(Role.WORKER, 0, DEFAULT_OPTIONS))["metadata"]["uid"]
    harness.cluster.delete(uid, grace=0)
    assert harness.server.pod(again)["metadata"]["uid"] == again
    assert any(request.verb == "delete" for request in harness.server.requests)


def foreign(index: int) -> str:
    return names.pod_name(JOB, Role.WORKER, index)


def test_pods_with_our_labels_and_another_owner_are_none_of_ours(harness: KubeClusterHarness) -> None:
    stranger = render(Role.WORKER, 0, DEFAULT_OPTIONS)
    stranger["metadata"]["ownerReferences"] = [owner("uid-of-an-older-job")]
    orphan = render(Role.WORKER, 1, DEFAULT_OPTIONS)
    del orphan["metadata"]["ownerReferences"]
    masters = render(Role.WORKER, 2, DEFAULT_OPTIONS)
    masters["metadata"] |= {"name": "edl-mnist-master-x", "labels": names.object_labels(JOB, Role.MASTER)}
    unlabelled = render(Role.WORKER, 3, DEFAULT_OPTIONS)
    unlabelled["metadata"]["labels"] = {names.JOB_LABEL: JOB}
    for pod in (stranger, orphan, masters, unlabelled):
        harness.server.create_foreign(pod)
    watch = WatchThread(harness.cluster)
    assert watch.synced() == []
    for index in (0, 1):
        with pytest.raises(RetryableError, match="does not belong to this job"):
            harness.cluster.start(Role.WORKER, index)
    harness.cluster.delete("uid-000001", grace=0)
    assert len(harness.server.store.pods) == 4


# ---------------------------------------------------------------------- starts


def test_pod_whose_creation_was_carried_out_but_not_answered_is_found(harness: KubeClusterHarness) -> None:
    harness.server.error_500("create", carried_out=True)
    with pytest.raises(RetryableError):
        harness.cluster.start(Role.WORKER, 0)
    uid = harness.cluster.start(Role.WORKER, 0)
    assert [pod["metadata"]["uid"] for pod in harness.server.store.pods.values()] == [uid]


@pytest.mark.parametrize(
    "message",
    [
        'pods "w" is forbidden: exceeded quota: compute, requested: cpu=1, used: cpu=4, limited: cpu=4',
        'pods "w" is forbidden: violates PodSecurity "restricted:latest": hostPath volumes',
        'pods is forbidden: User "m" cannot create resource "pods" in API group "" in the namespace "team"',
        "admission webhook denied the request: no",
    ],
)
def test_403_is_for_now_and_in_the_servers_words(harness: KubeClusterHarness, message: str) -> None:
    harness.server.refuse(ScriptedRefusal(403, "create", 1, "Forbidden", message))
    with pytest.raises(RetryableError) as refused:
        harness.cluster.start(Role.WORKER, 0)
    assert message in str(refused.value)
    harness.cluster.start(Role.WORKER, 0)


@pytest.mark.parametrize("code", [400, 422])
def test_pod_that_is_not_valid_is_never_accepted(harness: KubeClusterHarness, code: int) -> None:
    harness.server.refuse(ScriptedRefusal(code, "create", 1, "Invalid", "spec.containers[0].image: Required value"))
    with pytest.raises(BadInputError, match="Required value"):
        harness.cluster.start(Role.WORKER, 0)


def test_quota_that_changed_meanwhile_is_no_taken_name(harness: KubeClusterHarness) -> None:
    words = 'Operation cannot be fulfilled on resourcequotas "q": the object has been modified'
    harness.server.refuse(ScriptedRefusal(409, "create", 1, "Conflict", words))
    with pytest.raises(RetryableError, match="has been modified"):
        harness.cluster.start(Role.WORKER, 0)


def test_name_of_an_ended_pod_is_made_free(harness: KubeClusterHarness) -> None:
    uid = running(harness, role=Role.PS)
    harness.kill(uid)
    again = harness.cluster.start(Role.PS, 0)
    assert again != uid
    deletion = next(request for request in harness.server.requests if request.verb == "delete")
    assert deletion.body["preconditions"] == {"uid": uid}
    assert deletion.body["gracePeriodSeconds"] == 0
    assert deletion.body["propagationPolicy"] == "Background"


# ---------------------------------------------------------------------- deletions


def test_deletion_that_the_server_could_not_do_is_done_later(harness: KubeClusterHarness) -> None:
    watch = WatchThread(harness.cluster)
    uid = running(harness)
    watch.synced()
    harness.server.error_500("delete", times=2)
    harness.cluster.delete(uid, grace=5)
    last = watch.ended(uid)
    assert (last.phase, last.exit_code, last.cause) == (PodPhase.GONE, 143, TerminationCause.NONE)


def test_deletion_before_any_watch_finds_the_pod(harness: KubeClusterHarness) -> None:
    uid = running(harness)
    harness.connect().delete(uid, grace=0)
    assert harness.server.store.pods == {}


def leaving_cause(harness: KubeClusterHarness, watch: WatchThread, uid: str) -> TerminationCause:
    last: PodStatus = watch.ended(uid)
    causes = {pod.cause for pod in watch.seen if pod.uid == uid and pod.leaving}
    assert causes == {last.cause}
    assert last.phase == PodPhase.GONE
    return last.cause


def test_objects_of_ended_pods_are_cleared_though_no_deletion_was_ever_put_off(harness: KubeClusterHarness) -> None:
    watch = WatchThread(harness.cluster)
    watch.synced()
    done = [running(harness, index) for index in range(KEPT_ENDED_PODS + 2)]
    for uid in done:
        harness.exit(uid, 0)
        watch.ended(uid)
    pods, changed = harness.server.store.pods, harness.server.changed
    with changed:
        assert changed.wait_for(lambda: len(pods) <= KEPT_ENDED_PODS, LONGEST_WAIT)
        assert {pod["metadata"]["uid"] for pod in pods.values()} == set(done[2:])


def test_who_asked_for_a_deletion_is_told_apart(harness: KubeClusterHarness) -> None:
    watch = WatchThread(harness.cluster)
    ours, theirs, preempted, both = (running(harness, index) for index in range(4))
    watch.synced()
    watch.running(both)
    harness.ignore_sigterm(both)
    other = harness.connect()
    harness.cluster.delete(ours, grace=5)
    other.delete(theirs, grace=5)
    harness.server.preempt(preempted)
    other.delete(both, grace=5)
    watch.leaving(both)
    harness.cluster.delete(both, grace=5)
    harness.server.grace_over()
    expected = {
        ours: TerminationCause.NONE,
        theirs: TerminationCause.DELETED,
        preempted: TerminationCause.PREEMPTED,
        both: TerminationCause.DELETED,
    }
    assert {uid: leaving_cause(harness, watch, uid) for uid in expected} == expected


def test_restarted_master_does_not_know_its_predecessors_deletions(harness: KubeClusterHarness) -> None:
    uid = running(harness)
    harness.ignore_sigterm(uid)
    harness.cluster.delete(uid, grace=5)
    harness.cluster.close()
    watch = WatchThread(harness.connect())
    assert [(pod.leaving, pod.cause) for pod in watch.synced()] == [(True, TerminationCause.DELETED)]


# ---------------------------------------------------------------------- many at once


class _CountingRateLimiter:
    """A pace whose requests are written down with their moments; None: requests that nothing holds back."""

    def __init__(self, pace: RateLimiter | None, clock: SleepClock, moments: list[float]) -> None:
        self._pace, self._clock, self._moments = pace or NoRateLimiter(), clock, moments

    def __call__(self) -> None:
        self._pace()
        self._moments.append(self._clock.now)

    def pause_requests(self, seconds: float) -> None:
        self._pace.pause_requests(seconds)


@pytest.mark.repetition
def test_a_thousand_lost_pods_do_not_flood_the_server(
    harness: KubeClusterHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a master in a pod has it, with the pace that it gives itself."""
    clock, moments = SleepClock(), list[float]()
    monkeypatch.setattr(TokenBucketLimiter.__init__, "__kwdefaults__", {"now": lambda: clock.now, "sleep": clock.sleep})
    monkeypatch.setattr(LeaseFence, "holds", lambda _: True)
    pod_info = MasterPodInfo(JOB, JOB_UID, NAMESPACE, "edl-mnist-master-x", "pod-uid", "/runs/1", "the-users-own")
    spec = JobSpec(name=JOB, model=ModelSpec("m.custom_model"), image="edl:1")
    master = KubeMasterBackend(spec, pod_info, lambda pace: harness.api(_CountingRateLimiter(pace, clock, moments)))
    try:
        lost = [master.cluster.start(Role.WORKER, index) for index in range(1000)]
        for uid in lost:
            harness.kill(uid)
        moments.clear()
        again = [master.cluster.start(Role.WORKER, 1000 + index) for index in range(1000)]
    finally:
        master.cluster.close()
        master.close()
    assert len(set(again)) == 1000
    assert len(moments) == 1000
    for first in range(len(moments)):
        within = sum(moments[first] <= moment < moments[first] + 1 for moment in moments[first : first + 200])
        assert within <= 150, "burst and one second of the rate"


# ---------------------------------------------------------------------- the end of a job


def test_at_the_end_of_a_job_no_object_of_its_pods_stays(harness: KubeClusterHarness) -> None:
    done, crashed, leaving, alive = (running(harness, index) for index in range(4))
    harness.exit(done, 0)
    harness.kill(crashed)
    harness.ignore_sigterm(leaving)
    harness.cluster.delete(leaving, grace=30)
    labels = names.object_labels(JOB, Role.WORKER, 7)
    other = {"name": "of-another", "labels": labels, "ownerReferences": [owner("uid-of-an-older-job")]}
    harness.server.create_foreign({"metadata": other, "spec": {}})
    harness.cluster.close()
    assert not harness.cluster.delete_all_pods()
    assert list(harness.server.store.pods) == ["of-another"]
    assert harness.cluster.delete_all_pods()
    assert alive not in [pod["metadata"]["uid"] for pod in harness.server.store.pods.values()]


def test_where_no_volume_has_the_logs_the_newest_pod_that_crashed_stays(harness: KubeClusterHarness) -> None:
    workers = [running(harness, index) for index in range(3)]
    (ps,) = [running(harness, 0, Role.PS)]
    for uid in workers[:2]:
        harness.exit(uid, 1)
    harness.exit(ps, 0)
    harness.cluster.delete_all_pods(keep_crashed=True)
    assert [pod["metadata"]["uid"] for pod in harness.server.store.pods.values()] == [workers[1]]
    assert harness.cluster.delete_all_pods(keep_crashed=True)

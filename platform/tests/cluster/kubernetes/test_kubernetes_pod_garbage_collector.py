"""Which objects of pods are removed, and that removing goes on when it fails."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edl.api.cluster_port import PodPhase, PodStatus, Role, TerminationCause
from edl.api.errors import RetryableError
from edl.cluster.kubernetes.kube_cluster import (
    KEPT_ENDED_PODS,
    PodGarbageCollector,
    excess_pods,
    stuck_deletions,
)
from edl.cluster.kubernetes.pod_watch import PodCache, PodRecord


def body(
    index: int,
    phase: PodPhase = PodPhase.RUNNING,
    role: Role = Role.WORKER,
    *,
    cause: TerminationCause = TerminationCause.NONE,
    since: float | None = None,
    grace: float = 0,
) -> PodRecord:
    status = PodStatus(f"uid-{role}-{index}", role, index, phase, leaving=since is not None, cause=cause)
    return PodRecord(f"pod-{role}-{index}", status, f"2026-01-01T00:{index:02}:00Z", since, grace)


def test_pod_that_stays_past_its_grace_is_overdue_and_sooner_on_a_lost_node() -> None:
    lost = body(0, cause=TerminationCause.NODE_LOST, since=100, grace=30)
    slow = body(1, cause=TerminationCause.PREEMPTED, since=100, grace=30)
    ended = body(2, PodPhase.GONE, since=100, grace=30)
    pods = [lost, slow, ended, body(3)]
    assert stuck_deletions(pods, 135) == []
    assert stuck_deletions(pods, 135.1) == [lost]
    assert stuck_deletions(pods, 160.1) == [lost, slow, ended]


@given(st.lists(st.tuples(st.sampled_from([Role.PS, Role.WORKER]), st.sampled_from(PodPhase)), max_size=40))
def test_only_ended_pods_that_are_not_among_the_newest_are_surplus(pods: list[tuple[Role, PodPhase]]) -> None:
    bodies = [body(index, phase, role) for index, (role, phase) in enumerate(pods)]
    removed = excess_pods(bodies)
    for role in (Role.PS, Role.WORKER):
        ended = [each for each in bodies if each.status.role == role and each.status.has_ended]
        assert [each for each in removed if each.status.role == role] == ended[: max(len(ended) - KEPT_ENDED_PODS, 0)]


def test_pods_that_are_removed_already_are_not_removed_again() -> None:
    ended = [body(index, PodPhase.FAILED, since=1.0) for index in range(20)]
    assert excess_pods(ended) == []


def test_deletion_that_was_put_off_is_tried_until_it_is_answered() -> None:
    deletions: list[tuple[str, int]] = []
    answers = [RetryableError("away"), RetryableError("busy"), None]

    def remove(uid: str, grace: int) -> None:
        deletions.append((uid, grace))
        answer = answers.pop(0)
        if answer is not None:
            raise answer

    collector = PodGarbageCollector(PodCache("job"), remove, interval=3600)
    collector.retry_later("uid-1", 7)
    for _ in range(5):
        collector.collect_once()
    assert deletions == [("uid-1", 7)] * 3
    collector.close()

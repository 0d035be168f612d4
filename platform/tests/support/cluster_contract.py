"""What every implementation of the port ``edl.api.cluster_port.JobCluster`` promises.

A test class derives from ``ClusterContract`` and gives a fixture ``harness``, which has the cluster and can do to its
pods what a test needs done.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Protocol

import pytest

from edl.api.cluster_port import JobCluster, PodOptions, PodPhase, PodStatus, Role, TerminationCause, WatchSynced
from edl.api.errors import BadInputError, RetryableError

WAIT_SECONDS = 20.0
"""Seconds; a bound for a loaded machine, never an expectation."""


class ClusterHarness(Protocol):
    """A cluster, and what a test does to its pods."""

    @property
    def cluster(self) -> JobCluster:
        """The port."""

    def connect(self) -> JobCluster:
        """Return the port again, as a restarted master has it."""

    def await_running(self, uid: str) -> None:
        """Return when the pod runs and can handle signals."""

    def exit(self, uid: str, code: int) -> None:
        """Have the pod exit by itself."""

    def kill(self, uid: str) -> None:
        """SIGKILL from outside."""

    def terminate(self, uid: str) -> None:
        """SIGTERM from outside."""

    def exit_on_sigterm(self, uid: str, code: int) -> None:
        """Have the pod answer SIGTERM by exiting with ``code``."""

    def ignore_sigterm(self, uid: str) -> None:
        """Have the pod ignore SIGTERM."""

    def lose_node(self, uid: str) -> None:
        """Have the cluster not hear of the pod's node since 1,700,000,000 s; only where there are nodes."""

    def restore_node(self, uid: str) -> None:
        """Have the cluster hear of it again."""

    def advance_time(self, seconds: float) -> None:
        """Move the time, where it does not move by itself."""


class WatchThread:
    """Follows one watch in a thread."""

    def __init__(self, cluster: JobCluster) -> None:
        self.seen: list[PodStatus] = []
        self._items: queue.SimpleQueue[PodStatus | WatchSynced | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._follow, args=(cluster,), daemon=True)
        self._thread.start()

    def _follow(self, cluster: JobCluster) -> None:
        for item in cluster.watch():
            self._items.put(item)
        self._items.put(None)

    def synced(self) -> list[PodStatus]:
        """Wait for the end of the first list and return it."""
        while not isinstance(item := self._items.get(timeout=WAIT_SECONDS), WatchSynced):
            assert item is not None, "the watch ended before it was synced"
            self.seen.append(item)
        return list(self.seen)

    def ended(self, uid: str) -> PodStatus:
        """Wait for the end of a pod and return its last state."""
        return self._until(lambda pod: pod.uid == uid and pod.has_ended)

    def running(self, uid: str) -> PodStatus:
        """Wait until a pod runs."""
        return self._until(lambda pod: pod.uid == uid and pod.phase == PodPhase.RUNNING)

    def leaving(self, uid: str) -> PodStatus:
        """Wait until a pod is leaving."""
        return self._until(lambda pod: pod.uid == uid and pod.leaving)

    def waiting(self, uid: str, reason: str) -> PodStatus:
        """Wait until a pod waits for that reason."""
        return self._until(lambda pod: pod.uid == uid and pod.phase == PodPhase.PENDING and pod.reason == reason)

    def _until(self, wanted: Callable[[PodStatus], bool]) -> PodStatus:
        for pod in self.seen:
            if wanted(pod):
                return pod
        while True:
            item = self._items.get(timeout=WAIT_SECONDS)
            assert isinstance(item, PodStatus), f"the watch said {item}"
            self.seen.append(item)
            if wanted(item):
                return item

    def unreachable(self, uid: str, *, since: float) -> PodStatus:
        """Wait until the newest state of a pod says that its node is unreachable since then; 0: it is not."""
        newest = [pod for pod in self.seen if pod.uid == uid][-1:]
        self.seen = [pod for pod in self.seen if pod.uid != uid] + newest
        return self._until(lambda pod: pod.uid == uid and pod.unreachable_since == since)

    def wait_over(self) -> None:
        """Wait until the watch has ended by itself."""
        while self._items.get(timeout=WAIT_SECONDS) is not None:
            pass
        self._thread.join(WAIT_SECONDS)


def running(harness: ClusterHarness, index: int = 0, role: Role = Role.WORKER) -> str:
    """Start a pod and wait until it runs; returns its uid."""
    uid = harness.cluster.start(role, index)
    harness.await_running(uid)
    return uid


def end_after(harness: ClusterHarness, act: Callable[[str], None]) -> PodStatus:
    """The last state that a watch reports of a running pod to which ``act`` is done."""
    watch = WatchThread(harness.cluster)
    uid = running(harness)
    act(uid)
    watch.synced()
    return watch.ended(uid)


def synced_watch(harness: ClusterHarness) -> WatchThread:
    """A watch that has reported all that exists."""
    watch = WatchThread(harness.cluster)
    watch.synced()
    return watch


class ClusterContract:
    """The cases. Subclasses provide the fixture ``harness``."""

    def test_start_of_a_live_name_returns_its_uid(self, harness: ClusterHarness) -> None:
        uid = harness.cluster.start(Role.WORKER, 3)
        assert harness.cluster.start(Role.WORKER, 3) == uid
        assert harness.cluster.start(Role.PS, 3) != uid
        assert harness.cluster.start(Role.WORKER, 4) != uid

    def test_reused_name_gets_a_new_uid(self, harness: ClusterHarness) -> None:
        watch = WatchThread(harness.cluster)
        uid = running(harness)
        harness.kill(uid)
        watch.synced()
        watch.ended(uid)
        again = running(harness)
        assert again != uid
        assert watch.running(again).index == 0

    def test_watch_lists_what_exists_and_then_changes(self, harness: ClusterHarness) -> None:
        first = harness.cluster.start(Role.WORKER, 0)
        watch = WatchThread(harness.cluster)
        assert [(pod.uid, pod.role, pod.index, pod.has_ended) for pod in watch.synced()] == [
            (first, Role.WORKER, 0, False)
        ]
        second = running(harness, 7, Role.PS)
        pod_status = watch.running(second)
        assert (pod_status.role, pod_status.index, pod_status.exit_code) == (Role.PS, 7, None)

    @pytest.mark.parametrize(
        ("code", "phase", "reason"), [(0, PodPhase.SUCCEEDED, "Completed"), (3, PodPhase.FAILED, "Error")]
    )
    def test_exit_is_seen_with_its_code(self, harness: ClusterHarness, code: int, phase: PodPhase, reason: str) -> None:
        last = end_after(harness, lambda uid: harness.exit(uid, code))
        assert (last.phase, last.exit_code, last.reason) == (phase, code, reason)

    def test_kill_from_outside_is_seen_as_137(self, harness: ClusterHarness) -> None:
        last = end_after(harness, harness.kill)
        assert (last.phase, last.exit_code) == (PodPhase.FAILED, 137)
        assert last.reason.startswith("Killed")

    def test_sigterm_from_outside_is_seen_as_143(self, harness: ClusterHarness) -> None:
        last = end_after(harness, harness.terminate)
        assert (last.phase, last.exit_code) == (PodPhase.FAILED, 143)
        assert last.reason.startswith("Terminated")

    def test_deleted_pod_may_leave_in_its_own_way(self, harness: ClusterHarness) -> None:
        watch = synced_watch(harness)
        uid = running(harness)
        harness.exit_on_sigterm(uid, 7)
        harness.cluster.delete(uid, grace=WAIT_SECONDS)
        last = watch.ended(uid)
        assert (last.phase, last.exit_code, last.reason) == (PodPhase.GONE, 7, "Deleted")

    def test_stubborn_pod_is_killed_after_the_grace(self, harness: ClusterHarness) -> None:
        watch = synced_watch(harness)
        uid = running(harness)
        harness.ignore_sigterm(uid)
        harness.cluster.delete(uid, grace=0.2)
        harness.advance_time(0.2)
        last = watch.ended(uid)
        assert (last.phase, last.exit_code, last.reason) == (PodPhase.GONE, 137, "Deleted")

    def test_delete_without_grace_kills(self, harness: ClusterHarness) -> None:
        watch = synced_watch(harness)
        uid = running(harness)
        harness.exit_on_sigterm(uid, 7)
        harness.cluster.delete(uid, grace=0)
        last = watch.ended(uid)
        assert last.phase == PodPhase.GONE
        assert last.exit_code in (137, None), "a cluster that removes the object at once does not know the code"

    def test_delete_of_unknown_and_ended_pods_is_ignored(self, harness: ClusterHarness) -> None:
        watch = WatchThread(harness.cluster)
        harness.cluster.delete("worker-9-unknown", grace=1)
        uid = running(harness)
        harness.kill(uid)
        watch.synced()
        watch.ended(uid)
        harness.cluster.delete(uid, grace=1)
        harness.cluster.delete(uid, grace=0)

    def test_every_end_is_told_once(self, harness: ClusterHarness) -> None:
        watch = synced_watch(harness)
        uids = [harness.cluster.start(Role.WORKER, index) for index in range(4)]
        for uid in uids:
            harness.await_running(uid)
        harness.kill(uids[0])
        harness.exit(uids[1], 0)
        harness.cluster.delete(uids[2], grace=0)
        for uid in uids[:3]:
            watch.ended(uid)
        harness.cluster.delete(uids[0], grace=0)
        harness.kill(uids[3])
        watch.ended(uids[3])
        assert sorted(pod.uid for pod in watch.seen if pod.has_ended) == sorted(uids)
        for uid in uids:
            states = [pod.has_ended for pod in watch.seen if pod.uid == uid]
            assert states == sorted(states), "a pod was alive again after its end"

    def test_restarted_master_adopts_live_pods(self, harness: ClusterHarness) -> None:
        uid = running(harness, 5)
        harness.cluster.close()
        again = harness.connect()
        watch = WatchThread(again)
        assert [pod.uid for pod in watch.synced() if not pod.has_ended] == [uid]
        assert again.start(Role.WORKER, 5) == uid
        harness.kill(uid)
        assert watch.ended(uid).exit_code == 137

    def test_end_that_nobody_watched_is_not_lost(self, harness: ClusterHarness) -> None:
        first = WatchThread(harness.cluster)
        killed, deleted, alive = (harness.cluster.start(Role.WORKER, index) for index in range(3))
        for uid in (killed, deleted, alive):
            harness.await_running(uid)
        first.synced()
        first.running(alive)
        other = harness.connect()
        other_watch = WatchThread(other)
        other_watch.synced()
        harness.cluster.close()
        first.wait_over()
        harness.kill(killed)
        other.delete(deleted, grace=0)
        other_watch.ended(killed)
        other_watch.ended(deleted)
        listed = {pod.uid: pod for pod in WatchThread(harness.connect()).synced()}
        assert [uid for uid, pod in listed.items() if not pod.has_ended] == [alive]
        assert listed[killed].exit_code == 137

    def test_two_watches_see_the_same(self, harness: ClusterHarness) -> None:
        watches = [WatchThread(harness.cluster), WatchThread(harness.cluster)]
        for watch in watches:
            watch.synced()
        uid = running(harness)
        harness.kill(uid)
        first, second = (watch.ended(uid) for watch in watches)
        assert first == second

    def test_close_ends_watches_and_leaves_pods(self, harness: ClusterHarness) -> None:
        watch = synced_watch(harness)
        uid = harness.cluster.start(Role.WORKER, 0)
        harness.cluster.close()
        watch.wait_over()
        with pytest.raises(RetryableError):
            harness.cluster.start(Role.WORKER, 1)
        assert list(harness.cluster.watch()) == []
        assert [pod.uid for pod in WatchThread(harness.connect()).synced()] == [uid]

    def test_master_cannot_be_started(self, harness: ClusterHarness) -> None:
        with pytest.raises(BadInputError):
            harness.cluster.start(Role.MASTER, 1)
        with pytest.raises(BadInputError):
            harness.cluster.start(Role.WORKER, -1)


class PodContract(ClusterContract):
    """The cases of clusters whose pods are seen between being told to go and their end, and have a priority class.

    The processes of one machine have neither.
    """

    def test_pod_told_to_go_is_leaving_until_it_has_ended(self, harness: ClusterHarness) -> None:
        watch = WatchThread(harness.cluster)
        uid = running(harness)
        watch.synced()
        harness.ignore_sigterm(uid)
        harness.cluster.delete(uid, grace=1)
        leaving = watch.leaving(uid)
        assert (leaving.phase, leaving.exit_code, leaving.cause) == (PodPhase.RUNNING, None, TerminationCause.NONE)
        harness.advance_time(1)
        last = watch.ended(uid)
        assert (last.phase, last.leaving, last.cause) == (PodPhase.GONE, False, TerminationCause.NONE)

    def test_name_of_a_leaving_pod_is_not_free_yet(self, harness: ClusterHarness) -> None:
        uid = running(harness, role=Role.PS)
        harness.ignore_sigterm(uid)
        harness.cluster.delete(uid, grace=2)
        with pytest.raises(RetryableError):
            harness.cluster.start(Role.PS, 0)

    def test_pod_whose_node_is_not_heard_of_says_since_when_and_goes_on(self, harness: ClusterHarness) -> None:
        watch = WatchThread(harness.cluster)
        uid = running(harness, role=Role.PS)
        watch.synced()
        assert watch.running(uid).unreachable_since == 0
        harness.lose_node(uid)
        lost = watch.unreachable(uid, since=1_700_000_000)
        assert (lost.phase, lost.leaving, lost.cause) == (PodPhase.RUNNING, False, TerminationCause.NONE)
        harness.restore_node(uid)
        assert watch.unreachable(uid, since=0).phase == PodPhase.RUNNING
        harness.lose_node(uid)
        harness.cluster.delete(uid, grace=0)
        assert watch.ended(uid).phase == PodPhase.GONE
        assert harness.cluster.start(Role.PS, 0) != uid, "its name is free at once"

    def test_wish_for_the_higher_class_is_seen(self, harness: ClusterHarness) -> None:
        harness.cluster.start(Role.WORKER, 0, PodOptions(elevated=True))
        harness.cluster.start(Role.WORKER, 1)
        assert {pod.index: pod.elevated for pod in WatchThread(harness.cluster).synced()} == {0: True, 1: False}

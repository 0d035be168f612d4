"""What every implementation of the port ``edl.api.cluster_port.JobCluster`` promises.

A test class derives from ``ClusterContract`` and gives a fixture ``stand``, which has the cluster and can do to its
pods what a test needs done.
"""

from __future__ import annotations

import queue
import threading
from typing import Protocol

import pytest

from edl.api.cluster_port import JobCluster, PodOptions, PodPhase, PodStatus, Role, TerminationCause, WatchSynced
from edl.api.errors import BadInputError, RetryableError

PATIENCE = 20.0
"""Seconds; a bound for a loaded machine, never an expectation."""


class Stand(Protocol):
    """A cluster and the hands of a test on it."""

    cluster: JobCluster

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

    def polite(self, uid: str, code: int) -> None:
        """Have the pod answer SIGTERM by exiting with ``code``."""

    def stubborn(self, uid: str) -> None:
        """Have the pod ignore SIGTERM."""

    def lose_node(self, uid: str) -> None:
        """Have the cluster not hear of the pod's node since 1,700,000,000 s; only where there are nodes."""

    def find_node(self, uid: str) -> None:
        """Have the cluster hear of it again."""

    def let_pass(self, seconds: float) -> None:
        """Move the time, where it does not move by itself."""


class Watching:
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
        while not isinstance(item := self._items.get(timeout=PATIENCE), WatchSynced):
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

    def _until(self, wanted) -> PodStatus:  # type: ignore[no-untyped-def]
        for pod in self.seen:
            if wanted(pod):
                return pod
        while True:
            item = self._items.get(timeout=PATIENCE)
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
        while self._items.get(timeout=PATIENCE) is not None:
            pass
        self._thread.join(PATIENCE)


class ClusterContract:
    """The cases. Subclasses provide the fixture ``stand``."""

    def test_start_of_a_live_name_returns_its_uid(self, stand: Stand) -> None:
        uid = stand.cluster.start(Role.WORKER, 3)
        assert stand.cluster.start(Role.WORKER, 3) == uid
        assert stand.cluster.start(Role.PS, 3) != uid
        assert stand.cluster.start(Role.WORKER, 4) != uid

    def test_reused_name_gets_a_new_uid(self, stand: Stand) -> None:
        watching = Watching(stand.cluster)
        uid = stand.cluster.start(Role.WORKER, 0)
        stand.await_running(uid)
        stand.kill(uid)
        watching.synced()
        watching.ended(uid)
        again = stand.cluster.start(Role.WORKER, 0)
        assert again != uid
        stand.await_running(again)
        assert watching.running(again).index == 0

    def test_watch_lists_what_exists_and_then_changes(self, stand: Stand) -> None:
        first = stand.cluster.start(Role.WORKER, 0)
        watching = Watching(stand.cluster)
        assert [(pod.uid, pod.role, pod.index, pod.has_ended) for pod in watching.synced()] == [
            (first, Role.WORKER, 0, False)
        ]
        second = stand.cluster.start(Role.PS, 7)
        stand.await_running(second)
        seen = watching.running(second)
        assert (seen.role, seen.index, seen.exit_code) == (Role.PS, 7, None)

    @pytest.mark.parametrize(
        ("code", "phase", "reason"), [(0, PodPhase.SUCCEEDED, "Completed"), (3, PodPhase.FAILED, "Error")]
    )
    def test_exit_is_seen_with_its_code(self, stand: Stand, code: int, phase: PodPhase, reason: str) -> None:
        watching = Watching(stand.cluster)
        uid = stand.cluster.start(Role.WORKER, 0)
        stand.await_running(uid)
        stand.exit(uid, code)
        watching.synced()
        last = watching.ended(uid)
        assert (last.phase, last.exit_code, last.reason) == (phase, code, reason)

    def test_kill_from_outside_is_seen_as_137(self, stand: Stand) -> None:
        watching = Watching(stand.cluster)
        uid = stand.cluster.start(Role.WORKER, 0)
        stand.await_running(uid)
        stand.kill(uid)
        watching.synced()
        last = watching.ended(uid)
        assert (last.phase, last.exit_code) == (PodPhase.FAILED, 137)
        assert last.reason.startswith("Killed")

    def test_sigterm_from_outside_is_seen_as_143(self, stand: Stand) -> None:
        watching = Watching(stand.cluster)
        uid = stand.cluster.start(Role.WORKER, 0)
        stand.await_running(uid)
        stand.terminate(uid)
        watching.synced()
        last = watching.ended(uid)
        assert (last.phase, last.exit_code) == (PodPhase.FAILED, 143)
        assert last.reason.startswith("Terminated")

    def test_deleted_pod_may_leave_in_its_own_way(self, stand: Stand) -> None:
        watching = Watching(stand.cluster)
        watching.synced()
        uid = stand.cluster.start(Role.WORKER, 0)
        stand.await_running(uid)
        stand.polite(uid, 7)
        stand.cluster.delete(uid, grace=PATIENCE)
        last = watching.ended(uid)
        assert (last.phase, last.exit_code, last.reason) == (PodPhase.GONE, 7, "Deleted")

    def test_stubborn_pod_is_killed_after_the_grace(self, stand: Stand) -> None:
        watching = Watching(stand.cluster)
        watching.synced()
        uid = stand.cluster.start(Role.WORKER, 0)
        stand.await_running(uid)
        stand.stubborn(uid)
        stand.cluster.delete(uid, grace=0.2)
        stand.let_pass(0.2)
        last = watching.ended(uid)
        assert (last.phase, last.exit_code, last.reason) == (PodPhase.GONE, 137, "Deleted")

    def test_delete_without_grace_kills(self, stand: Stand) -> None:
        watching = Watching(stand.cluster)
        watching.synced()
        uid = stand.cluster.start(Role.WORKER, 0)
        stand.await_running(uid)
        stand.polite(uid, 7)
        stand.cluster.delete(uid, grace=0)
        last = watching.ended(uid)
        assert last.phase == PodPhase.GONE
        assert last.exit_code in (137, None), "a cluster that removes the object at once does not know the code"

    def test_delete_of_unknown_and_ended_pods_is_ignored(self, stand: Stand) -> None:
        watching = Watching(stand.cluster)
        stand.cluster.delete("worker-9-unknown", grace=1)
        uid = stand.cluster.start(Role.WORKER, 0)
        stand.await_running(uid)
        stand.kill(uid)
        watching.synced()
        watching.ended(uid)
        stand.cluster.delete(uid, grace=1)
        stand.cluster.delete(uid, grace=0)

    def test_every_end_is_told_once(self, stand: Stand) -> None:
        watching = Watching(stand.cluster)
        watching.synced()
        uids = [stand.cluster.start(Role.WORKER, index) for index in range(4)]
        for uid in uids:
            stand.await_running(uid)
        stand.kill(uids[0])
        stand.exit(uids[1], 0)
        stand.cluster.delete(uids[2], grace=0)
        for uid in uids[:3]:
            watching.ended(uid)
        stand.cluster.delete(uids[0], grace=0)
        stand.kill(uids[3])
        watching.ended(uids[3])
        assert sorted(pod.uid for pod in watching.seen if pod.has_ended) == sorted(uids)
        for uid in uids:
            states = [pod.has_ended for pod in watching.seen if pod.uid == uid]
            assert states == sorted(states), "a pod was alive again after its end"

    def test_restarted_master_adopts_live_pods(self, stand: Stand) -> None:
        uid = stand.cluster.start(Role.WORKER, 5)
        stand.await_running(uid)
        stand.cluster.close()
        again = stand.connect()
        watching = Watching(again)
        assert [pod.uid for pod in watching.synced() if not pod.has_ended] == [uid]
        assert again.start(Role.WORKER, 5) == uid
        stand.kill(uid)
        assert watching.ended(uid).exit_code == 137

    def test_end_that_nobody_watched_is_not_lost(self, stand: Stand) -> None:
        first = Watching(stand.cluster)
        killed, deleted, alive = (stand.cluster.start(Role.WORKER, index) for index in range(3))
        for uid in (killed, deleted, alive):
            stand.await_running(uid)
        first.synced()
        first.running(alive)
        other = stand.connect()
        witness = Watching(other)
        witness.synced()
        stand.cluster.close()
        first.wait_over()
        stand.kill(killed)
        other.delete(deleted, grace=0)
        witness.ended(killed)
        witness.ended(deleted)
        listed = {pod.uid: pod for pod in Watching(stand.connect()).synced()}
        assert [uid for uid, pod in listed.items() if not pod.has_ended] == [alive]
        assert listed[killed].exit_code == 137

    def test_two_watches_see_the_same(self, stand: Stand) -> None:
        watches = [Watching(stand.cluster), Watching(stand.cluster)]
        for watching in watches:
            watching.synced()
        uid = stand.cluster.start(Role.WORKER, 0)
        stand.await_running(uid)
        stand.kill(uid)
        first, second = (watching.ended(uid) for watching in watches)
        assert first == second

    def test_close_ends_watches_and_leaves_pods(self, stand: Stand) -> None:
        watching = Watching(stand.cluster)
        watching.synced()
        uid = stand.cluster.start(Role.WORKER, 0)
        stand.cluster.close()
        watching.wait_over()
        with pytest.raises(RetryableError):
            stand.cluster.start(Role.WORKER, 1)
        assert list(stand.cluster.watch()) == []
        assert [pod.uid for pod in Watching(stand.connect()).synced()] == [uid]

    def test_master_cannot_be_started(self, stand: Stand) -> None:
        with pytest.raises(BadInputError):
            stand.cluster.start(Role.MASTER, 1)
        with pytest.raises(BadInputError):
            stand.cluster.start(Role.WORKER, -1)


class PodContract(ClusterContract):
    """The cases of clusters whose pods are seen between being told to go and their end, and have a priority class.

    The processes of one machine have neither.
    """

    def test_pod_told_to_go_is_leaving_until_it_has_ended(self, stand: Stand) -> None:
        watching = Watching(stand.cluster)
        uid = stand.cluster.start(Role.WORKER, 0)
        stand.await_running(uid)
        watching.synced()
        stand.stubborn(uid)
        stand.cluster.delete(uid, grace=1)
        leaving = watching.leaving(uid)
        assert (leaving.phase, leaving.exit_code, leaving.cause) == (PodPhase.RUNNING, None, TerminationCause.NONE)
        stand.let_pass(1)
        last = watching.ended(uid)
        assert (last.phase, last.leaving, last.cause) == (PodPhase.GONE, False, TerminationCause.NONE)

    def test_name_of_a_leaving_pod_is_not_free_yet(self, stand: Stand) -> None:
        uid = stand.cluster.start(Role.PS, 0)
        stand.await_running(uid)
        stand.stubborn(uid)
        stand.cluster.delete(uid, grace=2)
        with pytest.raises(RetryableError):
            stand.cluster.start(Role.PS, 0)

    def test_pod_whose_node_is_not_heard_of_says_since_when_and_goes_on(self, stand: Stand) -> None:
        watching = Watching(stand.cluster)
        uid = stand.cluster.start(Role.PS, 0)
        stand.await_running(uid)
        watching.synced()
        assert watching.running(uid).unreachable_since == 0
        stand.lose_node(uid)
        lost = watching.unreachable(uid, since=1_700_000_000)
        assert (lost.phase, lost.leaving, lost.cause) == (PodPhase.RUNNING, False, TerminationCause.NONE)
        stand.find_node(uid)
        assert watching.unreachable(uid, since=0).phase == PodPhase.RUNNING
        stand.lose_node(uid)
        stand.cluster.delete(uid, grace=0)
        assert watching.ended(uid).phase == PodPhase.GONE
        assert stand.cluster.start(Role.PS, 0) != uid, "its name is free at once"

    def test_wish_for_the_higher_class_is_seen(self, stand: Stand) -> None:
        stand.cluster.start(Role.WORKER, 0, PodOptions(elevated=True))
        stand.cluster.start(Role.WORKER, 1)
        assert {pod.index: pod.elevated for pod in Watching(stand.cluster).synced()} == {0: True, 1: False}

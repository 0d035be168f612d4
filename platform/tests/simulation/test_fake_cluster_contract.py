"""The fake keeps the contract, and what only it can do works: latency, capacity, refusal."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.cluster_contract import PodContract
from support.fake_cluster import NO_ROOM, FakeCluster, FakeConnection

from edl.api.cluster_port import JobCluster, PodOptions, PodPhase, PodStatus, Role, TerminationCause
from edl.api.errors import RetryableError
from edl.simulation.clock import VirtualClock

START_LATENCY = 2.0


class FakeClusterHarness:
    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.fake = FakeCluster(self.clock, start_latency=START_LATENCY)
        self._connections: list[FakeConnection] = []
        self.cluster: JobCluster = self.connect()

    def connect(self) -> JobCluster:
        self._connections.append(self.fake.connect())
        return self._connections[-1]

    def await_running(self, uid: str) -> None:
        self.clock.advance(START_LATENCY)

    def exit(self, uid: str, code: int) -> None:
        self.fake.kill(uid, code)

    def kill(self, uid: str) -> None:
        self.fake.kill(uid)

    def terminate(self, uid: str) -> None:
        self.fake.terminate(uid)

    def exit_on_sigterm(self, uid: str, code: int) -> None:
        self.fake.behave(uid, on_sigterm=code)

    def ignore_sigterm(self, uid: str) -> None:
        self.fake.behave(uid, on_sigterm=None)

    def lose_node(self, uid: str) -> None:
        self.fake.lose_node(uid, 1_700_000_000.0)

    def restore_node(self, uid: str) -> None:
        self.fake.lose_node(uid, 0.0)

    def advance_time(self, seconds: float) -> None:
        self.clock.advance(seconds)

    def close(self) -> None:
        for connection in self._connections:
            connection.close()


class TestFakeCluster(PodContract):
    @pytest.fixture
    def harness(self) -> Iterator[FakeClusterHarness]:
        harness = FakeClusterHarness()
        yield harness
        harness.close()


def states(fake: FakeCluster) -> dict[str, str]:
    return {f"{pod.role}-{pod.index}": pod.phase for pod in fake.pods()}


def test_pods_without_room_wait_until_others_end() -> None:
    fake = FakeCluster(VirtualClock(), capacity=2)
    uids = [fake.start(Role.WORKER, index) for index in range(4)]
    assert list(states(fake).values()) == [PodPhase.RUNNING, PodPhase.RUNNING, PodPhase.PENDING, PodPhase.PENDING]
    assert (fake.pods()[2].reason, fake.pods()[2].message) == ("Unschedulable", NO_ROOM)
    fake.kill(uids[0])
    assert states(fake)["worker-2"] == PodPhase.RUNNING
    fake.resize(3)
    assert states(fake)["worker-3"] == PodPhase.RUNNING


def test_pending_pod_that_is_deleted_never_runs() -> None:
    clock = VirtualClock()
    fake = FakeCluster(clock, start_latency=5, capacity=1)
    statuses: list[PodStatus] = []
    fake.subscribe(statuses.append)
    starting, waiting = fake.start(Role.WORKER, 0), fake.start(Role.WORKER, 1)
    fake.delete(waiting, 30)
    fake.delete(starting, 30)
    clock.advance(60)
    assert [(pod.uid, pod.phase) for pod in statuses] == [
        (starting, PodPhase.PENDING),
        (waiting, PodPhase.PENDING),
        (waiting, PodPhase.GONE),
        (starting, PodPhase.GONE),
    ]
    assert fake.pods() == []


def test_sigterm_takes_its_time_and_the_grace_cuts_it_short() -> None:
    clock = VirtualClock()
    fake = FakeCluster(clock, term_latency=3)
    slow, cut = fake.start(Role.WORKER, 0), fake.start(Role.WORKER, 1)
    changes: list[tuple[float, str, int | None]] = []
    fake.subscribe(lambda pod: changes.append((clock.now(), pod.uid, pod.exit_code)))
    fake.delete(slow, 10)
    fake.delete(cut, 1)
    clock.advance(20)
    assert changes == [(0, slow, None), (0, cut, None), (1, cut, 137), (3, slow, 143)]
    assert fake.pods() == []


def test_a_pod_that_was_told_to_go_leaves_with_its_cause_until_it_has_ended() -> None:
    clock = VirtualClock()
    fake = FakeCluster(clock, term_latency=2)
    uid = fake.start(Role.WORKER, 0, PodOptions(elevated=True))
    statuses: list[PodStatus] = []
    fake.subscribe(statuses.append)
    fake.take(uid, TerminationCause.PREEMPTED)
    clock.advance(2)
    assert [(pod.phase, pod.leaving, pod.cause, pod.elevated) for pod in statuses] == [
        (PodPhase.RUNNING, True, TerminationCause.PREEMPTED, True),
        (PodPhase.GONE, False, TerminationCause.PREEMPTED, True),
    ]


def test_a_pod_that_runs_out_of_memory_is_told_apart_from_one_that_is_killed() -> None:
    fake = FakeCluster(VirtualClock())
    uids = [fake.start(Role.WORKER, index, PodOptions(memory_factor=1.5)) for index in range(2)]
    assert fake.wish(uids[0]).memory_factor == 1.5
    fake.run_out_of_memory(uids[0])
    fake.kill(uids[1])
    assert [(pod.exit_code, pod.cause) for pod in fake.pods()] == [
        (137, TerminationCause.OUT_OF_MEMORY),
        (137, TerminationCause.NONE),
    ]


def test_refusal_lasts_until_it_is_taken_back() -> None:
    fake = FakeCluster(VirtualClock())
    fake.refuse(RetryableError("the quota is used up"))
    with pytest.raises(RetryableError, match="quota"):
        fake.start(Role.WORKER, 0)
    fake.refuse(None)
    fake.start(Role.WORKER, 0)


def test_thousands_of_pods() -> None:
    clock = VirtualClock()
    fake = FakeCluster(clock, start_latency=10, capacity=3000)
    running: set[str] = set()
    fake.subscribe(lambda pod: (running.add if pod.phase == PodPhase.RUNNING else running.discard)(pod.uid))
    uids = [fake.start(Role.WORKER, index) for index in range(5000)]
    clock.advance(10)
    assert len(running) == 3000
    for uid in uids[:3000]:
        fake.kill(uid)
    clock.advance(10)
    assert running == set(uids[3000:])

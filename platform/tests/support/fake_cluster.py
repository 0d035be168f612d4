"""The cluster port in memory, without processes: for tests of the master, whose threads wait on its watches.

``FakeCluster`` is the machines, with the faults a test injects; ``connect`` gives the port that a master uses.

It is not built on `edl.simulation.simulated_cluster.SimulatedCluster`, for three reasons. That one
has no port, no uids for callers and no locks, because the core is called directly and in one
thread. It decides nothing for processes, which are simulated workers and parameter servers beside
it; here a test sets how a pod answers SIGTERM. And its room is for workers alone, taken at once.
Both are in memory and on the same virtual clock.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from queue import SimpleQueue

from edl.api.cluster_port import DEFAULT_OPTIONS, PodOptions, PodPhase, PodStatus, Role, TerminationCause, WatchSynced
from edl.api.errors import BadInputError, EdlError, RetryableError
from edl.cluster.local.role_process import ExitStatus
from edl.simulation.clock import VirtualClock

KILLED = -9
TERMINATED = -15
"""Return codes in the manner of ``subprocess``."""
NO_ROOM = "0/1 nodes are available: 1 Insufficient cpu."
"""What the scheduler says of a pod without room."""


@dataclass(slots=True)
class _FakePod:
    """A pod and how it will behave."""

    seen: PodStatus
    wish: PodOptions = DEFAULT_OPTIONS
    scheduled: bool = False
    deleting: bool = False
    on_sigterm: int | None = TERMINATED
    """The return code it answers SIGTERM with; None when it ignores it."""
    term_latency: float = 0.0


class FakeCluster:
    """Pods that start after ``start_latency`` seconds and end when a test says so.

    Args:
        clock: the time they live in.
        start_latency: seconds from having room to running.
        capacity: pods that have room; more stay ``Pending`` until others end. None: no limit.
        term_latency: seconds a pod takes to leave after SIGTERM.
    """

    def __init__(
        self,
        clock: VirtualClock,
        *,
        start_latency: float = 0.0,
        capacity: int | None = None,
        term_latency: float = 0.0,
    ) -> None:
        self._clock = clock
        self._start_latency = start_latency
        self._term_latency = term_latency
        self._capacity = capacity
        self._pods: dict[str, _FakePod] = {}
        self._names: dict[tuple[Role, int], str] = {}
        self._waiting: dict[str, None] = {}
        self._used = 0
        self._numbers = itertools.count(1)
        self._refusal: EdlError | None = None
        self._subscribers: list[Callable[[PodStatus], None]] = []
        self._lock = threading.RLock()

    def connect(self) -> FakeConnection:
        """Return the port, as one incarnation of a master has it."""
        return FakeConnection(self)

    def pods(self) -> list[PodStatus]:
        """Return every pod that is not forgotten, the ended ones too."""
        with self._lock:
            return [pod.seen for pod in self._pods.values()]

    def subscribe(self, call: Callable[[PodStatus], None]) -> list[PodStatus]:
        """Have every change told at once, in the thread that makes it; return the pods as they are now."""
        with self._lock:
            self._subscribers.append(call)
            return self.pods()

    def unsubscribe(self, call: Callable[[PodStatus], None]) -> None:
        """Tell changes no more."""
        with self._lock, suppress(ValueError):
            self._subscribers.remove(call)

    def start(self, role: Role, index: int, wish: PodOptions = DEFAULT_OPTIONS) -> str:
        """Accept a pod; see ``edl.api.cluster_port.JobCluster.start``."""
        with self._lock:
            if self._refusal is not None:
                raise self._refusal
            if role == Role.MASTER or index < 0:
                raise BadInputError(f"A master cannot start {role} {index}")
            uid = self._names.get((role, index))
            if uid is not None and self._pods[uid].deleting:
                raise RetryableError(f"{role}-{index} is still leaving")
            return uid if uid is not None else self._accept(role, index, wish)

    def delete(self, uid: str, grace: float) -> None:
        """Tell a pod to go; an ended one is forgotten."""
        with self._lock:
            pod = self._pods.get(uid)
            if pod is None:
                return
            if pod.seen.has_ended:
                del self._pods[uid]
                return
            self._delete(uid, grace)

    def kill(self, uid: str, returncode: int = KILLED) -> None:
        """End a pod now, as by ``kill -9`` from outside; ``returncode`` as in ``subprocess`` (0: it is done)."""
        with self._lock:
            self._end(uid, returncode)

    def terminate(self, uid: str) -> None:
        """Send SIGTERM from outside, as a preemption does, without ever following up."""
        with self._lock:
            self._terminate(uid, None)

    def take(self, uid: str, cause: TerminationCause, grace: float = 30.0) -> None:
        """Somebody else than the master deletes a pod: the scheduler, an eviction, a person, a lost node."""
        with self._lock:
            pod = self._pods.get(uid)
            if pod is not None and not pod.seen.has_ended:
                pod.seen = replace(pod.seen, cause=cause)
                self._delete(uid, grace)

    def lose_node(self, uid: str, since: float) -> None:
        """The cluster has not heard of the node of a pod since then, in unix seconds; 0: it does. The pod goes on."""
        with self._lock:
            pod = self._pods[uid]
            pod.seen = replace(pod.seen, unreachable_since=since)
            self._change(pod, reason=pod.seen.reason)

    def run_out_of_memory(self, uid: str) -> None:
        """The kernel kills a pod that wants more memory than it may have."""
        with self._lock:
            if uid in self._pods and not self._pods[uid].seen.has_ended:
                self._pods[uid].seen = replace(self._pods[uid].seen, cause=TerminationCause.OUT_OF_MEMORY)
                self._end(uid, KILLED)

    def wish(self, uid: str) -> PodOptions:
        """What a pod was asked for with."""
        with self._lock:
            return self._pods[uid].wish

    def behave(self, uid: str, *, on_sigterm: int | None) -> None:
        """Set the return code with which a pod answers SIGTERM; None: it ignores SIGTERM."""
        with self._lock:
            self._pods[uid].on_sigterm = on_sigterm

    def refuse(self, error: EdlError | None) -> None:
        """Raise this error on every start from now on; None ends it."""
        with self._lock:
            self._refusal = error

    def resize(self, capacity: int | None) -> None:
        """Change how many pods have room. Pods that have it keep it."""
        with self._lock:
            self._capacity = capacity
            self._schedule()

    def _delete(self, uid: str, grace: float) -> None:
        pod = self._pods[uid]
        pod.deleting = True
        if pod.seen.phase == PodPhase.PENDING:
            self._end(uid, None)
        elif grace <= 0:
            self._end(uid, KILLED)
        else:
            self._terminate(uid, grace)
            if not pod.seen.has_ended:
                pod.seen = replace(pod.seen, leaving=True)
                self._change(pod, reason="Terminating")

    def _accept(self, role: Role, index: int, wish: PodOptions) -> str:
        uid = f"{role}-{index}-{next(self._numbers):06x}"
        status = PodStatus(uid, role, index, PodPhase.PENDING, elevated=wish.elevated)
        self._pods[uid] = _FakePod(status, wish, term_latency=self._term_latency)
        self._names[role, index] = uid
        self._waiting[uid] = None
        self._schedule()
        pod = self._pods[uid]
        if not pod.scheduled:
            pod.seen = replace(pod.seen, message=NO_ROOM)
            self._change(pod, reason="Unschedulable")
        elif pod.seen.phase == PodPhase.PENDING:
            self._change(pod, reason="Scheduled")
        return uid

    def _schedule(self) -> None:
        while self._waiting and (self._capacity is None or self._used < self._capacity):
            uid = next(iter(self._waiting))
            del self._waiting[uid]
            self._pods[uid].scheduled = True
            self._used += 1
            if self._start_latency <= 0:
                self._run(uid)
            else:
                self._clock.call_later(self._start_latency, lambda uid=uid: self._run(uid))  # type: ignore[misc]

    def _run(self, uid: str) -> None:
        with self._lock:
            pod = self._pods.get(uid)
            if pod is not None and not pod.seen.has_ended:
                pod.seen = replace(pod.seen, message="", node="fake-node")
                self._change(pod, phase=PodPhase.RUNNING, reason="Started")

    def _terminate(self, uid: str, grace: float | None) -> None:
        pod = self._pods[uid]
        if grace is not None:
            self._clock.call_later(grace, lambda: self._end(uid, KILLED))
        returncode = pod.on_sigterm
        if returncode is None:
            return
        if pod.term_latency <= 0:
            self._end(uid, returncode)
        else:
            self._clock.call_later(pod.term_latency, lambda: self._end(uid, returncode))

    def _end(self, uid: str, returncode: int | None) -> None:
        """End a pod; does nothing for one that has ended. ``returncode`` is None for a pod that never ran."""
        with self._lock:
            pod = self._pods.get(uid)
            if pod is None or pod.seen.has_ended:
                return
            self._give_room_back(uid, pod)
            pod.seen = replace(pod.seen, leaving=False)
            ending = ExitStatus.from_returncode(returncode) if returncode is not None else None
            exit_code = ending.exit_code if ending else None
            if pod.deleting or ending is None:
                del self._pods[uid]
                self._change(pod, phase=PodPhase.GONE, exit_code=exit_code, reason="Deleted")
            else:
                self._change(pod, phase=ending.phase, exit_code=exit_code, reason=ending.reason)
            self._schedule()

    def _give_room_back(self, uid: str, pod: _FakePod) -> None:
        del self._names[pod.seen.role, pod.seen.index]
        self._waiting.pop(uid, None)
        self._used -= pod.scheduled

    def _change(
        self, pod: _FakePod, *, reason: str, phase: PodPhase | None = None, exit_code: int | None = None
    ) -> None:
        pod.seen = replace(pod.seen, phase=phase or pod.seen.phase, reason=reason, exit_code=exit_code)
        for call in list(self._subscribers):
            call(pod.seen)


class FakeConnection:
    """The cluster port of a ``FakeCluster``. Watches block in other threads while the test's thread moves time."""

    def __init__(self, cluster: FakeCluster) -> None:
        self._cluster = cluster
        self._inboxes: list[SimpleQueue[PodStatus | None]] = []
        self._closed = False

    def start(self, role: Role, index: int, wish: PodOptions = DEFAULT_OPTIONS) -> str:
        """Ask for a pod."""
        self._require_open()
        return self._cluster.start(role, index, wish)

    def delete(self, uid: str, *, grace: float) -> None:
        """Tell a pod to go."""
        self._require_open()
        self._cluster.delete(uid, grace)

    def watch(self) -> Iterator[PodStatus | WatchSynced]:
        """Yield pods and changes until closed."""
        inbox: SimpleQueue[PodStatus | None] = SimpleQueue()
        self._inboxes.append(inbox)
        if self._closed:
            return
        listed = self._cluster.subscribe(inbox.put)
        try:
            yield from listed
            yield WatchSynced()
            while (pod := inbox.get()) is not None:
                yield pod
        finally:
            self._cluster.unsubscribe(inbox.put)

    def close(self) -> None:
        """End every watch."""
        self._closed = True
        for inbox in self._inboxes:
            inbox.put(None)

    def _require_open(self) -> None:
        if self._closed:
            raise RetryableError("The cluster is closed")

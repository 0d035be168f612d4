"""One pod, as the master knows it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from edl.api.cluster_port import PodPhase, PodStatus, Role, TerminationCause
from edl.core.pod_lifecycle import TERMINAL_STATES, PodState, classify_status, next_state


@dataclass(slots=True)
class JobPod:
    """A pod as the master knows it.

    Attributes:
        cause: why it is going or gone, if somebody else wanted that.
        message: the cluster's own words, such as why it is pending.
        elevated: it has the higher class of a divided priority.
        has_run: it was running at some time; one that never was had nothing in its hands.
        attached: a PS that listens to this incarnation of the master.
        initialized: a PS that holds variables.
        building: a worker that this master saw start and that has not built its model yet: it cannot push.
        version: pushes that a PS had applied when it was last heard of.
        asked: when a PS was last asked to listen.
        loading: a PS that was told to load a checkpoint.
        stale: what it was asked no longer holds: its answer is not taken, and it is asked again.
        left: a worker that said goodbye.
        leased: a worker that got work, or may have: it ran before this master did.
        told: somebody told it to go, as the cluster said before it ended.
        leaving_since: when this master last told it to go; it is not wanted any more.
        leaving_reason: why.
        unreachable: since when the cluster has not heard of its node, in unix seconds; 0: it does.
        heard: when this master last heard of a PS, or saw it first.
        unreachable_noticed_at: when this master first saw that the cluster does not hear of the PS's node.
        is_abandoned: a PS that was deleted: neither the cluster, nor the master, nor workers heard of it, or its
            successor waits for its end.
    """

    uid: str
    role: Role
    index: int
    state: PodState
    pid: int | None = None
    reason: str = ""
    exit_code: int | None = None
    cause: TerminationCause = TerminationCause.NONE
    message: str = ""
    node: str = ""
    elevated: bool = False
    has_run: bool = False
    attached: bool = False
    initialized: bool = False
    building: bool = False
    version: int = 0
    asked: float | None = None
    loading: bool = False
    stale: bool = False
    left: bool = False
    leased: bool = False
    told: bool = False
    leaving_since: float | None = None
    leaving_reason: str = ""
    unreachable: float = 0.0
    heard: float = 0.0
    unreachable_noticed_at: float | None = None
    is_abandoned: bool = False

    @property
    def live(self) -> bool:
        """Whether it may still do something."""
        return self.state not in TERMINAL_STATES

    @property
    def staying(self) -> bool:
        """Whether it lives and nobody has told it to go."""
        return self.live and self.state is not PodState.LEAVING and self.leaving_since is None

    @property
    def expected_to_leave(self) -> bool:
        """Whether it was told to go, or has said goodbye."""
        return self.told or self.left or self.leaving_since is not None

    @property
    def waiting(self) -> bool:
        """Whether it stays and has not found a place to run yet."""
        return self.staying and not self.has_run

    def see(self, what: PodStatus, *, over: bool = False) -> None:
        """Enter what the cluster says. What it said of the cause holds until the end.

        Args:
            what: it says.
            over: the job has ended: every pod goes.
        """
        self.cause = what.cause or self.cause
        told = over or self.role is not Role.WORKER or self.expected_to_leave
        self.state = next_state(self.state, classify_status(replace(what, cause=self.cause), told=told))
        self.told = self.told or self.state is PodState.LEAVING
        self.has_run = self.has_run or what.phase is PodPhase.RUNNING or what.exit_code is not None
        self.pid, self.node = what.pid or self.pid, what.node or self.node
        self.reason, self.exit_code, self.message = what.reason or self.reason, what.exit_code, what.message
        self.elevated, self.unreachable = self.elevated or what.elevated, what.unreachable

    def why(self) -> str:
        """Why it is going or gone, for people."""
        return self.leaving_reason or self._cause_text() or self.reason or self.state.value

    def _cause_text(self) -> str:
        return f"{self.cause}: {self.message}" if self.cause and self.message else self.cause.value

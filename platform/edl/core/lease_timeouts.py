"""Adaptive lease timeouts.

The right timeout is unknown before the job runs: a fixed one is too long for small tasks or too short
for large ones. So the timeouts follow measurements. A holder is silent when it has sent no message for
many times the usual interval between heartbeats. It is stuck, a straggler, when it sends messages but
completes no step for many times the usual duration of a step.

Under AllReduce a round loses its silent members, and with them their training leases. A step is one of all members, so
no lease can be stuck alone: ``stragglers`` measures the steps of the round, finds the members for which the others
wait, and replaces them. Leases of other tasks have the limits here: they return, and a member whose main thread hangs
in such a task is replaced like one that hangs in a step.

All rules about silence and about steps that take too long, in seconds:

* A worker says nothing for ``silence_seconds`` (4 to 60; 30 before its first step): its leases return (``revocation``).
  Under AllReduce the round loses it (``allreduce``). Its pod stays.
* It says nothing for 2 (``CLOSING_SILENCE_SECONDS``) while a round of AllReduce closes: the round does not wait for it.
* It says nothing for 300 (``REPLACEMENT_SILENCE_SECONDS``), under AllReduce: it is replaced (``silent_workers``).
* Its neighbour in the ring hears nothing for 2 (``HEARTBEAT_TIMEOUT_SECONDS`` of ``edl.collective``), or their
  connection breaks: the neighbour breaks the round, and says so to the master.
* It makes no step for ``stuck_seconds`` (60 or more; 600 before a step was measured), but is heard: under parameter
  servers its leases return. Under AllReduce those of other tasks than training do, and it is named if others wait for
  it (``stragglers``).
* Its task that reports no steps, such as an export, takes longer than 600, then 1,200 and so on: its lease returns.
* The others have waited for it for 3,600 (``REPLACEMENT_SECONDS``), under AllReduce: it is replaced (``stragglers``).
* A parameter server says nothing for 10 (``PS_SILENCE_SECONDS``), and no worker makes a step: training is stalled, and
  status says so (``stall``). It is replaced if the cluster also says that its node is unreachable, and else when the
  cluster says that it failed (``parameter_servers``, ``pod_events``).
* A requested pod does not appear for 60 (``REQUEST_TIMEOUT``): it is requested again (``job_pods``).
"""

from __future__ import annotations

from dataclasses import dataclass, field

SILENCE_FLOOR, SILENCE_CEILING = 4.0, 60.0
"""Lower and upper limit of the silence timeout, in seconds."""
STARTING_SILENCE = 30.0
"""Seconds that a worker may be silent before its first step.

While a large library such as TensorFlow is loaded, no other thread of the process runs; on a busy
machine this takes many times longer than on an idle one.
"""
STUCK_FLOOR, STUCK_FIRST = 60.0, 600.0
"""Lower limit of the stuck timeout, and the timeout before any step was measured, in seconds."""
# Multiples of the longest recent silence and of the longest recent step.
SILENCE_FACTOR, STUCK_FACTOR = 10.0, 20.0
LONG_STEP_FACTOR = 3.0
"""Where ``STUCK_FACTOR`` steps take longer than ``STUCK_FIRST`` seconds, this multiple is enough, or that time."""
# A maximum is halved in 34 s, when the next value is recorded. Without decay, one slow phase would
# lengthen the timeouts for the rest of the job.
_DECAY_PER_SECOND = 0.98
"""Decay of the maximum per second, regardless of the number of holders."""


@dataclass(slots=True)
class LeaseTimeouts:
    """Recent silences and step times in seconds, as decaying maxima.

    Maxima and not means, because a timeout must not hit the tail of the distribution.
    """

    # Gives the lower limit of the silence timeout until a gap was measured.
    max_gap: float = 0.4
    max_step: float = 0.0
    gap_recorded_at: float | None = None
    step_recorded_at: float | None = None
    # Tasks without steps, such as an export, that took longer than their limit.
    stepless_expiries: int = 0

    def record_gap(self, gap: float, now: float) -> None:
        """Record that a holder was silent for ``gap`` seconds and then spoke."""
        # Decay first: the old maximum is compared as it counts now.
        self.max_gap = max(gap, self.max_gap * _decay(self.gap_recorded_at, now))
        self.gap_recorded_at = now

    def record_step(self, seconds: float, now: float) -> None:
        """Record the duration of a step, or of the smallest reported unit of another task."""
        # Not with each heartbeat: steps of several minutes would be stuck before they end.
        self.max_step = max(seconds, self.max_step * _decay(self.step_recorded_at, now))
        self.step_recorded_at = now

    @property
    def silence_seconds(self) -> float:
        """Seconds of silence after which a worker's leases are revoked."""
        return min(max(self.max_gap * SILENCE_FACTOR, SILENCE_FLOOR), SILENCE_CEILING)

    @property
    def stuck_seconds(self) -> float:
        """Seconds without a step after which a lease is revoked although its holder sends heartbeats."""
        if not self.max_step:
            return STUCK_FIRST
        most = max(STUCK_FIRST, self.max_step * LONG_STEP_FACTOR)
        return min(max(self.max_step * STUCK_FACTOR, STUCK_FLOOR), most)

    @property
    def stepless_seconds(self) -> float:
        """Seconds after which the lease of a task that reports no steps, such as an export, is revoked.

        The duration of steps says nothing about it. The limit doubles each time, so that a long task ends at last: the
        result of a revoked lease does not count.
        """
        return max(self.stuck_seconds, STUCK_FIRST * float(2**self.stepless_expiries))


def _decay(since: float | None, now: float) -> float:
    return 1.0 if since is None else _DECAY_PER_SECOND ** max(0.0, now - since)


@dataclass(slots=True)
class LeaseHolder:
    """Liveness of one worker: its last heartbeat, and the last progress of each of its leases.

    Attributes:
        last_mentioned: when the worker's messages last named each lease; they name all that it knows.
        partial_steps: steps of leases whose tasks count only as a whole.
        stepless: leases of tasks that report no steps.
        named_leases: training leases under AllReduce that the worker has named to this master.
        is_starting: whether it started under this master and has not completed a step yet.
        step_count: number of steps that it has completed.
    """

    last_seen: float
    last_steps: dict[int, float] = field(default_factory=dict)
    last_mentioned: dict[int, float] = field(default_factory=dict)
    partial_steps: dict[int, int] = field(default_factory=dict)
    stepless: set[int] = field(default_factory=set)
    named_leases: frozenset[int] = frozenset()
    step_count: int = 0
    is_starting: bool = False

    def excuse_silence(self, seconds: float, now: float) -> None:
        """Exclude ``seconds`` from the worker's silence, because the master caused them."""
        # Never into the future, which would excuse a part of the next silence too.
        self.last_seen = min(now, self.last_seen + seconds)
        for times in (self.last_steps, self.last_mentioned):
            for lease, moment in times.items():
                times[lease] = min(now, moment + seconds)

    def silence_limit(self, timeouts: LeaseTimeouts) -> float:
        """Seconds of silence after which this worker's leases are revoked."""
        return max(timeouts.silence_seconds, STARTING_SILENCE) if self.is_starting else timeouts.silence_seconds

    def add_lease(self, lease: int, now: float, *, is_stepless: bool = False) -> None:
        """Start tracking a lease that was granted now.

        Args:
            is_stepless: whether its task reports no steps.
        """
        self.last_steps[lease] = self.last_mentioned[lease] = now
        if is_stepless:
            self.stepless.add(lease)

    def drop_lease(self, lease: int, now: float | None = None) -> None:
        """Remove a lease; the worker's next lease becomes its current one at ``now``."""
        self.last_steps.pop(lease, None)
        self.last_mentioned.pop(lease, None)
        self.partial_steps.pop(lease, None)
        self.stepless.discard(lease)
        if now is not None and self.last_steps:
            # Lease numbers increase, so the lowest is the oldest. It could not progress while the
            # closed one was worked on.
            self.last_steps[min(self.last_steps)] = now

    def find_unknown_leases(self, timeouts: LeaseTimeouts) -> list[int]:
        """Leases that the worker's heartbeats do not mention, because it never received them."""
        # Measured at the last message and not now: a silent worker names no lease at all, and
        # ``find_expired_leases`` decides about it.
        latest = self.last_seen - self.silence_limit(timeouts)
        return [number for number, at in self.last_mentioned.items() if at <= latest]

    def is_silent(self, now: float, timeouts: LeaseTimeouts) -> bool:
        """Whether nothing was heard of the worker for so long that its leases expire."""
        return now - self.last_seen >= self.silence_limit(timeouts)

    def find_expired_leases(self, now: float, timeouts: LeaseTimeouts) -> dict[int, str]:
        """Leases to revoke, with the reason."""
        if self.is_silent(now, timeouts):
            reason = f"no heartbeat from the worker for {now - self.last_seen:.1f} s"
            return dict.fromkeys(self.last_steps, reason)
        if self.last_steps:
            # Only the oldest lease can be stuck; the worker works on the others after it.
            current = min(self.last_steps)
            idle = now - self.last_steps[current]
            if idle >= self._stuck_limit(current, timeouts):
                return {current: f"no step for {idle:.0f} s"}
        return {}

    def next_expiry(self, timeouts: LeaseTimeouts) -> float:
        """The earliest time at which ``find_expired_leases`` can return something."""
        # An estimate that later measurements may move; the scan is repeated at least every second
        # (``job``).
        current = min(self.last_steps)
        first = self.last_steps[current] + self._stuck_limit(current, timeouts)
        return min(self.last_seen + self.silence_limit(timeouts), first)

    def _stuck_limit(self, lease: int, timeouts: LeaseTimeouts) -> float:
        return timeouts.stepless_seconds if lease in self.stepless else timeouts.stuck_seconds

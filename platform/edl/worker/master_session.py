"""The worker's session with the master: the leading master and the placement of the parameter servers.

Every reply passes through here. Requests are retried until a master answers, or none did for the
job's ``master.lost_timeout``. Replies of an older incarnation are ignored.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from edl.api.errors import JobFailedError, RetryableError
from edl.core.backoff import ExponentialBackoff
from edl.core.partition import owner_of_name, slot_of_row
from edl.core.strict_json import escape_surrogates
from edl.retry.attempts import Retry, draw_jitter
from edl.transport import edl_pb2 as pb
from edl.transport.control_client import ControlChannel
from edl.transport.control_methods import MasterMethods


@dataclass(frozen=True, slots=True)
class PsPlacement:
    """One version of the placement of slots on PS, with the address of each PS.

    Attributes:
        version: version of the table; higher is newer.
        addresses: bulk address by PS index.
        uids: pod uid by PS index. Another uid means another process, without the state of its predecessor.
        slots: PS index by slot.
    """

    version: int = 0
    addresses: Mapping[int, str] = field(default_factory=dict)
    uids: Mapping[int, str] = field(default_factory=dict)
    slots: tuple[int, ...] = ()

    @classmethod
    def from_message(cls, message: pb.Placement) -> PsPlacement:
        """The placement of a register reply."""
        return cls(
            version=message.version,
            addresses={ps.index: ps.bulk_address for ps in message.ps},
            uids={ps.index: ps.uid for ps in message.ps},
            slots=tuple(message.slots),
        )

    def pick_newer(self, other: PsPlacement) -> PsPlacement:
        """The placement with the higher version; ``other`` if both are equal."""
        return other if other.version >= self.version else self

    @property
    def is_complete(self) -> bool:
        """Whether every slot has an owner with an address."""
        return bool(self.slots) and all(self.addresses.get(index) for index in set(self.slots))

    @property
    def ps_count(self) -> int:
        """Number of parameter servers."""
        return max(self.slots, default=-1) + 1

    def ps_of_variable(self, name: str) -> int:
        """Index of the PS that owns a dense variable."""
        return owner_of_name(name, self.slots)

    def ps_of_rows(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Index of the PS that owns each row id."""
        slots = slot_of_row(ids.astype(np.uint64)).astype(np.int64)
        owners: npt.NDArray[np.int64] = np.asarray(self.slots, dtype=np.int64)[slots]
        return owners


_LOG = logging.getLogger(__name__)

# Seconds for one attempt. A request for work gets as many more as the master may hold it.
_CALL_TIMEOUT_SECONDS = 10.0
_BACKOFF = ExponentialBackoff(first_seconds=0.05, max_seconds=0.3)
"""Short, because a killed master is back within about a second and steps wait for it."""


class MasterCall(Protocol):
    """One attempt at a unary call to the master.

    Raises:
        RetryableError: there was no answer within the deadline, or the master refuses temporarily.
        RefusedError: the master refuses permanently.
    """

    def __call__(self, method: str, request: Any, *, deadline: float) -> Any:
        """Call ``method`` of the Master service; ``deadline`` in seconds."""


def make_master_call(channel: ControlChannel) -> MasterCall:
    """Calls to the master through a channel."""

    def call(method: str, request: Any, *, deadline: float) -> Any:
        return channel.call(getattr(MasterMethods, method), request, timeout=deadline)

    return call


class MasterLostError(JobFailedError):
    """The master did not answer for ``master.lost_timeout``: the worker exits."""


class MasterSession:
    """The session with the master; thread-safe.

    Args:
        member: identity of this worker.
        call: calls the master once.
        lost_timeout: seconds without an answer after which the master counts as lost.
        on_new_placement: called on the thread that receives a newer placement; must not block.
        clock: returns monotonic seconds.
        pause: waits for the given seconds.
        jitter: returns a random number, uniform in 0-1.
    """

    def __init__(
        self,
        member: pb.Member,
        call: MasterCall,
        *,
        lost_timeout: float,
        on_new_placement: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
        jitter: Callable[[], float] = draw_jitter,
    ) -> None:
        self._member = member
        self._call = call
        self._lost_timeout = lost_timeout
        self._on_new_placement = on_new_placement
        self._clock = clock
        self._pause = pause
        self._jitter = jitter
        self._lock = threading.Lock()
        self._last_reply_at = clock()
        self._is_ready = False
        self._callbacks = b""
        self.learning_rate: float | None = None
        """Set by a callback of the job; None: the optimizer's own."""
        self._incarnation = 0
        self._placement = PsPlacement()
        self._announced_version = 0

    @property
    def incarnation(self) -> int:
        """The highest incarnation of a master that has answered; 0 before the first answer."""
        return self._incarnation

    @property
    def placement(self) -> PsPlacement:
        """The newest placement that this worker received."""
        return self._placement

    @property
    def is_placement_outdated(self) -> bool:
        """Whether the master announced a newer placement than this one."""
        return self._announced_version > self._placement.version

    def register(self, *, ready: bool = False, callbacks: bytes = b"") -> PsPlacement:
        """Register with the master and receive the placement.

        Args:
            ready: whether every PS holds the model's variables; stored for later registrations.
            callbacks: the callbacks for which the master decides, as JSON; stored too.
        """
        # Kept for the registrations that ``_call_with_retry`` repeats: a restarted master has heard
        # of neither.
        self._callbacks = callbacks or self._callbacks
        self._is_ready = self._is_ready or ready
        self._call_with_retry("Register", self._make_registration)
        return self._placement

    def request_lease(self, wait_seconds: float, known_leases: Callable[[], Iterable[int]] = tuple) -> pb.LeaseReply:
        """Request a task; the master may hold the request for ``wait_seconds``.

        Args:
            known_leases: returns the leases that this worker knows; called for every attempt, because a
                grant may get lost with its master.
        """

        def request() -> pb.LeaseRequest:
            return pb.LeaseRequest(
                member=self._member,
                wait_seconds=wait_seconds,
                known_incarnation=self._incarnation,
                held=known_leases(),
            )

        reply: pb.LeaseReply = self._call_with_retry("Lease", request, deadline=_CALL_TIMEOUT_SECONDS + wait_seconds)
        return reply

    def report_progress(self, lease_progress: Sequence[pb.LeaseProgress]) -> pb.ProgressReply:
        """Report applied steps; also the heartbeat."""
        message = pb.ProgressRequest(member=self._member, leases=lease_progress)
        reply: pb.ProgressReply = self._call_with_retry("Progress", lambda: message)
        return reply

    def report_warnings(self, warnings: Sequence[pb.WorkerWarning]) -> None:
        """Report warnings for the user; the master keeps each text once."""
        message = pb.ProgressRequest(member=self._member, warnings=warnings)
        self._call_with_retry("Progress", lambda: message)

    def report_stop(self) -> None:
        """Report that a callback of the user's has ended training. Repeating it changes nothing."""
        message = pb.ProgressRequest(member=self._member, stopped_training=True)
        self._call_with_retry("Progress", lambda: message)

    def report_result(self, last_progress: pb.LeaseProgress, result: bytes) -> pb.ReportReply:
        """Report the end of a task. Retries are safe: the master knows the lease."""
        message = pb.ReportRequest(member=self._member, lease=last_progress.lease, last=last_progress, result=result)
        reply: pb.ReportReply = self._call_with_retry("Report", lambda: message)
        return reply

    def request_world(self, request: Callable[[], pb.WorldRequest], wait_seconds: float) -> pb.WorldReply:
        """Report what this worker knows of the rounds of AllReduce, and get the master's view of them.

        Args:
            request: makes the request; called for every attempt, because the worker goes on meanwhile.
            wait_seconds: seconds for which the master may wait for a newer view.
        """

        def make_request() -> pb.WorldRequest:
            message = request()
            message.member.CopyFrom(self._member)
            return message

        reply: pb.WorldReply = self._call_with_retry(
            "World", make_request, deadline=_CALL_TIMEOUT_SECONDS + wait_seconds
        )
        return reply

    def report_failure(self, kind: str, message: str, detail: str, lease_id: int) -> bool:
        """Report that this worker cannot continue; returns whether it should exit."""
        # The text comes from the user's code and may contain anything.
        safe_message, safe_detail = escape_surrogates(message), escape_surrogates(detail)
        request = pb.FailRequest(
            member=self._member, kind=kind, message=safe_message, detail=safe_detail, lease=lease_id
        )
        reply: pb.FailReply = self._call_with_retry("Fail", lambda: request)
        return reply.fatal

    def leave(self, reason: str, lease_progress: Sequence[pb.LeaseProgress], *, deadline: float) -> None:
        """Return all leases. One attempt only: the master also learns of the pod's end from the cluster.

        Raises:
            RetryableError: the master did not answer within ``deadline`` seconds.
        """
        self._call(
            "Leave", pb.LeaveRequest(member=self._member, reason=reason, leases=lease_progress), deadline=deadline
        )

    def _make_registration(self) -> pb.RegisterRequest:
        return pb.RegisterRequest(
            member=self._member,
            pid=os.getpid(),
            ready=self._is_ready,
            callbacks=self._callbacks if self._is_ready else b"",
        )

    def _call_with_retry(
        self, method: str, request: Callable[[], Any], *, deadline: float = _CALL_TIMEOUT_SECONDS
    ) -> Any:
        retry = Retry(_BACKOFF, self._pause, jitter=self._jitter)
        while True:
            try:
                # A restarted master does not know this worker, and the placement may have changed.
                if retry.failures and method != "Register":
                    self._observe_reply(
                        self._call("Register", self._make_registration(), deadline=_CALL_TIMEOUT_SECONDS)
                    )
                reply = self._call(method, request(), deadline=deadline)
                self._observe_reply(reply)
            except RetryableError as error:
                # Counted from the last answer to a request of any thread: it shows that a master is
                # there.
                self._give_up_after_timeout(error)
                if not retry.failures:
                    _LOG.info("the master does not answer (%s): retrying", error.message)
                retry.wait()
            else:
                if retry.failures:
                    _LOG.info("the master answers again (incarnation %d)", self._incarnation)
                return reply

    def _observe_reply(self, reply: Any) -> None:
        """Process the header of every reply."""
        with self._lock:
            # Replies arrive on several threads and in any order, so incarnation and versions only
            # increase.
            known_version = self._newest_version
            incarnation = getattr(reply, "incarnation", self._incarnation)
            # A lower incarnation is a master that was replaced and does not know it.
            if incarnation < self._incarnation:
                raise RetryableError(
                    f"a master of incarnation {incarnation} answered, but incarnation {self._incarnation} leads the job"
                )
            self._last_reply_at = self._clock()
            self._incarnation = incarnation
            self._announced_version = max(self._announced_version, getattr(reply, "placement_version", 0))
            # Only these replies carry it. A missing field in them means that no callback has set a
            # rate.
            if isinstance(reply, pb.RegisterReply | pb.LeaseReply | pb.ProgressReply | pb.WorldReply):
                self.learning_rate = reply.learning_rate if reply.HasField("learning_rate") else None
            if isinstance(reply, pb.RegisterReply):
                self._placement = self._placement.pick_newer(PsPlacement.from_message(reply.placement))
            moved = self._newest_version > known_version
        # Not under the lock: the callback may use the session.
        if moved:
            self._on_new_placement()

    @property
    def _newest_version(self) -> int:
        return max(self._announced_version, self._placement.version)

    def _give_up_after_timeout(self, error: RetryableError) -> None:
        silent_seconds = self._clock() - self._last_reply_at
        if silent_seconds >= self._lost_timeout:
            raise MasterLostError(
                f"the master did not answer for {silent_seconds:.0f} s (master.lost_timeout): {error.message}",
                where=error.where,
            ) from error

"""The master's client of the parameter servers.

One thread per PS sends requests in order; answers return as events.

A request is never dropped while the pod of its PS is alive: an unanswered revocation holds records
back, and an aborted cut that is not released blocks workers. The core decides what happens to a PS
that is alive but silent, or that refuses.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edl.api.errors import RefusedError, RetryableError
from edl.core.backoff import ExponentialBackoff
from edl.core.events import (
    AttachPs,
    CopyCheckpoint,
    CoreCommand,
    CoreEvent,
    CutPrepared,
    HoldUpdates,
    LeasesRevoked,
    PrepareCut,
    PsAttached,
    PsRefused,
    PsSilent,
    ReleaseCut,
    RevokeLeases,
    SaveCheckpoint,
    SnapshotTaken,
    TakeSnapshot,
    Unpin,
    UpdatesHeld,
)
from edl.core.partition import initial_placement
from edl.master import guarded_threads
from edl.master.checkpoint_coordinator import CheckpointCoordinator
from edl.retry.attempts import Retry
from edl.storage.checkpoint_manifest import cut_directory
from edl.transport import edl_pb2 as pb
from edl.transport.control_client import ControlChannel
from edl.transport.control_methods import ControlMethod, PsControlMethods
from edl.transport.peer_errors import refusal_kind

# --------------------------------------------------------------------------------------------------
# Commands of the core as requests to a parameter server, and the answers as events.


REQUEST_DEADLINE = 30.0
"""Timeout of one attempt, in seconds: a snapshot copies all parameters."""
RESTORE_DEADLINE = 600.0
"""Timeout of one attempt to read a checkpoint, in seconds.

A PS that stopped or is gone is noticed long before through its connection.
"""


def _no_event(reply: Any) -> CoreEvent | None:
    return None


def _no_repeat(reply: Any) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class ControlRequest:
    """One call to one PS.

    Attributes:
        to_event: converts the answer to an event for the core; None: no event.
        deadline: seconds for one attempt.
        is_required: whether the job cannot continue if the PS refuses.
        must_repeat: whether the answer asks to repeat the request, behind the queued ones.
        affected_cut: the cut that is aborted if the PS refuses; 0: none.
        restore_cut: the checkpoint that the PS must load; 0: none.
    """

    method: ControlMethod[Any, Any]
    request: Any
    to_event: Callable[[Any], CoreEvent | None] = _no_event
    must_repeat: Callable[[Any], bool] = _no_repeat
    deadline: float = REQUEST_DEADLINE
    is_required: bool = False
    affected_cut: int = 0
    restore_cut: int = 0


@dataclass(frozen=True, slots=True)
class ControlRequestBuilder:
    """Builds the requests of this master from the core's commands.

    Attributes:
        incarnation: incarnation of this master; PS refuse lower ones.
        ps_count: number of PS of the job.
        checkpoint_directory: directory of the run's checkpoints.
    """

    incarnation: int
    ps_count: int
    checkpoint_directory: Path

    def build_request(self, command: CoreCommand, uid: str) -> ControlRequest:
        """The request to the PS ``uid`` for a command."""
        match command:
            case AttachPs():
                return self._attach_request(command)
            case RevokeLeases():
                return self._revoke_request(command)
            case TakeSnapshot():
                return self._snapshot_request(command, uid)
            case PrepareCut(cut):
                return self._prepare_request(cut, uid)
            case HoldUpdates(cut):
                return self._hold_request(cut, uid)
            case ReleaseCut(cut):
                return ControlRequest(
                    PsControlMethods.Release, pb.ReleaseRequest(incarnation=self.incarnation, cut=cut)
                )
            case Unpin(cut):
                return ControlRequest(PsControlMethods.Unpin, pb.UnpinRequest(incarnation=self.incarnation, cut=cut))
        raise TypeError(f"not a command for parameter servers: {command}")

    def _attach_request(self, command: AttachPs) -> ControlRequest:
        restore = command.restore_cut
        request = pb.AttachRequest(
            incarnation=self.incarnation,
            floor=command.lowest_open_lease,
            revoked=command.revoked_leases,
            live=command.live_leases,
            cut=command.passed_cut,
            slots=initial_placement(self.ps_count),
            restore="" if restore is None else str(cut_directory(self.checkpoint_directory, restore)),
            complete=command.complete,
        )

        def event(reply: pb.AttachReply) -> CoreEvent:
            return PsAttached(command.uid, reply.initialized, reply.version, tuple(reply.pins))

        # Reading a checkpoint may take minutes, and a repeated attempt would wait behind the first
        # one.
        deadline = REQUEST_DEADLINE if restore is None else RESTORE_DEADLINE
        return ControlRequest(
            PsControlMethods.Attach, request, event, deadline=deadline, is_required=True, restore_cut=restore or 0
        )

    def _revoke_request(self, command: RevokeLeases) -> ControlRequest:
        request = pb.RevokeRequest(incarnation=self.incarnation, leases=command.leases, floor=command.lowest_open_lease)

        def event(reply: pb.RevokeReply) -> CoreEvent:
            return LeasesRevoked(command.ps, _steps_by_lease(reply.applied), _steps_by_lease(reply.first))

        return ControlRequest(PsControlMethods.Revoke, request, event, is_required=True)

    def _prepare_request(self, cut: int, uid: str) -> ControlRequest:
        request = pb.PrepareRequest(incarnation=self.incarnation, cut=cut)
        return ControlRequest(PsControlMethods.Prepare, request, lambda reply: CutPrepared(uid, cut), affected_cut=cut)

    def _hold_request(self, cut: int, uid: str) -> ControlRequest:
        def event(reply: pb.HoldReply) -> CoreEvent:
            return UpdatesHeld(uid, cut, _steps_by_lease(reply.applied))

        return ControlRequest(
            PsControlMethods.Hold, pb.HoldRequest(incarnation=self.incarnation, cut=cut), event, affected_cut=cut
        )

    def _snapshot_request(self, command: TakeSnapshot, uid: str) -> ControlRequest:
        request = pb.SnapshotRequest(
            incarnation=self.incarnation,
            cut=command.cut,
            checkpoint=str(cut_directory(self.checkpoint_directory, command.cut)) if command.checkpoint else "",
            pin=command.pin,
            floor=command.lowest_open_lease,
            within=[pb.LeaseStep(lease=lease, through=through) for lease, through in command.included_steps.items()],
            keep=command.keep_paused,
        )

        def event(reply: pb.SnapshotReply) -> CoreEvent:
            entered = reply.entered if reply.HasField("entered") else None
            return SnapshotTaken(uid, command.cut, reply.version, reply.pause_seconds, entered)

        return ControlRequest(
            PsControlMethods.Snapshot, request, event, lambda reply: reply.waits, affected_cut=command.cut
        )


def _steps_by_lease(steps: Iterable[pb.LeaseStep]) -> dict[int, int]:
    return {step.lease: step.through for step in steps}


# --------------------------------------------------------------------------------------------------
# The connection to one parameter server: requests are sent one at a time, each until it is
# answered.


ANSWER_TIMEOUT_SECONDS = 60.0
"""Seconds without an answer of a PS whose pod is alive, after which the core is informed."""
_BACKOFF = ExponentialBackoff(first_seconds=0.1, max_seconds=0.3)


class PsGoneError(RetryableError):
    """The pod of the PS has ended, so there will be no answer."""


class PsConnection:
    """This master's connection to one PS.

    Args:
        uid: uid of its pod.
        index: index of the PS.
        control_address: its address for the master.
        bulk_address: its address for workers.
        token: the job's token.
        answer_timeout: seconds without an answer after which ``on_silence`` of a request is called; it is
            called again each time that so many seconds have passed.
        clock: returns monotonic seconds.

    Raises:
        BadInputError: the control address is invalid.
    """

    def __init__(
        self,
        uid: str,
        index: int,
        control_address: str,
        bulk_address: str,
        token: str,
        *,
        answer_timeout: float = ANSWER_TIMEOUT_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.uid, self.index = uid, index
        self.control_address, self.bulk_address = control_address, bulk_address
        self._channel = ControlChannel(control_address, token)
        self._answer_timeout, self._clock = answer_timeout, clock
        self._requests: queue.SimpleQueue[ControlRequest | None] = queue.SimpleQueue()
        self._closed = threading.Event()

    def put_request(self, request: ControlRequest) -> None:
        """Queue a request behind the earlier ones."""
        self._requests.put(request)

    def close(self) -> None:
        """Close after the pod has ended: drop queued requests and cancel the current call."""
        # Before the wake-up: the thread that ``put`` wakes has to see it.
        self._closed.set()
        self._requests.put(None)
        self._channel.close()

    @property
    def is_closed(self) -> bool:
        """Whether the pod has ended."""
        return self._closed.is_set()

    def next_request(self) -> ControlRequest | None:
        """Wait for the next request; None when the pod has ended."""
        question = self._requests.get()
        return None if self.is_closed else question

    def send_until_answered(self, request: ControlRequest, on_silence: Callable[[float], None]) -> object:
        """Send a request and retry until it is answered, for as long as the pod is alive.

        Args:
            request: the request to the PS.
            on_silence: called with the seconds without an answer, each time that ``answer_timeout`` has
                passed.

        Raises:
            PsGoneError: the pod has ended.
            RefusedError: the PS refuses the request permanently.
        """
        # Only the cluster decides that a PS is dead. Until then the request may be on its way or
        # already answered. Repeating it is safe: a PS does the same cut or lease only once.
        retry, since = Retry(_BACKOFF, self._closed.wait), self._clock()
        while not self.is_closed:
            try:
                return self._send_once(request)
            except RetryableError:
                waited = self._clock() - since
                if waited >= self._answer_timeout and not self.is_closed:
                    on_silence(waited)
                    since = self._clock()
            retry.wait()
        raise PsGoneError(f"ps-{self.index} is gone", where=self.control_address)

    def _send_once(self, request: ControlRequest) -> object:
        try:
            return self._channel.call(request.method, request.request, timeout=request.deadline)
        except RefusedError as error:
            # "busy" is temporary: the PS may accept the request later.
            if self.is_closed or refusal_kind(error) == "busy":
                raise RetryableError(str(error)) from error
            raise


log = logging.getLogger(__name__)


class PsControlClient:
    """Executes the core's commands for parameter servers.

    Args:
        token: the job's token.
        incarnation: incarnation of this master; PS refuse lower ones.
        count: number of PS of the job.
        checkpoints: commits and copies checkpoints.
        answer_timeout: seconds without an answer after which the core is informed.
    """

    def __init__(
        self,
        token: str,
        incarnation: int,
        count: int,
        checkpoints: CheckpointCoordinator,
        *,
        answer_timeout: float = ANSWER_TIMEOUT_SECONDS,
    ) -> None:
        self._token, self._incarnation, self._count = token, incarnation, count
        self.checkpoints, self._answer_timeout = checkpoints, answer_timeout
        self._request_builder = ControlRequestBuilder(incarnation, count, checkpoints.directory)
        self._connections: dict[str, PsConnection] = {}
        self._lock = threading.Lock()
        self._handle: Callable[[CoreEvent], Any] = lambda event: None
        self._on_failure: guarded_threads.FailureHandler = lambda error: None

    def start(self, handle: Callable[[CoreEvent], Any], on_failure: guarded_threads.FailureHandler) -> None:
        """Set the receiver of answers, and the handler for the case that this master was replaced.

        Call it before any other method.
        """
        self._handle, self._on_failure = handle, on_failure

    # ------------------------------------------------------------------ connections

    def add_ps(self, uid: str, index: int, control_address: str, bulk_address: str) -> bool:
        """Store the addresses of a PS; returns whether it is new here and must be attached.

        Raises:
            BadInputError: the control address is invalid.
        """
        with self._lock:
            if uid in self._connections:
                return False
            link = PsConnection(
                uid, index, control_address, bulk_address, self._token, answer_timeout=self._answer_timeout
            )
            self._connections[uid] = link
        guarded_threads.start_guarded_thread(f"ps-{index}", lambda: self._run_connection(link), self._on_failure)
        return True

    def remove_ps(self, uid: str) -> None:
        """Drop the connection of a PS that is gone."""
        with self._lock:
            link = self._connections.pop(uid, None)
        if link is not None:
            link.close()

    def connections(self) -> Mapping[str, PsConnection]:
        """The connections by uid."""
        with self._lock:
            return dict(self._connections)

    def close(self) -> None:
        """Close all connections."""
        for uid in self.connections():
            self.remove_ps(uid)

    # ------------------------------------------------------------------ requests

    def execute(self, command: CoreCommand) -> None:
        """Queue a command for one PS or for all."""
        # A checkpoint takes minutes. On threads of its own it does not block requests to PS, such as
        # revocations.
        if isinstance(command, SaveCheckpoint):
            guarded_threads.start_guarded_thread(
                f"save-{command.cut}", lambda: self._save_checkpoint(command), self._on_failure
            )
            return
        if isinstance(command, CopyCheckpoint):
            guarded_threads.start_guarded_thread(
                f"copy-{command.cut}", lambda: self._handle(self.checkpoints.copy(command)), self._on_failure
            )
            return
        links = self.connections()
        match command:
            case AttachPs(uid=one) | RevokeLeases(ps=one):
                # Otherwise its pod has ended, and the core learns of that from the cluster.
                addressed = {one} & links.keys()
            case _:
                addressed = set(links)
        for uid in sorted(addressed):
            links[uid].put_request(self._request_builder.build_request(command, uid))

    def _run_connection(self, connection: PsConnection) -> None:
        while (question := connection.next_request()) is not None:
            try:
                reply = connection.send_until_answered(
                    question, lambda seconds: self._handle(PsSilent(connection.uid, seconds))
                )
            except PsGoneError:
                return
            except RefusedError as error:
                self._handle_refusal(connection, question, error)
            else:
                self._handle_answer(connection, question, reply)

    def _handle_answer(self, link: PsConnection, request: ControlRequest, reply: Any) -> None:
        if request.must_repeat(reply):
            # Behind the queued requests: one of them may abort the cut or revoke the lease whose
            # step is missing.
            link.put_request(request)
            return
        event = request.to_event(reply)
        if event is not None:
            self._handle(event)

    def _handle_refusal(self, link: PsConnection, request: ControlRequest, error: RefusedError) -> None:
        method, kind = request.method.name, refusal_kind(error)
        what = f"ps-{link.index} refuses {method}: {error.message.removeprefix(f'{method}: ')}"
        log.warning("%s (%s)", what, error.where)
        if kind == "incarnation":
            # The PS knows a newer master, so this one must not decide anything any more.
            self._on_failure(error)
        elif request.restore_cut and kind == "storage":
            self._handle(self.checkpoints.find_fallback(link.uid, request.restore_cut, what))
        elif request.is_required or request.affected_cut:
            self._handle(PsRefused(link.uid, kind, what, request.affected_cut))

    def _save_checkpoint(self, command: SaveCheckpoint) -> None:
        # Channels of its own: ``Saved`` waits for minutes, and the connections stay free for other
        # requests.
        addresses = {link.index: link.control_address for link in self.connections().values()}
        channels = {index: ControlChannel(address, self._token) for index, address in addresses.items()}
        try:
            event = self.checkpoints.save(command, channels, self._count, self._incarnation)
        finally:
            for channel in channels.values():
                channel.close()
        self._handle(event)

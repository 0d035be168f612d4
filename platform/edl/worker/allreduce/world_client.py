"""A worker's connection to the rounds: it tells the master what the worker knows, and keeps the newest view.

A thread asks for the next view all the time, so it is also the heartbeat. Another one reports when the main
thread has something that the master should know at once. Views may arrive in any order; an older one is dropped.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from edl.api.round_id import RoundId
from edl.core.evaluation_copies import NO_COPY, CopyReport
from edl.core.events import CheckpointOrder
from edl.core.rank_state import PendingShares, RankPhase, RankState
from edl.core.world_rounds import NO_ROUND, RoundAnnounced, RoundPhase, StepShares
from edl.transport import edl_pb2 as pb

POLL_SECONDS = 0.2
"""Seconds for which a request of rank 0 waits for a newer view: steps reach the ledger at least this often."""
MIN_REPORT_SECONDS = 0.02
"""Least seconds between two reports of rank 0 that hasten the entry of steps: each costs the master an fsync."""
FOLLOWER_POLL_SECONDS = 0.5
"""Seconds for which a request of another rank waits in a running round. It is a heartbeat, and reports no steps."""


@dataclass(frozen=True, slots=True)
class RoundView:
    """What the master says about the rounds; see ``WorldReply`` in edl.proto.

    Attributes:
        members: uids, by rank.
        addresses: where each member's ring listens, by rank; empty if the master does not know it yet.
        leases: this worker's training leases, with the done records of each.
        restore_cut: the checkpoint with the first state of a round without holders; 0: the initial state.
        checkpoint: the checkpoint that this worker has to write; None: none.
        learning_rate: the rate that a callback has set at an evaluation; None: that of the state.
        epoch_left: with a global batch, the records of the epoch that are not done at ``committed_step``.
        may_be_short: whether a step may have fewer records than the global batch.
        source_address: for a worker outside, where the member listens that lets it follow the running round.
        helper_addresses: those of further members that send it parts of the state.
        copy_at: the step after which this worker copies its variables for an evaluation; 0: it does not.
        evaluated_step: the step whose copies are being evaluated; 0: there is none.
        epoch: whose records are processed; in a round without holders all ranks have the same.
    """

    version: int = 0
    round: RoundId = NO_ROUND
    phase: RoundPhase = RoundPhase.CLOSING
    is_member: bool = False
    members: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()
    step: int = 0
    holders: tuple[str, ...] = ()
    committed_step: int = 0
    must_change: bool = False
    reason: str = ""
    leases: Mapping[int, int] | None = None
    last_lease: int = 0
    must_pause: bool = False
    evaluate_at: int = 0
    restore_cut: int = 0
    checkpoint: CheckpointOrder | None = None
    learning_rate: float | None = None
    epoch_left: int = 0
    may_be_short: bool = False
    source_address: str = ""
    helper_addresses: tuple[str, ...] = ()
    copy_at: int = 0
    evaluated_step: int = 0
    epoch: int = 0

    @classmethod
    def from_message(cls, reply: pb.WorldReply, previous: RoundView) -> RoundView:
        """The view in a reply.

        Args:
            previous: the view before. Members that it has of the same round are not sent again.
        """
        round_id = RoundId(reply.round.incarnation, reply.round.number)
        members = tuple(member.uid for member in reply.members)
        addresses, holders = tuple(member.address for member in reply.members), tuple(reply.holders)
        if not members and round_id == previous.round:
            members, addresses, holders = previous.members, previous.addresses, previous.holders
        return cls(
            version=reply.version,
            round=round_id,
            phase=RoundPhase(reply.phase),
            is_member=reply.member,
            members=members,
            addresses=addresses,
            step=reply.step,
            holders=holders,
            committed_step=reply.committed,
            must_change=reply.change,
            reason=reply.reason,
            leases={lease.lease: lease.end for lease in reply.leases},
            last_lease=reply.last_lease,
            must_pause=reply.pause,
            evaluate_at=reply.evaluate_at,
            restore_cut=reply.restore_cut,
            checkpoint=CheckpointOrder(reply.checkpoint.cut, reply.checkpoint.at_step, reply.checkpoint.when_paused)
            if reply.HasField("checkpoint")
            else None,
            learning_rate=reply.learning_rate if reply.HasField("learning_rate") else None,
            epoch_left=reply.epoch_left,
            may_be_short=reply.may_be_short,
            source_address=reply.source.address,
            helper_addresses=tuple(helper.address for helper in reply.helpers if helper.address),
            copy_at=reply.copy_at,
            evaluated_step=reply.evaluated_step,
            epoch=reply.epoch,
        )

    def pauses_at(self, step: int) -> bool:
        """Whether nobody trains after this step, for example because an evaluation of it is due or in progress."""
        return self.must_pause or 0 < self.evaluate_at <= step

    @property
    def has_all_addresses(self) -> bool:
        """Whether the ring can be connected."""
        return bool(self.addresses) and all(self.addresses)


class WorldSession(Protocol):
    """The calls to the master that the rounds need."""

    def request_world(self, request: Callable[[], pb.WorldRequest], wait_seconds: float) -> pb.WorldReply: ...


class WorldClient:
    """The rounds as this worker knows them; thread-safe.

    Args:
        session: the session with the master.
        worker: uid of this worker.
        address: where this worker's ring listens.
        is_leaving: whether this worker was told to end.
        on_closed: called with a round and the reason when that round of this worker, or an earlier one, is over;
            must not block.
        copied_state: returns the newest copy of this worker's state for a checkpoint; None: there is none.
        evaluation_copy: returns what this worker says about its copy for an evaluation.
    """

    def __init__(
        self,
        session: WorldSession,
        worker: str,
        address: str,
        *,
        is_leaving: Callable[[], bool],
        on_closed: Callable[[RoundId, str], None],
        copied_state: Callable[[], pb.CopiedState | None] = lambda: None,
        evaluation_copy: Callable[[], CopyReport] = lambda: NO_COPY,
    ) -> None:
        self._session = session
        self._address = address
        self._is_leaving = is_leaving
        self._on_closed = on_closed
        self._copied_state = copied_state
        self._evaluation_copy = evaluation_copy
        self._unreadable: pb.UnreadableCheckpoint | None = None
        self._changed = threading.Condition()
        # It asks to join when it knows whether there is a round to follow.
        self._rank = RankState(worker, phase=RankPhase.FOLLOWING)
        self._view = RoundView()
        self._digest: int | None = None
        self._difference = ""
        self._stable_step = 0
        self._is_paused = False
        self._entered = 0
        self._is_stopped = False
        self._loss_sum, self._loss_steps = 0.0, 0
        self._failure: Exception | None = None
        self._stopped = False
        self._must_report = False
        self._reported_at = float("-inf")

    # ------------------------------------------------------------------ what the main thread asks

    @property
    def view(self) -> RoundView:
        """The newest view.

        Raises:
            EdlError: the master is lost, or refused a request.
        """
        with self._changed:
            if self._failure is not None:
                raise self._failure
            return self._view

    @property
    def phase(self) -> RankPhase:
        """What this worker does about the rounds."""
        return self._rank.phase

    @property
    def is_outside(self) -> bool:
        """Whether this worker is in no round."""
        return self._rank.is_outside

    @property
    def step(self) -> int:
        """The newest step in the worker's state; 0 without one."""
        return self._rank.step or 0

    @property
    def round(self) -> RoundId:
        """The newest round that this worker knows."""
        return self._rank.round

    @property
    def rank(self) -> int:
        """This worker's rank in that round."""
        return self._rank.rank

    def done_records(self) -> dict[int, int]:
        """By lease, the done records of the steps in the worker's state that are not in the ledger."""
        with self._changed:
            return self._rank.shares.done_records(self._rank.shares.step)

    def pending_shares(self) -> dict[str, Any]:
        """The shares of the steps in the worker's state that are not in the ledger, as JSON."""
        with self._changed:
            return self._rank.shares.to_json()

    def wait_for_view(self, known: RoundView, seconds: float) -> None:
        """Wait until there is another view than ``known``, at most ``seconds``."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._view.version != known.version or self._failure is not None, timeout=seconds
            )

    # ------------------------------------------------------------------ what the main thread does

    def enter_round(self, view: RoundView) -> None:
        entry = RoundAnnounced(view.round, view.members, view.step, view.holders, view.reason)
        with self._changed:
            self._digest, self._entered = None, 0
            self._rank.handle_announced(entry)

    def adopt_state(self, round_id: RoundId, step: int, shares: PendingShares | None) -> None:
        """This worker has the state of another member now, or the first one of a run (None)."""
        with self._changed:
            self._rank.adopt_state(round_id, step, shares)

    def confirm(self, digest: int, difference: str = "") -> None:
        """Tell the master that this worker has the round's first state.

        Args:
            digest: of the state.
            difference: why the ranks of the round may round differently; empty if all compute the same bits.
        """
        with self._changed:
            self._digest, self._difference = digest, difference
        self.request_report()

    def refuse_checkpoint(self, cut: int, error: str) -> None:
        """The checkpoint with which the round starts cannot be loaded; the next report says so."""
        with self._changed:
            self._unreadable = pb.UnreadableCheckpoint(cut=cut, error=error)

    def start(self, round_id: RoundId) -> None:
        """The master says that all members have confirmed."""
        with self._changed:
            self._rank.handle_started(round_id)
            self._stable_step, self._is_paused = 0, False

    def apply_step(
        self, shares: StepShares, loss: float | None, *, is_paused: bool = False, is_skipped: bool = False
    ) -> None:
        """A reduction is finished. Without shares no step was made, but all ranks had applied the one before.

        Args:
            shares: the shares of all ranks.
            loss: the loss of the step.
            is_paused: whether all ranks wait for an evaluation.
            is_skipped: whether the step changed nothing, because a gradient was not finite.
        """
        with self._changed:
            self._is_paused = is_paused and not shares
            self._stable_step = self._rank.apply_step(shares, is_skipped=is_skipped) if shares else self.step
            if loss is not None and math.isfinite(loss):
                self._loss_sum, self._loss_steps = self._loss_sum + loss, self._loss_steps + 1

    def enter_exchange(self) -> None:
        """The main thread enters an exchange that ends when all ranks have entered it: the master hears it."""
        # Without the lock, since this is done in each step and by one thread only.
        self._entered += 1

    def report_stop(self, *, is_stopped: bool) -> None:
        """Whether a callback ended training on some rank, and all have heard of it: the master learns it next."""
        with self._changed:
            self._is_stopped = is_stopped

    def end_round(self) -> None:
        """The round is over for this worker: it keeps its state, and the master hears of it at once."""
        with self._changed:
            self._rank.handle_closed(self._rank.round)
        self.request_report()

    def leave_world(self, round_id: RoundId, *, may_follow: bool) -> None:
        """The master does not count this worker as a member; it may follow the round before it asks to join."""
        with self._changed:
            self._rank.leave_world(round_id, may_follow=may_follow)

    def begin_following(self) -> None:
        """This worker's state is being replaced by that of a member of the running round."""
        with self._changed:
            self._rank.begin_following()

    def adopt_followed_state(self, step: int, shares: PendingShares) -> None:
        """This worker has the state that the member had after ``step``."""
        with self._changed:
            self._rank.adopt_followed_state(step, shares)

    def follow_step(self, shares: StepShares, *, is_skipped: bool = False) -> None:
        """A step of the members is applied here, too. Without shares no step was made."""
        with self._changed:
            if shares:
                self._rank.apply_step(shares, is_skipped=is_skipped)

    def catch_up(self) -> None:
        """This worker has the newest steps of the members: ask to join."""
        with self._changed:
            is_new = self._rank.phase is RankPhase.FOLLOWING
            self._rank.catch_up()
        if is_new:
            self.request_report()

    def end_following(self) -> None:
        """No further step comes: ask to join with the present state."""
        with self._changed:
            self._rank.end_following()
        self.request_report()

    def follow_closing(self, round_id: RoundId) -> None:
        """The master closed a round, perhaps one of which this worker has not heard: report the state."""
        with self._changed:
            must_report = self._rank.handle_closed(round_id)
        if must_report:
            self.request_report()

    # ------------------------------------------------------------------ messages

    def request_report(self) -> None:
        """Let ``send_reports`` tell the master what this worker knows.

        The main thread does not wait: at the end of a job the last answer may be that there is no more work, and then
        the master is gone.
        """
        with self._changed:
            self._must_report = True
            self._changed.notify_all()

    def report_steps_soon(self) -> None:
        """If this is rank 0, report its stable steps without waiting for the end of the present request."""
        with self._changed:
            rank, now = self._rank, time.monotonic()
            has_news = rank.phase is RankPhase.RUNNING and rank.rank == 0 and self._stable_step > rank.shares.after
            if has_news and now - self._reported_at >= MIN_REPORT_SECONDS:
                self._reported_at = now
                self._must_report = True
                self._changed.notify_all()

    def send_reports(self) -> None:
        """Send the reports that were requested until ``stop``; errors are raised by ``view``."""
        with self._end_round_on_error():
            while self._wait_for_request():
                self.report()

    def _wait_for_request(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._must_report or self._stopped)
            self._must_report = False
            return not self._stopped

    def report(self) -> None:
        """Tell the master what this worker knows, without a wait.

        Raises:
            EdlError: the master is lost, or refuses the request.
        """
        self._take_reply(self._session.request_world(lambda: self._make_request(0.0), 0.0))

    def run(self) -> None:
        """Ask for the next view until ``stop``; errors are raised by ``view``."""
        with self._end_round_on_error():
            while not self._stopped:
                wait = self._wait_seconds()
                # The request is made anew when it is repeated.
                self._take_reply(self._session.request_world(partial(self._make_request, wait), wait))

    @contextmanager
    def _end_round_on_error(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001  raised by ``view``: without its threads the worker knows nothing
            with self._changed:
                self._failure = error
                self._changed.notify_all()
            self._on_closed(self._rank.round, str(error))

    def stop(self) -> None:
        """End ``run`` and ``send_reports`` after the requests that they wait for."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def _wait_seconds(self) -> float:
        with self._changed:
            rank = self._rank
            return FOLLOWER_POLL_SECONDS if rank.phase is RankPhase.RUNNING and rank.rank != 0 else POLL_SECONDS

    def _make_request(self, wait_seconds: float) -> pb.WorldRequest:
        with self._changed:
            rank = self._rank
            phase = rank.phase
            # The other thread may ask in between. The digest of the round before would be another one.
            if phase is RankPhase.CONFIRMED and self._digest is None:
                phase = RankPhase.FETCHING
            request = pb.WorldRequest(
                wait_seconds=wait_seconds,
                address=self._address,
                seen=self._view.version,
                phase=phase.value,
                round=_round_message(rank.round),
                state_round=_round_message(rank.state_round),
                step=rank.step,
                digest=self._digest or 0,
                difference=self._difference if phase is RankPhase.CONFIRMED else "",
                leaving=self._is_leaving(),
                stopped=self._is_stopped,
                copied=self._copied_state() if self._view.checkpoint is not None else None,
                unreadable=self._unreadable,
                entered=self._entered if phase in _IN_ROUND else None,
                members_known=_round_message(self._view.round if self._view.has_all_addresses else NO_ROUND),
            )
            evaluation_copy = self._evaluation_copy()
            if evaluation_copy.changes:
                request.evaluation_copy.step = evaluation_copy.step
                request.evaluation_copy.changes = evaluation_copy.changes
            is_running = rank.phase is RankPhase.RUNNING
            # Rank 0 reports for all. The others keep their shares, for the case that it is lost.
            if is_running and rank.rank != 0:
                return request
            if is_running:
                request.stable, request.paused = self._stable_step, self._is_paused
                self._add_loss(request)
            request.after = rank.shares.after
            request.skipped_steps.extend(rank.shares.skipped_steps)
            until = self._stable_step if is_running else rank.shares.step
            skipped = rank.shares.skipped_records(until)
            request.done.extend(
                pb.LeaseRecords(lease=lease, end=end, skipped=skipped.get(lease, 0))
                for lease, end in rank.shares.done_records(until).items()
            )
            return request

    def _add_loss(self, request: pb.WorldRequest) -> None:
        if self._loss_steps:
            request.loss = self._loss_sum / self._loss_steps
            self._loss_sum, self._loss_steps = 0.0, 0

    def _take_reply(self, reply: pb.WorldReply) -> None:
        with self._changed:
            view = RoundView.from_message(reply, self._view)
            # Two threads ask. Steps that become done do not raise the version.
            if (view.version, view.committed_step) < (self._view.version, self._view.committed_step):
                return
            self._view = view
            if self._unreadable is not None and view.restore_cut != self._unreadable.cut:
                self._unreadable = None
            # Steps of a state that is not believed any more are replaced together with it.
            if view.round == self._rank.round:
                self._rank.handle_acknowledged(view.committed_step)
            round_id = self._rank.round
            is_over = self._rank.phase in _IN_ROUND and _is_round_over(view, round_id)
            self._changed.notify_all()
        # Not under the lock. The main thread may wait for a neighbour that is stopped. It may also have entered
        # the next round by now.
        if is_over:
            self._on_closed(round_id, view.reason or "the master closed the round")


_IN_ROUND = (RankPhase.FETCHING, RankPhase.CONFIRMED, RankPhase.RUNNING)


def _is_round_over(view: RoundView, round_id: RoundId) -> bool:
    return view.round > round_id or (
        view.round == round_id and (view.phase is RoundPhase.CLOSING or not view.is_member)
    )


def _round_message(round_id: RoundId) -> pb.Round:
    return pb.Round(incarnation=round_id.incarnation, number=round_id.number)

"""The loop of a rank: it enters rounds, takes steps together with all others, and leaves.

A step is one reduction. Every rank adds the gradient of its own minibatch, or nothing if it has no records
now, and every rank applies the same sum. docs/design/0010-allreduce.md says which steps count when the world
changes; ``edl.core.rank_state`` decides about that here.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from edl.api.errors import BadInputError, StorageError
from edl.api.job_spec import JobSpec
from edl.collective.communicator import Communicator
from edl.collective.round_errors import RoundBrokenError
from edl.core.checkpoint_shares import SHARD_BYTES
from edl.core.global_batch import NO_RECORDS, RankRecords
from edl.core.rank_state import RankPhase
from edl.core.state_agreement import RankFacts, is_digest_step
from edl.core.strict_json import decode_json
from edl.core.world_rounds import RoundPhase, StepShares
from edl.worker.allreduce.batch_plan import BatchPlan
from edl.worker.allreduce.callback_alignment import AlignedCallbacks, CallbackAlignment, describe_place, read_place
from edl.worker.allreduce.checkpoint_copies import CheckpointCopies
from edl.worker.allreduce.checkpoint_writer import Arrays, CheckpointWriter
from edl.worker.allreduce.copy_evaluation import CopyEvaluation
from edl.worker.allreduce.gradient_sums import GradientSums
from edl.worker.allreduce.kept_gradient import KeptGradient
from edl.worker.allreduce.rank_answers import MAX_SHARES_BYTES, read_answer, read_answers, read_pending_shares
from edl.worker.allreduce.round_connection import RoundConnection
from edl.worker.allreduce.share_source import BatchShareSource, OpenLease, ShareSource
from edl.worker.allreduce.state_digests import StateDigests
from edl.worker.allreduce.step_feed import StepFeed
from edl.worker.allreduce.step_follower import StepFollower
from edl.worker.allreduce.step_message import StepMessage, StepOutcome
from edl.worker.allreduce.update_sums import UpdateResult, UpdatesReplica, UpdateSums
from edl.worker.allreduce.world_client import RoundView, WorldClient
from edl.worker.graceful_shutdown import LeavingError, ShutdownGate
from edl.worker.lease_client import LeasedTask
from edl.worker.loss_log import LossLog
from edl.worker.not_finite import report_not_finite
from edl.worker.record_stream import LoadedStep
from edl.worker.trainer import add_record_range, add_worker_name

_LOG = logging.getLogger(__name__)

IDLE_SECONDS = 0.02
"""Seconds for which a rank without records waits for some before it joins a reduction in which nobody has any."""
VIEW_WAIT_SECONDS = 0.5
NEXT_ROUND_SECONDS = 3.0
"""Seconds after a round in which the next one is probably announced: silent workers count as lost after two."""
_DIGEST_MASK = (1 << 62) - 1
"""Whole numbers in messages have at most 62 bits."""


class ReplicaLike(Protocol):
    """One rank's model and optimizer; ``edl.keras.replica`` implements it."""

    @property
    def buffers(self) -> Sequence[np.ndarray[Any, Any]]: ...
    @property
    def gradient_counts(self) -> Sequence[int]: ...
    @property
    def skips_infinite_gradients(self) -> bool: ...
    @property
    def rate_names(self) -> Collection[str]: ...
    def compute(self, features: Any, labels: Any, weights: Any, *, adds: bool = False) -> UpdateResult: ...
    @property
    def keeps_addend(self) -> bool: ...
    def write_again(self) -> None: ...
    def clear(self) -> None: ...
    def apply(self, total_weight: float, rate_factor: float | None = None) -> None: ...
    def set_learning_rate(self, rate: float) -> None: ...
    def restore_statistics(self) -> None: ...
    def state_sizes(self) -> Mapping[str, int]: ...
    def state_arrays(self, names: Iterable[str] | None = None) -> Arrays: ...
    def load_state(self, arrays: Arrays) -> None: ...
    def pack_state(self) -> np.ndarray[Any, Any]: ...
    def hold_state(self) -> Sequence[np.ndarray[Any, Any]]: ...
    def unpack_state(self, buffer: np.ndarray[Any, Any]) -> None: ...
    def digest(self) -> int: ...
    def variable_digests(self) -> Mapping[str, int]: ...
    def describe_variables(self) -> Mapping[str, str]: ...
    def fingerprint(self) -> str: ...


class StepCallbacks(AlignedCallbacks, Protocol):
    """The user's callbacks of one rank; ``edl.keras.rank_callbacks`` implements it."""

    @property
    def learning_rate(self) -> float | None: ...
    @property
    def has_stopped(self) -> bool: ...
    def start_round(self, rank: int) -> None: ...
    def end_step(self, step: int, epoch: int, loss: float, learning_rate: float | None) -> None: ...
    def skip_step(self, step: int, epoch: int) -> None: ...
    def end_training(self) -> None: ...
    def forget_stop(self) -> None: ...
    def begin_again(self, step: int, began_in: tuple[int, int], epoch: int) -> None: ...
    @property
    def lacks_old_values(self) -> bool: ...
    def showing_checkpoint(self) -> AbstractContextManager[None]: ...


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """What the job file says about steps.

    Attributes:
        max_steps: ``train.max_steps``.
        skip_nan: whether ``train.on_nan`` is ``skip``.
        global_batch: the records of a step of all ranks; None: each rank adds a minibatch.
        gradient_compression: ``strategy.gradient_compression``.
        shard_bytes: the least bytes of a shard, if several ranks write a checkpoint.
    """

    max_steps: int | None
    skip_nan: bool
    global_batch: int | None
    gradient_compression: str
    shard_bytes: int = SHARD_BYTES

    @classmethod
    def of_job(cls, spec: JobSpec) -> LoopSettings:
        """Those of a job."""
        train, strategy = spec.train, spec.strategy
        return cls(train.max_steps, train.on_nan == "skip", strategy.global_batch, strategy.gradient_compression)


@dataclass(frozen=True, slots=True)
class RankLinks:
    """What this rank reaches the master and the other ranks with.

    Attributes:
        world: the rounds, as the master announces them.
        connection: connects this worker to the current round.
        feed: lets workers that join follow the rounds of this one.
    """

    world: WorldClient
    connection: RoundConnection
    feed: StepFeed


@dataclass(frozen=True, slots=True)
class RankWork:
    """What the master leases to this rank.

    Attributes:
        shares: the minibatches of this rank; a ``BatchShareSource`` if the job has a global batch.
        run_task: runs a task that changes no variable: evaluation, export and the like.
        evaluation: evaluates copies of the variables while this rank takes part in the steps.
    """

    shares: ShareSource
    run_task: Callable[[LeasedTask], int | None]
    evaluation: CopyEvaluation[Any]


@dataclass(frozen=True, slots=True)
class LearningRates:
    """What changes the learning rate beside the optimizer and the user's callbacks.

    Attributes:
        factor: returns the factor of the learning rate for the number of ranks that give a step records; None: it does
            not change.
        of_epoch: returns the learning rate of an epoch, which ``LearningRateScheduler`` sets; None: none does.
    """

    factor: Callable[[int], float] | None = None
    of_epoch: Callable[[int], float] | None = None


class StepLoop:
    """Runs a worker of strategy AllReduce until there is no more work.

    Args:
        replica: the model.
        links: the master and the other ranks.
        work: the leased work.
        checkpoints: writes copies of the state.
        gate: says whether this worker was told to end.
        facts: what decides how this worker rounds.
        settings: those of the job.
        rates: the learning rates.
        callbacks: the user's own callbacks.
        loss_log: gets the loss of each step.
        on_left: called when the worker is in no round any more, after it was told to end.
        several_updates: the model again, if each step of it makes several updates; None: one.
    """

    def __init__(
        self,
        replica: ReplicaLike,
        links: RankLinks,
        work: RankWork,
        checkpoints: CheckpointWriter,
        gate: ShutdownGate,
        facts: RankFacts,
        settings: LoopSettings,
        *,
        rates: LearningRates,
        callbacks: StepCallbacks,
        loss_log: LossLog,
        on_left: Callable[[], None],
        several_updates: UpdatesReplica | None = None,
    ) -> None:
        self._replica = replica
        # Rank 0 starts with it again when no worker is left whose state counts.
        self._initial_state = replica.pack_state()
        self._world, self._connection, self._feed = links.world, links.connection, links.feed
        self._shares, self._run_task, self._evaluation = work.shares, work.run_task, work.evaluation
        self._checkpoints = checkpoints
        self._copies = CheckpointCopies(
            replica, links.world, checkpoints, settings.shard_bytes, callbacks.showing_checkpoint
        )
        self._gate = gate
        self._digests = StateDigests(replica, facts)
        self._kept = KeptGradient()
        self._updates: UpdateSums | None = None
        if several_updates is None:
            self._sums = GradientSums(replica, settings.gradient_compression)
        else:
            self._updates = UpdateSums(
                several_updates,
                settings.gradient_compression,
                links.world.enter_exchange,
                self._begin_update,
                self._report_not_finite,
            )
            self._sums = GradientSums(several_updates.updates[-1], settings.gradient_compression)
        self._max_steps, self._skip_nan = settings.max_steps, settings.skip_nan
        self._rate_factor, self._epoch_rate = rates.factor, rates.of_epoch
        self._callbacks = callbacks
        self._loss_log = loss_log
        self._stopped_after: int | None = None
        """The step after which a callback ended training, as all ranks have heard."""
        self._on_left = on_left
        self._batch: BatchPlan | None = None
        if settings.global_batch is not None:
            assert isinstance(work.shares, BatchShareSource)
            self._batch = BatchPlan(settings.global_batch, settings.max_steps, work.shares)
        self._follower = StepFollower(
            facts.worker,
            replica,
            links.world,
            links.connection.token,
            self._initial_state.nbytes,
            self._apply_sums,
            on_state=callbacks.adopt_state,
            must_end=lambda: gate.closed or work.shares.is_over,
        )
        self._nonfinite_count = 0
        self.step_seconds = 0.0
        """The duration of the newest step, with what this worker waited for the others."""
        self._exit_code: int | None = None
        self._is_paused = False
        self._round_ended_at = float("-inf")

    # ------------------------------------------------------------------ outside of a round

    def run(self) -> int:
        """Work until the master has no more work; returns the exit code.

        Raises:
            LeavingError: this worker was told to end, and has left the world.
            EdlError: the master is lost, or the job cannot go on.
        """
        while not self._shares.is_over:
            if (code := self._run_other_tasks()) is not None:
                return code
            view = self._world.view
            if self._exit_code is not None:
                return self._exit_code
            if not self._follow(view):
                if self._world.phase is RankPhase.ENDED:
                    # The last worker that has the newest state saves it before it leaves.
                    self._copies.copy_alone(view, is_paused=self._is_paused, in_round=False)
                self._leave_if_told(view)
                self._shares.take_tasks()
                if not self._shares.other_tasks or self._gate.closed or self._is_awaited():
                    self._world.wait_for_view(view, VIEW_WAIT_SECONDS)
        self._close_communicator()
        if self._has_newest_state():
            self._callbacks.end_training()
        else:
            _LOG.info("training ended without this worker: its callbacks do not see the end")
        return 0

    def _has_newest_state(self) -> bool:
        """Whether this worker has every step. One that was stopped may come back when there is no more work."""
        view = self._world.view
        if self._world.phase is not RankPhase.RUNNING:
            # The view may be as old as the state.
            self._world.wait_for_view(view, VIEW_WAIT_SECONDS)
            view = self._world.view
        return self._world.step is not None and self._world.step >= view.committed_step

    def _run_other_tasks(self) -> int | None:
        """Run the tasks that change no variable; returns the exit code if the worker must end.

        A worker that was told to end runs none. They return to the master when it has left the others, at the next
        boundary: the others are in the round with it, also while they evaluate. One that the others await in the next
        round enters this first.
        """
        self._shares.take_tasks()
        while self._shares.other_tasks and not self._gate.closed and not self._is_awaited():
            task = self._shares.other_tasks.popleft()
            if task.of_copy:
                self._evaluation.submit(task)
            else:
                # It may load other weights for a while, and callbacks see an evaluation.
                self._kept.forget()
                if (code := self._run_task(task)) is not None:
                    return code
            self._shares.take_tasks()
        return self._evaluation.check()

    def _is_awaited(self) -> bool:
        """Whether the others wait until this worker enters a round, or will do so at once.

        They wait only as long as members have to connect, and a task may take longer.
        """
        view, world = self._world.view, self._world
        if view.is_member and view.phase is not RoundPhase.CLOSING and view.round > world.round:
            return True
        return world.phase is RankPhase.ENDED and time.monotonic() - self._round_ended_at < NEXT_ROUND_SECONDS

    def _leave_if_told(self, view: RoundView) -> None:
        if self._gate.closed and not view.is_member and not self._owes_shard(view):
            self._close_communicator()
            self._on_left()
            raise LeavingError

    def _owes_shard(self, view: RoundView) -> bool:
        """Whether a checkpoint in progress lacks what only this worker has."""
        order = view.checkpoint
        return order is not None and self._checkpoints.has_begun(order.cut)

    def _follow(self, view: RoundView) -> bool:
        """Do what the view asks for; False if there is nothing to do but to wait."""
        world = self._world
        if not view.is_member:
            return self._follow_from_outside(view)
        if view.phase is RoundPhase.CLOSING:
            if world.round < view.round or world.phase is not RankPhase.ENDED:
                self._close_communicator()
                world.follow_closing(view.round)
                self._round_ended_at = time.monotonic()
                return True
            return False
        if view.round > world.round:
            if not view.has_all_addresses:
                return False
            self._enter(view)
            return True
        if view.phase is RoundPhase.RUNNING and world.phase is RankPhase.CONFIRMED:
            self._run_round(view)
            return True
        return False

    def _follow_from_outside(self, view: RoundView) -> bool:
        """Get the steps of the running round, so that this worker has the newest state when it joins."""
        world, may_follow = self._world, view.phase is not RoundPhase.CLOSING and not self._gate.closed
        if not world.is_outside or view.round > world.round:
            self._close_communicator()
            self._shares.drop_all()
            self._evaluation.drop()
            self._kept.forget()
            self._forget_errors()
            # It was decided in a state that is given up. If all had heard of it, the others say so.
            self._forget_stop()
            world.leave_world(view.round, may_follow=may_follow)
            if not self._gate.closed:
                world.request_report()
            return True
        if world.phase is not RankPhase.FOLLOWING or not view.version:
            return False
        if not may_follow:
            world.end_following()
            return True
        if not view.source_address:
            return False
        self._follower.follow(view)
        return True

    # ------------------------------------------------------------------ entering a round

    def _enter(self, view: RoundView) -> None:
        """Connect the ring of a new round, get its first state, and confirm it."""
        self._close_communicator()
        if not view.holders:
            # The steps are made anew.
            self._evaluation.drop()
            self._kept.forget()
            if self._stopped_after is None or view.step < self._stopped_after:
                self._forget_stop()
        self._world.enter_round(view)
        try:
            communicator = self._connection.connect(view.round, self._world.rank, view.addresses)
            self._world.enter_exchange()
            self._digests.compare_ranks(communicator)
            alignment = self._align_callbacks(view, communicator)
            self._share_state(view, communicator, alignment)
            self._world.enter_exchange()
            digest = self._digests.compare_states(communicator, view.step)
            self._kept.start_round(digest)
            self._world.confirm(digest & _DIGEST_MASK, self._digests.difference)
        except RoundBrokenError as error:
            _LOG.warning("%s ended before it started: %s", view.round, error)
            self._end_round()

    def _align_callbacks(self, view: RoundView, communicator: Communicator) -> CallbackAlignment | None:
        """Let the callbacks of the holders stand at the same place; returns what a member that lacks the state does.

        None: nobody has a state, and all begin again.
        """
        if not view.holders:
            self._callbacks.begin_again(view.step, view.round, view.epoch)
            return None
        is_holder = view.members[self._world.rank] in view.holders
        self._world.enter_exchange()
        answers = read_answers(
            communicator.exchange(describe_place(self._callbacks, is_holder=is_holder)),
            read_place,
            "where its callbacks are",
            self._digests.name_rank,
        )
        places = [answer for answer in answers if answer is not None]
        alignment = CallbackAlignment(self._callbacks, places, view.step)
        if is_holder:
            alignment.begin_step()
        return alignment

    def _share_state(self, view: RoundView, communicator: Communicator, alignment: CallbackAlignment | None) -> None:
        """Give the first state to the members that lack it, and to all if their processors differ.

        It is a sum to which one holder adds its state and everybody else zeros: exact to the bit, because the
        bytes are summed as whole numbers.
        """
        lacking = set(view.members) - set(view.holders)
        if not lacking and not self._digests.takes_state:
            return
        source = view.members.index(view.holders[0]) if view.holders else 0
        is_source = self._world.rank == source
        own_shares = b""
        if is_source and view.holders:
            own_shares = json.dumps(self._world.pending_shares()).encode()
        # Callbacks were called before, and may hang.
        self._world.enter_exchange()
        answers = communicator.exchange(json.dumps({"share_bytes": len(own_shares)}).encode())
        source_name = self._digests.name_rank(source)
        # As data: after a time without a master they are longer than a control message may be.
        shares = np.zeros(
            read_answer(answers[source], _read_share_bytes, "the size of its shares", source_name), np.uint8
        )
        if is_source:
            shares[:] = np.frombuffer(own_shares, np.uint8)
        communicator.all_reduce(shares)
        if is_source:
            state = (self._replica.pack_state() if view.holders else self._restart_state(view)).view(np.int32)
        else:
            state = np.zeros_like(self._initial_state.view(np.int32))
        # The source may have read a checkpoint before.
        self._world.enter_exchange()
        communicator.all_reduce(state)
        is_lacking = view.members[self._world.rank] in lacking
        if self._digests.takes_state:
            self._digests.take_state(communicator, state, source, view.step, has_state=not is_lacking)
            if not is_source and self._has_begun_step():
                self._callbacks.forget_old_values()
        if is_lacking:
            if alignment is not None:
                alignment.adopt_state()
            self._replica.unpack_state(state.view(np.uint8))
            pending = None
            if view.holders:
                pending = read_answer(shares.tobytes(), read_pending_shares, "shares of its state", source_name)
            self._world.adopt_state(view.round, view.step, pending)
            if pending is not None and view.step in pending.skipped_steps:
                # Perhaps this rank abandoned the step that others finished and skipped.
                self._end_sums(is_applied=False)

    def _restart_state(self, view: RoundView) -> np.ndarray[Any, Any]:
        """The state of the newest checkpoint, or the initial one; rank 0 may have variables of later steps.

        Raises:
            RoundBrokenError: the checkpoint cannot be read; the master looks for an older one.
            BadInputError: another model has written it.
        """
        if not view.restore_cut:
            return self._initial_state.copy()
        try:
            arrays = self._checkpoints.read(view.restore_cut)
        except StorageError as error:
            self._world.refuse_checkpoint(view.restore_cut, str(error))
            raise RoundBrokenError(None, f"checkpoint {view.restore_cut} cannot be read: {error}") from error
        try:
            self._replica.load_state(arrays)
        except BadInputError as error:
            where = str(self._checkpoints.directory(view.restore_cut))
            raise BadInputError(error.message, where=where, hint=error.hint) from error
        return self._replica.pack_state()

    # ------------------------------------------------------------------ a round

    def _run_round(self, view: RoundView) -> None:
        """Take steps until the world changes or there is no more work.

        All ranks make the same exchanges, in this order:

        1. If nobody had records the last time, a probe. It says whether a step follows.
        2. The sums of a step. Ranks without records add zeros.
        3. After some steps, a digest of the state.

        Before them, each rank does what needs no exchange: its other tasks, and copies of its state for others.
        """
        communicator, world = self._connection.communicator, self._world
        assert communicator is not None
        world.start(view.round)
        self._callbacks.start_round(world.rank)
        self._shares.align(view.leases or {}, view.last_lease)
        self._copies.start_round(view.members)
        if self._batch is not None:
            self._batch.start_round()
        nobody_has_records, self._is_paused = True, False
        try:
            while True:
                began = time.monotonic()
                self._exit_code = self._run_other_tasks()
                if self._shares.is_over or self._exit_code is not None:
                    self._close_communicator()
                    return
                self._shares.forget_committed(world.view.committed_step)
                self._copy_state_for_others()
                cut = self._copies.announce(world.view, is_paused=self._is_paused)
                message = replace(self._prepare(wait=nobody_has_records), copies_cut=cut)
                if nobody_has_records:
                    probe = self._probe(communicator, message)
                    if probe.leaves_round:
                        break
                    if not self._has_step(probe):
                        self._pass_boundary(probe)
                        continue
                    if self._batch is not None:
                        # Only now the rank knows its share.
                        message = replace(self._prepare(wait=False), copies_cut=cut)
                outcome = self._reduce(communicator, message)
                self.step_seconds = time.monotonic() - began
                self._is_paused = outcome.pauses
                nobody_has_records = not self._has_step(outcome)
                if outcome.shares and is_digest_step(world.step):
                    world.enter_exchange()
                    self._digests.check_step(communicator, world.step)
                self._copies.copy_share(outcome.copies_cut)
                if outcome.leaves_round:
                    break
        except RoundBrokenError as error:
            _LOG.info("%s is over: %s", world.round, error)
            self._replica.restore_statistics()
        self._end_round()

    def _copy_state_for_others(self) -> None:
        """Copy the state for checkpoints, evaluations and workers that follow this round, if they wait for it."""
        world = self._world
        if self._is_paused or not self._callbacks.lacks_old_values:
            # The checkpoint may have the next step as well; while all pause there is none.
            self._copies.copy_alone(world.view, is_paused=self._is_paused)
        self._copy_for_evaluation(world.view)
        if not self._has_begun_step():
            # Otherwise a follower would call its callbacks on a state that has their changes already.
            self._feed.serve_waiting(world.round, world.step, self._hold_for_follower, self._callbacks.callback_epoch)

    def _probe(self, communicator: Communicator, message: StepMessage) -> StepOutcome:
        """Ask all ranks whether somebody has records; nothing that is as large as the model is sent."""
        self._world.enter_exchange()
        probe = StepOutcome.from_messages(communicator.exchange(message.encode()), self._digests.name_rank)
        if probe.leaves_round:
            self._replica.restore_statistics()
        else:
            self._note_stop(probe)
        return probe

    def _pass_boundary(self, probe: StepOutcome) -> None:
        """No rank has records: nothing is applied, and what waits for a boundary is done."""
        self._replica.restore_statistics()
        self._is_paused = probe.pauses
        self._world.apply_step((), None, is_paused=probe.pauses)
        self._copies.copy_share(probe.copies_cut)
        self._world.report_steps_soon()

    def _has_step(self, outcome: StepOutcome) -> bool:
        """Whether a step follows, as far as this rank knows; all ranks think the same."""
        if self._batch is None:
            # After a stop, a worker that has just joined may have records.
            return bool(outcome.shares) and not outcome.stops
        self._batch.agree(outcome, self._world.rank, self._world.step)
        return self._batch.size > 0

    def _note_stop(self, outcome: StepOutcome) -> None:
        """A callback of some rank ended training: no step follows on any rank."""
        if outcome.stops and self._stopped_after is None:
            self._stopped_after = self._world.step
            self._world.report_stop(is_stopped=True)

    def _forget_stop(self) -> None:
        """Training goes on from a state of before this rank's callbacks, or those of others, ended it."""
        if self._is_stopped:
            self._stopped_after = None
            self._callbacks.forget_stop()
            self._world.report_stop(is_stopped=False)

    @property
    def _is_stopped(self) -> bool:
        return self._stopped_after is not None or self._callbacks.has_stopped

    def _has_begun_step(self) -> bool:
        """Whether the callbacks were called before the next step: it was abandoned in the round before."""
        begun = self._callbacks.begun_step
        return begun is not None and begun[0] == self._world.step

    def _hold_for_follower(self) -> tuple[bytes, Sequence[np.ndarray[Any, Any]]]:
        """The present state for workers that follow this round."""
        return json.dumps(self._world.pending_shares()).encode(), self._replica.hold_state()

    def _copy_for_evaluation(self, view: RoundView) -> None:
        with self._callbacks.showing_checkpoint() if self._has_begun_step() else nullcontext():
            is_copied = self._evaluation.follow(view.copy_at, view.evaluated_step, self._world.step)
        if is_copied:
            self._world.request_report()

    def _prepare(self, *, wait: bool) -> StepMessage:
        """Compute this rank's addend; waits a moment for records if no rank had any."""
        view = self._world.view
        changes = view.must_change or self._gate.closed
        if self._batch is not None:
            self._shares.take_tasks(IDLE_SECONDS if wait and self._batch.is_idle and not changes else 0.0)
            return self._prepare_share(self._batch, view, changes=changes)
        self._shares.take_tasks()
        lease = self._current_lease(view, nobody_has_records=wait)
        if lease is None and wait and not changes:
            self._shares.take_tasks(IDLE_SECONDS)
            lease = self._current_lease(view, nobody_has_records=wait)
        if lease is None or changes:
            # What is computed after this boundary would be computed in vain.
            pauses = view.pauses_at(self._world.step) or self._is_stopped
            return StepMessage(leaves_round=changes, pauses=pauses, stops=self._is_stopped)
        epoch = lease.task.epoch
        message = self._compute(epoch, (lease.share(),), iter([(lease.task, lease.load())]))
        return replace(message, epoch=epoch, learning_rate=self._learning_rate(view, epoch))

    def _prepare_share(self, batch: BatchPlan, view: RoundView, *, changes: bool) -> StepMessage:
        """Compute this rank's share of the agreed step, and tell what it has for the next one.

        A change of the world or a pause comes after this step: without this share it would be too small.
        """
        next_step = self._world.step + (1 if batch.size else 0)
        next_facts = StepMessage(
            leaves_round=changes,
            pauses=view.pauses_at(next_step) or self._is_stopped,
            stops=self._is_stopped,
            available=self._available_records(batch),
            epoch_left=batch.epoch_left(view.committed_step, view.epoch_left),
            may_be_short=view.may_be_short,
        )
        if not batch.records:
            return next_facts
        epoch = batch.shares.epoch
        shares, loaded = batch.shares.load_share(batch.records, batch.expected_records)
        message = self._compute(epoch, shares, loaded)
        return replace(
            next_facts,
            # Callbacks that are called before the step, as ``on_epoch_end`` is, may have ended training.
            pauses=next_facts.pauses or self._is_stopped,
            stops=self._is_stopped,
            shares=batch.shares.count_skipped(shares),
            has_gradient=message.has_gradient,
            weight=message.weight,
            loss=message.loss,
            common_loss=message.common_loss,
            is_finite=message.is_finite,
            epoch=epoch,
            learning_rate=self._learning_rate(view, epoch),
        )

    def _available_records(self, batch: BatchPlan) -> RankRecords:
        """The records for the next step. A rank that evaluates offers them if the others have too few."""
        available = batch.shares.available(batch.records)
        if self._evaluation.has_copy and not batch.is_idle and not available.is_indivisible:
            return NO_RECORDS
        return available

    def _learning_rate(self, view: RoundView, epoch: int) -> float | None:
        if self._epoch_rate is not None:
            return self._epoch_rate(epoch)
        return self._callbacks.learning_rate if view.learning_rate is None else view.learning_rate

    def _compute(
        self, epoch: int, shares: StepShares, loaded_steps: Iterator[tuple[LeasedTask, LoadedStep]]
    ) -> StepMessage:
        """Compute the sum of the gradients of some minibatches, which together are these shares.

        That of a single one is kept: if the step is abandoned, it is the one of the next round's first step.
        """
        self._callbacks.begin_step(self._world.step, epoch)
        kept = self._kept.find(self._world.step, shares)
        if kept is not None and self._replica.keeps_addend:
            self._replica.write_again()
            return kept
        self._kept.forget()
        count, weight, weighted_loss = 0, 0.0, 0.0
        common_loss: float | None = None
        if self._updates is not None:
            self._updates.begin_step()
        for task, loaded in loaded_steps:
            if loaded.minibatch is None:
                continue
            minibatch, own_name = loaded.minibatch, self._digests.name_rank(self._world.rank)
            with add_worker_name(own_name), add_record_range(task, loaded.step):
                result = self._replica.compute(minibatch.features, minibatch.labels, minibatch.weights, adds=count > 0)
            if not result.is_finite:
                self._report_not_finite(task, loaded.step, result)
                # The others are done as well, so their corrupt records count.
                for _ in loaded_steps:
                    pass
                return StepMessage(shares, is_finite=False)
            if self._updates is not None:
                self._updates.add_minibatch(task, loaded.step)
            count, weight = count + 1, weight + result.weight
            weighted_loss, common_loss = weighted_loss + result.weight * result.loss, result.common_loss
        loss = weighted_loss / weight if weight else 0.0
        message = StepMessage(shares, count > 0, weight, loss, common_loss=common_loss)
        # With a global batch the next round has other shares.
        if count == 1 and self._batch is None and self._replica.keeps_addend:
            self._kept.keep(self._world.step, message)
        return message

    def _report_not_finite(self, task: LeasedTask, step: int, result: UpdateResult) -> None:
        self._nonfinite_count += 1
        report_not_finite(
            task,
            step,
            result.loss,
            self._nonfinite_count,
            skip=self._skip_nan,
            gradient=f"the gradient of '{result.nonfinite_name}'",
            rank=self._world.rank,
        )

    def _current_lease(self, view: RoundView, *, nobody_has_records: bool) -> OpenLease | None:
        """The lease whose records come next; None if there are none now, or if this rank may not train."""
        is_at_limit = self._max_steps is not None and self._world.step >= self._max_steps
        # A rank whose view is older learns of the pause from the others' messages.
        if is_at_limit or view.pauses_at(self._world.step) or self._is_paused or self._is_stopped:
            return None
        lease = self._shares.current()
        if lease is None or lease.task.one_by_one or nobody_has_records:
            return lease
        # The others would wait for a gradient that is computed beside the evaluation.
        return None if self._evaluation.has_copy else lease

    def _reduce(self, communicator: Communicator, message: StepMessage) -> StepOutcome:
        """Reduce one step and apply it."""
        if self._updates is not None:
            message = self._updates.reduce(communicator, message, self._world.step)
        if not message.has_gradient:
            self._replica.clear()
        self._world.enter_exchange()
        messages = self._sums.reduce(
            communicator, message.encode(), self._world.step, has_gradient=message.has_gradient
        )
        outcome = StepOutcome.from_messages(messages, self._digests.name_rank)
        self._feed.add_step(messages, self._replica.buffers if outcome.changes_variables else ())
        self._kept.forget()
        self._apply_sums(outcome)
        self._world.apply_step(outcome.shares, outcome.loss, is_skipped=not outcome.is_finite)
        self._end_sums(is_applied=outcome.changes_variables)
        self._note_stop(outcome)
        if self._batch is not None:
            self._batch.add_step(self._world.step, outcome.shares)
        # A rank has few leases that are not in the ledger, and short ones are finished faster than requests wait.
        finished = [self._shares.mark_applied(share, self._world.step) for share in message.shares]
        if not finished or any(finished):
            self._world.report_steps_soon()
        return outcome

    def _end_sums(self, *, is_applied: bool) -> None:
        """The newest step in this rank's state is made: the next one begins with the rounding errors after it."""
        self._sums.end_step(self._world.step, is_applied=is_applied)
        if self._updates is not None:
            self._updates.end_step(self._world.step, is_applied=is_applied)

    def _forget_errors(self) -> None:
        """The state is given up, and with it the rounding errors that were not sent yet."""
        self._sums.forget_errors()
        if self._updates is not None:
            self._updates.forget_errors()

    def _apply_sums(self, outcome: StepOutcome) -> None:
        """Apply the sums in the replica's buffers: those of this rank's reduction, or of a member that it follows."""
        if not outcome.changes_variables:
            self._replica.restore_statistics()
            if outcome.shares:
                self._callbacks.skip_step(self._world.step, outcome.epoch)
            return
        self._replica.apply(outcome.weight, self._begin_update(outcome))
        self._callbacks.end_step(self._world.step, outcome.epoch, outcome.loss or 0.0, outcome.learning_rate)
        self._loss_log.end_step(self._world.step + 1, outcome.loss)

    def _begin_update(self, outcome: StepOutcome) -> float | None:
        """Call the callbacks, and set the learning rate; returns its factor."""
        # Also on a rank without records, and on a worker that follows.
        self._callbacks.begin_step(self._world.step, outcome.epoch)
        self._set_learning_rate(outcome)
        return self._rate_factor(outcome.gradient_count) if self._rate_factor is not None else None

    def _set_learning_rate(self, outcome: StepOutcome) -> None:
        """Set the rate of this step, which is the same on all ranks; the variable is part of the state."""
        # The rate of the view is the same for all: nobody trained since it changed.
        if self._epoch_rate is not None and outcome.rate_conflict is not None:
            first, second = outcome.rate_conflict
            raise BadInputError(
                f"rank {first} and rank {second} compute different learning rates for the same epoch",
                where="the callback LearningRateScheduler",
                hint="its schedule must return the same rate for the same epoch and last rate in every process",
            )
        if outcome.learning_rate is not None:
            self._replica.set_learning_rate(outcome.learning_rate)

    # ------------------------------------------------------------------ the end of a round

    def _end_round(self) -> None:
        self._close_communicator()
        self._round_ended_at = time.monotonic()
        self._world.end_round()
        if self._kept.lacks_digest:
            # The others wait for the report, which is on its way.
            self._kept.end_round(self._replica.digest())

    def close(self) -> None:
        """Leave the round, if any; the others see a broken connection."""
        self._close_communicator()
        self._feed.close()
        self._evaluation.stop()

    def _close_communicator(self) -> None:
        self._feed.end_round()
        self._connection.close()


def _read_share_bytes(data: bytes) -> int:
    count = decode_json(data)["share_bytes"]
    if not isinstance(count, int) or not 0 <= count <= MAX_SHARES_BYTES:
        raise ValueError(f"{count!r} is not a number of bytes from 0 to {MAX_SHARES_BYTES}")
    return count

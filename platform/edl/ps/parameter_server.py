"""One parameter server: parameters, leases and cuts behind one lock.

The lock makes every request atomic: a push is applied completely or not at all, and a pull copies
the state between two pushes. Live values are copied under the lock and sent after it is released;
pinned copies never change and are read without it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from edl.api.strategy import Strategy
from edl.numerics.array_types import Floats, Ids
from edl.numerics.memory_errors import out_of_memory_error
from edl.numerics.model_declaration import ModelDeclaration
from edl.numerics.parameter_snapshot import RowArrays
from edl.ps import keras_checkpoint
from edl.ps.applied_steps import AdmissionOutcome, AppliedSteps, PushId
from edl.ps.cut_state import CutState
from edl.ps.init_from_rows import InitialRowsReader
from edl.ps.keras_checkpoint import KerasCheckpoint
from edl.ps.messages import AttachResult, MasterAttachment, PsStatistics, SnapshotResult
from edl.ps.model_state import ModelState, StoreFactory
from edl.ps.push_updates import AsyncUpdater, PendingPush, PushUpdater
from edl.ps.shard_restore import CutSnapshot
from edl.ps.shard_writer import SavedShard, ShardWriter
from edl.ps.sync_updates import SyncUpdater
from edl.transport.peer_errors import PeerRefusedError

log = logging.getLogger(__name__)

PUSH_TIMEOUT_SECONDS = 20.0
"""Seconds that a push waits for a cut and its round before it is answered ``busy``.

A bounded wait frees the thread of the connection; the worker sends the push again.
"""
STEP_ARRIVAL_SECONDS = 0.2
"""Maximum seconds for which one snapshot request waits for missing steps.

The master sends requests to a PS one at a time. It repeats this one behind the others, which may
abort the cut or revoke the lease whose step is missing.
"""


class ParameterServer:
    """One parameter server. Thread-safe.

    Args:
        ps_index: index of this PS.
        writer: writes the shards of checkpoints.
        store_factory: creates the parameter store; by default the fastest available one.
        read_initial_rows: returns the rows that the tables of a newly declared model begin with.
        strategy: the job's strategy, which selects asynchronous or synchronous updates.
        push_timeout: seconds that a push waits for its cut and its round together.
        clock: returns monotonic seconds.
    """

    def __init__(
        self,
        ps_index: int,
        writer: ShardWriter,
        *,
        store_factory: StoreFactory | None = None,
        read_initial_rows: InitialRowsReader = lambda declared: {},
        strategy: Strategy | None = None,
        push_timeout: float = PUSH_TIMEOUT_SECONDS,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._ps_index = ps_index
        self._shard_writer = writer
        self._clock = clock
        self._condition = threading.Condition(threading.Lock())
        # Loading a checkpoint may take minutes and does not hold the main lock. This lock keeps two
        # attachments apart meanwhile.
        self._attach_lock = threading.Lock()
        self._applied_steps = AppliedSteps()
        self._cut_state: CutState[CutSnapshot] = CutState()
        self._model_state = ModelState(store_factory, read_initial_rows)
        self._updater = _make_updater(strategy or Strategy(), self._applied_steps, self._model_state, self._cut_state)
        self._push_timeout = push_timeout
        self._paused_pushes = 0
        self._is_closed = False
        self._last_snapshot: SnapshotResult | None = None
        self._last_restore: MasterAttachment | None = None

    # ------------------------------------------------------------ workers

    def declare_model(self, declaration: ModelDeclaration, initial_values: Floats) -> tuple[int, bool]:
        """Create the parameters unless they exist.

        Returns:
            The version, and whether this declaration was the first one.

        Raises:
            PeerRefusedError: kind ``busy`` before a master has attached; ``model`` if this PS holds
                another model or optimizer.
        """
        with self._condition:
            if not self._applied_steps.has_master:
                raise PeerRefusedError("no master has attached to this PS yet", kind="busy")
            first = self._model_state.declare_model(declaration, initial_values)
            if first:
                log.info("holds %d dense values and %d tables", declaration.flat_size, len(declaration.tables))
            return self._model_state.version, first

    def require_declaration(self) -> ModelDeclaration:
        """The current declaration; raises PeerRefusedError (kind ``uninitialized``) if there is none."""
        with self._condition:
            return self._model_state.require_store().declaration

    def pull(self, declaration: ModelDeclaration, out: Floats) -> int:
        """Copy the dense values to ``out``, sized for ``require_declaration``; returns their version."""
        with self._condition:
            self._model_state.require_unchanged_store(declaration).read_flat(out)
            return self._model_state.version

    def pull_rows(self, ids: Mapping[str, Ids]) -> list[Floats]:
        """Rows of each table, all of one version."""
        with self._condition:
            store = self._model_state.require_store()
            return [store.read_rows(table, wanted) for table, wanted in ids.items()]

    def scan_rows(self, table: str, start: int, limit: int) -> RowArrays:
        """Some of the stored rows, without slot variables."""
        with self._condition:
            return self._model_state.require_store().scan_rows(table, start, limit)

    def position_limit(self, table: str) -> int:
        """Exclusive upper bound of row positions."""
        with self._condition:
            return self._model_state.require_store().position_limit(table)

    def pinned_cut(self, cut: int) -> CutSnapshot:
        """The state at a pinned cut; raises PinError if it is not kept."""
        with self._condition:
            return self._cut_state.pinned_copy(cut)

    def push(self, push: PendingPush, out: Floats | None = None) -> tuple[AdmissionOutcome, int]:
        """Apply a push once, or refuse it.

        It may wait for a cut that excludes it, and for the other pushes of its round.
        ``AppliedSteps.decide_push`` decides by lease and step: here for a push that would wait for a
        cut, in the updater for every push.

        Args:
            push: its sizes and ids were checked against ``push.declaration``.
            out: receives the dense values after the push.

        Returns:
            The decision on the push, and the version.

        Raises:
            PeerRefusedError: kind ``busy`` (retry) if the cut or the round did not complete in time or
                the parameters were replaced meanwhile; ``incarnation`` (retry) if the master of the
                lease has not attached yet.
            TableFullError, OutOfMemoryError: nothing was changed, and the step was not admitted.
        """
        deadline = self._clock() + self._push_timeout
        with self._condition:
            # While updates are paused for a cut, every server excludes the steps that are not part
            # of it, so that all copy the same steps.
            if self._must_wait_for_cut(push.push_id):
                self._paused_pushes += 1
                self._condition.notify_all()
                try:
                    if not self._wait_until(lambda: not self._must_wait_for_cut(push.push_id), deadline):
                        raise PeerRefusedError(f"a cut did not complete within {self._push_timeout:g} s", kind="busy")
                finally:
                    self._paused_pushes -= 1

            # A restore may have replaced the model that the gradients were checked against.
            self._model_state.require_unchanged_store(push.declaration)

            # In asynchronous mode the outcome is known when this returns, in synchronous mode when
            # the round closes: by another push, a revoked lease, or the end of a worker. Until then
            # nothing has changed.
            self._updater.offer_push(push)
            self._condition.notify_all()
            self._wait_until(lambda: push.outcome is not None or self._is_closed, deadline)
            if push.outcome is None:
                # No round may contain a push whose connection gets the answer ``busy``.
                reason = self._updater.withdraw_push(push)
                self._condition.notify_all()
                self._check_running()
                raise PeerRefusedError(f"{reason} for {self._push_timeout:g} s", kind="busy")

            admission = push.require_admission()
            if admission is AdmissionOutcome.UNKNOWN_MASTER:
                raise PeerRefusedError(
                    f"the master that granted lease {push.push_id.lease} has not attached yet", kind="incarnation"
                )
            if out is not None:
                # If the push waited, the lock was free: values of another model do not fit into ``out``.
                self._model_state.require_unchanged_store(push.declaration).read_flat(out)
            return admission, self._model_state.version

    def handle_disconnect(self, worker: int, connection: int) -> None:
        """Handle a closed connection of a worker: rounds stop waiting for its pushes."""
        with self._condition:
            self._updater.handle_disconnect(worker, connection)
            self._condition.notify_all()

    # ------------------------------------------------------------ the master

    def attach_master(self, attachment: MasterAttachment) -> AttachResult:
        """Attach a master; with ``restore`` the parameters become those of a checkpoint.

        A repeated attachment, whose answer was lost, does not restore again: that would discard
        updates applied since.

        Raises:
            StaleMasterError: a higher incarnation has attached.
            RetryableError: the incarnation is too far above the last known one.
            CutError: no master can have reached that cut since the last one.
            StorageError: the checkpoint cannot be read; the present parameters stay.
        """
        with self._attach_lock:
            # Check before the checkpoint is loaded, because that takes long. ``attach_master``
            # checks again afterwards.
            with self._condition:
                self._applied_steps.check_may_attach(attachment.incarnation)
                if self._applied_steps.has_master:
                    self._cut_state.check_reachable(attachment.last_finished_cut)
            restored_cut = self._load_restored_cut(attachment)
            with self._condition:
                self._applied_steps.attach_master(
                    attachment.incarnation,
                    attachment.lowest_open_lease,
                    attachment.revoked_leases,
                    attachment.live_leases,
                )
                if restored_cut is not None:
                    self._restore_cut(restored_cut, covers_all_steps=attachment.covers_all_steps)
                    self._last_restore = attachment
                # No PS needs to pause updates for this cut or an earlier one.
                self._cut_state.finish_cut(attachment.last_finished_cut)
                self._reevaluate_pushes()
                return AttachResult(
                    self._model_state.initialized,
                    self._model_state.version,
                    self._applied_steps.steps_by_lease(),
                    tuple(self._cut_state.pinned_cuts()),
                )

    def record_incarnation(self, incarnation: int) -> None:
        """Record the incarnation of the master that accepted this server's registration."""
        with self._condition:
            self._applied_steps.record_incarnation(incarnation)

    def revoke_leases(
        self, incarnation: int, leases: Sequence[int], lowest_open_lease: int
    ) -> tuple[Mapping[int, int], Mapping[int, int]]:
        """Close leases; returns the applied steps of each, and its first step (``AppliedSteps.first_steps``)."""
        with self._condition:
            self._applied_steps.check_master(incarnation)
            # Read before the leases are closed, which may forget them.
            first_steps = self._applied_steps.first_steps(leases)
            steps_by_lease = self._applied_steps.revoke_leases(leases, lowest_open_lease)
            self._reevaluate_pushes()
            return steps_by_lease, first_steps

    def prepare_cut(self, incarnation: int) -> None:
        """Allocate memory for a cut while pushes continue."""
        with self._condition:
            self._applied_steps.check_master(incarnation)
        self._model_state.preallocate_copy()

    def pause_pushes(self, incarnation: int, cut: int) -> Mapping[int, int]:
        """Pause steps until the cut is taken, aborted or timed out.

        Returns:
            The applied steps of each lease with a push since this server started or rolled back.

        Raises:
            RefusedError: the master is stale, or the cut is finished.
        """
        with self._condition:
            self._applied_steps.check_master(incarnation)
            self._cut_state.pause_pushes(cut, self._clock())
            self._reevaluate_pushes()
            return self._applied_steps.steps_of_pushed_leases()

    def take_snapshot(
        self,
        incarnation: int,
        cut: int,
        checkpoint: Path | None,
        *,
        pin: bool,
        lowest_open_lease: int = 0,
        included_steps: Mapping[int, int] | None = None,
        keep_paused: bool = False,
    ) -> SnapshotResult | None:
        """Copy the state, resume waiting pushes, and start writing the copy if it is a checkpoint.

        A repeated request for a cut, whose answer was lost, gets the same answer.

        Args:
            incarnation: incarnation of the master.
            cut: number of the cut.
            checkpoint: the directory that the copy is written to; None: the copy is not written.
            pin: keep the copy for evaluations and the export.
            lowest_open_lease: every lease below this number is closed.
            included_steps: by live lease, the number of steps in the cut: some PS has applied them.
            keep_paused: admit no further push before the cut is released, because this PS or another
                one is about to exit.

        Returns:
            None if a step of the cut has not arrived yet; the master asks again.

        Raises:
            RefusedError: the master is stale, nothing is declared, or the cut is finished.
        """
        steps = included_steps or {}
        with self._condition:
            self._applied_steps.check_master(incarnation)
            if not self._has_copied(cut):
                self._cut_state.check_open(cut)
                self._applied_steps.close_leases_below(lowest_open_lease)
                if not self._wait_for_steps(cut, steps, STEP_ARRIVAL_SECONDS) and self._cut_state.is_open(cut):
                    return None
                # The wait released the lock: another master may have attached, or a repeated request
                # may have made the copy.
                self._applied_steps.check_master(incarnation)
            if not self._has_copied(cut):
                self._last_snapshot = self._copy_state(cut, checkpoint, steps, pin=pin, keep_paused=keep_paused)
            self._reevaluate_pushes()
            return self._last_snapshot

    def release_cut(self, incarnation: int, cut: int) -> None:
        """Abort a cut or end its pause: resume waiting pushes."""
        with self._condition:
            self._applied_steps.check_master(incarnation)
            self._cut_state.check_reachable(cut)
            pinned_copy = self._cut_state.release_cut(cut)
            self._reevaluate_pushes()
        _release_copy(pinned_copy)

    def unpin_cut(self, incarnation: int, cut: int) -> None:
        """Drop the copy of a pinned cut."""
        with self._condition:
            self._applied_steps.check_master(incarnation)
            pinned_copy = self._cut_state.unpin_cut(cut)
        _release_copy(pinned_copy)

    def wait_until_saved(self, incarnation: int, cut: int, timeout: float) -> SavedShard:
        """Wait until the shard of a cut is on disk; see :meth:`edl.ps.shard_writer.ShardWriter.wait_until_saved`."""
        with self._condition:
            self._applied_steps.check_master(incarnation)
        # Not under the lock: writing takes minutes, and training continues.
        return self._shard_writer.wait_until_saved(cut, timeout)

    def collect_statistics(self) -> PsStatistics:
        """Statistics for users; costs no more than a small pull."""
        with self._condition:
            model_state, updater = self._model_state, self._updater
            return PsStatistics(model_state.version, updater.push_counts, updater.pending_round, model_state.tables)

    def close(self) -> None:
        """Answer waiting pushes before the process exits."""
        with self._condition:
            if not self._is_closed:
                self._is_closed = True
                self._condition.notify_all()
                log.info("%s", self._updater.summary())

    # ------------------------------------------------------------ under the lock

    def _must_wait_for_cut(self, push_id: PushId) -> bool:
        """Whether the push must wait for a cut. A repeated or revoked push changes nothing and need not wait."""
        self._check_running()
        return (
            self._cut_state.must_wait(*push_id)
            and self._applied_steps.decide_push(*push_id) is AdmissionOutcome.ADMITTED
        )

    def _wait_until(self, is_over: Callable[[], bool], deadline: float) -> bool:
        """Release the lock and wait for a condition; False on timeout.

        A pause that takes too long is ended meanwhile: its master may be gone, and nobody else would
        end it.
        """
        while not is_over():
            now = self._clock()
            if self._cut_state.expire_pause(now):
                self._reevaluate_pushes()
            elif now >= deadline:
                return False
            else:
                self._condition.wait(min(deadline, self._cut_state.pause_deadline) - now)
        return True

    def _wait_for_steps(self, cut: int, included_steps: Mapping[int, int], timeout: float) -> bool:
        """Admit the steps below ``included_steps`` of each lease; returns whether all arrived in time.

        Raises:
            PeerRefusedError: kind ``busy``: the process is shutting down.
        """
        self._cut_state.include_steps(cut, included_steps)
        self._reevaluate_pushes()
        if not self._applied_steps.has_reached(included_steps):
            self._condition.wait_for(
                lambda: self._applied_steps.has_reached(included_steps) or self._is_closed, timeout
            )
        self._check_running()
        if self._cut_state.expire_pause(self._clock()):
            self._reevaluate_pushes()
        return self._applied_steps.has_reached(included_steps)

    def _reevaluate_pushes(self) -> None:
        """Decide waiting pushes again after a change of leases or cuts, and wake their threads."""
        self._updater.reevaluate()
        self._condition.notify_all()

    def _check_running(self) -> None:
        if self._is_closed:
            raise PeerRefusedError("this PS is shutting down", kind="busy")

    def _has_copied(self, cut: int) -> bool:
        return self._last_snapshot is not None and self._last_snapshot.cut == cut

    def _copy_state(
        self,
        cut: int,
        checkpoint: Path | None,
        included_steps: Mapping[int, int],
        *,
        pin: bool,
        keep_paused: bool = False,
    ) -> SnapshotResult:
        self._cut_state.check_open(cut)
        # A copy with further steps would differ from those of the other PS.
        if excess_steps := self._applied_steps.steps_beyond(included_steps):
            raise PeerRefusedError(
                f"leases have {excess_steps} applied steps; cut {cut} contains {dict(included_steps)}", kind="cut"
            )
        started_at = self._clock()
        paused_seconds = self._cut_state.paused_seconds(started_at)
        cut_snapshot = self._model_state.copy_at_cut(cut, self._applied_steps)
        result = SnapshotResult(
            cut, cut_snapshot.version, paused_seconds + self._clock() - started_at, self._applied_steps.admitted_count
        )
        # The pin and the writer hold references of their own; this one ends here.
        with cut_snapshot.snapshot:
            self._cut_state.record_copy(cut, cut_snapshot, pin=pin, keep_paused=keep_paused)
            if pin:
                cut_snapshot.snapshot.retain()
            if checkpoint is not None:
                self._shard_writer.start_writing(checkpoint, cut_snapshot)
        return result

    def _load_restored_cut(self, attachment: MasterAttachment) -> CutSnapshot | KerasCheckpoint | None:
        """Read what an attachment restores, without blocking pushes."""
        if attachment.restore_directory is None or attachment.is_same_restore(self._last_restore):
            return None
        try:
            return keras_checkpoint.load_checkpoint(
                attachment.restore_directory, self._ps_index, attachment.slot_owners
            )
        except MemoryError as error:
            raise out_of_memory_error(f"its part of the checkpoint {attachment.restore_directory}") from error

    def _restore_cut(self, restored_cut: CutSnapshot | KerasCheckpoint, *, covers_all_steps: bool) -> None:
        # Gradients that wait for a round belong to the old parameters.
        self._updater.reject_pending()
        self._model_state.restore_cut(restored_cut)
        self._applied_steps.restore_steps(restored_cut.applied_steps, covers_all_steps=covers_all_steps)
        self._cut_state.finish_cut(restored_cut.cut_number)
        log.info("restored cut %d at version %d", restored_cut.cut_number, restored_cut.version)


def _make_updater(
    strategy: Strategy, applied_steps: AppliedSteps, model_state: ModelState, cut_state: CutState[CutSnapshot]
) -> PushUpdater:
    if strategy.mode == "sync":
        return SyncUpdater(
            applied_steps, model_state, strategy.grads_to_wait, strategy.version_tolerance, lambda: cut_state.is_paused
        )
    return AsyncUpdater(applied_steps, model_state, staleness_aware=strategy.staleness_aware)


def _release_copy(pinned_copy: CutSnapshot | None) -> None:
    """Free a copy without holding the lock, because that takes a while."""
    if pinned_copy is not None:
        pinned_copy.snapshot.release()

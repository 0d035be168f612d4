"""The training loop of strategy Local: the records in the order in which a distributed job leases them.

Every window of records is one step, also if it is skipped. The position in the data is a training ledger, as the master
of a distributed job keeps it, of which a single worker leases one range after the other. Checkpoints contain it, so
runs of strategy AllReduce continue from them, and this strategy from those of AllReduce.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from edl.api.errors import BadInputError
from edl.api.job_spec import JobSpec, TrainSpec
from edl.api.run_events import (
    CallbackDecided,
    CheckpointSaved,
    EvaluationEnded,
    EvaluationStarted,
    ModelExported,
    WarningRaised,
)
from edl.core.cuts import STOPPED, WORLD_STEP_KEY
from edl.core.evaluation import merge_metric_states
from edl.core.ledger import Ledger, shuffled_ledger
from edl.core.record_ranges import RecordSource, ShardPlan
from edl.core.shuffle import ShuffleOrder, training_size_error
from edl.data.file_digests import FileCheck, digest_sources
from edl.data.reader import Reader
from edl.data.reader_factory import choose_reader_window, describe_order
from edl.data.shuffled_reader import PositionReader, read_by_position
from edl.jobfile.batch_rules import lease_records
from edl.keras import model_export
from edl.keras.replica_choice import OnlyReplica
from edl.keras.user_callbacks import KerasCallbacks, NoCallbacks
from edl.storage import checkpoint_manifest, checkpoint_shards
from edl.storage.checkpoint_manifest import DATASET_KEY, CheckpointManifest, list_cuts
from edl.storage.run_directory import RunDirectory
from edl.worker.data_wait import measure_wait
from edl.worker.feed_pipeline import FeedFunction, feed_in_background
from edl.worker.lease_client import LeasedTask, PositionDescriber
from edl.worker.local_strategy.local_report import LocalReport
from edl.worker.local_strategy.stop_request import StoppedError, StopRequest
from edl.worker.loss_log import LossLog
from edl.worker.not_finite import report_not_finite
from edl.worker.record_stream import CorruptRecordSkipper, RecordWindow
from edl.worker.trainer import add_record_range
from edl.worker.training_setup import KERAS_FILE, SAVED_MODEL_DIRECTORY, export_directory

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """One step: its records and epoch."""

    epoch: int
    task: LeasedTask
    step: int


_WORKER = "local"
"""Holds the leases of the ledger. It continues the shard that it has begun."""


def make_ledger(train: TrainSpec, sources: Sequence[RecordSource], order: ShuffleOrder | None) -> Ledger:
    """The training ledger of a distributed job, with nothing done.

    Args:
        train: the job's section ``train``.
        sources: the sources of the training records.
        order: the shuffled order, whose positions are leased; None: ranges of the sources.
    """
    leased = lease_records(train)
    if order is not None:
        return shuffled_ledger(order, train.epochs, train.minibatch_size, leased)
    return Ledger(ShardPlan(tuple(sources), leased, train.seed), train.epochs, train.minibatch_size)


def steps(ledger: Ledger, window: int = 0, named: PositionDescriber | None = None) -> Iterator[PlannedStep]:
    """Generate the steps that are left of a ledger, which changes with them.

    Args:
        ledger: the training ledger, without leases.
        window: the window of the shuffled order; 0: records are not shuffled.
        named: returns the records at positions, for messages.
    """
    number, work = 0, ledger.next_range(worker=_WORKER)
    while work is not None:
        number += 1
        ledger.grant_range(number, work, _WORKER)
        # Only the holder of a lease continues its shard.
        if number > 1:
            ledger.finish_lease(number - 1)
        task = LeasedTask(
            number,
            "training",
            work.source,
            work.start,
            work.end,
            ledger.minibatch,
            work.epoch,
            shuffle_window=window,
            position_describer=named,
        )
        for step in range(task.step_count):
            yield PlannedStep(work.epoch, task, step)
        work = ledger.next_range(worker=_WORKER)


def ledger_position(ledger: Ledger, last: PlannedStep | None) -> dict[str, Any]:
    """The snapshot of a ledger of which ``steps`` has yielded ``last``, which is done."""
    return _continue_begun(ledger.snapshot_at_cut({} if last is None else {last.task.lease_id: last.step + 1}))


def _continue_begun(snapshot: Mapping[str, Any]) -> dict[str, Any]:
    """A snapshot whose begun shards come next: nobody holds a lease of them."""
    continued = {name: value for name, value in snapshot.items() if name != "begun"}
    return {**continued, "returned": [*snapshot["returned"], *snapshot.get("begun", ())]}


class LocalTraining:
    """Trains, evaluates, writes checkpoints and exports the model.

    Args:
        spec: the job.
        run: the run directory.
        model: the only rank's model with its optimizers and metrics.
        readers: returns the reader of ``training`` or ``validation``.
        feeders: returns the feed function of a mode.
        report: writes events, status and summary.
        watcher: runs the user's callbacks.
        stop: says whether the user stops the run.
    """

    def __init__(
        self,
        spec: JobSpec,
        run: RunDirectory,
        model: OnlyReplica,
        readers: Callable[[str], Reader],
        feeders: Callable[[str], FeedFunction],
        report: LocalReport,
        watcher: NoCallbacks | KerasCallbacks,
        stop: StopRequest,
    ) -> None:
        self._spec = spec
        self._run = run
        self._model = model
        self._readers = readers
        self._feeders = feeders
        self._report = report
        self._watcher = watcher
        self._loss_log = LossLog(spec.log.loss_every_steps)
        self._stop = stop
        self._corrupt = CorruptRecordSkipper(spec.data.max_corrupt_records)
        self._step = 0
        self._done = 0
        self._skipped = 0
        self._not_trained = 0
        """Done records of minibatches that were not full, with ``train.batches.drop_remainder``."""
        self._not_finite = 0
        self._passed_over = self._dropped = 0
        """Records since the last trained minibatch, and how many of them ``feed`` dropped."""
        self._epoch_records = 0
        self._saved = 0
        self._cut_offset = 0
        """Numbers of checkpoints are steps, plus this: those of another strategy may be higher."""
        self._position: Mapping[str, Any] | None = None
        """The ledger of the checkpoint from which the run was resumed."""
        self._ledger: Ledger | None = None
        """The ledger of the steps that are trained; the feeding thread has one of its own."""
        self._last: PlannedStep | None = None
        self._dataset: Mapping[str, Any] = {}
        self._resumed_digests: Mapping[str, str] = {}
        """Of the files with which the resumed run was trained."""
        self._quarantined = 0
        """Records that made workers crash under strategy AllReduce: they are not trained."""
        self._evaluated = -1
        self._evaluation_due = False
        """Whether the resumed run was stopped after a step and before the evaluation that follows it."""
        self._all = 0
        self._stopped = False
        self._windows: dict[int, tuple[int, int]] = {}
        self.export_loading: str | None = None
        """Python code that loads the exported model, if Keras alone does not."""
        self._window: int | None = None
        self._shuffled: PositionReader | None = None

    @property
    def skipped(self) -> int:
        """Corrupt records that were skipped."""
        return self._skipped

    @property
    def why_over(self) -> str:
        """Why training ended, in the words of a distributed job."""
        if self._stopped:
            return self._watcher.stop_reason or "a callback stopped training"
        if self._done + self._quarantined < self._all:
            return f"max_steps is reached: {self._step} steps are done"
        return "all records are done"

    def resume(self) -> None:
        """Resume from the newest checkpoint, if there is one."""
        manifest = checkpoint_manifest.newest_intact_checkpoint(self._run.checkpoints, _tell_skipped)
        if manifest is None or manifest.directory is None:
            return
        arrays: dict[str, Any] = {}
        for shard in manifest.shards:
            arrays |= checkpoint_shards.read_shard(manifest.directory / shard.file)[0]
        # Weights that callbacks keep are no variables of the model.
        best_values = {name: array for name, array in arrays.items() if name.startswith("best/")}
        ledger, by_ranks = manifest.ledger, WORLD_STEP_KEY in manifest.ledger
        self._model.load_state(
            {name: array for name, array in arrays.items() if name not in best_values}, by_ranks=by_ranks
        )
        self._watcher.restore(ledger.get("callbacks", {}), best_values)
        self._resume_position(manifest)
        # Older checkpoints lack "evaluated" and "window": they count as evaluated and not shuffled.
        evaluated, every = ledger.get("evaluated", self._step), self._spec.train.evaluation_steps
        self._evaluation_due = every is not None and self._step % every == 0 and evaluated < self._step
        order = (ledger.get(DATASET_KEY) or {}).get("order") if by_ranks else None
        self._window = order["window"] if order else ledger.get("window", 0)
        self._report.event(
            WarningRaised(f"continuing from checkpoint {manifest.cut}, at step {self._step:,}", time=time.time())
        )

    def _resume_position(self, manifest: CheckpointManifest) -> None:
        """Take over steps and ledger of a checkpoint; older ones of this strategy have the number of steps only."""
        ledger = manifest.ledger
        self._resumed_digests = (ledger.get(DATASET_KEY) or {}).get("digests") or {}
        if "returned" in ledger:
            self._position = _continue_begun(ledger)
            self._step, self._done = ledger["done_steps"], ledger["done_records"]
            self._quarantined = sum(end - start for _, _, start, end in ledger["quarantined"])
        else:
            self._step, self._done = manifest.version, ledger["records_done"]
        self._saved, self._skipped = self._step, ledger.get("records_skipped", 0)
        self._not_finite = ledger.get("updates_skipped", 0)
        self._not_trained = ledger.get("records_not_trained", 0)
        if WORLD_STEP_KEY in ledger:
            self._cut_offset = max(0, list_cuts(self._run.checkpoints)[-1] + 1 - self._step)
        else:
            self._cut_offset = manifest.cut - self._step

    def run(self) -> str | None:
        """Train, evaluate, write the last checkpoint and export; returns the export's directory.

        Raises:
            StoppedError: the user stops the run; if it writes checkpoints, one contains all steps so far.
            BadInputError: an epoch has fewer records than a minibatch, or ``feed`` drops all records of an epoch.
        """
        reader = self._readers("training")
        sources = [RecordSource(s.name, s.records) for s in reader.sources()]
        epochs, records = self._spec.train.epochs, sum(source.records for source in sources)
        if not self._step and (why := training_size_error(self._spec.train.minibatch_size, records, epochs)):
            raise BadInputError(why)
        self._choose_order(reader, records)
        self._dataset = self._describe_dataset(sources)
        self._check_files()
        self._epoch_records = records
        total = self._all = epochs * records
        if (limit := self._spec.train.max_steps) is not None:
            total = min(total, limit * self._spec.train.minibatch_size)
        # A resumed run with fewer steps or epochs may already have done more.
        total = max(total, self._done)
        self._report.changed(
            now=True,
            phase="Training",
            records_total=total,
            records_done=self._done,
            epochs=epochs,
            updates_skipped=self._not_finite,
            records_not_trained=self._not_trained,
        )
        # Without checkpoints there is nothing to write first, and a signal ends the run at once.
        with self._stop.deferred() if self._spec.checkpoint is not None else nullcontext():
            self._train(sources)
            self._refuse_untrained(self._done)
            if self._model.finalize():
                # The weights changed: evaluate and save them again although no step was added.
                self._saved = self._evaluated = -1
            self._watcher.end_training()
            self._evaluate(final=True)
            restored = self._watcher.end_monitors()
            if restored is not None:
                self._report.changed(metrics=restored)
                # The best weights were restored; the last checkpoint must contain what is exported.
                self._saved = -1
            self._save()
            self._leave_if_stopped()
        return self._export()

    def _leave_if_stopped(self) -> None:
        if self._stop.wanted is not None:
            self._save()
            reason = f"{STOPPED}: checkpoint {self._saved + self._cut_offset} contains all {self._step:,} steps"
            raise StoppedError(self._stop.wanted, reason)

    def _choose_order(self, reader: Reader, records: int) -> None:
        """Shuffle the records as the master of a distributed job does; a resumed run keeps its window."""
        train = self._spec.train
        if self._window is None:
            portion = train.minibatch_size * train.minibatches_per_task
            self._window = choose_reader_window(reader, train.shuffle.window, records, portion)
        if self._window:
            bucket_by = train.batches.bucket_by
            order = describe_order(reader, self._window, train.seed, 0 if bucket_by is None else lease_records(train))
            self._shuffled = read_by_position(reader, order, bucket_by=bucket_by, minibatch=train.minibatch_size)

    def _describe_dataset(self, sources: Sequence[RecordSource]) -> dict[str, Any]:
        """The data set as a master describes it in its journal."""
        validation = self._readers("validation").sources() if self._spec.data.validation else ()
        rows = [[source.name, source.records] for source in sources if source.records]
        order = {} if self._shuffled is None else {"order": self._shuffled.order.to_json()}
        used = ("training", "validation") if self._spec.data.validation else ("training",)
        digests = {name: digest for name in used if (digest := digest_sources(self._readers(name)))}
        return {
            "training": rows,
            "validation": [[each.name, each.records] for each in validation],
            **order,
            **({"digests": digests} if digests else {}),
        }

    def _check_files(self) -> None:
        """Refuse other files than those of the checkpoint; older checkpoints do not know theirs."""
        for name, expected in self._resumed_digests.items():
            if expected != self._dataset.get("digests", {}).get(name):
                FileCheck(partial(self._readers, name)).check(expected)

    def _remaining_ledger(self, sources: Sequence[RecordSource]) -> Ledger:
        """The ledger at which training begins, or goes on."""
        ledger = make_ledger(self._spec.train, sources, None if self._shuffled is None else self._shuffled.order)
        if self._position is not None:
            ledger.restore_snapshot(self._position)
        elif self._step:
            # An older checkpoint has the number of steps only.
            last = next(islice(steps(ledger), self._step - 1, None), None)
            ledger.restore_snapshot(ledger_position(ledger, last))
        return ledger

    def _train(self, sources: list[RecordSource]) -> None:
        train, every = self._spec.train, self._spec.checkpoint
        left = None if train.max_steps is None else max(0, train.max_steps - self._step)

        def rest(ledger: Ledger) -> Iterator[PlannedStep]:
            named = None if self._shuffled is None else self._shuffled.describe_positions
            return islice(steps(ledger, self._window or 0, named), left)

        self._ledger = self._remaining_ledger(sources)
        before = bool(getattr(self._model.model, "stop_training", False))
        # Callbacks must see the same evaluations as in a run that was not interrupted.
        if self._evaluation_due and not before:
            self._watcher.begin_training()
            self._evaluate(final=False)
        # A callback stopped training before the checkpoint, or at the evaluation above.
        if getattr(self._model.model, "stop_training", False):
            self._stopped = True
            return
        # Three ledgers with the same steps: the feeding thread is ahead of training, and an epoch ends with its last
        # step, not with the first one of the next epoch.
        following = (each.epoch for each in rest(self._remaining_ledger(sources)))
        next(following, None)
        ahead = feed_in_background(self._feeders("training"), self._read(rest(self._remaining_ledger(sources))))
        for plan, minibatch in zip(rest(self._ledger), measure_wait(ahead, self._report.warn), strict=True):
            self._watcher.begin_epoch(plan.epoch)
            self._train_step(plan, minibatch)
            self._leave_if_stopped()
            if train.evaluation_steps and self._step % train.evaluation_steps == 0:
                self._evaluate(final=False)
            # As in fit: after the evaluation, and before another step or the averages of use_ema.
            if next(following, None) != plan.epoch or getattr(self._model.model, "stop_training", False):
                self._watcher.end_epoch()
            # After both: the checkpoint contains the state that callbacks got from them.
            if every is not None and self._step % every.every_steps == 0:
                self._save()
            if getattr(self._model.model, "stop_training", False):
                self._stopped = True
                break

    def _read(self, planned: Iterator[PlannedStep]) -> Iterator[tuple[int, RecordWindow]]:
        """Read the windows of the planned steps. Runs on the feeding thread, ahead of training."""
        reader = self._readers("training")
        for tag, plan in enumerate(planned, self._step):
            start, end = plan.task.step_range(plan.step)
            if self._spec.train.batches.drop_remainder and plan.task.is_remainder(plan.step):
                window = RecordWindow(())
            elif self._shuffled is not None:
                window = self._corrupt.read_shuffled(self._shuffled, plan.epoch, start, end)
            else:
                window = self._corrupt.read(reader, plan.task.source, start, end)
            self._windows[tag] = (end - start, window.skipped_records)
            yield tag, window

    def _train_step(self, plan: PlannedStep, minibatch: Any) -> None:
        loss = None
        if minibatch.features is not None:
            self._watcher.begin_step(self._step)
            with add_record_range(plan.task, plan.step):
                result = self._model.take_step(minibatch.features, minibatch.labels, minibatch.weights)
            if result.is_finite:
                loss = result.loss
                self._watcher.end_step(self._step, loss)
                self._loss_log.end_step(self._step + 1, loss)
            else:
                self._not_finite += 1
                report_not_finite(
                    plan.task,
                    plan.step,
                    result.loss,
                    self._not_finite,
                    skip=self._spec.train.on_nan == "skip",
                    gradient=f"the gradient of '{result.nonfinite_name}'",
                )
        records, skipped = self._windows.pop(self._step)
        skipped += minibatch.skipped_images
        self._last = plan
        self._step += 1
        self._done += records
        self._skipped += skipped
        if self._spec.train.batches.drop_remainder and plan.task.is_remainder(plan.step):
            self._not_trained += records
        self._passed_over, self._dropped = (
            (self._passed_over + records, self._dropped + records - skipped) if minibatch.features is None else (0, 0)
        )
        self._refuse_untrained(self._epoch_records)
        self._report.changed(
            step=self._step,
            records_done=self._done,
            epoch=plan.epoch + 1,
            updates_skipped=self._not_finite,
            records_not_trained=self._not_trained,
            loss=self._report.status.loss if loss is None else loss,
        )

    def _refuse_untrained(self, records: int) -> None:
        """Raise if ``feed`` dropped all of the last ``records`` records.

        Otherwise the run would succeed and export an untrained model.
        """
        if self._dropped and self._passed_over >= records:
            raise BadInputError(
                f"feed dropped all of {self._dropped:,} records: nothing is left to train on",
                where=f"{self._spec.model.definition}, feed()",
                hint="check the condition by which feed filters records",
            )

    def _evaluate(self, *, final: bool) -> None:
        if not self._spec.data.validation or self._evaluated == self._step:
            return
        self._report.event(EvaluationStarted(self._step, time=time.time()))
        if final:
            self._report.changed(now=True, phase="Evaluating")
        self._watcher.begin_test()
        self._model.reset_metrics()
        for minibatch in feed_in_background(self._feeders("evaluation"), self._validation()):
            if minibatch.features is not None:
                self._model.evaluate(minibatch.features, minibatch.labels, minibatch.weights)
            self._leave_if_stopped()
        self._watcher.end_test()
        self._evaluated = self._step
        # As in a distributed job, where the master receives and merges them.
        states = json.loads(json.dumps(self._model.metric_states()))
        values = self._model.metric_values(merge_metric_states({}, states))
        self._report.event(EvaluationEnded(self._step, values, time=time.time()))
        self._report.changed(metrics=values)
        for callback, decision in self._watcher.run_monitors(self._step, values):
            self._report.event(CallbackDecided(self._step, callback, decision, time=time.time()))

    def _validation(self) -> Iterator[tuple[int, RecordWindow]]:
        reader, size = self._readers("validation"), self._spec.train.minibatch_size
        for source in reader.sources():
            for start in range(0, source.records, size):
                window = self._corrupt.read(reader, source.name, start, min(source.records, start + size))
                yield start, window

    def _save(self) -> None:
        if self._spec.checkpoint is None or self._saved == self._step:
            return
        began = time.perf_counter()
        assert self._ledger is not None
        cut = self._step + self._cut_offset
        directory = checkpoint_manifest.cut_directory(self._run.checkpoints, cut)
        shard = checkpoint_shards.write_shard(directory, 0, self._model.state_arrays() | self._watcher.weight_arrays())
        ledger = {
            **ledger_position(self._ledger, self._last),
            DATASET_KEY: self._dataset,
            "records_done": self._done,
            "records_skipped": self._skipped,
            "updates_skipped": self._not_finite,
            "records_not_trained": self._not_trained,
            "window": self._window,
            "evaluated": self._evaluated,
            "callbacks": self._watcher.state(),
        }
        created = datetime.now(UTC).isoformat(timespec="seconds")
        checkpoint_manifest.commit_checkpoint(directory, CheckpointManifest(cut, self._step, created, (shard,), ledger))
        checkpoint_manifest.prune_checkpoints(self._run.checkpoints, self._spec.checkpoint.keep)
        self._saved = self._step
        pause = time.perf_counter() - began
        self._report.event(CheckpointSaved(cut, self._step, pause, time=time.time()))

    def _export(self) -> str | None:
        if self._spec.export is None:
            return None
        self._report.changed(now=True, phase="Exporting")
        directory: Path = export_directory(self._spec.export.path, self._run.path)
        flat = self._model.variables.read_values()
        written = model_export.export_model(
            self._model.exportable(), flat, {}, directory / KERAS_FILE, directory / SAVED_MODEL_DIRECTORY
        )
        self.export_loading = written["loading"] or None
        self._report.event(ModelExported(str(directory), self.export_loading, time=time.time()))
        return str(directory)


def _tell_skipped(skipped: checkpoint_manifest.SkippedCheckpoint) -> None:
    _LOG.warning("checkpoint %s cannot be used: %s", skipped.cut, skipped.reason)

"""Evaluation, metrics, export and files of the model, by one worker of strategy AllReduce."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from edl.keras import model_export
from edl.keras.all_reduce_callbacks import NO_CALLBACKS, SharedCallbacks
from edl.keras.evaluated_copy import CopiedValues
from edl.keras.model_checkpoint_callback import model_file_path
from edl.keras.replica_choice import AnyReplica
from edl.worker.allreduce.checkpoint_writer import Arrays
from edl.worker.lease_client import LeasedTask
from edl.worker.runtime import WorkerRuntime
from edl.worker.trainer import add_record_range
from edl.worker.training_setup import (
    KERAS_FILE,
    SAVED_MODEL_DIRECTORY,
    best_model_path,
    export_directory,
    place_model_file,
)

_LOG = logging.getLogger(__name__)


class ReplicaEvaluator:
    """Runs evaluation, metrics and export tasks with this worker's variables, or evaluates a copy of them.

    Args:
        runtime: the worker's.
        replica: the model.
        callbacks: the user's callbacks.
        read_checkpoint: returns the arrays of a checkpoint of this run.
    """

    def __init__(
        self,
        runtime: WorkerRuntime,
        replica: AnyReplica,
        callbacks: SharedCallbacks,
        read_checkpoint: Callable[[int], Arrays],
    ) -> None:
        self._runtime = runtime
        self._replica = replica
        self._callbacks = callbacks.own
        self._end_training = replica.finalize if callbacks.own is NO_CALLBACKS else callbacks.own.end_training
        self._epoch_loss = callbacks.epoch_loss
        self._read_checkpoint = read_checkpoint
        self._copies = replica.make_copy_evaluator()
        # The metrics are those of one evaluation. One of a copy may be given up while it is in a minibatch.
        self._metrics_lock = threading.Lock()

    def run(self, task: LeasedTask) -> None:
        """Evaluate every record of the range with the present variables, which do not change meanwhile."""
        self._callbacks.begin_test()
        with self._metrics_lock, self._final_weights():
            self._evaluate_range(task, self._replica.evaluate, lambda: True)
        self._callbacks.end_test()

    def check_copies(self) -> None:
        """Check that this model can be evaluated with copied values: later, an evaluation would end the job.

        Raises:
            EdlError: it cannot.
        """
        first = self._runtime.first_minibatch()
        if first is not None:
            task, minibatch = first
            with add_record_range(task, 0):
                self._copies.check(minibatch.features)

    def run_on_copy(self, task: LeasedTask, find_copy: Callable[[int], CopiedValues | None]) -> None:
        """Evaluate every record of the range with the copy of the task's step.

        Args:
            find_copy: returns the copy of a step; None: this worker has it no more.
        """
        values = find_copy(task.step)
        if values is None:
            self._drop(task)
            return
        with self._metrics_lock:
            self._evaluate_range(task, partial(self._copies.evaluate, values), lambda: find_copy(task.step) is values)

    def _evaluate_range(self, task: LeasedTask, evaluate: Callable[..., None], is_wanted: Callable[[], bool]) -> None:
        """Evaluate every record of the range and report the metric states."""
        runtime, replica = self._runtime, self._replica
        replica.reset_metrics()
        for loaded in runtime.streams["evaluation"].load_steps(task):
            if runtime.gate.closed or not runtime.leases.is_held(task.lease_id) or not is_wanted():
                self._drop(task)
                return
            if loaded.minibatch is not None:
                minibatch = loaded.minibatch
                with add_record_range(task, loaded.step):
                    evaluate(minibatch.features, minibatch.labels, minibatch.weights)
            runtime.progress.record_step(task.lease_id, 0, loss=None, skipped_records=loaded.skipped_records)
        runtime.progress.finish_task(task.lease_id, json.dumps(replica.metric_states()).encode())

    def _drop(self, task: LeasedTask) -> None:
        """Give a lease up: its records are not read on, and the master hears of it no more."""
        self._runtime.leases.mark_lost([task.lease_id])
        self._runtime.progress.drop_lease(task.lease_id)

    def compute_metrics(self, task: LeasedTask) -> None:
        """Compute metric values from the states that the master merged."""
        with self._metrics_lock:
            values: Mapping[str, float] = self._replica.metric_values(task.decode_payload())
        self._runtime.progress.finish_task(task.lease_id, json.dumps(values).encode())

    def export(self, task: LeasedTask) -> None:
        """Export the model as files that Keras and TensorFlow load without EDL."""
        runtime, replica = self._runtime, self._replica
        directory = export_directory(
            runtime.spec.export.path if runtime.spec.export else None, runtime.identity.run_dir
        )
        # restore_best_weights: this worker has the weights of the last step, the checkpoint the best ones.
        checkpoint = task.decode_payload()["checkpoint"] if task.payload else None
        with self._final_weights(checkpoint, ends_training=True):
            written = model_export.export_model(
                replica.exportable(),
                replica.variables.read_values(),
                {},
                directory / KERAS_FILE,
                directory / SAVED_MODEL_DIRECTORY,
            )
        result = {"paths": [str(directory)], "loading": written["loading"]}
        runtime.progress.finish_task(task.lease_id, json.dumps(result).encode())

    def write_best_model(self, task: LeasedTask) -> None:
        """Write a best checkpoint to the file that ``ModelCheckpoint(save_best_only=True)`` names."""
        runtime, replica = self._runtime, self._replica
        best = task.decode_payload()
        path = best_model_path(best, runtime.identity)
        with self._final_weights(best["cut"]):
            values = replica.variables.read_values()
            model_export.export_keras_file(replica.exportable(), values, {}, path, weights_only=best["weights_only"])
        result = {"place": best["place"], "cut": best["cut"], "path": str(path)}
        runtime.progress.finish_task(task.lease_id, json.dumps(result).encode())

    def write_model_files(self, task: LeasedTask) -> None:
        """Write the files of ``ModelCheckpoint`` that are due at this step, with the present variables.

        Keras writes the variables themselves as well, and not their averages (``use_ema``).
        """
        runtime, replica = self._runtime, self._replica
        due, paths = task.decode_payload(), []
        for file in due["files"]:
            named = model_file_path(file["filepath"], due, self._epoch_loss.mean)
            path = place_model_file(named, runtime.identity)
            model_export.export_keras_file(
                replica.exportable(), replica.variables.read_values(), {}, path, weights_only=file["weights_only"]
            )
            _LOG.info("ModelCheckpoint has written %s after step %d", path, due["step"])
            paths.append(str(path))
        result = {"written": due["written"], "paths": paths}
        runtime.progress.finish_task(task.lease_id, json.dumps(result).encode())

    @contextmanager
    def _final_weights(self, checkpoint: int | None = None, *, ends_training: bool = False) -> Iterator[None]:
        """The weights as ``fit`` leaves them: the averages with ``use_ema``.

        Afterwards the variables are what they were: a worker that joins gets the same ones from every member.

        Args:
            checkpoint: take those of this checkpoint; None: the present ones.
            ends_training: call the callbacks that ``fit`` calls at its end, before the checkpoint is taken.
        """
        state = self._replica.pack_state()
        try:
            if ends_training:
                self._end_training()
            if checkpoint is not None:
                self._replica.load_state(self._read_checkpoint(checkpoint))
            if checkpoint is not None or not ends_training:
                self._replica.finalize()
            yield
        finally:
            self._replica.unpack_state(state)

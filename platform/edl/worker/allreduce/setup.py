"""Sets up a worker of strategy AllReduce: its model, its place in the world, evaluation and export."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from edl.api.job_spec import JobSpec
from edl.api.strategy import Strategy
from edl.collective.collective_listener import CollectiveListener
from edl.core.callback_decisions import callbacks_to_json
from edl.core.ledger import BEST_MODEL, MODEL_FILE
from edl.core.state_agreement import RankFacts
from edl.keras import model_export
from edl.keras.all_reduce_callbacks import SharedCallbacks, declare_training_callbacks
from edl.keras.evaluated_copy import CopiedValues
from edl.keras.model_building import refuse_lossy_export, refuse_unexportable_inputs
from edl.keras.model_checkpoint_callback import model_file_path
from edl.keras.model_contract import ModelModule
from edl.keras.optimizer_state import describe_keras_state
from edl.keras.replica_choice import AnyReplica, build_replica
from edl.keras.several_updates_train_step import SeveralUpdatesReplica
from edl.keras.step_additivity import check_added_losses, check_step_gradients
from edl.keras.user_callbacks import build_callback_params
from edl.numerics.keras_state import KERAS_STATE_KEY
from edl.storage.run_directory import RunDirectory
from edl.transport.process_identity import count_available_cores
from edl.worker.allreduce.checkpoint_writer import Arrays, CheckpointWriter
from edl.worker.allreduce.copy_evaluation import CopyEvaluation
from edl.worker.allreduce.leaving import wait_until_left
from edl.worker.allreduce.round_connection import RoundConnection, ring_address
from edl.worker.allreduce.server_checkpoint import ServerCheckpointConverter
from edl.worker.allreduce.share_source import BatchShareSource, ShareSource
from edl.worker.allreduce.step_feed import StepFeed
from edl.worker.allreduce.step_loop import LearningRates, LoopSettings, RankLinks, RankWork, StepLoop
from edl.worker.allreduce.vector_instructions import read_instructions
from edl.worker.allreduce.world_client import WorldClient
from edl.worker.initial_weights_loading import assign_initial_weights, open_initial_weights
from edl.worker.lease_client import LeasedTask
from edl.worker.loss_log import LossLog
from edl.worker.runtime import WorkerRuntime
from edl.worker.task_loop import TaskLoop
from edl.worker.trainer import add_record_range, add_worker_name
from edl.worker.training_setup import (
    KERAS_FILE,
    SAVED_MODEL_DIRECTORY,
    best_model_path,
    export_directory,
    place_model_file,
)

_LOG = logging.getLogger(__name__)

TaskHandlers = dict[str, Callable[[LeasedTask], None]]


@dataclass(frozen=True, slots=True)
class _TracedModel:
    """This rank's model, which has taken a step, with what evaluates and saves it.

    Attributes:
        worker: the worker's name, for messages.
        scale_rate: see ``make_rate_scaling``.
    """

    worker: str
    replica: AnyReplica
    callbacks: SharedCallbacks
    scale_rate: Callable[[int], float] | None
    checkpoints: CheckpointWriter
    evaluator: ReplicaEvaluator


def prepare_all_reduce(
    runtime: WorkerRuntime, module: ModelModule, handlers: TaskHandlers, tasks: TaskLoop
) -> Callable[[], int]:
    """Build the model and set up the handlers of all kinds of tasks; returns the function that trains.

    Raises:
        EdlError: the model cannot be trained so.
    """
    model = _prepare_model(runtime, module)
    handlers |= {
        "evaluation": model.evaluator.run,
        "metrics": model.evaluator.compute_metrics,
        "export": model.evaluator.export,
        BEST_MODEL: model.evaluator.write_best_model,
        MODEL_FILE: model.evaluator.write_model_files,
    }
    return _join_world(runtime, model, tasks)


def _prepare_model(runtime: WorkerRuntime, module: ModelModule) -> _TracedModel:
    """Check the data and the model as far as one worker can, before the others count on it."""
    spec = runtime.spec
    runtime.check_validation_data()
    first = runtime.first_minibatch()
    worker, scale_rate = f"worker-{runtime.identity.index}", make_rate_scaling(spec.strategy)
    with add_worker_name(worker):
        replica, callbacks = _build_model(runtime, module, first)
        trace_model(first, replica, scale_rate)
    checkpoints = _make_checkpoint_writer(runtime, replica)
    evaluator = ReplicaEvaluator(runtime, replica, callbacks, checkpoints.read)
    if may_evaluate_copies(spec) and not callbacks.declared:
        evaluator.check_copies()
    return _TracedModel(worker, replica, callbacks, scale_rate, checkpoints, evaluator)


def _join_world(runtime: WorkerRuntime, model: _TracedModel, tasks: TaskLoop) -> Callable[[], int]:
    """Listen to other ranks, register, and follow the master's views; returns the function that trains with them."""
    spec, replica, checkpoints = runtime.spec, model.replica, model.checkpoints
    evaluation = _make_copy_evaluation(runtime, replica, model.evaluator)
    feed = StepFeed(model.worker, replica)
    listener = CollectiveListener(
        ring_address(runtime.identity), runtime.identity.token, handle_frame=feed.handle_frame
    )
    listener.start()
    _register(runtime, model.callbacks)
    left = threading.Event()
    connection = RoundConnection(listener)
    world = WorldClient(
        runtime.session,
        runtime.identity.uid,
        listener.address,
        is_leaving=lambda: runtime.gate.closed,
        on_closed=connection.abort,
        copied_state=lambda: checkpoints.progress,
        evaluation_copy=lambda: evaluation.report,
    )
    loop = StepLoop(
        replica,
        RankLinks(world, connection, feed),
        RankWork(_make_share_source(runtime), tasks.run_task, evaluation),
        checkpoints,
        runtime.gate,
        read_rank_facts(model.worker),
        LoopSettings.of_job(spec),
        rates=LearningRates(model.scale_rate, model.callbacks.epoch_rate),
        callbacks=model.callbacks.own,
        loss_log=LossLog(spec.log.loss_every_steps),
        on_left=left.set,
        several_updates=replica if isinstance(replica, SeveralUpdatesReplica) else None,
    )
    runtime.world_exit.set_result(lambda: wait_until_left(left, checkpoints, loop.step_seconds))
    for name, target in (("world", world.run), ("world reports", world.send_reports)):
        threading.Thread(target=target, name=name, daemon=True).start()

    def train() -> int:
        try:
            return loop.run()
        finally:
            loop.close()
            left.set()
            world.stop()
            listener.stop()

    return train


def _build_model(
    runtime: WorkerRuntime, module: ModelModule, first: tuple[LeasedTask, Any] | None
) -> tuple[AnyReplica, SharedCallbacks]:
    spec, index = runtime.spec, runtime.identity.index
    run = RunDirectory(runtime.identity.run_dir)
    initial = open_initial_weights(run, spec, module, runtime.first_features())
    replica = build_replica(
        module,
        seed=spec.train.seed,
        rank_seed=spec.train.seed + index,
        sample=runtime.first_features(),
        max_dense_gradient=spec.strategy.max_dense_gradient,
        first=None if first is None else (first[1].features, first[1].labels, first[1].weights),
        begin=partial(assign_initial_weights, initial=initial),
    )
    if spec.export is not None:
        refuse_lossy_export(replica.model)
        refuse_unexportable_inputs(replica.model)
    callbacks = declare_training_callbacks(
        module,
        replica,
        spec,
        worker_index=index,
        make_params=lambda: build_callback_params(spec.train, spec.strategy, runtime.open_reader("training")),
    )
    return replica, callbacks


def _register(runtime: WorkerRuntime, callbacks: SharedCallbacks) -> None:
    """From now on the master counts on this worker. All workers declare the same callbacks."""
    declared = (*callbacks.declared, *callbacks.files)
    runtime.session.register(
        ready=True, callbacks=json.dumps(callbacks_to_json(declared)).encode() if declared else b""
    )


def _make_checkpoint_writer(runtime: WorkerRuntime, replica: AnyReplica) -> CheckpointWriter:
    keras_state = describe_keras_state(replica)
    return CheckpointWriter(
        RunDirectory(runtime.identity.run_dir).checkpoints,
        {KERAS_STATE_KEY: keras_state.to_json()},
        ServerCheckpointConverter(keras_state, replica.state_arrays()).convert,
    )


def _make_copy_evaluation(
    runtime: WorkerRuntime, replica: AnyReplica, evaluator: ReplicaEvaluator
) -> CopyEvaluation[CopiedValues]:
    """Evaluates copies on a thread; failures of its tasks are reported to the master like those of other tasks."""
    handlers: TaskHandlers = {
        "evaluation": lambda task: evaluator.run_on_copy(task, evaluation.find_copy),
        "metrics": evaluator.compute_metrics,
    }
    tasks = TaskLoop(runtime.session, runtime.leases, runtime.progress, runtime.gate, handlers)
    # Without the field no view asks for a copy.
    every = runtime.spec.train.evaluation_steps or 1
    evaluation = CopyEvaluation(every, replica.copy_final_values, tasks.run_task)
    return evaluation


def _make_share_source(runtime: WorkerRuntime) -> ShareSource:
    stream, spec = runtime.streams["training"], runtime.spec
    if spec.strategy.global_batch is None:
        return ShareSource(runtime.leases, runtime.progress, stream)
    return BatchShareSource(runtime.leases, runtime.progress, stream, spec.train.minibatch_size)


def may_evaluate_copies(spec: JobSpec) -> bool:
    """Whether a worker may evaluate a copy while others train, unless callbacks decide by evaluations."""
    evaluates = bool(spec.train.evaluation_steps and spec.data.validation)
    return evaluates and spec.workers.max > 1 and spec.evaluation.max_workers != 0


def make_rate_scaling(strategy: Strategy) -> Callable[[int], float] | None:
    """The factor of the learning rate by the number of ranks (``strategy.learning_rate_scaling``); None: no scaling."""
    reference, exponent = strategy.reference_world, {"linear": 1.0, "sqrt": 0.5}.get(strategy.learning_rate_scaling)
    if reference is None or exponent is None:
        return None
    return lambda ranks: float((ranks / reference) ** exponent)


def trace_model(
    first: tuple[LeasedTask, Any] | None, replica: AnyReplica, scale_rate: Callable[[int], float] | None = None
) -> None:
    """Trace forward pass, backward pass and update now: later, all other workers would wait for it.

    Args:
        first: the first minibatch of the training data, with its range; None: there is none.
    """
    if first is None:
        return
    task, minibatch = first
    state = replica.pack_state()
    with add_record_range(task, 0):
        check_added_losses(replica, minibatch.features)
        check_step_gradients(replica, minibatch.features, minibatch.labels, minibatch.weights)
        replica.take_step(
            minibatch.features,
            minibatch.labels,
            minibatch.weights,
            # An update with a factor of the learning rate is another trace.
            learning_rate_factor=scale_rate(1) if scale_rate is not None else None,
        )
    replica.restore_statistics()
    replica.unpack_state(state)


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
        with self._final_weights(checkpoint):
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
    def _final_weights(self, checkpoint: int | None = None) -> Iterator[None]:
        """The weights as ``fit`` leaves them: the averages with ``use_ema``.

        Afterwards the variables are what they were: a worker that joins gets the same ones from every member.

        Args:
            checkpoint: take those of this checkpoint; None: the present ones.
        """
        state = self._replica.pack_state()
        try:
            if checkpoint is not None:
                self._replica.load_state(self._read_checkpoint(checkpoint))
            self._replica.finalize()
            yield
        finally:
            self._replica.unpack_state(state)


def read_rank_facts(worker: str) -> RankFacts:
    """What decides how this process rounds: packages, the processor's instructions, TensorFlow's threads.

    Call it when TensorFlow's threads have been set.
    """
    threading = tf.config.threading
    return RankFacts(
        worker,
        versions={"keras": keras.__version__, "numpy": np.__version__, "tensorflow": tf.__version__},
        instructions=read_instructions(),
        threads={
            "intra-op": threading.get_intra_op_parallelism_threads() or count_available_cores(),
            "inter-op": threading.get_inter_op_parallelism_threads() or count_available_cores(),
        },
    )

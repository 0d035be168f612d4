"""Sets up a worker of strategy AllReduce: its model, its place in the world, evaluation and export.

The factor of the learning rate by the number of ranks is made in ``rate_scaling``, and what evaluates and exports is
``replica_evaluator.ReplicaEvaluator``.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from edl.api.job_spec import JobSpec
from edl.collective.collective_listener import CollectiveListener
from edl.core.callback_decisions import callbacks_to_json
from edl.core.ledger import BEST_MODEL, MODEL_FILE
from edl.core.state_agreement import RankFacts
from edl.keras.all_reduce_callbacks import SharedCallbacks, declare_training_callbacks
from edl.keras.evaluated_copy import CopiedValues
from edl.keras.model_building import refuse_lossy_export, refuse_unexportable_inputs
from edl.keras.model_contract import ModelModule
from edl.keras.optimizer_state import describe_keras_state
from edl.keras.replica_choice import AnyReplica, build_replica
from edl.keras.several_updates_train_step import SeveralUpdatesReplica
from edl.keras.step_additivity import check_added_losses, check_step_gradients
from edl.keras.user_callbacks import build_callback_params
from edl.numerics.keras_state import KERAS_STATE_KEY
from edl.storage.run_directory import RunDirectory
from edl.transport.process_identity import count_available_cores
from edl.worker.allreduce.checkpoint_writer import CheckpointWriter
from edl.worker.allreduce.copy_evaluation import CopyEvaluation
from edl.worker.allreduce.leaving import wait_until_left
from edl.worker.allreduce.rate_scaling import make_rate_scaling
from edl.worker.allreduce.replica_evaluator import ReplicaEvaluator
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

TaskHandlers = dict[str, Callable[[LeasedTask], None]]


@dataclass(frozen=True, slots=True)
class _TracedModel:
    """This rank's model, which has taken a step, with what evaluates and saves it.

    Attributes:
        worker: the worker's name, for messages.
        rate_factor: see ``make_rate_scaling``.
    """

    worker: str
    replica: AnyReplica
    callbacks: SharedCallbacks
    rate_factor: Callable[[int], float] | None
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
    worker, rate_factor = f"worker-{runtime.identity.index}", make_rate_scaling(spec.strategy)
    with add_worker_name(worker):
        replica, callbacks = _build_model(runtime, module, first)
        trace_model(first, replica, rate_factor)
    checkpoints = _make_checkpoint_writer(runtime, replica)
    evaluator = ReplicaEvaluator(runtime, replica, callbacks, checkpoints.read)
    if may_evaluate_copies(spec) and not callbacks.declared:
        evaluator.check_copies()
    return _TracedModel(worker, replica, callbacks, rate_factor, checkpoints, evaluator)


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
        rates=LearningRates(model.rate_factor, model.callbacks.epoch_rate),
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


def trace_model(
    first: tuple[LeasedTask, Any] | None, replica: AnyReplica, rate_factor: Callable[[int], float] | None = None
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
            rate_factor=rate_factor(1) if rate_factor is not None else None,
        )
    replica.restore_statistics()
    replica.unpack_state(state)


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

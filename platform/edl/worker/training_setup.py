"""Puts together what a worker needs whose parameters live on parameter servers: training, evaluation, export."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Protocol

from edl.api.errors import BadInputError
from edl.api.job import Strategy
from edl.core.evaluation import callbacks_to_json
from edl.core.ledger import BEST_MODEL
from edl.keras import user_callbacks
from edl.keras.flat_buffer import FlatLayout, Floats
from edl.keras.model_contract import ModelModule
from edl.keras.model_export import RowChunks
from edl.keras.monitor_callbacks import check_monitors
from edl.keras.network import KerasNetwork
from edl.keras.optimizer_translation import JobLearningRate
from edl.keras.user_callbacks import build_callback_params
from edl.numerics.optimizer_spec import OptimizerSpec
from edl.storage.checkpoint_manifest import cut_directory
from edl.transport.bulk_client import BulkClient
from edl.worker.graceful_shutdown import ShutdownGate
from edl.worker.lease_client import PLACEMENT_CHECK_KIND, LeaseClient, LeasedTask, ProgressReporter
from edl.worker.local_updater import GradientCompensation, LocalUpdater
from edl.worker.master_session import MasterSession
from edl.worker.model_interface import NetworkLike, RowSource, TrainingCallbacks, pull_needed_rows
from edl.worker.parameter_client import ParameterClient
from edl.worker.record_stream import RecordStream
from edl.worker.runtime import WorkerRuntime
from edl.worker.stored_weights import StoredWeights
from edl.worker.trainer import OverlappedSchedule, SerialExecutor, Trainer, add_record_range, run_sequentially

# --------------------------------------------------------------------------------------------------
# Evaluating leased ranges at a pinned cut, and turning merged metric states into values.


class PinnedParameters(RowSource, Protocol):
    """Parameters of pinned cuts."""

    def pull(self, pin: int) -> Floats: ...  # noqa: D102


class Evaluator:
    """Does evaluation and metrics tasks; keeps the dense values of the newest pin, for its next task."""

    def __init__(
        self,
        network: NetworkLike,
        parameters: PinnedParameters,
        stream: RecordStream,
        leases: LeaseClient,
        progress: ProgressReporter,
        gate: ShutdownGate,
        watcher: TrainingCallbacks,
    ) -> None:
        self._network = network
        self._parameter_client = parameters
        self._stream = stream
        self._leases = leases
        self._progress = progress
        self._gate = gate
        self._training_callbacks = watcher
        self._pinned_values: tuple[int, Floats] | None = None

    def run(self, task: LeasedTask) -> None:
        """Evaluate every record of the range; the report carries the metric states."""
        slab = self._slab(task.pin)
        self._training_callbacks.begin_test()
        self._network.reset_metrics()
        for loaded in self._stream.load_steps(task):
            if self._gate.closed or not self._leases.alive(task.lease):
                self._progress.drop(task.lease)
                return
            if loaded.minibatch is not None:
                given, features = loaded.minibatch, loaded.minibatch.features
                with add_record_range(task, loaded.step):
                    rows = pull_needed_rows(self._network, self._parameter_client, features, task.pin)
                    self._network.evaluate(slab, rows, features, given.labels, given.weights)
            # No step is reported as in: the states exist here only, and all of them go with the report or none.
            self._progress.stepped(task.lease, 0, loss=None, skipped=loaded.skipped)
        self._training_callbacks.end_test()
        self._progress.finish(task.lease, json.dumps(self._network.metric_states()).encode())

    def metrics(self, task: LeasedTask) -> None:
        """Turn the states that the master added up into values."""
        values = self._network.metric_values(task.told())
        self._progress.finish(task.lease, json.dumps(values).encode())

    def _slab(self, pin: int) -> Floats:
        if self._pinned_values is None or self._pinned_values[0] != pin:
            self._pinned_values = None  # two versions of a large model need not be in memory at once
            self._pinned_values = (pin, self._parameter_client.pull(pin))
        return self._pinned_values[1]


# --------------------------------------------------------------------------------------------------
# Parameter servers that replace lost ones while this worker has nothing to send them: they, too, are told the model.
#
# One that finds no checkpoint to load holds nothing until a worker declares the model to it, and work is handed out
# only
# when all hold it. A worker amid a step finds out by the refusal of its push; one that waits for work pushes nothing.


def watch_placement(
    session: MasterSession, leases: LeaseClient, parameters: ParameterClient
) -> Callable[[LeasedTask], None]:
    """From now on, have the loop look at every newer placement; returns how it is done.

    Args:
        session: hears of placements.
        leases: what the loop waits for.
        parameters: that this worker has declared once; used on the loop's thread only.
    """

    def look(_: LeasedTask) -> None:
        if session.is_placement_outdated:
            session.register()
        if parameters.declare_to_replaced_ps():
            session.register(ready=True)

    session.on_new_placement = leases.schedule_placement_check
    leases.schedule_placement_check()  # a PS may have been replaced between its declaration and here
    return look


KERAS_FILE, SAVED_MODEL_DIRECTORY = "model.keras", "saved_model"
"""Names of the exported model in the export's directory."""

_BULK_TIMEOUT_SECONDS = 30.0  # seconds without a byte; longer than a cut may hold a push back

_LOG = logging.getLogger(__name__)

TaskHandlers = dict[str, Callable[[LeasedTask], None]]


def prepare_training(c: WorkerRuntime, module: ModelModule, handlers: TaskHandlers) -> Callable[[], None]:
    """Build the model, declare it to the parameter servers, and say how each kind of task is done.

    Returns what to call when there is no more work.

    Raises:
        EdlError: the model or its optimizer cannot be served, or another model is there already.
        LeavingError: told to go.
    """
    network, parameters = _declare_model(c, module)
    watcher = user_callbacks.make_callbacks(
        module.callbacks,
        network.model,
        network.keras_optimizer,
        module.zoo,
        worker=c.identity.index,
        check=partial(check_monitors, directions=network.metric_directions, spec=c.spec),
        params=lambda: build_callback_params(c.spec.train, c.reader("training")),
    )
    declared = json.dumps(callbacks_to_json(watcher.declared)).encode() if watcher.declared else b""
    c.session.register(ready=True, callbacks=declared)
    trainer = Trainer(
        network,
        JobLearningRate(network.keras_optimizer, network.optimizer.learning_rate, lambda: c.session.learning_rate),
        parameters,
        c.streams["training"],
        c.leases,
        c.progress,
        c.gate,
        skip_nan=c.spec.train.on_nan == "skip",
        watcher=watcher,
        schedule=OverlappedSchedule(SerialExecutor("exchange")) if c.spec.strategy.overlap else run_sequentially,
    )
    evaluator = Evaluator(network, parameters, c.streams["evaluation"], c.leases, c.progress, c.gate, watcher)
    handlers["training"] = trainer.run
    handlers["evaluation"] = evaluator.run
    handlers["metrics"] = evaluator.metrics
    handlers["export"] = partial(_export_model, c, network, parameters)
    handlers[BEST_MODEL] = partial(_write_best_checkpoint, c, network)
    handlers[PLACEMENT_CHECK_KIND] = watch_placement(c.session, c.leases, parameters)
    return watcher.end


def _declare_model(c: WorkerRuntime, module: ModelModule) -> tuple[KerasNetwork, ParameterClient]:
    placement = c.wait_for_placement()
    spec = c.spec
    network = KerasNetwork.build(
        module,
        seed=spec.train.seed,
        embedding_threshold=spec.ps.embedding_threshold,
        part=placement.ps_of_variable,
        parts=placement.parts,
        sample=c.sample(),
        worker=c.identity.index,
    )
    layout, strategy, optimizer = make_layout(network), spec.strategy, network.optimizer.spec
    parameters = ParameterClient(
        c.session,
        lambda address: BulkClient(address, c.identity.token, timeout=_BULK_TIMEOUT_SECONDS),
        layout,
        worker=c.identity.index,
        patience=spec.master.lost_timeout,
        rounds=strategy.mode == "sync",
        local=make_local_updater(strategy, layout, optimizer),
        foresight=_make_compensation(strategy, layout, optimizer),
    )
    parameters.declare()
    if network.tables:
        _LOG.info("Tables served by the parameter servers: %s", ", ".join(map(str, network.tables)))
    return network, parameters


def make_layout(network: KerasNetwork) -> FlatLayout:
    """What the parameter servers are told of a network."""
    return FlatLayout(
        network.variables,
        network.slices,
        network.tables,
        network.fingerprint,
        network.initial(),
        json.dumps(network.optimizer.spec.to_json()),
    )


def make_local_updater(strategy: Strategy, layout: FlatLayout, optimizer: OptimizerSpec) -> LocalUpdater | None:
    """The worker's own copy of the values between two pulls; None where every step pulls.

    Raises:
        BadInputError: a worker cannot apply this optimizer by itself.
    """
    between = strategy.get_model_steps
    return LocalUpdater(layout, optimizer, between) if between > 1 else None


def _make_compensation(strategy: Strategy, layout: FlatLayout, optimizer: OptimizerSpec) -> GradientCompensation | None:
    if not strategy.overlap or strategy.get_model_steps > 1:
        return None
    return GradientCompensation(layout, optimizer, staleness_aware=strategy.staleness_aware)


def _export_model(c: WorkerRuntime, network: KerasNetwork, parameters: ParameterClient, task: LeasedTask) -> None:
    """Write the pinned cut as files that plain Keras and TensorFlow load."""
    from edl.keras import model_export

    told = task.told() if task.payload else None
    if told is None:
        slab = parameters.pull(task.pin)
        rows: model_export.RowChunksByTable = {
            table.name: parameters.scan(task.pin, table.name) for table in network.tables
        }
    else:  # the best weights, which the parameter servers do not hold any more
        slab, rows = _load_checkpoint(c, network, told["checkpoint"])
    directory = export_directory(c.spec.export.path if c.spec.export else None, c.identity.run_dir)
    written = model_export.export_model(network, slab, rows, directory / KERAS_FILE, directory / SAVED_MODEL_DIRECTORY)
    result = {"paths": [str(directory)], "loading": written["loading"]}
    c.progress.finish(task.lease, json.dumps(result).encode())


def _write_best_checkpoint(c: WorkerRuntime, network: KerasNetwork, task: LeasedTask) -> None:
    """Write a best checkpoint to the file that ``ModelCheckpoint(save_best_only=True)`` names."""
    from edl.keras import model_export

    best = task.told()
    slab, rows = _load_checkpoint(c, network, best["cut"])
    values = {f"val_{name}": math.nan if value is None else value for name, value in best["metrics"].items()}
    try:
        name = best["filepath"].format(epoch=best["epoch"], **values)
    except (KeyError, IndexError, ValueError) as error:
        raise BadInputError(
            f"the filepath '{best['filepath']}' of the callback ModelCheckpoint cannot be made: {error!r}",
            hint=f"it may have {{epoch}} and {', '.join(f'{{{each}}}' for each in values)}",
        ) from error
    path = Path(name)
    if c.identity.host is not None and not path.is_absolute():  # a pod's own folder goes with the pod
        path = c.identity.run_dir / path
    model_export.export_keras_file(network, slab, rows, path, weights_only=best["weights_only"])
    result = {"place": best["place"], "cut": best["cut"], "path": str(path)}
    c.progress.finish(task.lease, json.dumps(result).encode())


def _load_checkpoint(c: WorkerRuntime, network: KerasNetwork, cut: int) -> tuple[Floats, Mapping[str, RowChunks]]:
    """Dense values and rows of a checkpoint of this run."""
    stored = StoredWeights.read(cut_directory(c.identity.run_dir / "checkpoints", cut), network.tables)
    return stored.slab(network.variables), {table.name: stored.chunks(table.name) for table in network.tables}


def export_directory(path: str | None, run_dir: Path) -> Path:
    """Where the export goes."""
    return Path(path) if path else run_dir / "export"

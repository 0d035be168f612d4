"""Sets up a worker of a job with parameter servers: training, evaluation and export."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from edl.api.errors import BadInputError
from edl.api.strategy import Strategy
from edl.core.callback_decisions import callbacks_to_json
from edl.core.ledger import BEST_MODEL
from edl.keras import model_export, user_callbacks
from edl.keras.keras2_models import refuse_overlap
from edl.keras.model_building import refuse_unexportable_inputs
from edl.keras.model_contract import ModelModule
from edl.keras.model_export import RowChunks
from edl.keras.monitor_callbacks import check_monitors
from edl.keras.network import KerasNetwork
from edl.keras.optimizer_translation import JobLearningRate
from edl.keras.user_callbacks import build_callback_params
from edl.numerics.array_types import Floats
from edl.numerics.optimizer_spec import OptimizerSpec
from edl.storage.checkpoint_manifest import cut_directory
from edl.storage.run_directory import RunDirectory
from edl.transport.bulk_client import BulkClient
from edl.transport.process_identity import ProcessIdentity
from edl.worker.evaluator import Evaluator
from edl.worker.flat_buffer import FlatLayout
from edl.worker.initial_weights_loading import open_initial_weights
from edl.worker.lease_client import PLACEMENT_CHECK_KIND, LeasedTask
from edl.worker.local_updater import GradientCompensation, LocalUpdater
from edl.worker.loss_log import LossLog
from edl.worker.master_session import MasterSession
from edl.worker.parameter_client import ParameterClient
from edl.worker.runtime import WorkerRuntime
from edl.worker.stored_weights import StoredWeights
from edl.worker.trainer import SerialExecutor, Trainer

# --------------------------------------------------------------------------------------------------
# Declaring the model to replaced parameter servers while this worker has nothing to push. A PS
# without a checkpoint holds nothing until a worker declares the model to it, and work is handed out
# only when every PS is initialized. A training worker notices when its push is refused; a waiting
# one pushes nothing and would never notice.


def check_placement(master_session: MasterSession, parameter_client: ParameterClient, _: LeasedTask) -> None:
    """Declare the model to parameter servers that were replaced; the handler of placement checks.

    Args:
        master_session: receives placements from the master, and schedules a check for each newer one.
        parameter_client: has declared the model before; used only on the task loop's thread.
    """
    if master_session.is_placement_outdated:
        master_session.register()
    if parameter_client.declare_to_replaced_ps():
        master_session.register(ready=True)


KERAS_FILE, SAVED_MODEL_DIRECTORY = "model.keras", "saved_model"
"""Names of the exported model in the export's directory."""

_BULK_TIMEOUT_SECONDS = 30.0  # without a byte received; a cut delays the answer to a push by less

_LOG = logging.getLogger(__name__)

TaskHandlers = dict[str, Callable[[LeasedTask], None]]


def prepare_training(runtime: WorkerRuntime, module: ModelModule, handlers: TaskHandlers) -> Callable[[], None]:
    """Build the model, declare it to the parameter servers, and set up the handlers of all kinds of tasks.

    Returns a function to call when there is no more work.

    Raises:
        EdlError: parameter servers do not support the model or its optimizer, or hold another model.
        LeavingError: this worker must leave.
    """
    network, parameter_client = _declare_model(runtime, module)
    training_callbacks = user_callbacks.make_callbacks(
        module.callbacks,
        network.model,
        network.keras_optimizer,
        module.zoo,
        worker_index=runtime.identity.index,
        check_monitors=partial(check_monitors, directions=network.metric_directions, spec=runtime.spec),
        make_params=lambda: build_callback_params(
            runtime.spec.train, runtime.spec.strategy, runtime.open_reader("training")
        ),
        on_stop=runtime.progress.report_stop,
    )
    declared_callbacks = (
        json.dumps(callbacks_to_json(training_callbacks.master_callbacks)).encode()
        if training_callbacks.master_callbacks
        else b""
    )
    runtime.session.register(ready=True, callbacks=declared_callbacks)
    if runtime.spec.strategy.overlap:
        refuse_overlap(network.model)
    trainer = Trainer(
        network,
        JobLearningRate(
            network.keras_optimizer, network.optimizer.learning_rate, lambda: runtime.session.learning_rate
        ),
        parameter_client,
        runtime.streams["training"],
        runtime.leases,
        runtime.progress,
        runtime.gate,
        skip_nan=runtime.spec.train.on_nan == "skip",
        training_callbacks=training_callbacks,
        loss_log=LossLog(runtime.spec.log.loss_every_steps),
        executor=SerialExecutor("exchange") if runtime.spec.strategy.overlap else None,
    )
    evaluator = Evaluator(
        network,
        parameter_client,
        runtime.streams["evaluation"],
        runtime.leases,
        runtime.progress,
        runtime.gate,
        training_callbacks,
    )
    handlers["training"] = trainer.run
    handlers["evaluation"] = evaluator.run
    handlers["metrics"] = evaluator.compute_metrics
    handlers["export"] = partial(_export_model, runtime, network, parameter_client)
    handlers[BEST_MODEL] = partial(_write_best_checkpoint, runtime, network)
    handlers[PLACEMENT_CHECK_KIND] = partial(check_placement, runtime.session, parameter_client)
    return training_callbacks.end_training


def _declare_model(runtime: WorkerRuntime, module: ModelModule) -> tuple[KerasNetwork, ParameterClient]:
    placement = runtime.wait_for_placement()
    spec = runtime.spec
    runtime.check_validation_data()
    initial = open_initial_weights(RunDirectory(runtime.identity.run_dir), spec, module, runtime.first_features())
    network = KerasNetwork.build(
        module,
        seed=spec.train.seed,
        embedding_threshold=spec.ps.embedding_threshold,
        ps_of_variable=placement.ps_of_variable,
        ps_count=placement.ps_count,
        sample=runtime.first_features(),
        worker_index=runtime.identity.index,
    )
    if spec.export is not None:
        refuse_unexportable_inputs(network.model)
    if initial is not None:
        # Before the parameter servers get to know the model: they read the rows of its tables themselves.
        initial.check_model(network.variables, network.tables)
        network.begin_with(initial.flat_values(network.variables))
    layout, strategy, optimizer = make_layout(network), spec.strategy, network.optimizer.spec
    parameter_client = ParameterClient(
        runtime.session,
        lambda address: BulkClient(address, runtime.identity.token, timeout=_BULK_TIMEOUT_SECONDS),
        layout,
        worker_index=runtime.identity.index,
        answer_timeout=spec.master.lost_timeout,
        synchronous=strategy.mode == "sync",
        local_updater=make_local_updater(strategy, layout, optimizer),
        compensation=_make_compensation(strategy, layout, optimizer),
    )
    parameter_client.declare_model()
    if network.tables:
        _LOG.info("tables on the parameter servers: %s", ", ".join(map(str, network.tables)))
    return network, parameter_client


def make_layout(network: KerasNetwork) -> FlatLayout:
    """The layout that a worker declares to the parameter servers."""
    return FlatLayout(
        network.variables,
        network.ps_slices,
        network.tables,
        network.fingerprint,
        network.initial_values(),
        json.dumps(network.optimizer.spec.to_json()),
    )


def make_local_updater(strategy: Strategy, layout: FlatLayout, optimizer: OptimizerSpec) -> LocalUpdater | None:
    """The updater of this worker's own values between two pulls; None if every step pulls.

    Raises:
        BadInputError: a worker cannot apply this optimizer locally.
    """
    steps_between_pulls = strategy.get_model_steps
    return LocalUpdater(layout, optimizer, steps_between_pulls) if steps_between_pulls > 1 else None


def _make_compensation(strategy: Strategy, layout: FlatLayout, optimizer: OptimizerSpec) -> GradientCompensation | None:
    if not strategy.overlap or strategy.get_model_steps > 1:
        return None
    return GradientCompensation(layout, optimizer, staleness_aware=strategy.staleness_aware)


def _export_model(
    runtime: WorkerRuntime, network: KerasNetwork, parameter_client: ParameterClient, task: LeasedTask
) -> None:
    """Export the pinned cut as files that Keras and TensorFlow load without EDL."""
    payload = task.decode_payload() if task.payload else None
    if payload is None:
        flat_values = parameter_client.pull_pinned(task.pin)
        rows: model_export.RowChunksByTable = {
            table.name: parameter_client.scan_table(task.pin, table.name) for table in network.tables
        }
    else:
        # restore_best_weights: the parameter servers hold newer values, the checkpoint the best ones.
        flat_values, rows = _load_checkpoint(runtime, network, payload["checkpoint"])
    directory = export_directory(runtime.spec.export.path if runtime.spec.export else None, runtime.identity.run_dir)
    written = model_export.export_model(
        network, flat_values, rows, directory / KERAS_FILE, directory / SAVED_MODEL_DIRECTORY
    )
    result = {"paths": [str(directory)], "loading": written["loading"]}
    runtime.progress.finish_task(task.lease_id, json.dumps(result).encode())


def _write_best_checkpoint(runtime: WorkerRuntime, network: KerasNetwork, task: LeasedTask) -> None:
    """Write a best checkpoint to the file that ``ModelCheckpoint(save_best_only=True)`` names."""
    best = task.decode_payload()
    flat_values, rows = _load_checkpoint(runtime, network, best["cut"])
    path = best_model_path(best, runtime.identity)
    model_export.export_keras_file(network, flat_values, rows, path, weights_only=best["weights_only"])
    result = {"place": best["place"], "cut": best["cut"], "path": str(path)}
    runtime.progress.finish_task(task.lease_id, json.dumps(result).encode())


def best_model_path(best: Mapping[str, Any], identity: ProcessIdentity) -> Path:
    """The path of the file of a best model.

    Args:
        best: the payload of the task.
        identity: this worker's.

    Raises:
        BadInputError: the callback's path names values that the evaluation does not have.
    """
    values = {f"val_{name}": math.nan if value is None else value for name, value in best["metrics"].items()}
    try:
        name = best["filepath"].format(epoch=best["epoch"], **values)
    except (KeyError, IndexError, ValueError) as error:
        raise BadInputError(
            f"the filepath '{best['filepath']}' of the callback ModelCheckpoint is invalid: {error!r}",
            hint=f"use only {{epoch}} and {', '.join(f'{{{each}}}' for each in values)} in it",
        ) from error
    return place_model_file(Path(name), identity)


def place_model_file(path: Path, identity: ProcessIdentity) -> Path:
    """Where a file of ``ModelCheckpoint`` is written: in pods, a relative path is below the run's directory."""
    # It would be in the pod's own file system, which is lost with the pod.
    return identity.run_dir / path if identity.pod_host is not None and not path.is_absolute() else path


def _load_checkpoint(runtime: WorkerRuntime, network: KerasNetwork, cut: int) -> tuple[Floats, Mapping[str, RowChunks]]:
    """The dense values and rows of a checkpoint of this run."""
    stored = StoredWeights.from_checkpoint(cut_directory(runtime.identity.run_dir / "checkpoints", cut), network.tables)
    return stored.flat_values(network.variables), {
        table.name: stored.row_chunks(table.name) for table in network.tables
    }


def export_directory(path: str | None, run_dir: Path) -> Path:
    """The directory for the exported model: ``path``, or ``export`` in the run directory."""
    return Path(path) if path else run_dir / "export"

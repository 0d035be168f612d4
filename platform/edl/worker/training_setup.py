"""Puts together what a worker needs whose parameters live on parameter servers: training, evaluation, export."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from edl.api.errors import BadInputError
from edl.api.job import Strategy
from edl.core.callback_decisions import to_json
from edl.core.task_kinds import BEST
from edl.keras import user_callbacks
from edl.keras.callback_params import params_of
from edl.keras.export_tables import Chunks
from edl.keras.flat_buffer import Floats, Layout
from edl.keras.learning_rate import DecidedRate
from edl.keras.model_contract import ModelModule
from edl.keras.monitor_callbacks import check_monitors
from edl.keras.network import Network
from edl.numerics.optimizer_spec import OptimizerSpec
from edl.storage.checkpoint_manifest import cut_directory
from edl.transport.bulk_client import BulkClient
from edl.worker.evaluator import Evaluator
from edl.worker.gradient_compensation import Foresight
from edl.worker.lease_client import PLACEMENT, Leased
from edl.worker.local_updater import LocalSteps
from edl.worker.model_redeclaration import follow_placement
from edl.worker.parameter_client import Parameters
from edl.worker.runtime import Coordination
from edl.worker.serial_executor import Lane
from edl.worker.step_schedule import Overlapped, in_turn
from edl.worker.stored_weights import StoredWeights
from edl.worker.trainer import Trainer

KERAS_FILE, SAVED_MODEL = "model.keras", "saved_model"
"""Names of the exported model in the export's directory."""

_BULK_TIMEOUT = 30.0  # seconds without a byte; longer than a cut may hold a push back

_LOG = logging.getLogger(__name__)

Handlers = dict[str, Callable[[Leased], None]]


def prepare(c: Coordination, module: ModelModule, handlers: Handlers) -> Callable[[], None]:
    """Build the model, declare it to the parameter servers, and say how each kind of task is done.

    Returns what to call when there is no more work.

    Raises:
        EdlError: the model or its optimizer cannot be served, or another model is there already.
        LeavingError: told to go.
    """
    network, parameters = _declared(c, module)
    watcher = user_callbacks.watcher(
        module.callbacks,
        network.model,
        network.keras_optimizer,
        module.zoo,
        worker=c.identity.index,
        check=partial(check_monitors, directions=network.metric_directions, spec=c.spec),
        params=lambda: params_of(c.spec.train, c.reader("training")),
    )
    declared = json.dumps(to_json(watcher.declared)).encode() if watcher.declared else b""
    c.session.register(ready=True, callbacks=declared)
    trainer = Trainer(
        network,
        DecidedRate(network.keras_optimizer, network.optimizer.learning_rate, lambda: c.session.learning_rate),
        parameters,
        c.streams["training"],
        c.leases,
        c.progress,
        c.gate,
        skip_nan=c.spec.train.on_nan == "skip",
        watcher=watcher,
        schedule=Overlapped(Lane("exchange")) if c.spec.strategy.overlap else in_turn,
    )
    evaluator = Evaluator(network, parameters, c.streams["evaluation"], c.leases, c.progress, c.gate, watcher)
    handlers["training"] = trainer.run
    handlers["evaluation"] = evaluator.run
    handlers["metrics"] = evaluator.metrics
    handlers["export"] = partial(_export, c, network, parameters)
    handlers[BEST] = partial(_write_best, c, network)
    handlers[PLACEMENT] = follow_placement(c.session, c.leases, parameters)
    return watcher.end


def _declared(c: Coordination, module: ModelModule) -> tuple[Network, Parameters]:
    placement = c.await_placement()
    spec = c.spec
    network = Network.build(
        module,
        seed=spec.train.seed,
        embedding_threshold=spec.ps.embedding_threshold,
        part=placement.part_of_name,
        parts=placement.parts,
        sample=c.sample(),
        worker=c.identity.index,
    )
    layout, strategy, optimizer = layout_of(network), spec.strategy, network.optimizer.spec
    parameters = Parameters(
        c.session,
        lambda address: BulkClient(address, c.identity.token, timeout=_BULK_TIMEOUT),
        layout,
        worker=c.identity.index,
        patience=spec.master.lost_timeout,
        rounds=strategy.mode == "sync",
        local=local_steps(strategy, layout, optimizer),
        foresight=_foresight(strategy, layout, optimizer),
    )
    parameters.declare()
    if network.tables:
        _LOG.info("Tables served by the parameter servers: %s", ", ".join(map(str, network.tables)))
    return network, parameters


def layout_of(network: Network) -> Layout:
    """What the parameter servers are told of a network."""
    return Layout(
        network.variables,
        network.slices,
        network.tables,
        network.fingerprint,
        network.initial(),
        json.dumps(network.optimizer.spec.to_json()),
    )


def local_steps(strategy: Strategy, layout: Layout, optimizer: OptimizerSpec) -> LocalSteps | None:
    """The worker's own copy of the values between two pulls; None where every step pulls.

    Raises:
        BadInputError: a worker cannot apply this optimizer by itself.
    """
    between = strategy.get_model_steps
    return LocalSteps(layout, optimizer, between) if between > 1 else None


def _foresight(strategy: Strategy, layout: Layout, optimizer: OptimizerSpec) -> Foresight | None:
    if not strategy.overlap or strategy.get_model_steps > 1:
        return None
    return Foresight(layout, optimizer, staleness_aware=strategy.staleness_aware)


def _export(c: Coordination, network: Network, parameters: Parameters, task: Leased) -> None:
    """Write the pinned cut as files that plain Keras and TensorFlow load."""
    from edl.keras import model_export

    told = task.told() if task.payload else None
    if told is None:
        slab = parameters.pull(task.pin)
        rows: model_export.StoredRows = {table.name: parameters.scan(task.pin, table.name) for table in network.tables}
    else:  # the best weights, which the parameter servers do not hold any more
        slab, rows = _of_checkpoint(c, network, told["checkpoint"])
    directory = export_directory(c.spec.export.path if c.spec.export else None, c.identity.run_dir)
    written = model_export.save(network, slab, rows, directory / KERAS_FILE, directory / SAVED_MODEL)
    result = {"paths": [str(directory)], "loading": written["loading"]}
    c.progress.finish(task.lease, json.dumps(result).encode())


def _write_best(c: Coordination, network: Network, task: Leased) -> None:
    """Write a best checkpoint to the file that ``ModelCheckpoint(save_best_only=True)`` names."""
    from edl.keras import model_export

    best = task.told()
    slab, rows = _of_checkpoint(c, network, best["cut"])
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
    model_export.save_keras(network, slab, rows, path, weights_only=best["weights_only"])
    result = {"place": best["place"], "cut": best["cut"], "path": str(path)}
    c.progress.finish(task.lease, json.dumps(result).encode())


def _of_checkpoint(c: Coordination, network: Network, cut: int) -> tuple[Floats, Mapping[str, Chunks]]:
    """Dense values and rows of a checkpoint of this run."""
    stored = StoredWeights.read(cut_directory(c.identity.run_dir / "checkpoints", cut), network.tables)
    return stored.slab(network.variables), {table.name: stored.chunks(table.name) for table in network.tables}


def export_directory(path: str | None, run_dir: Path) -> Path:
    """Where the export goes."""
    return Path(path) if path else run_dir / "export"

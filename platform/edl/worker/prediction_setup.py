"""Puts together a worker that predicts: weights from a file or a checkpoint, no parameter servers."""

from __future__ import annotations

import sys
from collections.abc import Callable

from edl.keras.model_contract import ModelModule
from edl.keras.network import KerasNetwork
from edl.keras.user_code import user_code
from edl.worker.lease_client import LeasedTask
from edl.worker.predictor import NpzOutput, PredictionOutput, Predictor, ProcessorOutput
from edl.worker.runtime import WorkerRuntime
from edl.worker.stored_weights import PredictionRun, StoredWeights

_NO_TABLE_THRESHOLD = sys.maxsize
"""A threshold that no table reaches: a ``.keras`` file holds every table as a dense variable."""


def prepare_prediction(
    c: WorkerRuntime, module: ModelModule, run: PredictionRun, handlers: dict[str, Callable[[LeasedTask], None]]
) -> Callable[[], None]:
    """Build the model with its weights, and say how prediction tasks are done.

    Raises:
        EdlError: the weights cannot be read or are of another model.
    """
    threshold = c.spec.ps.embedding_threshold if run.is_checkpoint else _NO_TABLE_THRESHOLD
    network = KerasNetwork.build(
        module,
        seed=c.spec.train.seed,
        embedding_threshold=threshold,
        part=lambda name: 0,
        parts=1,
        sample=c.sample("prediction"),
    )
    weights = StoredWeights.read(run.weights, network.tables) if run.is_checkpoint else StoredWeights.nothing()
    slab = weights.slab(network.variables) if run.is_checkpoint else network.load(run.weights)
    handlers["prediction"] = Predictor(
        network,
        slab,
        weights,
        _make_output(c, module, run),
        c.streams["prediction"],
        c.leases,
        c.progress,
        c.gate,
    ).run
    c.session.register(ready=True)
    return lambda: None


def _make_output(c: WorkerRuntime, module: ModelModule, run: PredictionRun) -> PredictionOutput:
    if module.prediction_outputs_processor is None:
        return NpzOutput(run.output, [source.name for source in c.reader("prediction").sources()])
    with user_code(module.zoo, "PredictionOutputsProcessor()"):
        return ProcessorOutput(module.prediction_outputs_processor(), c.identity.index, module.zoo)

"""Puts together a worker that predicts: weights from a file or a checkpoint, no parameter servers."""

from __future__ import annotations

import sys
from collections.abc import Callable

from edl.keras.model_contract import ModelModule
from edl.keras.network import Network
from edl.keras.user_code import user_code
from edl.worker.lease_client import Leased
from edl.worker.predictor import Files, Output, Predictor, Processed
from edl.worker.runtime import Coordination
from edl.worker.stored_weights import PredictRun, StoredWeights

_ALL_DENSE = sys.maxsize
"""A threshold that no table reaches: a ``.keras`` file holds every table as a dense variable."""


def prepare(
    c: Coordination, module: ModelModule, run: PredictRun, handlers: dict[str, Callable[[Leased], None]]
) -> Callable[[], None]:
    """Build the model with its weights, and say how prediction tasks are done.

    Raises:
        EdlError: the weights cannot be read or are of another model.
    """
    threshold = c.spec.ps.embedding_threshold if run.is_checkpoint else _ALL_DENSE
    network = Network.build(
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
        _output(c, module, run),
        c.streams["prediction"],
        c.leases,
        c.progress,
        c.gate,
    ).run
    c.session.register(ready=True)
    return lambda: None


def _output(c: Coordination, module: ModelModule, run: PredictRun) -> Output:
    if module.prediction_outputs_processor is None:
        return Files(run.output, [source.name for source in c.reader("prediction").sources()])
    with user_code(module.zoo, "PredictionOutputsProcessor()"):
        return Processed(module.prediction_outputs_processor(), c.identity.index, module.zoo)

"""Sets up a worker that evaluates or predicts with stored weights, without parameter servers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from edl.keras.model_contract import ModelModule
from edl.keras.network import KerasNetwork
from edl.keras.user_callbacks import NoCallbacks
from edl.keras.user_code import user_code
from edl.numerics.array_types import Floats, Ids
from edl.numerics.parameter_store import RowsByTable
from edl.storage.run_directory import RunDirectory
from edl.storage.run_weights import RunWeights
from edl.worker.evaluator import Evaluator
from edl.worker.lease_client import LeasedTask
from edl.worker.predictor import NpzOutput, PredictionOutput, Predictor, ProcessorOutput
from edl.worker.runtime import WorkerRuntime
from edl.worker.stored_weights import StoredWeights

_NO_TABLE_THRESHOLD = sys.maxsize
"""A threshold that no table reaches: a ``.keras`` file holds every table as a dense variable."""

TaskHandlers = dict[str, Callable[[LeasedTask], None]]


@dataclass(frozen=True, slots=True)
class StoredParameters:
    """The parameters of a stored model. They are a single version, so pins mean nothing."""

    flat_values: Floats
    rows: StoredWeights

    def pull_pinned(self, pin: int) -> Floats:
        """The dense values."""
        del pin
        return self.flat_values

    def pull_rows(self, ids: Mapping[str, Ids], pin: int = 0) -> RowsByTable:
        return self.rows.pull_rows(ids, pin)


def prepare_stored_model(runtime: WorkerRuntime, module: ModelModule, handlers: TaskHandlers) -> Callable[[], None]:
    """Build the model with its weights, and set up the handlers of the job's tasks.

    Raises:
        EdlError: the weights cannot be read or belong to another model.
    """
    weights = RunWeights.require(RunDirectory(runtime.identity.run_dir), runtime.spec.task)
    if runtime.spec.task == "predict":
        _prepare_prediction(runtime, module, weights, handlers)
    else:
        _prepare_evaluation(runtime, module, weights, handlers)
    runtime.session.register(ready=True)
    return lambda: None


def _prepare_prediction(
    runtime: WorkerRuntime, module: ModelModule, weights: RunWeights, handlers: TaskHandlers
) -> None:
    network, parameters = _load_model(runtime, module, weights, "prediction")
    handlers["prediction"] = Predictor(
        network,
        parameters.flat_values,
        parameters,
        _make_output(runtime, module, weights),
        runtime.streams["prediction"],
        runtime.leases,
        runtime.progress,
        runtime.gate,
    ).run


def _prepare_evaluation(
    runtime: WorkerRuntime, module: ModelModule, weights: RunWeights, handlers: TaskHandlers
) -> None:
    network, parameters = _load_model(runtime, module, weights, "evaluation")
    evaluator = Evaluator(
        network,
        parameters,
        runtime.streams["evaluation"],
        runtime.leases,
        runtime.progress,
        runtime.gate,
        # Like ``keras.Model.evaluate``, which calls no callbacks of a training.
        NoCallbacks(),
    )
    handlers["evaluation"] = evaluator.run
    handlers["metrics"] = evaluator.compute_metrics


def _load_model(
    runtime: WorkerRuntime, module: ModelModule, weights: RunWeights, mode: str
) -> tuple[KerasNetwork, StoredParameters]:
    threshold = runtime.spec.ps.embedding_threshold if weights.is_checkpoint else _NO_TABLE_THRESHOLD
    network = KerasNetwork.build(
        module,
        seed=runtime.spec.train.seed,
        embedding_threshold=threshold,
        ps_of_variable=lambda name: 0,
        ps_count=1,
        sample=runtime.first_features(mode),
    )
    if weights.is_checkpoint:
        stored = StoredWeights.from_checkpoint(weights.readable_path, network.tables, weights.path)
        network.assign_states(stored.states)
        return network, StoredParameters(stored.flat_values(network.variables), stored)
    return network, StoredParameters(network.load_weights_file(weights.readable_path), StoredWeights.empty())


def _make_output(runtime: WorkerRuntime, module: ModelModule, weights: RunWeights) -> PredictionOutput:
    if module.prediction_outputs_processor is None:
        assert weights.output is not None
        return NpzOutput(weights.output, [source.name for source in runtime.open_reader("prediction").sources()])
    with user_code(module.zoo, "PredictionOutputsProcessor()"):
        return ProcessorOutput(module.prediction_outputs_processor(), runtime.identity.index, module.zoo)

"""The worker's view of the user's model: functions over arrays. ``edl.keras.network`` implements it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from edl.api.tables import TableSpec
from edl.api.variables import VariableSpec
from edl.numerics.array_types import Floats, Ids
from edl.numerics.parameter_store import RowsByTable


class StepResultLike(Protocol):
    """The result of a minibatch: the loss, and the gradients of the flat buffer and of the rows by table.

    For statistics, the flat buffer has the changes instead of gradients.
    """

    @property
    def loss(self) -> float: ...
    @property
    def flat_gradients(self) -> Floats: ...
    @property
    def row_gradients(self) -> Mapping[str, Floats]: ...


class NetworkLike(Protocol):
    """The user's model as functions over flat float32 arrays."""

    @property
    def variables(self) -> Sequence[VariableSpec]: ...
    @property
    def ps_slices(self) -> Sequence[slice]: ...
    @property
    def tables(self) -> Sequence[TableSpec]: ...
    @property
    def fingerprint(self) -> str: ...
    def initial_values(self) -> Floats: ...
    def unique_ids(self, features: Any) -> dict[str, Ids]: ...
    def train(
        self, flat_values: Floats, rows: Any, features: Any, labels: Any, weights: Any = None
    ) -> StepResultLike: ...
    def evaluate(self, flat_values: Floats, rows: Any, features: Any, labels: Any, weights: Any = None) -> None: ...
    def reset_metrics(self) -> None: ...
    def metric_states(self) -> Any: ...
    def metric_values(self, states: Any) -> dict[str, float]: ...
    def predict(self, flat_values: Floats, rows: Any, features: Any) -> Any: ...


class TrainingCallbacks(Protocol):
    """Receives training events on behalf of the user's Keras callbacks."""

    def begin_step(self, step: int) -> None: ...
    def end_step(self, step: int, loss: float) -> None: ...
    def begin_epoch(self, epoch: int) -> None: ...
    def begin_test(self) -> None: ...
    def end_test(self) -> None: ...
    def end_training(self) -> None: ...


class RowSource(Protocol):
    """A source of the rows of PS-backed tables."""

    def pull_rows(self, ids: Mapping[str, Ids], pin: int = 0) -> RowsByTable: ...


def pull_needed_rows(network: NetworkLike, source: RowSource, features: Any, pin: int = 0) -> RowsByTable:
    """Pull the rows that a minibatch needs; no request if the model has no PS-backed table."""
    return source.pull_rows(network.unique_ids(features), pin) if network.tables else {}


def names(things: Iterable[VariableSpec | TableSpec]) -> list[str]:
    """The names of variables or tables."""
    return [thing.name for thing in things]

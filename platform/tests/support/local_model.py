"""The replica of strategy Local, as unit tests of models train it."""

from __future__ import annotations

from typing import Any

from edl.core.evaluation import merge_metric_states
from edl.keras.replica import ModelReplica


class LocalModel(ModelReplica):
    """The only rank's model.

    Args:
        module: the user's model module.
        seed: the seed of the initial values.
        sample: the features of a minibatch.
    """

    def __init__(self, module: Any, *, seed: int, sample: Any) -> None:
        super().__init__(module, seed=seed, rank_seed=None, sample=sample)

    def train(self, features: Any, labels: Any, weights: Any = None, *, keep_if_not_finite: bool) -> tuple[float, bool]:
        """Take a step; returns the loss and whether the step was applied."""
        result = self.take_step(features, labels, weights)
        return result.loss, result.finite

    def arrays(self) -> dict[str, Any]:
        """What a checkpoint has."""
        return self.state_arrays()

    def restore(self, arrays: Any, *, by_ranks: bool = False) -> None:
        """Restore what a checkpoint has."""
        self.load_state(arrays, by_ranks=by_ranks)

    def metric_values(self, states: Any = None) -> dict[str, float]:
        """Loss and metrics of the current evaluation, or of these states."""
        return super().metric_values(merge_metric_states({}, self.metric_states()) if states is None else states)

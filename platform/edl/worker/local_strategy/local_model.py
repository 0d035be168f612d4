"""The model of strategy Local: trained in this process with Keras' own optimizer."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from edl.api.errors import BadInputError
from edl.core import evaluation
from edl.keras.model_building import is_seed_state
from edl.keras.model_contract import ModelModule
from edl.keras.model_loss import uses_dynamic_loss_scaling
from edl.keras.out_of_range_ids import assert_dense_ids_in_range, explain_dense_id_errors
from edl.keras.traced_function import host_array
from edl.keras.trainable_model import TrainableModel
from edl.keras.user_code import user_code

Arrays = dict[str, Any]


class LocalModel(TrainableModel):
    """Model, optimizer and metrics; supports every Keras optimizer.

    Args:
        module: the user's model module.
        seed: the seed of the initial values.
        sample: the features of a minibatch.
    """

    def __init__(self, module: ModelModule, *, seed: int, sample: Any) -> None:
        super().__init__(module, seed=seed, sample=sample)
        self._gradients = tf.function(self._gradients_graph, autograph=False, reduce_retracing=True)
        self._apply = tf.function(self._apply_graph, autograph=False)
        self.nonfinite_gradient = ""
        """The gradient because of which the newest step was not applied, as a message names it."""

    def train(self, features: Any, labels: Any, weights: Any = None, *, keep_if_not_finite: bool) -> tuple[float, bool]:
        """Run one step; returns the loss and whether the step was applied: loss and gradients must be finite.

        Args:
            features: the features that ``feed`` returned.
            labels: the labels that ``feed`` returned.
            weights: the record weights that ``feed`` returned.
            keep_if_not_finite: restore the model's statistics after a step that was not applied.
        """
        # The forward pass has changed statistics (such as batch means) before the loss is known.
        before = [v.numpy() for v in self.model.non_trainable_variables] if keep_if_not_finite else []
        with (
            user_code(self.module.zoo, "the model or its loss", function=self.module.loss),
            explain_dense_id_errors(self.model),
        ):
            loss, finite, gradients = self._gradients(features, labels, weights)
            if bool(finite):
                self._apply(gradients)
        value = float(loss)
        if not math.isfinite(value) or not bool(finite):
            for variable, old in zip(self.model.non_trainable_variables, before, strict=bool(before)):
                variable.assign(old)
            self.nonfinite_gradient = self._name_nonfinite(gradients)
            return value, False
        return value, True

    def _gradients_graph(self, features: Any, labels: Any, weights: Any) -> Any:
        variables = self.model.trainable_variables
        with tf.GradientTape() as tape:
            with assert_dense_ids_in_range():
                predictions = self.model(features, training=True)
            loss = self._objective(labels, predictions, weights, self.model.losses, training=True)
            scaled = self.optimizer.scale_loss(loss)  # the optimizer divides the gradients again
        found = tape.gradient(scaled, [v.value for v in variables])
        gradients = [None if gradient is None else tf.convert_to_tensor(gradient) for gradient in found]
        # Dynamic loss scaling expects infinite gradients: it skips the step and lowers the scale.
        checked = [] if uses_dynamic_loss_scaling(self.optimizer) else gradients
        checks = [tf.reduce_all(tf.math.is_finite(gradient)) for gradient in checked if gradient is not None]
        return loss, tf.reduce_all([tf.math.is_finite(loss), *checks]), gradients

    def _name_nonfinite(self, gradients: Any) -> str:
        for variable, gradient in zip(self.model.trainable_variables, gradients, strict=True):
            if gradient is not None and not np.isfinite(host_array(gradient)).all():
                return f"the gradient of '{variable.path}'"
        return "a gradient"

    def _apply_graph(self, gradients: Any) -> None:
        """Apply the gradients; Keras warns about variables without a gradient and does not change them."""
        self.optimizer.apply(gradients, self.model.trainable_variables)

    def metric_values(self) -> dict[str, float]:
        """Loss and metrics of the current evaluation."""
        # As in a distributed job, where the master receives and merges them.
        states = json.loads(json.dumps(self.metric_states()))
        return self._compute_metrics(evaluation.merge_metric_states({}, states))

    def arrays(self) -> Arrays:
        """Everything that training changes, for a checkpoint, by the names of :meth:`named_variables`."""
        return {name: np.asarray(variable) for name, variable in self.named_variables()}

    def restore(self, arrays: Mapping[str, Any], *, by_ranks: bool = False) -> None:
        """Restore the arrays of a checkpoint.

        Args:
            by_ranks: ranks of strategy AllReduce wrote it. Each had random generators of its own, whose states are not
                in it: those of this model stay as they are.

        Raises:
            BadInputError: another model or optimizer wrote the checkpoint.
        """
        # All names and shapes are compared before the first assignment: no half-restored model.
        seeds = {name for name, variable in self.named_variables() if by_ranks and is_seed_state(variable)}
        own_arrays = {name: array for name, array in self.arrays().items() if name not in seeds}
        for name in sorted({*own_arrays, *arrays}):
            if name not in own_arrays or name not in arrays or own_arrays[name].shape != arrays[name].shape:
                raise BadInputError(
                    f"the checkpoint was written with another model or optimizer: they differ in {name}",
                    hint="start a new run, without --resume",
                )
        for name, variable in self.named_variables():
            if name not in seeds and not self.keeps_value(name, variable):
                variable.assign(arrays[name])

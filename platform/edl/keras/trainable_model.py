"""A user's model with Keras' own optimizer, trained and evaluated in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import tensorflow as tf

from edl.keras.evaluated_copy import CopyEvaluator
from edl.keras.evaluation_metrics import EvaluationMetrics, output_names
from edl.keras.model_building import ModelVariables, build_model, undoing_changes
from edl.keras.model_contract import ModelModule, call_model, with_arguments_of
from edl.keras.model_loss import ModelLoss, updating_optimizers, warn_if_loss_unscaled
from edl.keras.out_of_range_ids import assert_dense_ids_in_range, explain_dense_id_errors
from edl.keras.user_code import user_code

AssignValues = Callable[[ModelVariables], None]


class TrainableModel:
    """Model, optimizer, loss and metrics; supports every Keras optimizer.

    Args:
        module: the user's model module.
        seed: the seed of the initial values.
        sample: the features of a minibatch.
        begin: assigns the values with which training begins, if not the initial ones.
    """

    def __init__(self, module: ModelModule, *, seed: int, sample: Any, begin: AssignValues | None = None) -> None:
        self.model = build_model(module, seed=seed, sample=sample)
        self.module = module = with_arguments_of(self.model, module)
        self.optimizer = module.optimizer()
        self.variables = ModelVariables.from_model(
            self.model, lambda name: 0, 1, trained_by_ps=False, float32_only=False
        )
        if begin is not None:
            # Before: some optimizers begin with a copy of the values.
            begin(self.variables)
        self._build_optimizer()
        warn_if_loss_unscaled(self.model, self.optimizer, trains_locally=True)
        self._sample = sample
        outputs = output_names(self.model)
        self._metrics = EvaluationMetrics.from_module(module, outputs)
        self._objective = ModelLoss(module, outputs)
        self._evaluate = tf.function(self._evaluate_graph, autograph=False, reduce_retracing=True)
        self._predict = tf.function(self._predict_graph, autograph=False, reduce_retracing=True)

    def _build_optimizer(self) -> None:
        # Its slot variables must exist when the state of another process is compared with this one's.
        if not self.optimizer.built:
            self.optimizer.build(self.model.trainable_variables)

    def finalize(self) -> bool:
        """Finalize the weights as ``keras.Model.fit`` does at its end; returns whether they changed.

        With ``use_ema``, the averages become the weights.
        """
        self.optimizer.finalize_variable_values(self.model.trainable_variables)
        return any(optimizer.use_ema for optimizer in updating_optimizers(self.optimizer))

    def make_copy_evaluator(self) -> CopyEvaluator:
        """Evaluates copies of this model; its results are in :meth:`metric_states`."""
        return CopyEvaluator(self.module, self.model, self._metrics, self._objective)

    @property
    def metric_directions(self) -> dict[str, str | None]:
        """By metric: whether ``up`` or ``down`` is better, or None if Keras does not know."""
        return self._metrics.directions

    def reset_metrics(self) -> None:
        """Start an evaluation."""
        self._metrics.reset()

    def evaluate(self, features: Any, labels: Any, weights: Any = None) -> None:
        """Update loss and metrics with a minibatch."""
        with (
            user_code(self.module.zoo, "the model or its metrics", function=self.module.loss),
            explain_dense_id_errors(self.model),
        ):
            if not self._metrics.states_verified:
                with undoing_changes(self.model):
                    predictions = self._predict(features)
                self._metrics.verify_states_add_up(labels, predictions, weights)
            self._evaluate(features, labels, weights)

    def _evaluate_graph(self, features: Any, labels: Any, weights: Any) -> None:
        predictions = self._predict_graph(features)
        loss = self._objective(labels, predictions, weights, self.model.losses, training=False)
        self._metrics.update(loss, labels, predictions, weights)

    def _predict_graph(self, features: Any) -> Any:
        with assert_dense_ids_in_range():
            return call_model(self.model, features, training=False)

    def metric_states(self) -> dict[str, Any]:
        """By metric, as JSON: whether its states can be added, and the states."""
        return self._metrics.collect_states()

    def _compute_metrics(self, states: Mapping[str, Any]) -> dict[str, float]:
        with user_code(self.module.zoo, "eval_metrics_fn()"):
            return self._metrics.compute_values(states)

    def named_variables(self) -> Iterator[tuple[str, Any]]:
        """Everything that training changes, by its name in checkpoints.

        The names are ``dense/<variable>`` as in a distributed job, ``state/<n>`` for variables outside the flat buffer,
        such as the states of random generators, and ``slot/<n>`` for the optimizer's variables.
        """
        yield from self._named_model_variables()
        for number, variable in enumerate(self.optimizer.variables):
            yield f"slot/{number}", variable

    def keeps_value(self, name: str, variable: Any) -> bool:
        """Whether a variable keeps the value of the module's code when a checkpoint is restored.

        A learning rate that no callback changes is a hyperparameter like any other: users correct it and resume.
        """
        return self.module.callbacks is None and is_rate(name, variable)

    def _named_model_variables(self) -> Iterator[tuple[str, Any]]:
        for spec, weight in zip(self.variables.specs, self.variables.weights, strict=True):
            yield f"dense/{spec.name}", weight
        for number, variable in enumerate(self.variables.local_variables):
            yield f"state/{number}", variable

    def exportable(self) -> Any:
        """The attributes of a network that :func:`edl.keras.model_export.export_model` reads."""
        return SimpleNamespace(
            module=self.module,
            sample=self._sample,
            variables=self.variables.specs,
            offsets=self.variables.offsets,
            states=self.variables.states,
            tables=(),
        )


def is_rate(name: str, variable: Any) -> bool:
    """Whether a variable, with its name in checkpoints, is the learning rate of an optimizer."""
    return name.startswith("slot/") and variable.name == "learning_rate"

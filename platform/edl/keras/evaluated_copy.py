"""A copy of a model's variables at one step, which is evaluated while the model trains on.

The user's model is built once. Its layers read the copied values instead of their variables: Keras' ``StatelessScope``
does this for the thread that traces the evaluation, and the trace has the values as arguments. So training is not
disturbed, and a second model, which may share variables with the first one by mistake, is not needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from edl.api.errors import BadInputError
from edl.keras.evaluation_metrics import EvaluationMetrics
from edl.keras.model_contract import ModelModule, call_model
from edl.keras.model_loss import ModelLoss
from edl.keras.out_of_range_ids import MODEL_LOCATION, assert_dense_ids_in_range, explain_dense_id_errors
from edl.keras.user_code import user_code

CopiedValues = Sequence[Any]
"""The values of a model's variables, in the order of ``model.variables``."""


def copy_values(model: Any) -> CopiedValues:
    """The present values of all variables of a model.

    A tensor does not change with its variable: TensorFlow copies the memory when the variable is assigned next.
    """
    return [tf.identity(variable.value) for variable in model.variables]


class CopyEvaluator:
    """Evaluates copies of a model; not thread-safe.

    Args:
        module: the user's model module.
        model: the model.
        metrics: updated by each minibatch.
        objective: the loss.
    """

    def __init__(self, module: ModelModule, model: Any, metrics: EvaluationMetrics, objective: ModelLoss) -> None:
        self._module = module
        self._model = model
        self._metrics = metrics
        self._objective = objective
        self._evaluate = tf.function(self._evaluate_graph, autograph=False, reduce_retracing=True)
        self._predict = tf.function(self._predict_graph, autograph=False, reduce_retracing=True)

    def check(self, features: Any) -> None:
        """Check, before training, that the model can be evaluated with copied values.

        Raises:
            BadInputError: it reads its variables itself.
            UserCodeError: the model raised an exception.
        """
        with user_code(self._module.zoo, "the model"), explain_dense_id_errors(self._model):
            self._predict(copy_values(self._model), features)

    def evaluate(self, values: CopiedValues, features: Any, labels: Any, weights: Any = None) -> None:
        """Update loss and metrics with a minibatch.

        Raises:
            BadInputError: an id is outside of an embedding, or the model reads its variables itself.
            UserCodeError: the model, its loss or a metric raised an exception.
        """
        with (
            user_code(self._module.zoo, "the model or its metrics", function=self._module.loss),
            explain_dense_id_errors(self._model),
        ):
            if not self._metrics.states_verified:
                self._metrics.verify_states_add_up(labels, self._predict(values, features), weights)
            self._evaluate(values, features, labels, weights)

    def _evaluate_graph(self, values: CopiedValues, features: Any, labels: Any, weights: Any) -> None:
        with self._copied_variables(values):
            predictions = self._call_model(features)
            loss = self._objective(labels, predictions, weights, self._model.losses, training=False)
        # Outside: the scope keeps all variables as they are, also those of metrics.
        self._metrics.update(loss, labels, predictions, weights)
        self._refuse_live_variables()

    def _predict_graph(self, values: CopiedValues, features: Any) -> Any:
        with self._copied_variables(values):
            predictions = self._call_model(features)
        self._refuse_live_variables()
        return predictions

    def _refuse_live_variables(self) -> None:
        """Refuse a model or metric that reads the variables themselves, while they are trained, not the copied values.

        A function that TensorFlow has traced in training keeps the variables that it read then.
        """
        captured = {id(outer) for outer, _ in tf.compat.v1.get_default_graph().captures}
        live = next((v for v in self._model.variables if id(v.value.handle) in captured), None)
        if live is not None:
            raise BadInputError(
                f"the evaluation of a copy reads the variable '{live.path}' itself, which training changes meanwhile",
                where=MODEL_LOCATION,
                hint="remove @tf.function from the methods of layers, because EDL compiles the whole model; or set "
                "evaluation.max_workers: 0, so that all workers pause for an evaluation",
            )

    def _call_model(self, features: Any) -> Any:
        with assert_dense_ids_in_range():
            return call_model(self._model, features, training=False)

    def _copied_variables(self, values: CopiedValues) -> Any:
        return keras.StatelessScope(
            list(zip(self._model.variables, values, strict=True)), collect_losses=True, initialize_variables=False
        )

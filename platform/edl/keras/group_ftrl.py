"""FTRL with a group lasso, an option that Keras' Ftrl lacks.

The group lasso makes whole embedding rows exactly zero, so a serving system can drop them. In a model module::

    from edl.keras.group_ftrl import GroupFtrl

    def optimizer():
        return GroupFtrl(0.05, group_lasso_regularization_strength=0.01)

The parameter servers apply the same rule. Under strategy Local, Keras runs this class.
"""

from __future__ import annotations

from math import sqrt
from typing import Any

import keras
from keras import ops

_EMBEDDING_RANK = 2
"""The number of dimensions of an embedding table."""


class GroupFtrl(keras.optimizers.Ftrl):  # type: ignore[misc]
    """``keras.optimizers.Ftrl`` with a penalty on the L2 norm of each embedding row.

    The penalty is the strength times the square root of the row's width times its norm.

    Args:
        learning_rate: as in Keras.
        group_lasso_regularization_strength: 0 or more; with 0 this is Keras' Ftrl.
        **arguments: the other arguments of ``keras.optimizers.Ftrl``.

    Raises:
        ValueError: the strength is negative.
    """

    def __init__(
        self, learning_rate: Any = 0.001, group_lasso_regularization_strength: float = 0.0, **arguments: Any
    ) -> None:
        super().__init__(learning_rate, **arguments)
        if group_lasso_regularization_strength < 0:
            raise ValueError(
                f"group_lasso_regularization_strength is {group_lasso_regularization_strength}, must be 0 or more"
            )
        self.group_lasso_regularization_strength = group_lasso_regularization_strength

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Apply Keras' step, then shrink each embedding row towards zero."""
        super().update_step(gradient, variable, learning_rate)
        if self.group_lasso_regularization_strength and _is_embedding_table(variable):
            self.assign(variable, ops.multiply(variable, self._row_shrinkage(variable)))

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return {
            **super().get_config(),
            "group_lasso_regularization_strength": self.group_lasso_regularization_strength,
        }

    def _row_shrinkage(self, variable: Any) -> Any:
        """The factor of each row, with the shape ``[rows, 1]``."""
        linear, l1 = self._linears[self._get_variable_index(variable)], self.l1_regularization_strength
        pull = ops.subtract(ops.clip(linear, -l1, l1), linear)
        lengths = ops.sqrt(ops.sum(ops.square(pull), axis=1, keepdims=True))
        # The square root of the width makes the strength comparable between tables of different
        # widths.
        limit = self.group_lasso_regularization_strength * sqrt(variable.shape[1])
        return 1 - limit / ops.maximum(lengths, limit)


def _is_embedding_table(variable: Any) -> bool:
    """Whether a variable is an embedding table, judged by the last part of its name."""
    # Names of TensorFlow variables end with ":0".
    return (
        len(variable.shape) == _EMBEDDING_RANK and str(variable.name).rpartition("/")[2].split(":")[0] == "embeddings"
    )

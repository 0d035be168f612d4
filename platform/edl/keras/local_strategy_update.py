"""One update under strategy Local, where there is never a second rank: gradients are applied as they are.

``replica_state`` chooses it; ``optimizer_update`` is its port.

Nothing is summed, so nothing is multiplied by a weight and divided again, and XLA compiles nothing: an update has the
bits of ``keras.Model.fit`` with ``jit_compile=False``. Nor is anything averaged: a variable that the forward pass
changes may have any type, and gets the value that it computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from edl.keras.model_contract import ModelModule
from edl.keras.model_loss import LossReduction
from edl.keras.optimizer_update import ReplicaUpdate
from edl.keras.traced_function import host_array
from edl.keras.user_code import user_code
from edl.keras.xla_compiled_update import UpdateFunction


class SingleRankUpdate(ReplicaUpdate):
    """One update of some variables by one optimizer; there are no buffers.

    Args:
        module: the user's model module.
        optimizer: a Keras optimizer that is built.
        trained: the variables that it changes.
        statistics: the variables that the forward pass changes, of any type.
        of_own_step: as of :class:`ReplicaUpdate`.
    """

    def __init__(
        self,
        module: ModelModule,
        optimizer: Any,
        trained: Sequence[Any],
        statistics: Sequence[Any],
        *,
        of_own_step: bool = False,
    ) -> None:
        super().__init__(optimizer, trained, statistics, of_own_step=of_own_step)
        self._module = module
        self._gradients: Sequence[Any] = ()
        self._has_gradient: tuple[bool, ...] = ()
        self._new_statistics: Sequence[Any] = ()
        self._apply_by_case: dict[tuple[bool, ...], UpdateFunction] = {}

    def clear(self) -> None:
        """Forget the gradients; they are in memory until then."""
        self._gradients = self._has_gradient = self._new_statistics = ()

    def write(self, gradients: Sequence[Any], tails: Sequence[Any], weight: float, *, adds: bool) -> bool:
        """Keep the gradients, which are TensorFlow's own, and return whether they are finite."""
        assert not adds, "the only rank trains one minibatch in a step"
        is_finite, has_gradient, *self._new_statistics = tails
        self._has_gradient = tuple(host_array(has_gradient).tolist())
        self._gradients = [each for each, present in zip(gradients, self._has_gradient, strict=True) if present]
        return bool(is_finite)

    def find_nonfinite(self) -> str:
        """The first variable whose gradient is not finite, or else ``loss``."""
        variables = (v for v, present in zip(self.trained, self._has_gradient, strict=True) if present)
        for variable, gradient in zip(variables, self._gradients, strict=True):
            if not np.isfinite(host_array(gradient)).all():
                return str(variable.path)
        return "loss"

    def apply(self, total_weight: float = 1.0, rate_factor: float | None = None) -> None:
        """Apply the gradients; the weight, by which they were not multiplied, has no effect."""
        assert rate_factor is None, "the number of ranks does not scale the learning rate of the only one"
        function = self._apply_by_case.get(self._has_gradient)
        if function is None:
            function = UpdateFunction(partial(self._apply_graph, self._has_gradient), compiles=False)
            self._apply_by_case[self._has_gradient] = function
        with user_code(self._module.zoo, "the optimizer", function=self._module.optimizer):
            function(self._gradients, self._new_statistics)
        self.clear()

    # ------------------------------------------------------------------ traced functions

    def _make_tails(
        self,
        gradients: Sequence[Any],
        has_gradient: Sequence[bool],
        before: Sequence[Any],
        after: Sequence[Any],
        reduction: LossReduction | None,
        records: Any,
    ) -> list[Any]:
        # Dynamic loss scaling expects infinite gradients: it skips the update and lowers the scale.
        checked = [] if self.skips_infinite_gradients else gradients
        is_finite = tf.reduce_all([True, *(tf.reduce_all(tf.math.is_finite(gradient)) for gradient in checked)])
        return [is_finite, tf.constant(has_gradient, tf.bool), *after]

    def _apply_graph(self, has_gradient: Sequence[bool], present: Sequence[Any], new_statistics: Sequence[Any]) -> None:
        for variable, value in zip(self.statistics, new_statistics, strict=True):
            variable.value.assign(value)
        gradients = iter(present)
        self._call_optimizer([next(gradients) if each else None for each in has_gradient])

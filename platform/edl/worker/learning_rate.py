"""The learning rate of a step, as the user's optimizer says it at that moment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class LearningRate:
    """The rate at a global step: of a schedule, or the optimizer's variable or callable as it is now.

    The optimizer is asked at each step, because a callback may assign another number or schedule at any time.

    Args:
        optimizer: a Keras optimizer.
    """

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer
        self._schedule: Any = None
        self._at: Callable[[int], float] = lambda step: 0.0

    def __call__(self, step: int) -> float:
        """The rate at ``step``, counted from 0 as Keras' ``optimizer.iterations``."""
        import keras

        given = self._optimizer._learning_rate
        if not isinstance(given, keras.optimizers.schedules.LearningRateSchedule):
            return float(self._optimizer.learning_rate)
        if given is not self._schedule:
            self._schedule, self._at = given, _traced(given)
        return self._at(step)


def _traced(schedule: Any) -> Callable[[int], float]:
    """A schedule as a function that is traced once: eager schedules cost up to a millisecond a step."""
    import tensorflow as tf

    function = tf.function(
        lambda step: tf.cast(schedule(step), tf.float32),
        input_signature=[tf.TensorSpec([], tf.int64)],
        autograph=False,
    )
    return lambda step: float(function(tf.constant(step, tf.int64)))

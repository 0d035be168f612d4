"""The learning rate of a step, as the user's optimizer says it at that moment."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from edl.api.errors import BadInputError
from edl.keras.user_code import user_code

_LOG = logging.getLogger(__name__)


class LearningRate:
    """The rate at a global step: of a schedule, or the optimizer's variable or callable as it is now.

    The optimizer is asked at each step, because a callback may assign another number or schedule at any time.

    Args:
        optimizer: a Keras optimizer.
        zoo: the model zoo; frames of files below it are the user's in tracebacks.
    """

    def __init__(self, optimizer: Any, zoo: Path = Path()) -> None:
        self._optimizer = optimizer
        self._zoo = zoo
        self._schedule: Any = None
        self._rate_at_step: Callable[[int], float] = lambda step: 0.0

    def __call__(self, step: int) -> float:
        """The rate at ``step``, counted from 0 as Keras' ``optimizer.iterations``.

        Raises:
            UserCodeError: the user's schedule or function raised.
            BadInputError: the rate is NaN or infinite.
        """
        with user_code(self._zoo, "the learning rate"):
            rate = self._rate(step)
        if not math.isfinite(rate):
            raise BadInputError(
                f"the learning rate of step {step} is {rate}",
                hint="look at the schedule that optimizer() gives, and at callbacks that assign learning_rate",
            )
        return rate

    def _rate(self, step: int) -> float:
        import keras

        given = self._optimizer._learning_rate
        if not isinstance(given, keras.optimizers.schedules.LearningRateSchedule):
            return float(self._optimizer.learning_rate)
        if given is not self._schedule:
            self._schedule, self._rate_at_step = given, _trace_schedule(given)
        return self._rate_at_step(step)


class JobLearningRate:
    """The rate that a callback of the job has set, where one has; otherwise the optimizer's own.

    Assigned to the optimizer whenever it changes, as the callback would do it.

    Args:
        optimizer: the Keras optimizer, which callbacks of the worker see.
        own: the optimizer's rate at a step.
        decided: what was decided for all workers; None: nothing yet, or not any more.
    """

    def __init__(self, optimizer: Any, own: Callable[[int], float], decided: Callable[[], float | None]) -> None:
        self._optimizer = optimizer
        self._own = own
        self._decided_rate = decided
        self._assigned_rate: float | None = None
        self._before: float | None = None

    def __call__(self, step: int) -> float:
        """The rate at ``step``; as :class:`LearningRate`."""
        decided = self._decided_rate()
        if decided != self._assigned_rate:
            if self._before is None:
                self._before = float(self._optimizer.learning_rate)
            self._optimizer.learning_rate = self._before if decided is None else decided
            self._assigned_rate = decided
            _LOG.info("the learning rate is %.6g from step %d on", float(self._optimizer.learning_rate), step)
        return self._own(step)


def _trace_schedule(schedule: Any) -> Callable[[int], float]:
    """A schedule as a function that is traced once: eager schedules cost up to a millisecond a step.

    One that decides by Python's ``if``, or computes with ``math``, cannot be traced.
    """
    import tensorflow as tf

    function = tf.function(
        lambda step: tf.cast(schedule(step), tf.float32),
        input_signature=[tf.TensorSpec([], tf.int64)],
        autograph=False,
    )
    try:
        function.get_concrete_function()
    except (TypeError, NotImplementedError) as error:  # what TensorFlow and NumPy say of a tensor without a value
        _LOG.info("the learning rate's schedule is called at every step, because it cannot be traced: %s", error)
        return lambda step: float(schedule(tf.constant(step, tf.int64)))
    return lambda step: float(function(tf.constant(step, tf.int64)))

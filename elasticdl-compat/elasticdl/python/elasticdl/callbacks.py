"""Callbacks. They are ordinary Keras callbacks, also under ``keras.Model.fit``."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from edl.api.errors import BadInputError
from elasticdl_compat.missing_names import MIGRATION_PAGE, explain_missing_names


class LearningRateScheduler(tf.keras.callbacks.Callback):  # type: ignore[misc]
    """Sets the learning rate of each step.

    Args:
        schedule: returns the rate for a model version, which is the number of updates so far.
    """

    def __init__(self, schedule: Callable[[int], float]) -> None:
        super().__init__()
        self._schedule = schedule

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        # Not ``batch``, which begins anew with each epoch of Keras' fit.
        self.model.optimizer.learning_rate = float(self._schedule(int(self.model.optimizer.iterations)))


class MaxStepsStopping(tf.keras.callbacks.Callback):  # type: ignore[misc]
    """Ends the training after a number of steps.

    With parameter servers, records that workers hold then are still trained, as in ElasticDL. ``train.max_steps`` of
    the job file ends a job after exactly that many steps.

    Args:
        max_steps: the number of steps.
    """

    def __init__(self, max_steps: int) -> None:
        super().__init__()
        self._max_steps = max_steps

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if int(self.model.optimizer.iterations) >= self._max_steps:
            self.model.stop_training = True


class SavedModelExporter:
    """Refused: its arguments are objects of ElasticDL's workers.

    Raises:
        BadInputError: always.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        raise BadInputError(
            "SavedModelExporter takes objects of ElasticDL's workers, which EDL does not have",
            where=_calling_line(),
            hint=f"remove it: a job exports its model to export.path of the job file ({MIGRATION_PAGE})",
        )


def _calling_line() -> str:
    """The line of the module that makes the object whose ``__init__`` calls this."""
    caller = inspect.stack()[2]
    return f"{caller.filename}:{caller.lineno}"


__getattr__ = explain_missing_names(__name__)

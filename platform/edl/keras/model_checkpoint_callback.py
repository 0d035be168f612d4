"""``ModelCheckpoint`` under strategy AllReduce: EDL writes its files, once for all ranks.

Without ``save_best_only`` the file has the model after an epoch, or after some steps (``edl.core.model_files``). If its
name has values of an evaluation, such as ``{val_loss:.2f}``, there is one of each evaluation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from string import Formatter
from typing import Any

import keras

from edl.api.errors import BadInputError
from edl.core.model_files import ModelFile

_STEP_FIELDS = ("epoch", "batch", "loss")


def names_evaluation(callback: Any) -> bool:
    """Whether this is ``ModelCheckpoint`` without ``save_best_only`` whose file name has values of an evaluation."""
    if not isinstance(callback, keras.callbacks.ModelCheckpoint) or callback.save_best_only:
        return False
    return any(field.startswith("val_") for field in _fields(callback.filepath))


def declare_model_file(callback: Any) -> ModelFile:
    """The declaration of ``ModelCheckpoint`` without ``save_best_only`` for the master.

    Raises:
        BadInputError: it is a subclass, or its arguments cannot work.
    """
    kind = type(callback)
    if kind is not keras.callbacks.ModelCheckpoint:
        raise BadInputError(
            f"the callback {kind.__name__} (a keras.callbacks.ModelCheckpoint) cannot be used: one worker writes the "
            "file for all, and does not run the code of a subclass",
            hint="use keras.callbacks.ModelCheckpoint itself, or strategy: {name: Local}, which runs subclasses",
        )
    every = 0 if callback.save_freq == "epoch" else int(callback.save_freq)
    if every < 1 and callback.save_freq != "epoch":
        raise BadInputError(
            f"save_freq={callback.save_freq!r} of the callback ModelCheckpoint cannot be used",
            hint="use 'epoch', or a number of steps of at least 1",
        )
    check_file_name(callback, [each for each in _STEP_FIELDS if every or each != "batch"])
    return ModelFile(callback.filepath, weights_only=bool(callback.save_weights_only), every_steps=every)


def check_file_name(callback: Any, known: list[str], is_known: Callable[[str], bool] = lambda field: False) -> None:
    """Check the path of ``ModelCheckpoint`` before training.

    Args:
        known: what may be in braces.
        is_known: whether something else may be.

    Raises:
        BadInputError: the path has other placeholders, or the file would have another format than Keras'.
    """
    path = str(callback.filepath)
    if not callback.save_weights_only and not path.endswith(".keras"):
        raise BadInputError(
            f"the filepath '{path}' of the callback ModelCheckpoint cannot be used: EDL writes no HDF5 models",
            hint="let it end with .keras, or use save_weights_only=True and .weights.h5",
        )
    problem = ""
    try:
        fields = _fields(path)
        if unknown := next((each for each in fields if each not in known and not is_known(each)), None):
            problem = f"{{{unknown}}} has no value there"
        else:
            # An epoch and a batch are whole numbers: {epoch:02d}.
            format_file_name(path, {each: 1 if each in ("epoch", "batch") else 1.0 for each in fields})
    except (KeyError, IndexError, ValueError, AttributeError, TypeError) as error:
        problem = str(error)
    if problem:
        raise BadInputError(
            f"the filepath '{path}' of the callback ModelCheckpoint is invalid: {problem}",
            hint=f"use only {', '.join(f'{{{each}}}' for each in known)} in it",
        )


def format_file_name(filepath: str, values: Mapping[str, Any]) -> str:
    """The path of a file, as Keras computes it."""
    return filepath.format(**values)


def _fields(filepath: str) -> list[str]:
    """What is in braces."""
    return [name for _, name, _, _ in Formatter().parse(str(filepath)) if name is not None]


class EpochLoss(keras.callbacks.Callback):  # type: ignore[misc]
    """The mean loss of the steps of an epoch so far, for the names of files."""

    def __init__(self) -> None:
        super().__init__()
        self._sum, self._steps = 0.0, 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._sum, self._steps = 0.0, 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Add the loss of a step."""
        self._sum, self._steps = self._sum + float(logs["loss"]), self._steps + 1

    @property
    def mean(self) -> float | None:
        """The mean; None if this worker has seen no step of the epoch."""
        return self._sum / self._steps if self._steps else None


def model_file_path(filepath: str, payload: Mapping[str, Any], mean_loss: float | None) -> Path:
    """The path of a file that is due.

    Args:
        filepath: the callback's.
        payload: the task's.
        mean_loss: of the steps of this epoch that the worker has seen.
    """
    last = math.nan if payload["loss"] is None else payload["loss"]
    values = {
        "epoch": payload["epoch"],
        "batch": payload["step"],
        "loss": last if mean_loss is None else mean_loss,
    }
    return Path(format_file_name(filepath, values))

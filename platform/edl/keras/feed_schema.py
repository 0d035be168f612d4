"""What the default feeds of tables and of images share: a model's inputs, and labels as a loss takes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from edl.api.errors import BadInputError

DATA_SET_BY_FEED_MODE = {"training": "data.training", "evaluation": "data.validation", "prediction": "data.prediction"}
"""The field of the job file that names the records, by the mode of ``feed``."""


@dataclass(frozen=True, slots=True)
class ModelInput:
    """What a model's input expects: the type, and the shape of one record, with None for an axis of any size."""

    dtype: Any
    shape: tuple[int | None, ...]


def encode_label(number: Any, mode: str | None, class_count: int) -> Any:
    """A label, or the labels of a minibatch, as the loss takes them: see ``data.schema.label_mode``.

    Args:
        number: the number of the class, or any number without a mode; a scalar or ``[records]``.
        mode: ``int``, ``categorical`` or ``binary``; None: the number as float32.
        class_count: number of classes; 0: unknown.
    """
    if mode == "int":
        return tf.cast(number, tf.int32)
    if mode == "categorical":
        return tf.one_hot(number, class_count)
    if mode == "binary" and class_count not in (0, 2):
        raise BadInputError(
            f"binary needs two classes, found {class_count}",
            where="data.schema.label_mode",
            hint="use int or categorical",
        )
    return tf.expand_dims(tf.cast(number, tf.float32), -1)

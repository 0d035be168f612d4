"""What the default feeds of tables and of images share: a model's inputs, and labels as a loss takes them.

:class:`SchemaFeed` is the port between such a feed and what runs it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import tensorflow as tf

from edl.api.errors import BadInputError

DATA_SET_BY_FEED_MODE = {"training": "data.training", "evaluation": "data.validation", "prediction": "data.prediction"}
"""The field of the job file that names the records, by the mode of ``feed``."""


@dataclass(frozen=True, slots=True)
class ModelInput:
    """What a model's input expects: the type, and the shape of one record, with None for an axis of any size."""

    dtype: Any
    shape: tuple[int | None, ...]


@runtime_checkable
class SchemaFeed(Protocol):
    """EDL's own ``feed``, for ``data.schema``: it can do more than a user's ``feed`` is asked for."""

    def __call__(self, dataset: Any, mode: str, metadata: Any) -> Any:
        """The dataset of single records, as of the contract."""

    def feed_minibatch(self, records: Any, mode: str, metadata: Any) -> Any:
        """All records of a minibatch parsed at once, which takes a hundredth of the time for a table.

        None where records must be parsed one by one.
        """

    def without_graph(self, mode: str, metadata: Any) -> Callable[[Any], Any] | None:
        """A function that makes a minibatch of records as they were read; None where a graph is traced."""

    def windows_at_once(self, metadata: Any) -> int:
        """The number of minibatches that are made at the same time."""

    def explain_bad_record(self, record: Any, mode: str, metadata: Any) -> tuple[str, str] | None:
        """What is wrong with a record, and what to do; None: nothing is known to be."""


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

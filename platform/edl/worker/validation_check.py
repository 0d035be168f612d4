"""Compares the first validation minibatch with the first training minibatch, before any step is made.

Without it, validation data of another schema would end the job at its first evaluation, perhaps after hours.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf

from edl.api.errors import BadInputError
from edl.data.reader import Reader
from edl.worker.feed_pipeline import FeedError, FeedFunction, Minibatch, find_first_minibatch
from edl.worker.record_stream import CorruptRecordSkipper

_LOG = logging.getLogger(__name__)
_DATA_SET = "data.validation"


def check_validation_data(
    validation: Reader,
    feeder: FeedFunction,
    training: Reader,
    first: Minibatch | None,
    *,
    max_corrupt_records: int,
    size: int,
) -> None:
    """Raise if ``feed`` or the model cannot take the validation records as it takes the training records.

    Args:
        validation: the reader of ``data.validation``.
        feeder: ``feed`` for evaluation.
        training: the reader of ``data.training``.
        first: the first minibatch for training; None if there is none to compare with.
        max_corrupt_records: as in the job file. What is skipped here is not counted.
        size: records of a minibatch.

    Raises:
        BadInputError: names the data set, the file and what differs.
    """
    columns = _column_differences(training.metadata.column_names, validation.metadata.column_names)
    try:
        found = find_first_minibatch(validation, feeder, CorruptRecordSkipper(max_corrupt_records), size=size)
    except FeedError as error:
        error.message = f"{_DATA_SET}: {error.message}"
        if columns:
            error.hint = f"{columns}; {error.hint}" if error.hint else columns
        raise
    if found is None or first is None:
        return
    task, minibatch = found
    different = [
        *_differences("features", first.features, minibatch.features, strict=True),
        *_differences("labels", first.labels, minibatch.labels, strict=False),
    ]
    if columns and not different:
        # feed may take columns by name, or have no use for some.
        _LOG.warning("%s: %s (%s); feed must not take cells by position then", _DATA_SET, columns, task.source)
    if different:
        different += [columns] if columns else []
        raise BadInputError(
            f"{_DATA_SET} has other records than data.training: {'; '.join(different)}",
            where=task.source,
            hint="both sets need the same columns, in the same order, and the same types",
        )


def _column_differences(training: tuple[str, ...], validation: tuple[str, ...]) -> str:
    """How the columns of two tables differ, as text; empty if they do not."""
    if training == validation or not training or not validation:
        return ""
    missing = [name for name in training if name not in validation]
    more = [name for name in validation if name not in training]
    if not missing and not more:
        return f"its columns are in another order: {', '.join(validation)}, and not {', '.join(training)}"
    texts = [f"it has no column {', '.join(missing)}"] if missing else []
    texts += [f"data.training has no column {', '.join(more)}"] if more else []
    return "; ".join(texts)


def _differences(name: str, training: Any, validation: Any, *, strict: bool) -> Iterator[str]:
    """What differs between two structures of tensors: keys, number of parts, kind of type and dimensions."""
    if isinstance(training, Mapping) and isinstance(validation, Mapping):
        for key in training.keys() | validation.keys():
            if key not in validation or key not in training:
                yield f"{name}['{key}'] is only in {'training' if key in training else 'validation'}"
            else:
                yield from _differences(f"{name}['{key}']", training[key], validation[key], strict=strict)
    elif isinstance(training, list | tuple) and isinstance(validation, list | tuple):
        if len(training) != len(validation):
            yield f"{name} has {len(validation)} parts, in training {len(training)}"
        for at, (one, other) in enumerate(zip(training, validation, strict=False)):
            yield from _differences(f"{name}[{at}]", one, other, strict=strict)
    elif hasattr(training, "dtype") and hasattr(validation, "dtype"):
        if _type_kind(training.dtype) != _type_kind(validation.dtype):
            yield f"{name} is {validation.dtype.name}, in training {training.dtype.name}"
        if 0 in validation.shape[1:] and 0 not in training.shape[1:]:
            yield f"{name} has no values, its shape is {tuple(validation.shape)}"
        # Other dimensions may differ between minibatches: the length of a padded sequence.
        if strict and len(training.shape) != len(validation.shape):
            yield f"{name} has the shape {tuple(validation.shape)}, in training {tuple(training.shape)}"
    else:
        yield f"{name} is {type(validation).__name__}, in training {type(training).__name__}"


def _type_kind(dtype: Any) -> str:
    dtype = tf.as_dtype(dtype)
    return "number" if dtype.is_floating or dtype.is_integer or dtype.is_bool else str(dtype.name)

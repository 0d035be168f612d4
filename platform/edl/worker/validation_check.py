"""Compares the first validation minibatch with the first training minibatch, before any step is made.

Without it, validation data of another schema would end the job at its first evaluation, perhaps after hours.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from edl.api.errors import BadInputError
from edl.data.reader import Reader
from edl.worker.feed_pipeline import FeedError, FeedFunction, Minibatch, doubtful_header, find_first_minibatch
from edl.worker.lease_client import LeasedTask
from edl.worker.record_stream import CorruptRecordSkipper, RecordWindow

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
    formats = _format_difference(training, validation)
    # Records that were taken for headers differ; the feed of training warns of them.
    columns = (
        ""
        if doubtful_header(training.metadata) and doubtful_header(validation.metadata)
        else _column_differences(training.metadata.column_names, validation.metadata.column_names)
    )
    try:
        first_minibatch = find_first_minibatch(validation, feeder, CorruptRecordSkipper(max_corrupt_records), size=size)
    except FeedError as error:
        error.message = f"{_DATA_SET}: {formats}; {error.message}" if formats else f"{_DATA_SET}: {error.message}"
        if columns:
            error.hint = f"{columns}; {error.hint}" if error.hint else columns
        raise
    if first_minibatch is None or first is None:
        return
    task, minibatch = first_minibatch
    different = [
        *_differences("features", first.features, minibatch.features, strict=True),
        *_differences("labels", first.labels, minibatch.labels, strict=False),
    ]
    if columns and not different and _takes_by_position(validation, feeder, training, task):
        raise BadInputError(
            f"{_DATA_SET}: {columns}; feed takes cells by position, so that it reads other columns than in training",
            where=task.source,
            hint="write the columns in the same order, name them in data.reader.columns, or let feed look them up in "
            "metadata.column_names",
        )
    if columns and not different:
        # feed may take columns by name, or have no use for some.
        _LOG.warning("%s: %s (%s); feed must take cells by name, not by position", _DATA_SET, columns, task.source)
    if different:
        different += [text for text in (columns, formats) if text]
        raise BadInputError(
            f"{_DATA_SET} has other records than data.training: {'; '.join(different)}",
            where=task.source,
            hint="both sets need the same columns, in the same order, and the same types",
        )


def _takes_by_position(validation: Reader, feeder: FeedFunction, training: Reader, task: LeasedTask) -> bool:
    """Whether ``feed`` reads other cells if a validation row has the columns of training, in their order.

    False also if that cannot be told: a column is missing, the records are no rows, or ``feed`` draws random numbers.
    """
    names, wanted = validation.metadata.column_names, training.metadata.column_names
    # What is corrupt was left out before.
    rows: Any = validation.read(task.source, task.start, task.end, lambda _: None)
    if not set(wanted) <= set(names) or not all(isinstance(row, list | tuple) for row in rows):
        return False
    order = [names.index(name) for name in wanted]
    moved = [[row[at] for at in order] for row in rows]
    in_order = feeder.with_metadata(training.metadata)
    minibatches = [feeder.make_minibatch(0, RecordWindow(rows)) for _ in range(2)]
    if not _have_equal_values(*minibatches):
        return False
    try:
        other = in_order.make_minibatch(0, RecordWindow(moved))
    except FeedError:
        return True
    return not _have_equal_values(minibatches[0], other)


def _have_equal_values(one: Minibatch | None, other: Minibatch | None) -> bool:
    if one is None or other is None:
        return one is other
    ours, theirs = (
        [np.asarray(leaf) for leaf in tf.nest.flatten(parts, expand_composites=True) if leaf is not None]
        for parts in ((each.features, each.labels, each.weights) for each in (one, other))
    )
    return len(ours) == len(theirs) and all(
        np.array_equal(a, b, equal_nan=a.dtype.kind == "f") for a, b in zip(ours, theirs, strict=True)
    )


def _format_difference(training: Reader, validation: Reader) -> str:
    """How the formats of the files differ, as text; empty if they do not. A ``feed`` may take both."""
    trained_format, validated_format = training.metadata.format, validation.metadata.format
    if trained_format == validated_format:
        return ""
    names = [source.name for source in validation.sources()]
    return (
        f"{names[0]} has the format {validated_format}, and data.training the format {trained_format}" if names else ""
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

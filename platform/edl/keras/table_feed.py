"""The ``feed`` of a model module that defines none: rows of a table, of which one column is the label.

The job names the label's column in ``data.reader.label``. The other columns become what the model's inputs are: inputs
that are named like columns get one column each, with their type and shape; a model with another input, or without
declared inputs, gets all columns as one vector of numbers. The label is a number of the shape ``(1,)``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from edl.api.errors import BadInputError


@dataclass(frozen=True, slots=True)
class TableInput:
    """What a model's input expects of a column: its type, and the shape of one record."""

    dtype: Any
    shape: tuple[int, ...]


def make_table_feed(label: str, model: Any, origin: Callable[..., Any]) -> Callable[..., Any]:
    """``feed(dataset, mode, metadata)`` for rows of cells.

    Args:
        label: the label's column.
        model: the model, whose inputs are read now: ``feed`` is traced, and no model can be made in a graph.
        origin: a function of the user's module, for the places in messages.
    """
    inputs = read_inputs(model)

    def feed(dataset: Any, mode: str, metadata: Any) -> Any:
        columns = tuple(metadata.column_names)
        if label not in columns and mode != "prediction":
            known = f"the columns are {', '.join(columns)}" if columns else "the data are no table"
            raise BadInputError(f"found '{label}', which is no column", where="data.reader.label", hint=known)
        parse = _make_parser(columns, label, inputs)
        if mode == "prediction":
            return dataset.map(lambda row: parse(row)[0])
        return dataset.map(parse)

    # messages about feed name the user's module; its arguments stay those of the contract
    feed.__signature__ = inspect.signature(feed)  # type: ignore[attr-defined]
    feed.__wrapped__ = origin  # type: ignore[attr-defined]
    return feed


def read_inputs(model: Any) -> Mapping[str, TableInput]:
    """The declared inputs of a model by name; none of a subclass, or of a Sequential without Input."""
    try:
        declared = list(model.inputs or ())
    except (AttributeError, ValueError):
        return {}
    return {
        each.name: TableInput(tf.as_dtype(each.dtype), tuple(size or 1 for size in each.shape[1:])) for each in declared
    }


def _make_parser(columns: Sequence[str], label: str, inputs: Mapping[str, TableInput]) -> Callable[[Any], Any]:
    places = {name: index for index, name in enumerate(columns)}
    features = [name for name in columns if name != label]
    named = [name for name in inputs if name in features]
    if named and len(named) < len(inputs):
        missing = ", ".join(name for name in inputs if name not in features)
        raise BadInputError(
            f"the model's inputs {missing} are no columns, and its module defines no feed",
            where="data.reader.columns",
            hint=f"the columns besides the label are {', '.join(features)}; define feed(dataset, mode, metadata)",
        )
    if not named and len(inputs) > 1:
        raise BadInputError(
            f"none of the model's inputs ({', '.join(inputs)}) is a column, and its module defines no feed",
            where="data.reader.columns",
            hint=f"name inputs like columns ({', '.join(features)}), or define feed(dataset, mode, metadata)",
        )

    whole = next((each.dtype for each in inputs.values()), tf.float32)

    # No annotation inside: TensorFlow cannot transform it.
    def parse(row: Any) -> Any:
        if not named:
            found = _to_type(tf.gather(row, [places[name] for name in features]), whole)
        else:
            found = {name: _convert_cell(row[places[name]], inputs[name]) for name in named}
            found = found if len(inputs) > 1 else found[named[0]]
        number = tf.strings.to_number(row[places[label]], tf.float32) if label in places else tf.zeros(())
        return found, tf.reshape(number, (1,))

    return parse


def _convert_cell(cell: Any, wanted: TableInput) -> Any:
    return tf.reshape(_to_type(cell, wanted.dtype), wanted.shape)


def _to_type(cells: Any, dtype: Any) -> Any:
    """Cells as values of a type; whole numbers and float64 keep all their digits."""
    if dtype == tf.string:
        return cells
    parsed = tf.int64 if dtype.is_integer else tf.float64 if dtype == tf.float64 else tf.float32
    return tf.cast(tf.strings.to_number(cells, parsed), dtype)

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
    """``feed(dataset, mode, metadata)`` for rows of text, or of typed cells.

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
        typed = isinstance(dataset.element_spec, dict)
        parse = _make_parser(columns, label, inputs, _take_typed_cell if typed else _take_text_cell(columns))
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


def _take_typed_cell(row: Any, column: str, dtype: Any) -> Any:
    """The cell of a row that is a mapping, as Parquet has it."""
    cell = row[column]
    if (cell.dtype == tf.string) != (dtype == tf.string):
        raise BadInputError(
            f"column '{column}' is {cell.dtype.name}, and the model takes it as {dtype.name}",
            where="data.reader.columns",
            hint="let the model's input have the column's type, name other columns, or define feed in the module",
        )
    return tf.cast(cell, dtype)


def _take_text_cell(columns: Sequence[str]) -> Callable[[Any, str, Any], Any]:
    """The cell of a row of text, as CSV has it, as a value of a type."""
    places = {name: index for index, name in enumerate(columns)}
    return lambda row, column, dtype: _to_type(row[places[column]], dtype)


def _make_parser(
    columns: Sequence[str],
    label: str,
    inputs: Mapping[str, TableInput],
    take_cell: Callable[[Any, str, Any], Any],
) -> Callable[[Any], Any]:
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
            # One after another: a column may have several numbers a record.
            found = tf.concat([tf.reshape(take_cell(row, name, whole), [-1]) for name in features], 0)
        else:
            found = {name: tf.reshape(take_cell(row, name, inputs[name].dtype), inputs[name].shape) for name in named}
            found = found if len(inputs) > 1 else found[named[0]]
        number = take_cell(row, label, tf.float32) if label in columns else tf.zeros(())
        return found, tf.reshape(number, (1,))

    return parse


def _to_type(cells: Any, dtype: Any) -> Any:
    """Cells as values of a type; whole numbers and float64 keep all their digits."""
    if dtype == tf.string:
        return cells
    parsed = tf.int64 if dtype.is_integer else tf.float64 if dtype == tf.float64 else tf.float32
    return tf.cast(tf.strings.to_number(cells, parsed), dtype)

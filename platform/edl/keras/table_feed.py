"""The default ``feed`` of tables: rows of text or of typed cells, and records of ``tf.train.Example``.

The columns of ``data.schema.features``, or all but the label, become what the model's inputs are: inputs that are named
like columns get one column each, with their type and shape. A model with another input, or without declared inputs,
gets all of them as one vector; without declared inputs and with text among them, as a mapping.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
import tensorflow as tf

from edl.api.errors import BadInputError
from edl.api.job_spec import SchemaSpec
from edl.jobfile.schema_rules import label_type
from edl.keras.feed_schema import DATA_SET_BY_FEED_MODE, ModelInput, encode_label

TakeColumn = Callable[[Any, str, Any], Any]
"""``take_column(rows, column, dtype)``: a column of rows as values of a type; rows first."""


def make_table_parser(
    schema: SchemaSpec, inputs: Mapping[str, ModelInput], metadata: Any, records: Any, mode: str
) -> Callable[[Any], Any]:
    """``parse(rows)``: (features, labels) of the rows of a minibatch, all at once.

    Rows are text ``[rows, columns]``, serialized Examples ``[rows]``, or a mapping from columns to values.

    Args:
        schema: of the job.
        inputs: of the model.
        metadata: of the reader.
        records: the rows to come, or their specification: only their structure and types are used.
        mode: ``training``, ``evaluation`` or ``prediction``.

    Raises:
        BadInputError: the schema, the table and the model do not fit.
    """
    columns = tuple(metadata.column_names) or tuple(_example_types(schema))
    _check_columns(schema, columns, metadata.format, mode)
    features = tuple(schema.features) or tuple(name for name in columns if name != schema.label)
    named = _match_inputs(inputs, features, is_chosen=bool(schema.features))
    if isinstance(records, dict):
        take = _take_typed_column(schema)
    elif metadata.column_names:
        take = _take_text_column(columns, schema)
    else:
        take = _take_example_column(schema, has_label=mode != "prediction")
    only_type = next((each.dtype for each in inputs.values()), None)
    has_text = tf.string in (_feature_type(schema, name, records) for name in features)

    # No annotation inside: TensorFlow cannot transform it.
    def parse(rows: Any) -> Any:
        if named:
            model_input = {
                name: _fit_input(name, take(rows, name, inputs[name].dtype), inputs[name].shape) for name in named
            }
            model_input = model_input if len(inputs) > 1 else model_input[named[0]]
        elif only_type is None and has_text and schema.features:
            model_input = {
                name: _fit_input(name, take(rows, name, tf.as_dtype(kind)), (1,))
                for name, kind in schema.features.items()
            }
        else:
            # One after another: a column may have several numbers a record.
            cells = {name: take(rows, name, only_type or tf.float32) for name in features}
            for name, cell in cells.items():
                if None in cell.shape[1:]:
                    raise _list_error(name, "give the model an input of the column's name")
            model_input = tf.concat([tf.reshape(cell, (-1, prod(cell.shape[1:]))) for cell in cells.values()], 1)
        if mode == "prediction":
            return model_input, None
        return model_input, _parse_labels(schema, rows, take)

    return parse


def _check_columns(schema: SchemaSpec, columns: Sequence[str], format_name: str, mode: str) -> None:
    data_set = DATA_SET_BY_FEED_MODE[mode]
    # data.reader.label is a short form of the schema
    field = "data.schema.label" if schema.features or schema.classes or schema.label_mode else "data.reader.label"
    if not columns:
        raise BadInputError(
            f"found '{schema.label}', which is no column",
            where=field,
            hint=f"{data_set} is {format_name}: the data are no table. Name the features of JSON lines or of "
            "tf.train.Example records in data.schema.features, or define feed(dataset, mode, metadata) in the model "
            "module",
        )
    for name in ("image_size", "color_mode"):
        if getattr(schema, name):
            raise BadInputError(
                f"is of images, and {data_set} is {format_name}", where=f"data.schema.{name}", hint="leave it out"
            )
    known = f"the columns of {data_set} are {', '.join(columns)}"
    if mode != "prediction" and schema.label is None:
        raise BadInputError("is missing", where="data.schema.label", hint=f"name the label's column: {known}")
    if mode != "prediction" and schema.label not in columns:
        raise BadInputError(f"found '{schema.label}', which is no column", where=field, hint=known)
    if missing := [name for name in schema.features if name not in columns]:
        raise BadInputError(f"found {', '.join(missing)}, no column", where="data.schema.features", hint=known)


def _match_inputs(inputs: Mapping[str, ModelInput], features: Sequence[str], *, is_chosen: bool) -> list[str]:
    """The inputs that get the columns of their names; none if the only input gets all columns."""
    named = [name for name in inputs if name in features]
    where = "data.schema.features" if is_chosen else "data.reader.columns"
    if named and len(named) < len(inputs):
        missing = ", ".join(name for name in inputs if name not in features)
        raise BadInputError(
            f"the model's inputs {missing} are no columns, and its module defines no feed",
            where=where,
            hint=f"the columns besides the label are {', '.join(features)}; define feed(dataset, mode, metadata)",
        )
    if not named and len(inputs) > 1:
        raise BadInputError(
            f"none of the model's inputs ({', '.join(inputs)}) is a column, and its module defines no feed",
            where=where,
            hint=f"name inputs like columns ({', '.join(features)}), or define feed(dataset, mode, metadata)",
        )
    unused = [name for name in features if name not in inputs]
    if is_chosen and named and unused:
        raise BadInputError(
            f"the model has no input {', '.join(unused)}",
            where=where,
            hint=f"leave them out, or give the model inputs of these names; it has {', '.join(inputs)}",
        )
    return named


def _fit_input(column: str, cells: Any, shape: Sequence[int | None]) -> Any:
    """The cells in the shape of an input; a list of any length for an input that takes one."""
    cell_shape = cells.shape[1:]
    if None not in cell_shape:
        sizes = [size or 1 for size in shape]
        if prod(sizes) != prod(cell_shape):
            raise BadInputError(
                f"column '{column}' has {prod(cell_shape)} values a record, and the model's input takes {prod(sizes)}",
                where="data.schema.features",
                hint=f"give the input the shape {tuple(cell_shape)}, or define feed(dataset, mode, metadata)",
            )
        return tf.reshape(cells, (-1, *sizes))
    if len(shape) == len(cell_shape) and None in shape:
        return cells
    raise _list_error(column, f"the model's input takes {tuple(shape)}: give it the shape (None,)")


def _list_error(column: str, remedy: str) -> BadInputError:
    return BadInputError(
        f"column '{column}' has lists of different lengths",
        where="data.schema.features",
        hint=f"{remedy}; or leave the column out, or define feed(dataset, mode, metadata) in the model module",
    )


def _parse_labels(schema: SchemaSpec, rows: Any, take: TakeColumn) -> Any:
    assert schema.label is not None  # _check_columns
    wanted = tf.as_dtype(label_type(schema))
    if isinstance(rows, dict):
        _check_label(schema, rows[schema.label], wanted)
    cells = tf.reshape(take(rows, schema.label, wanted), (-1,))
    if not schema.classes:
        return encode_label(cells, schema.label_mode, 0)
    matches = tf.equal(cells[:, tf.newaxis], tf.constant(schema.classes))
    is_known = tf.reduce_any(matches, 1)
    # not tf.debugging.Assert: its control flow would not run on the thread of feed
    known = tf.raw_ops.Assert(
        condition=tf.reduce_all(is_known),
        data=["the label is none of data.schema.classes:", tf.boolean_mask(cells, tf.logical_not(is_known))],
        summarize=1,
    )
    with tf.control_dependencies([known] if known is not None else []):
        numbers = tf.argmax(matches, axis=1, output_type=tf.int32)
    return encode_label(numbers, schema.label_mode or "int", len(schema.classes))


def _check_label(schema: SchemaSpec, cells: Any, wanted: Any) -> None:
    """Refuse a typed column that has not one label in each record, of the wanted type."""
    remedy = "or define feed(dataset, mode, metadata) in the model module"
    count = None if None in cells.shape[1:] else prod(cells.shape[1:])
    if count != 1:
        amount = "lists of different lengths" if count is None else f"{count} values a record"
        fault, hint = f"has {amount}, and a label has one", f"name another column, {remedy}"
    elif cells.dtype == tf.string and not schema.classes:
        fault, hint = "is text", f"list its values in data.schema.classes, name another column, {remedy}"
    elif cells.dtype.is_floating and not wanted.is_floating:
        takes = "data.schema.classes are text, whole numbers or booleans" if schema.classes else "label_mode is int"
        fault, hint = f"is {cells.dtype.name}, and {takes}", f"leave that out, name another column, {remedy}"
    else:
        return
    raise BadInputError(f"column '{schema.label}' {fault}", where="data.schema.label", hint=hint)


# --------------------------------------------------------------------------------------------------
# Cells.


def _feature_type(schema: SchemaSpec, column: str, records: Any) -> Any:
    if column in schema.features:
        return tf.as_dtype(schema.features[column])
    return records[column].dtype if isinstance(records, dict) else None


def _take_typed_column(schema: SchemaSpec) -> TakeColumn:
    """A column of rows that are mappings, as Parquet has them."""

    def take(rows: Any, column: str, dtype: Any) -> Any:
        cells = rows[column]
        if schema.classes and column == schema.label and (cells.dtype.is_integer or cells.dtype.is_bool):
            return tf.strings.as_string(cells)
        declared = schema.features.get(column)
        if declared is not None:
            cells = _convert(column, cells, tf.as_dtype(declared), "the schema")
        return _convert(column, cells, dtype, "the model")

    return take


def _take_text_column(columns: Sequence[str], schema: SchemaSpec) -> TakeColumn:
    """A column of rows of text, as CSV has them."""
    places = {name: index for index, name in enumerate(columns)}

    def take(rows: Any, column: str, dtype: Any) -> Any:
        cells, declared = rows[:, places[column]], schema.features.get(column)
        if declared is None:
            return _parse_cells(column, cells, dtype)
        _check_cast(column, tf.as_dtype(declared), dtype, "the model")
        return _convert(column, _parse_cells(column, cells, tf.as_dtype(declared)), dtype, "the model")

    return take


def _example_types(schema: SchemaSpec) -> Mapping[str, Any]:
    """The types in which records of ``tf.train.Example`` store the features and the label; none without features."""
    if not schema.features:
        return {}
    stored = {name: _stored_type(tf.as_dtype(kind)) for name, kind in schema.features.items()}
    label = {} if schema.label is None else {schema.label: tf.as_dtype(label_type(schema))}
    return {**stored, **label}


def _stored_type(dtype: Any) -> Any:
    return tf.string if dtype == tf.string else tf.int64 if dtype.is_integer or dtype.is_bool else tf.float32


def _take_example_column(schema: SchemaSpec, *, has_label: bool) -> TakeColumn:
    """The values of a name in records of ``tf.train.Example``, which have one value of each name."""
    stored = {name: kind for name, kind in _example_types(schema).items() if has_label or name != schema.label}
    known = {name: tf.io.FixedLenFeature((), kind) for name, kind in stored.items()}
    parsed: dict[int, Any] = {}

    def take(rows: Any, column: str, dtype: Any) -> Any:
        if id(rows) not in parsed:
            parsed.clear()
            parsed[id(rows)] = tf.io.parse_example(rows, known)
        declared = tf.as_dtype(schema.features.get(column, dtype))
        return _convert(column, _convert(column, parsed[id(rows)][column], declared, "the schema"), dtype, "the model")

    return take


def _check_cast(column: str, actual: Any, wanted: Any, whose: str) -> None:
    """Refuse a conversion between text and numbers, and one that would cut fractions off."""
    is_cut = actual.is_floating and not wanted.is_floating
    if (actual == tf.string) != (wanted == tf.string) or is_cut:
        takes = "takes" if whose == "the model" else "declares"
        raise BadInputError(
            f"column '{column}' is {actual.name}, and {whose} {takes} it as {wanted.name}",
            where="data.schema.features",
            hint="let the model's input have the column's type, name other columns, or define feed in the module",
        )


def _convert(column: str, cells: Any, wanted: Any, whose: str) -> Any:
    """Cells as values of a type. A whole number that the type does not have is an error when the cells are there."""
    _check_cast(column, cells.dtype, wanted, whose)
    limits = _limits(wanted)
    if limits is None or not cells.dtype.is_integer:
        return tf.cast(cells, wanted)
    lowest, highest = max(limits[0], cells.dtype.min), min(limits[1], cells.dtype.max)
    if (lowest, highest) == (cells.dtype.min, cells.dtype.max):
        return tf.cast(cells, wanted)
    values = cells.flat_values if isinstance(cells, tf.RaggedTensor) else cells
    fits = tf.logical_and(values >= tf.constant(lowest, values.dtype), values <= tf.constant(highest, values.dtype))
    checked = tf.raw_ops.Assert(
        condition=tf.reduce_all(fits),
        data=[f"column '{column}' has a value that is no {wanted.name}:", tf.boolean_mask(values, ~fits)],
        summarize=1,
    )
    with tf.control_dependencies([checked] if checked is not None else []):
        return tf.cast(cells, wanted)


def _limits(dtype: Any) -> tuple[int, int] | None:
    """The smallest and the largest whole number of a type; None: it has fractions or is text."""
    if dtype.is_bool:
        return 0, 1
    return (dtype.min, dtype.max) if dtype.is_integer else None


def _parse_cells(column: str, cells: Any, dtype: Any) -> Any:
    """Cells of text as values of a type; whole numbers and float64 keep all their digits."""
    if dtype == tf.string:
        return cells
    if dtype.is_integer or dtype.is_bool:
        return _convert(column, tf.strings.to_number(cells, tf.int64), dtype, "the model")
    return tf.cast(tf.strings.to_number(cells, tf.float64 if dtype == tf.float64 else tf.float32), dtype)


def explain_bad_record(schema: SchemaSpec, inputs: Mapping[str, ModelInput], record: Any, metadata: Any) -> str | None:
    """What is wrong with a row of a table, in a sentence; None: nothing is known to be."""
    if isinstance(record, Mapping):
        return _explain_typed_label(schema, record.get(schema.label)) or _explain_large_number(schema, inputs, record)
    if not metadata.column_names or not isinstance(record, list | tuple):
        return None
    only_type = next((each.dtype for each in inputs.values()), tf.float32)
    for column, cell in zip(metadata.column_names, record, strict=False):
        if column == schema.label:
            if schema.classes and cell not in schema.classes:
                return _unknown_class(schema, cell)
            dtype = tf.as_dtype(label_type(schema))
        elif column in schema.features:
            dtype = tf.as_dtype(schema.features[column])
        elif schema.features:
            continue
        else:
            dtype = inputs[column].dtype if column in inputs else only_type
        if (fault := _find_fault(cell, dtype)) is not None:
            is_class = column == schema.label and bool(cell.strip())
            return f"column '{column}' {fault}{'; data.schema.classes may list its values' if is_class else ''}"
    return None


def _explain_large_number(
    schema: SchemaSpec, inputs: Mapping[str, ModelInput], record: Mapping[str, Any]
) -> str | None:
    """Names the value that a type does not have."""
    for column, value in record.items():
        if column == schema.label:
            types = [] if schema.classes else [tf.as_dtype(label_type(schema))]
        else:
            types = [tf.as_dtype(schema.features[column])] if column in schema.features else []
            types += [each.dtype for name, each in inputs.items() if name == column or len(inputs) == 1]
        for dtype in types:
            limits, numbers = _limits(dtype), np.ravel(np.asarray(value))
            if limits is None or numbers.dtype.kind not in "iu":
                continue
            for number in numbers:
                if not limits[0] <= int(number) <= limits[1]:
                    return f"column '{column}' has {number}, which is no {dtype.name}"
    return None


def _explain_typed_label(schema: SchemaSpec, value: Any) -> str | None:
    text = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
    return _unknown_class(schema, text) if schema.classes and text not in schema.classes else None


def _unknown_class(schema: SchemaSpec, label: str) -> str:
    return f"the label is '{label}', which is none of data.schema.classes: {', '.join(schema.classes)}"


def _find_fault(cell: str, dtype: Any) -> str | None:
    if dtype == tf.string:
        return None
    if not cell.strip():
        return "has no value"
    limits = _limits(dtype)
    try:
        if limits is None:
            float(cell)
        elif not limits[0] <= int(cell) <= limits[1]:
            return f"has '{cell:.40}', which is no {dtype.name}"
    except ValueError:
        return f"has '{cell:.40}', which is no {dtype.name}"
    return None

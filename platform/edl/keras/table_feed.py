"""The default ``feed`` of tables: rows of text or of typed cells, and records of ``tf.train.Example``.

The columns of ``data.schema.features``, or all but the label, become what the model's inputs are: inputs that are named
like columns get one column each, with their type and shape. A model with another input, or without declared inputs,
gets all of them as one vector; without declared inputs and with text among them, as a mapping.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from edl.api.errors import BadInputError
from edl.api.job_spec import SchemaSpec
from edl.keras.feed_schema import DATA_SET_BY_FEED_MODE, ModelInput, encode_label

TakeCell = Callable[[Any, str, Any], Any]
"""``take_cell(row, column, dtype)``: the cell of a row as a value of a type."""


def make_table_parser(
    schema: SchemaSpec, inputs: Mapping[str, ModelInput], metadata: Any, element_spec: Any, mode: str
) -> Callable[[Any], Any]:
    """(features, label) of a row.

    Raises:
        BadInputError: the schema, the table and the model do not fit.
    """
    columns = tuple(metadata.column_names) or tuple(_example_types(schema))
    _check_columns(schema, columns, metadata.format, mode)
    features = tuple(schema.features) or tuple(name for name in columns if name != schema.label)
    named = _match_inputs(inputs, features, is_chosen=bool(schema.features))
    if isinstance(element_spec, dict):
        take = _take_typed_cell(schema)
    elif metadata.column_names:
        take = _take_text_cell(columns, schema)
    else:
        take = _take_example_cell(schema, has_label=mode != "prediction")
    only_type = next((each.dtype for each in inputs.values()), None)
    has_text = tf.string in (_feature_type(schema, name, element_spec) for name in features)

    # No annotation inside: TensorFlow cannot transform it.
    def parse(row: Any) -> Any:
        if named:
            found = {name: _fit_input(name, take(row, name, inputs[name].dtype), inputs[name]) for name in named}
            found = found if len(inputs) > 1 else found[named[0]]
        elif only_type is None and has_text and schema.features:
            found = {
                name: tf.reshape(take(row, name, tf.as_dtype(kind)), (1,)) for name, kind in schema.features.items()
            }
        else:
            # One after another: a column may have several numbers a record.
            cells = {name: take(row, name, only_type or tf.float32) for name in features}
            for name, cell in cells.items():
                if None in cell.shape:
                    raise _list_error(name, "give the model an input of the column's name")
            found = tf.concat([tf.reshape(cell, [-1]) for cell in cells.values()], 0)
        if mode == "prediction":
            return found, None
        return found, _parse_label(schema, row, take)

    return parse


def _check_columns(schema: SchemaSpec, columns: Sequence[str], format_name: str, mode: str) -> None:
    data_set = DATA_SET_BY_FEED_MODE[mode]
    # data.reader.label is a short form of the schema
    field = "data.schema.label" if schema.features or schema.classes or schema.label_mode else "data.reader.label"
    if not columns:
        raise BadInputError(
            f"found '{schema.label}', which is no column",
            where=field,
            hint=f"{data_set} is {format_name}: the data are no table. Name the features of tf.train.Example records "
            "in data.schema.features, or define feed(dataset, mode, metadata) in the model module",
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


def _fit_input(column: str, cell: Any, given: ModelInput) -> Any:
    """The cell in the shape of an input; a list of any length for an input that takes one."""
    if None not in cell.shape:
        return tf.reshape(cell, [size or 1 for size in given.shape])
    if len(given.shape) == len(cell.shape) and None in given.shape:
        return cell
    raise _list_error(column, f"the model's input takes {given.shape}: give it the shape (None,)")


def _list_error(column: str, remedy: str) -> BadInputError:
    return BadInputError(
        f"column '{column}' has lists of different lengths",
        where="data.schema.features",
        hint=f"{remedy}; or leave the column out, or define feed(dataset, mode, metadata) in the model module",
    )


def _parse_label(schema: SchemaSpec, row: Any, take: TakeCell) -> Any:
    assert schema.label is not None  # _check_columns
    if not schema.classes:
        wanted = tf.int64 if schema.label_mode == "int" else tf.float32
        return encode_label(tf.reshape(take(row, schema.label, wanted), ()), schema.label_mode, 0)
    cell = tf.reshape(take(row, schema.label, tf.string), ())
    matches = tf.equal(tf.constant(schema.classes), cell)
    # not tf.debugging.Assert: its control flow would not run on the thread of feed
    known = tf.raw_ops.Assert(
        condition=tf.reduce_any(matches), data=["the label is none of data.schema.classes:", cell], summarize=1
    )
    with tf.control_dependencies([known] if known is not None else []):
        number = tf.argmax(matches, output_type=tf.int32)
    return encode_label(number, schema.label_mode or "int", len(schema.classes))


# --------------------------------------------------------------------------------------------------
# Cells.


def _feature_type(schema: SchemaSpec, column: str, element_spec: Any) -> Any:
    if column in schema.features:
        return tf.as_dtype(schema.features[column])
    return element_spec[column].dtype if isinstance(element_spec, dict) else None


def _take_typed_cell(schema: SchemaSpec) -> TakeCell:
    """The cell of a row that is a mapping, as Parquet has it."""

    def take(row: Any, column: str, dtype: Any) -> Any:
        cell = row[column]
        if schema.classes and column == schema.label and (cell.dtype.is_integer or cell.dtype.is_bool):
            return tf.strings.as_string(cell)
        declared = schema.features.get(column)
        if declared is not None:
            _check_cast(column, cell.dtype, tf.as_dtype(declared), "the schema")
            cell = tf.cast(cell, declared)
        _check_cast(column, cell.dtype, dtype, "the model")
        return tf.cast(cell, dtype)

    return take


def _take_text_cell(columns: Sequence[str], schema: SchemaSpec) -> TakeCell:
    """The cell of a row of text, as CSV has it."""
    places = {name: index for index, name in enumerate(columns)}

    def take(row: Any, column: str, dtype: Any) -> Any:
        cell, declared = row[places[column]], schema.features.get(column)
        if declared is None:
            return _to_type(cell, dtype)
        _check_cast(column, tf.as_dtype(declared), dtype, "the model")
        return tf.cast(_to_type(cell, tf.as_dtype(declared)), dtype)

    return take


def _example_types(schema: SchemaSpec) -> Mapping[str, Any]:
    """The types in which records of ``tf.train.Example`` store the features and the label; none without features."""
    if not schema.features:
        return {}
    stored = {name: _stored_type(tf.as_dtype(kind)) for name, kind in schema.features.items()}
    label = {} if schema.label is None else {schema.label: _label_type(schema)}
    return {**stored, **label}


def _label_type(schema: SchemaSpec) -> Any:
    return tf.string if schema.classes else tf.int64 if schema.label_mode == "int" else tf.float32


def _stored_type(dtype: Any) -> Any:
    return tf.string if dtype == tf.string else tf.int64 if dtype.is_integer or dtype.is_bool else tf.float32


def _take_example_cell(schema: SchemaSpec, *, has_label: bool) -> TakeCell:
    """The value of a record of ``tf.train.Example``, which has one value of each name."""
    stored = {name: kind for name, kind in _example_types(schema).items() if has_label or name != schema.label}
    known = {name: tf.io.FixedLenFeature((), kind) for name, kind in stored.items()}
    parsed: dict[int, Any] = {}

    def take(row: Any, column: str, dtype: Any) -> Any:
        if id(row) not in parsed:
            parsed.clear()
            parsed[id(row)] = tf.io.parse_single_example(row, known)
        declared = tf.as_dtype(schema.features.get(column, dtype))
        _check_cast(column, declared, dtype, "the model")
        return tf.cast(tf.cast(parsed[id(row)][column], declared), dtype)

    return take


def _check_cast(column: str, found: Any, wanted: Any, whose: str) -> None:
    """Refuse a conversion between text and numbers, and one that would cut fractions off."""
    is_cut = found.is_floating and not wanted.is_floating
    if (found == tf.string) != (wanted == tf.string) or is_cut:
        takes = "takes" if whose == "the model" else "declares"
        raise BadInputError(
            f"column '{column}' is {found.name}, and {whose} {takes} it as {wanted.name}",
            where="data.schema.features",
            hint="let the model's input have the column's type, name other columns, or define feed in the module",
        )


def _to_type(cells: Any, dtype: Any) -> Any:
    """Cells as values of a type; whole numbers and float64 keep all their digits."""
    if dtype == tf.string:
        return cells
    if dtype.is_bool:
        return tf.equal(tf.strings.to_number(cells, tf.int64), 1)
    parsed = tf.int64 if dtype.is_integer else tf.float64 if dtype == tf.float64 else tf.float32
    return tf.cast(tf.strings.to_number(cells, parsed), dtype)


def explain_bad_record(schema: SchemaSpec, inputs: Mapping[str, ModelInput], record: Any, metadata: Any) -> str | None:
    """What is wrong with a row of text, in a sentence; None: nothing is known to be."""
    if not metadata.column_names or not isinstance(record, list | tuple):
        return None
    only_type = next((each.dtype for each in inputs.values()), tf.float32)
    for column, cell in zip(metadata.column_names, record, strict=False):
        if column == schema.label:
            if schema.classes and cell not in schema.classes:
                return f"the label is '{cell}', which is none of data.schema.classes: {', '.join(schema.classes)}"
            dtype = _label_type(schema)
        elif column in schema.features:
            dtype = tf.as_dtype(schema.features[column])
        elif schema.features:
            continue
        else:
            dtype = inputs[column].dtype if column in inputs else only_type
        if (fault := _find_fault(cell, dtype)) is not None:
            return f"column '{column}' {fault}"
    return None


def _find_fault(cell: str, dtype: Any) -> str | None:
    if dtype == tf.string:
        return None
    if not cell.strip():
        return "has no value"
    try:
        int(cell) if dtype.is_integer or dtype.is_bool else float(cell)
    except ValueError:
        return f"has '{cell:.40}', which is no {dtype.name}"
    return None

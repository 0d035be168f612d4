"""``data.schema``: its rules, and the columns that it selects."""

from __future__ import annotations

from collections.abc import Iterator

from edl.api.job_spec import DataSpec, JobSpec, SchemaSpec
from edl.jobfile.document_tree import RuleViolation


def find_schema(data: DataSpec) -> SchemaSpec | None:
    """The schema for a module without ``feed``; None: the module defines one. ``data.reader.label`` is a short form."""
    label = data.reader.get("label")
    return data.schema or (SchemaSpec(label=str(label)) if label else None)


def selected_columns(data: DataSpec, data_set: str) -> tuple[str, ...]:
    """The columns of a data set that the schema uses; empty: all. Data to predict need no label."""
    schema = data.schema
    if schema is None or not schema.features:
        return ()
    label = () if schema.label is None or data_set == "prediction" else (schema.label,)
    return (*schema.features, *label)


def column_types(data: DataSpec, data_set: str) -> dict[str, str]:
    """The types of the columns of a table of text; empty: the schema names no features, and cells stay text."""
    schema = data.schema
    if schema is None:
        return {}
    return {name: schema.features.get(name, label_type(schema)) for name in selected_columns(data, data_set)}


def label_type(schema: SchemaSpec) -> str:
    """The type of the label's column, as the name of a TensorFlow dtype."""
    return "string" if schema.classes else "int64" if schema.label_mode == "int" else "float32"


def check_schema(spec: JobSpec) -> Iterator[RuleViolation]:
    """A schema is that of a table or that of images, and says everything once."""
    schema = spec.data.schema
    if schema is None:
        return
    if spec.command:
        yield RuleViolation(
            "data.schema", "has no effect with a command: the program parses its records", "leave it out"
        )
    if spec.data.reader.get("label"):
        yield RuleViolation(
            "data.reader.label", "names the label, and so may data.schema.label", "keep data.schema.label only"
        )
    is_image = bool(schema.image_size) or schema.color_mode is not None
    for name in ("label", "features", "classes"):
        if is_image and getattr(schema, name):
            hint = "data.reader.classes names them" if name == "classes" else "leave it out"
            yield RuleViolation(f"data.schema.{name}", "is of a table, and image_size or color_mode of images", hint)
    if schema.image_size and len(schema.image_size) != 2:
        yield RuleViolation(
            "data.schema.image_size", f"found {len(schema.image_size)} numbers", "give two: [height, width]"
        )
    yield from _check_label(schema, trains=spec.task != "predict")


def _check_label(schema: SchemaSpec, *, trains: bool) -> Iterator[RuleViolation]:
    if schema.label is not None and schema.label in schema.features:
        yield RuleViolation(
            "data.schema.features", f"has the label, {schema.label}", "a model that gets its label learns nothing else"
        )
    if schema.features and schema.label is None and trains:
        yield RuleViolation("data.schema.label", "is missing", "name the label's column")
    if len(set(schema.classes)) != len(schema.classes):
        yield RuleViolation("data.schema.classes", "has a value twice", "name each value once")
    if schema.label is None and schema.classes:
        yield RuleViolation("data.schema.classes", "has no effect without data.schema.label", "name the label's column")
    if schema.label is None:
        return
    if schema.label_mode == "categorical" and not schema.classes:
        yield RuleViolation(
            "data.schema.label_mode", "categorical needs data.schema.classes", "list the values of the label"
        )
    if schema.label_mode == "binary" and schema.classes and len(schema.classes) != 2:
        yield RuleViolation(
            "data.schema.label_mode", f"binary needs two classes, found {len(schema.classes)}", "use int or categorical"
        )

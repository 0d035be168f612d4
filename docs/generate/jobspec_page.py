"""The reference of job files: every field with what it may be, its unit, its default and one sentence."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from jobspec_examples import EXAMPLES, MINIMAL, WHOLE

from edl.api.fields import Quantity
from edl.api.job_spec import API_VERSION, JobSpec
from edl.jobfile.json_schema import build_job_schema
from edl.jobfile.quantities import format_size
from edl.jobfile.scalar_types import FieldType, ListType, NullableType
from edl.jobfile.section_type import SectionField, SectionType, section_fields

_HEAD = f"""<!-- Written by `make reference` from the JSON Schema of job files; do not edit. -->

# The job file

One YAML (or JSON) file describes a job: the *JobSpec*, version `{API_VERSION}`. `edl run` reads it on
one machine, `edl submit` on a cluster, and the chart `helm/edl-job` takes its fields as values.
`edl validate JOB.yaml` checks a file and reports all errors with their lines. `edl schema` prints
the JSON Schema from which this page is generated. An editor completes and checks a file if its
first line is `# yaml-language-server: $schema=FILE`.

A name, a model and training data are enough:

```yaml
{MINIMAL}```

A file for a cluster has a few more fields:

```yaml
{WHOLE}```

For `edl run` and `edl validate`, relative paths (`model.zoo`, `data.*`, `export.path`,
`storage.path`, `volumes[].local`) start at the folder of the job file, also those of `--set`. Only
the default of `storage.path` and options of other commands, such as `edl predict --output`, are
relative to the current folder.

`--set` overrides a field by the path that this page gives it, and can be repeated: `edl submit
job.yaml --set train.epochs=3 --set workers.max=8`. Unknown fields are errors. A value that is known
but *not built yet* is an error too.

## Quantities

| what | written | a plain number is |
|---|---|---|
| sizes | `4096`, `512Mi`, `2Gi`, `1.5G` | bytes |
| CPU | `2`, `1.5`, `500m` | cores |
| durations | `45s`, `30m`, `1h30m`, `2d` | seconds |
"""


@dataclass(frozen=True, slots=True)
class Field:
    """A field of the job file.

    Attributes:
        path: as ``--set`` takes it: ``train.epochs``; members of lists as ``volumes[].mount``.
        option: its annotation in the code, and the reader of its values.
        schema: its part of the JSON Schema.
        required: whether it must be given, where its section is.
    """

    path: str
    option: SectionField
    schema: Mapping[str, object]
    required: bool


def page() -> str:
    """The whole page."""
    schema = build_job_schema()
    found = list(fields(JobSpec, schema))
    tops = [field for field in found if field.path in section_fields(JobSpec)]
    simple = [field for field in tops if _inside(field.option.field_type) is None]
    parts = [_HEAD, "## Top level", _table(simple, constants=True)]
    for top in tops:
        if top not in simple:
            parts.append(f"## `{top.path}`\n\n{_sentence(top)}")
            parts.append(_table([each for each in found if each.path.startswith((f"{top.path}.", f"{top.path}[]."))]))
        if top.path in EXAMPLES:
            parts.append(f"```yaml\n{EXAMPLES[top.path]}```")
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def fields(section: type, schema: Mapping[str, object], prefix: str = "") -> Iterator[Field]:
    """The fields of a section and of those inside it, in the order of the file."""
    properties, required = schema["properties"], schema.get("required", ())
    assert isinstance(properties, dict)
    assert isinstance(required, list | tuple)
    for name, option in section_fields(section).items():
        field = Field(f"{prefix}{name}", option, properties[name], name in required)
        yield field
        inner = _inside(option.field_type)
        if inner is not None:
            mark = "[]" if isinstance(option.field_type, ListType) else ""
            yield from fields(inner, _object(field.schema), f"{field.path}{mark}.")


def _inside(kind: FieldType) -> type | None:
    """The section that a kind is about, if it is about one."""
    if isinstance(kind, NullableType | ListType):
        return _inside(kind.inner_type)
    return kind.section if isinstance(kind, SectionType) else None


def _object(schema: Mapping[str, object]) -> Mapping[str, object]:
    """The schema of the mapping in a field's schema: in a choice with null, in a list, or itself."""
    if "items" in schema:
        return _object(schema["items"])  # type: ignore[arg-type]
    choices = schema.get("anyOf", ())
    assert isinstance(choices, list | tuple)
    return next((choice for choice in choices if choice.get("type") == "object"), schema)


def _sentence(top: Field) -> str:
    absent = "Required." if top.required else ""
    kind = "A list; each member is a mapping with these fields." if isinstance(top.option.field_type, ListType) else ""
    text = " ".join(part for part in (top.option.declaration.doc, kind, absent) if part)
    return textwrap.fill(text, 100, break_long_words=False, break_on_hyphens=False)


def _table(rows: list[Field], *, constants: bool = False) -> str:
    head = "| field | value | unit | default | meaning |\n|---|---|---|---|---|\n"
    version = f"| `apiVersion` | `{API_VERSION}` | | optional | The version of the job file. |\n"
    lines = [
        f"| `{row.path}` | {_allowed(row)} | {row.option.declaration.unit or ''} | {_default(row)} | {_doc(row)} |"
        for row in rows
    ]
    return head + (version if constants else "") + "\n".join(lines)


def _allowed(field: Field) -> str:
    built = field.schema.get("enum")
    if isinstance(built, list):
        return ", ".join(f"`{_plain(value)}`" for value in built)
    return "a mapping" if _inside(field.option.field_type) is not None else field.option.field_type.expected_text


def _default(field: Field) -> str:
    if field.required:
        return "required"
    if "default" not in field.schema:
        return ""
    value = field.schema["default"]
    if _inside(field.option.field_type) is not None and value:
        return "as below"
    if field.option.declaration.quantity in (Quantity.SIZE, Quantity.POSITIVE_SIZE) and isinstance(value, int):
        return f"`{format_size(value)}`"
    return f"`{_plain(value)}`"


def _doc(field: Field) -> str:
    return field.option.declaration.doc + (
        " Other values are not built yet." if field.option.is_partly_supported else ""
    )


def _plain(value: object) -> str:
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return json.dumps(value).strip('"')

"""Mappings with named fields: frozen dataclasses with annotations that describe each field completely.

    epochs: Annotated[int, Field("Number of passes over the training records.", unit="epochs", minimum=1)] = 1

The Python type gives the kind of value, ``edl.api.fields.Field`` everything else. This module makes the reader with its
error messages, the writer and the JSON Schema from both, so that they cannot disagree.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Container, Mapping
from dataclasses import MISSING, dataclass, fields
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from edl.api.fields import Field, JsonValue
from edl.api.run_events import JobEvent
from edl.jobfile.document_tree import (
    DocumentNode,
    ReadContext,
    SpecError,
    SpecProblem,
    build_tree,
    closest_match,
)
from edl.jobfile.quantities import QUANTITY_TYPES
from edl.jobfile.scalar_types import (
    AnyJsonType,
    BooleanType,
    ChoiceType,
    FieldType,
    IntegerType,
    ListType,
    MappingType,
    MeasurementType,
    NullableType,
    NumberType,
    PathListType,
    TextOrMappingType,
    TextType,
    describe_value,
)


@dataclass(frozen=True, slots=True)
class SectionField:
    """A field of a section.

    Attributes:
        field_type: the type of its values, including those that this version does not support.
        declaration: the ``Field`` of its annotation.
    """

    field_type: FieldType
    declaration: Field

    @property
    def is_partly_supported(self) -> bool:
        """Whether some valid values are not supported by this version."""
        return self.declaration.built is not None

    def read(self, node: DocumentNode, place: ReadContext) -> Any:
        """The field's value. A value that is valid but not built yet is a problem, so that it is never ignored."""
        before = len(place.problems)
        value = self.field_type.read(node, place)
        built = self.declaration.built
        if built is not None and len(place.problems) == before and value not in built:
            hint = f"built: {', '.join(map(_format_json_value, built))}"
            place.report_problem(node, f"{_format_json_value(value)} is not built yet", hint)
        return value

    def schema(self) -> dict[str, JsonValue]:
        """JSON Schema of the values that this version accepts."""
        text, built = self.declaration.doc, self.declaration.built
        if self.declaration.unit:
            text += f" Unit: {self.declaration.unit}."
        if self.is_partly_supported:
            text += " Other values are not built yet."
        accepted = (
            self.field_type.schema() if built is None else {"enum": [self.field_type.write(value) for value in built]}
        )
        return {"description": text, **accepted}


@cache
def section_fields(section: type) -> dict[str, SectionField]:
    """The fields of a section by name, in the order of the dataclass."""
    hints = get_type_hints(section, include_extras=True)
    fields_by_name = {}
    for field in fields(section):
        (declaration,) = hints[field.name].__metadata__
        # every annotation is Annotated[type, Field(...)]: __origin__ is the type
        fields_by_name[field.name] = SectionField(_field_type(hints[field.name].__origin__, declaration), declaration)
    return fields_by_name


def field_defaults(section: type) -> dict[str, Any]:
    """The defaults of a section's fields; required fields are absent."""
    values_by_name = {}
    for field in fields(section):
        if section_fields(section)[field.name].declaration.required:
            continue
        if field.default is not MISSING:
            values_by_name[field.name] = field.default
        elif field.default_factory is not MISSING:
            values_by_name[field.name] = field.default_factory()
    return values_by_name


@cache
def _required_names(section: type) -> frozenset[str]:
    return frozenset(section_fields(section)) - field_defaults(section).keys()


@dataclass(frozen=True, slots=True)
class SectionType:
    """A mapping with the fields of a frozen dataclass; an unknown field is a problem.

    Attributes:
        section: the dataclass.
        constants: members of the document that are not fields of the dataclass, such as apiVersion.
        suggest_replacement: for an unknown field, what to write instead; None: it has no suggestion.
    """

    section: type
    constants: tuple[tuple[str, str], ...] = ()
    suggest_replacement: Callable[[str], str | None] = lambda _: None

    @property
    def expected_text(self) -> str:
        """The valid values, phrased to follow "must be"."""
        return f"a mapping with {', '.join(self.allowed_names)}"

    @property
    def allowed_names(self) -> tuple[str, ...]:
        """All valid names of members."""
        return (*(name for name, _ in self.constants), *section_fields(self.section))

    def read(self, node: DocumentNode, place: ReadContext) -> Any:
        """The dataclass, or None if a field is missing or invalid."""
        if not isinstance(node.value, dict):
            advice = "leave the field out to use its defaults" if node.value is None and place.field_path else None
            return place.report_problem(node, f"found {describe_value(node)}, must be {self.expected_text}", advice)
        before = len(place.problems)
        values = {name: self._read_member(name, member, place) for name, member in node.value.items()}
        allowed = self.allowed_names
        # a misspelled field is reported once, as unknown, and not as missing too
        meant = {closest_match(name, allowed) for name in node.value if name not in allowed}
        for name in self._missing_fields({*node.value, *meant}):
            place.enter_member(name).report_problem(
                node, "is missing", section_fields(self.section)[name].declaration.doc
            )
        if len(place.problems) > before:
            return None
        return self.section(**{name: value for name, value in values.items() if name in section_fields(self.section)})

    def write(self, value: Any) -> dict[str, JsonValue]:
        """All fields, including defaults."""
        members = {
            name: option.field_type.write(getattr(value, name)) for name, option in section_fields(self.section).items()
        }
        return {**dict(self.constants), **members}

    def schema(self, required: tuple[str, ...] = ()) -> dict[str, JsonValue]:
        """A schema without additional properties; ``required`` names constants that must be present."""
        properties: dict[str, JsonValue] = {name: {"const": text} for name, text in self.constants}
        for name, option in section_fields(self.section).items():
            properties[name] = option.schema() | self._default_schema(name, option)
        needed = [*required, *self._missing_fields(())]
        shape: dict[str, JsonValue] = {"type": "object", "additionalProperties": False, "properties": properties}
        return shape | ({"required": needed} if needed else {})

    def _read_member(self, name: str, node: DocumentNode, place: ReadContext) -> Any:
        option = section_fields(self.section).get(name)
        if option is not None:
            return option.read(node, place.enter_member(name))
        if name not in dict(self.constants):
            return place.enter_member(name).report_problem(node, *self._describe_unknown_field(name))
        if node.value != dict(self.constants)[name]:
            place.enter_member(name).report_problem(
                node, f"found {describe_value(node)}, must be '{dict(self.constants)[name]}'"
            )
        return None

    def _describe_unknown_field(self, name: str) -> tuple[str, str]:
        close = closest_match(name, self.allowed_names) or _find_in_subsections(self.section, name)
        # before closest_match(): num_workers is close to workers, but means workers.max
        guess = self.suggest_replacement(name) or (close and f"did you mean '{close}'?")
        return "unknown field" + (f"; {guess}" if guess else ""), f"allowed here: {', '.join(self.allowed_names)}"

    def _missing_fields(self, present: Container[str | None]) -> list[str]:
        required = _required_names(self.section)
        return [name for name in section_fields(self.section) if name in required and name not in present]

    def _default_schema(self, name: str, option: SectionField) -> dict[str, JsonValue]:
        defaults = field_defaults(self.section)
        return {"default": option.field_type.write(defaults[name])} if name in defaults else {}


def _format_json_value(value: Any) -> str:
    return json.dumps(value).strip('"')


def _field_type(hint: Any, field: Field) -> FieldType:
    """The field type for a Python type and its declaration."""
    if hint == JsonValue:  # before the unions below: JsonValue is a union, and None is one of its members
        return AnyJsonType()
    inner = [each for each in get_args(hint) if each not in (NoneType, Ellipsis)]
    if NoneType in get_args(hint):
        return NullableType(_field_type(inner[0], field))
    if get_origin(hint) is UnionType:
        return TextOrMappingType(*(_field_type(each, field) for each in inner))
    if get_origin(hint) is tuple:
        return PathListType() if field.paths else ListType(_field_type(inner[0], field))
    if get_origin(hint) is Mapping:
        return MappingType(_field_type(inner[1], field), field.keys)
    if dataclasses.is_dataclass(hint):
        return SectionType(hint)  # type: ignore[arg-type]
    if hint is bool:
        return BooleanType()
    if field.quantity is not None:
        return QUANTITY_TYPES[field.quantity]
    if hint is int:
        return IntegerType(field.minimum, field.maximum)
    if hint is float:
        return (
            MeasurementType() if field.measured else NumberType(None if field.minimum is None else float(field.minimum))
        )
    return ChoiceType(field.choices) if field.choices else TextType(field.text)


def _find_in_subsections(section: type, name: str) -> str | None:
    """The full path of a field that was written one level too high: ``train.epochs`` for ``epochs``."""
    for outer, option in section_fields(section).items():
        inner = getattr(option.field_type, "section", None)
        if dataclasses.is_dataclass(inner) and name in section_fields(inner):  # type: ignore[arg-type]
            return f"{outer}.{name}"
    return None


# --------------------------------------------------------------------------------------------------
# Values that are stored or sent as JSON objects: a strict reader, and a writer.


T = TypeVar("T")


def section_of(report: type) -> SectionType:
    """The section of a class of ``edl.api.status`` or ``edl.api.run_events``; an event's has its kind as a constant."""
    return SectionType(report, constants=(("event", report.kind),) if issubclass(report, JobEvent) else ())


def to_json(value: Any) -> dict[str, JsonValue]:
    """All fields as JSON; ``from_json`` reads them back as an equal value."""
    return section_of(type(value)).write(value)


def from_json(report: type[T], value: object, where: str = "status") -> T:
    """Read a JSON object; raises SpecError, which names ``where`` and every invalid field."""
    problems: list[SpecProblem] = []
    value_read: T = section_of(report).read(build_tree(value, where), ReadContext("", problems))
    if problems:
        raise SpecError(problems)
    return value_read

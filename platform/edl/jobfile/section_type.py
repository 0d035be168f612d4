"""Mappings with named fields, as frozen dataclasses whose annotations say all there is to know about each field.

    epochs: Annotated[int, Option(Whole(1), "How often the training records are gone through.", unit="epochs")] = 1

Classes of ``edl.api`` say it with ``edl.api.fields.Field``, and the field's type says what kind of value it is.

From these annotations come the reader with its error messages, the writer, and the JSON Schema: one source for all.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, fields
from functools import cache
from types import NoneType
from typing import Any, Self, TypeVar, get_args, get_origin, get_type_hints

from edl.api.events import JobEvent
from edl.api.fields import Field
from edl.jobfile.document_tree import (
    DocumentNode,
    JsonValue,
    ReadContext,
    SpecError,
    SpecProblem,
    build_tree,
    closest_match,
)
from edl.jobfile.scalar_types import (
    BooleanType,
    ChoiceType,
    FieldType,
    IntegerType,
    ListType,
    MappingType,
    MeasurementType,
    NullableType,
    NumberType,
    TextType,
    describe_value,
)

_ANY_TEXT = r"^[\s\S]*$"


@dataclass(frozen=True, slots=True)
class FieldOption:
    """A field of a section.

    Attributes:
        kind: what its value may be.
        description: one sentence for the user.
        unit: the unit of its value, where it has one.
        built: the values whose behaviour exists in this version; None when all that the kind admits do. Of names, the
            kind itself knows which those are.
        required: it must be there when it is read, though the dataclass has a default.
    """

    kind: FieldType
    description: str
    unit: str | None = None
    built: tuple[Any, ...] | None = None
    required: bool = False

    @property
    def partial(self) -> bool:
        """Whether there are values that are known and not built."""
        return self.built is not None or (isinstance(self.kind, ChoiceType) and bool(self.kind.later))

    def read(self, node: DocumentNode, place: ReadContext) -> Any:
        """The field's value; a value that is known but not built is a problem, never ignored."""
        before = len(place.problems)
        value = self.kind.read(node, place)
        if self.built is not None and len(place.problems) == before and value not in self.built:
            place.report(
                node,
                f"{_format_json_value(value)} is not built yet",
                f"built: {', '.join(map(_format_json_value, self.built))}",
            )
        return value

    def schema(self) -> dict[str, JsonValue]:
        """JSON Schema of the values that this version accepts."""
        text = f"{self.description} Unit: {self.unit}." if self.unit else self.description
        accepted = self.kind.schema()
        if self.partial:
            text += " Other values are not built yet."
        if self.built is not None:
            accepted = {"enum": [self.kind.write(value) for value in self.built]}
        return {"description": text, **accepted}


@cache
def field_options(section: type) -> dict[str, FieldOption]:
    """The fields of a section, by name, in their order."""
    hints = get_type_hints(section, include_extras=True)
    return {field.name: _option_from_annotation(hints[field.name]) for field in fields(section)}


def field_defaults(section: type) -> dict[str, Any]:
    """The defaults of a section's fields; fields that must be given are absent."""
    values_by_name = {}
    for field in fields(section):
        if field_options(section)[field.name].required:
            continue
        if field.default is not MISSING:
            values_by_name[field.name] = field.default
        elif field.default_factory is not MISSING:
            values_by_name[field.name] = field.default_factory()
    return values_by_name


@dataclass(frozen=True, slots=True)
class SectionType:
    """A mapping with the fields of a frozen dataclass; unknown fields are problems.

    Attributes:
        section: the dataclass.
        constants: members of the document that the dataclass does not carry, such as apiVersion.
        suggest_replacement: what to write in place of an unknown field that is no typo; None when it does not know
            the name.
    """

    section: type
    constants: tuple[tuple[str, str], ...] = ()
    suggest_replacement: Callable[[str], str | None] = lambda _: None

    @property
    def expected(self) -> str:
        """What is allowed, to stand after 'must be'."""
        return f"a mapping with {', '.join(self.names)}"

    @property
    def names(self) -> tuple[str, ...]:
        """Every name that the mapping may have."""
        return (*(name for name, _ in self.constants), *field_options(self.section))

    def read(self, node: DocumentNode, place: ReadContext) -> Any:
        """The dataclass, or None when a field is missing or wrong."""
        if not isinstance(node.value, dict):
            advice = "leave the field out to have its defaults" if node.value is None and place.path else None
            return place.report(node, f"found {describe_value(node)}, must be {self.expected}", advice)
        before = len(place.problems)
        values = {name: self._member(name, member, place) for name, member in node.value.items()}
        # a field that is there with a typo is not missing as well
        meant = {closest_match(name, self.names) for name in node.value if name not in self.names}
        for name in self._missing_fields({*node.value, *meant}):
            place.member(name).report(node, "is missing", field_options(self.section)[name].description)
        if len(place.problems) > before:
            return None
        return self.section(**{name: value for name, value in values.items() if name in field_options(self.section)})

    def write(self, value: Any) -> dict[str, JsonValue]:
        """All fields, defaults included."""
        members = {
            name: option.kind.write(getattr(value, name)) for name, option in field_options(self.section).items()
        }
        return {**dict(self.constants), **members}

    def schema(self, required: tuple[str, ...] = ()) -> dict[str, JsonValue]:
        """An object without additional properties; ``required`` adds constants to the fields that have no default."""
        properties: dict[str, JsonValue] = {name: {"const": text} for name, text in self.constants}
        for name, option in field_options(self.section).items():
            properties[name] = option.schema() | self._default_schema(name, option)
        needed = [*required, *self._missing_fields(())]
        shape: dict[str, JsonValue] = {"type": "object", "additionalProperties": False, "properties": properties}
        return shape | ({"required": needed} if needed else {})

    def _member(self, name: str, node: DocumentNode, place: ReadContext) -> Any:
        option = field_options(self.section).get(name)
        if option is not None:
            return option.read(node, place.member(name))
        if name not in dict(self.constants):
            return place.member(name).report(node, *self._describe_unknown_field(name))
        if node.value != dict(self.constants)[name]:
            place.member(name).report(node, f"found {describe_value(node)}, must be '{dict(self.constants)[name]}'")
        return None

    def _describe_unknown_field(self, name: str) -> tuple[str, str]:
        close = closest_match(name, self.names) or _find_in_subsections(self.section, name)
        # the pointer first: num_workers is close to workers, and means workers.max
        guess = self.suggest_replacement(name) or (close and f"did you mean '{close}'?")
        return "unknown field" + (f"; {guess}" if guess else ""), f"allowed here: {', '.join(self.names)}"

    def _missing_fields(self, present: Iterable[str | None]) -> list[str]:
        return [name for name in field_options(self.section) if name not in {*present, *field_defaults(self.section)}]

    def _default_schema(self, name: str, option: FieldOption) -> dict[str, JsonValue]:
        given = field_defaults(self.section)
        return {"default": option.kind.write(given[name])} if name in given else {}


def _format_json_value(value: Any) -> str:
    return json.dumps(value).strip('"')


def _option_from_annotation(hint: Any) -> FieldOption:
    (said,) = (extra for extra in hint.__metadata__ if isinstance(extra, FieldOption | Field))
    if isinstance(said, FieldOption):
        return said
    return FieldOption(_kind(hint.__origin__, said), said.doc, said.unit, required=said.required)


def _kind(hint: Any, said: Field) -> FieldType:
    """What the type of a field in ``edl.api`` and what is said of it mean together."""
    inner = [each for each in get_args(hint) if each not in (NoneType, Ellipsis)]
    if NoneType in get_args(hint):
        return NullableType(_kind(inner[0], said))
    if get_origin(hint) is tuple:
        return ListType(_kind(inner[0], said))
    if get_origin(hint) is Mapping:
        return MappingType(_kind(inner[1], said))
    if dataclasses.is_dataclass(hint):
        return SectionType(hint)  # type: ignore[arg-type]
    if hint is bool:
        return BooleanType()
    if hint is int:
        return IntegerType(said.minimum)
    if hint is float:
        return MeasurementType() if said.measured else NumberType(None if said.minimum is None else float(said.minimum))
    if said.choices:
        return ChoiceType(said.choices, said.later)
    return TextType(description="a name") if said.named else TextType(_ANY_TEXT)


def _find_in_subsections(section: type, name: str) -> str | None:
    """The full path of a field that was written one level too high: ``epochs`` for ``train.epochs``."""
    for outer, option in field_options(section).items():
        inner = getattr(option.kind, "section", None)
        if dataclasses.is_dataclass(inner) and name in field_options(inner):  # type: ignore[arg-type]
            return f"{outer}.{name}"
    return None


# --------------------------------------------------------------------------------------------------
# Values that travel as JSON objects: how they are read, strictly, and written.


T = TypeVar("T")


def section_of(report: type) -> SectionType:
    """What the JSON object of a class of ``edl.api.status`` or ``edl.api.events`` looks like; of an event, with its
    kind in front.
    """
    return SectionType(report, constants=(("event", report.kind),) if issubclass(report, JobEvent) else ())


def to_json(value: Any) -> dict[str, JsonValue]:
    """All fields; ``from_json`` gives an equal value back."""
    return section_of(type(value)).write(value)


def from_json(report: type[T], value: object, where: str = "status") -> T:
    """The value of a JSON object; raises SpecError that names ``where`` and every wrong field."""
    problems: list[SpecProblem] = []
    found: T = section_of(report).read(build_tree(value, where), ReadContext("", problems))
    if problems:
        raise SpecError(problems)
    return found


class JsonObject:
    """A value of this package that travels as a JSON object."""

    __slots__ = ()

    def to_json(self) -> dict[str, JsonValue]:
        """All fields; from_json gives an equal value back."""
        return to_json(self)

    @classmethod
    def from_json(cls, value: object, where: str = "status") -> Self:
        """The value of a JSON object; raises SpecError that names ``where`` and every wrong field."""
        return from_json(cls, value, where)

"""The kinds of values a document holds: each reads a node, writes it back as JSON, and describes itself.

A kind never raises on a user's mistake: it reports to the place and returns None, and whoever started the reading
raises once, with all problems. Mappings with named fields are in edl.jobfile.section_type.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any, Protocol

from edl.api.fields import PATH, JsonValue, ScalarValue, TextForm
from edl.jobfile.document_tree import DocumentNode, ReadContext, closest_match


class FieldType(Protocol):
    """What a value may be."""

    @property
    def expected_text(self) -> str:
        """What is allowed, to stand after 'must be'."""

    def read(self, node: DocumentNode, place: ReadContext) -> Any:
        """The value of a node; reports to the place and returns None when the node does not hold one."""

    def write(self, value: Any) -> JsonValue:
        """The value as JSON, such that read gives it back."""

    def schema(self) -> dict[str, JsonValue]:
        """JSON Schema of what read accepts."""


@dataclass(frozen=True, slots=True)
class ScalarType:
    """What the kinds of single values share: one way to refuse, and JSON that is the value itself."""

    @property
    def expected_text(self) -> str:
        """What is allowed, to stand after 'must be'."""
        raise NotImplementedError

    def report_invalid_value(self, node: DocumentNode, place: ReadContext, hint: str | None = None) -> None:
        """Report what was found and what is allowed."""
        place.report_problem(node, f"found {describe_value(node)}, must be {self.expected_text}", hint)

    def write(self, value: Any) -> JsonValue:
        """The value as JSON."""
        plain: ScalarValue = value
        return plain


@dataclass(frozen=True, slots=True)
class IntegerType(ScalarType):
    """A whole number of at least ``minimum`` and at most ``maximum``."""

    minimum: int | None = 0
    maximum: int | None = None

    @property
    def expected_text(self) -> str:
        """What is allowed, to stand after 'must be'."""
        least = "" if self.minimum is None else f" of at least {self.minimum}"
        return f"a whole number{least}" + ("" if self.maximum is None else f" and at most {self.maximum}")

    def read(self, node: DocumentNode, place: ReadContext) -> Any:
        """The value, or None with a problem reported."""
        number = to_whole_number(node.value)
        if (
            number is None
            or number < _minimum_or_infinity(self.minimum)
            or (self.maximum is not None and number > self.maximum)
        ):
            return self.report_invalid_value(node, place, _suggest_removing_quotes(node.value))
        return number

    def schema(self) -> dict[str, JsonValue]:
        """JSON Schema of what read accepts."""
        limits = {"minimum": self.minimum, "maximum": self.maximum}
        return {"type": "integer"} | {name: limit for name, limit in limits.items() if limit is not None}


@dataclass(frozen=True, slots=True)
class NumberType(ScalarType):
    """A finite number of at least ``minimum``; always a float once read."""

    minimum: float | None = None

    @property
    def expected_text(self) -> str:
        """What is allowed, to stand after 'must be'."""
        return "a number" if self.minimum is None else f"a number of at least {self.minimum:g}"

    def read(self, node: DocumentNode, place: ReadContext) -> Any:
        """The value, or None with a problem reported."""
        number = to_finite_float(node.value)
        if number is None or number < _minimum_or_infinity(self.minimum):
            return self.report_invalid_value(node, place, _suggest_removing_quotes(node.value))
        return number

    def schema(self) -> dict[str, JsonValue]:
        """JSON Schema of what read accepts."""
        return {"type": "number"} | ({} if self.minimum is None else {"minimum": self.minimum})


@dataclass(frozen=True, slots=True)
class MeasurementType(NumberType):
    """A measured number, such as a loss: one that is not finite is written as null, since JSON has no word for it."""

    def write(self, value: Any) -> JsonValue:
        """The value as JSON."""
        return float(value) if math.isfinite(value) else None


@dataclass(frozen=True, slots=True)
class BooleanType(ScalarType):
    """True or false."""

    @property
    def expected_text(self) -> str:
        """What is allowed, to stand after 'must be'."""
        return "true or false"

    def read(self, node: DocumentNode, place: ReadContext) -> Any:
        """The value, or None with a problem reported."""
        return node.value if isinstance(node.value, bool) else self.report_invalid_value(node, place)

    def schema(self) -> dict[str, JsonValue]:
        """JSON Schema of what read accepts."""
        return {"type": "boolean"}


@dataclass(frozen=True, slots=True)
class TextType(ScalarType):
    """Text of a form."""

    form: TextForm

    @property
    def expected_text(self) -> str:
        """What is allowed, to stand after 'must be'."""
        return self.form.description

    def read(self, node: DocumentNode, place: ReadContext) -> Any:
        """The value, or None with a problem reported."""
        # fullmatch, because $ of a Python pattern also matches before a last line feed
        if isinstance(node.value, str) and re.fullmatch(self.form.pattern, node.value):
            return node.value
        quoted = None if isinstance(node.value, str | dict | list | None) else "put it in quotes to make it text"
        return self.report_invalid_value(node, place, quoted)

    def schema(self) -> dict[str, JsonValue]:
        """JSON Schema of what read accepts."""
        return {"type": "string", "pattern": self.form.pattern}


@dataclass(frozen=True, slots=True)
class ChoiceType(ScalarType):
    """One of a few names; ``planned_names`` are known, refused as not built yet, and offered to nobody."""

    names: tuple[str, ...]
    planned_names: tuple[str, ...] = ()

    @property
    def expected_text(self) -> str:
        """What is allowed, to stand after 'must be'."""
        return join_alternatives(self.names)

    def read(self, node: DocumentNode, place: ReadContext) -> Any:
        """The value, or None with a problem reported."""
        if node.value in self.names:
            return node.value
        if node.value in self.planned_names:
            return place.report_problem(node, f"{node.value} is not built yet", f"built: {', '.join(self.names)}")
        close = closest_match(node.value, (*self.names, *self.planned_names)) if isinstance(node.value, str) else None
        if close in self.planned_names:
            return self.report_invalid_value(node, place, f"{close} is not built yet")
        return self.report_invalid_value(node, place, close and f"did you mean '{close}'?")

    def schema(self) -> dict[str, JsonValue]:
        """JSON Schema of what read accepts."""
        return {"enum": list(self.names)}


def describe_value(node: DocumentNode) -> str:
    """A node as an error message quotes it."""
    match node.value:
        case dict():
            return "a mapping"
        case list():
            return "a list"
        case None:
            return "nothing (null)"
        case bool():
            return "true" if node.value else "false"
        case str():
            return f"'{node.value}'"
        case number:
            return f"{number}"


def join_alternatives(names: tuple[str, ...]) -> str:
    """Names as an error message lists them."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"


def to_finite_float(value: object) -> float | None:
    """A finite number as a float; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # an int beyond the largest float
        return None


def to_whole_number(value: object) -> int | None:
    """A whole number however it is written, 1e3 included, as in JSON Schema; None for anything else."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    return int(value) if isinstance(value, float) and value.is_integer() else None


def _suggest_removing_quotes(value: object) -> str | None:
    quoted = isinstance(value, str) and re.fullmatch(r"[-+]?\d+(\.\d*)?", value)
    return "leave the quotes out to make it a number" if quoted else None


def _minimum_or_infinity(minimum: float | None) -> float:
    return -math.inf if minimum is None else minimum


# --------------------------------------------------------------------------------------------------
# Kinds made of other kinds: optional values, lists, and mappings whose names the user chooses.


@dataclass(frozen=True, slots=True)
class NullableType:
    """A value or null; what null means is said by the field's sentence."""

    inner_type: FieldType

    @property
    def expected_text(self) -> str:
        """What is allowed, to stand after 'must be'."""
        return f"{self.inner_type.expected_text}, or null"

    @property
    def section(self) -> type | None:
        """The section inside, where there is one."""
        inner: type | None = getattr(self.inner_type, "section", None)
        return inner

    def read(self, node: DocumentNode, place: ReadContext) -> Any:
        """None for null."""
        return None if node.value is None else self.inner_type.read(node, place)

    def write(self, value: Any) -> JsonValue:
        """Null for None."""
        return None if value is None else self.inner_type.write(value)

    def schema(self) -> dict[str, JsonValue]:
        """Null, or the inner kind."""
        return {"anyOf": [{"type": "null"}, self.inner_type.schema()]}


@dataclass(frozen=True, slots=True)
class TextOrMappingType:
    """Text, or a mapping in its place."""

    text_type: FieldType
    mapping_type: FieldType

    @property
    def expected_text(self) -> str:
        """What is allowed, to stand after 'must be'."""
        return f"{self.text_type.expected_text}, or {self.mapping_type.expected_text}"

    @property
    def section(self) -> type | None:
        """The section that a mapping is."""
        inner: type | None = getattr(self.mapping_type, "section", None)
        return inner

    def read(self, node: DocumentNode, place: ReadContext) -> Any:
        """What the mapping means, or the text."""
        return (self.mapping_type if isinstance(node.value, dict) else self.text_type).read(node, place)

    def write(self, value: Any) -> JsonValue:
        """The text, or the mapping."""
        return (self.text_type if isinstance(value, str) else self.mapping_type).write(value)

    def schema(self) -> dict[str, JsonValue]:
        """Either of the two."""
        return {"anyOf": [self.text_type.schema(), self.mapping_type.schema()]}


@dataclass(frozen=True, slots=True)
class ListType:
    """A list, a tuple once read."""

    inner_type: FieldType

    @property
    def expected_text(self) -> str:
        """What is allowed, to stand after 'must be'."""
        return f"a list, each of it {self.inner_type.expected_text}"

    def read(self, node: DocumentNode, place: ReadContext) -> Any:
        """A tuple of the members."""
        if not isinstance(node.value, list):
            return place.report_problem(node, f"found {describe_value(node)}, must be {self.expected_text}")
        return tuple(self.inner_type.read(member, inner) for member, inner in place.enter_items(node.value))

    def write(self, value: Any) -> JsonValue:
        """A JSON array."""
        return [self.inner_type.write(member) for member in value]

    def schema(self) -> dict[str, JsonValue]:
        """An array of the inner kind."""
        return {"type": "array", "items": self.inner_type.schema()}


@dataclass(frozen=True, slots=True)
class PathListType:
    """One path, a list of paths, or null for none: always a tuple of text once read."""

    @property
    def expected_text(self) -> str:
        """What is allowed, to stand after 'must be'."""
        return "a path, a list of paths, or null"

    def read(self, node: DocumentNode, place: ReadContext) -> Any:
        """A tuple of paths, as written."""
        if node.value is None:
            return ()
        if isinstance(node.value, list):
            return ListType(_PATH_TYPE).read(node, place)
        if isinstance(node.value, str) and node.value:
            return (node.value,)
        return place.report_problem(node, f"found {describe_value(node)}, must be {self.expected_text}")

    def write(self, value: Any) -> JsonValue:
        """A JSON array."""
        return list(value)

    def schema(self) -> dict[str, JsonValue]:
        """Null, a string, or an array of strings."""
        return {"anyOf": [{"type": "null"}, _PATH_TYPE.schema(), ListType(_PATH_TYPE).schema()]}


@dataclass(frozen=True, slots=True)
class MappingType:
    """A mapping whose names the user chooses, each value of one kind.

    ``name_type`` is what a name may be, if not any.
    """

    value_type: FieldType
    name_type: TextForm | None = None

    @property
    def expected_text(self) -> str:
        """What is allowed, to stand after 'must be'."""
        return f"a mapping of names, each of it {self.value_type.expected_text}"

    def read(self, node: DocumentNode, place: ReadContext) -> Any:
        """A dict of the members."""
        if not isinstance(node.value, dict):
            return place.report_problem(node, f"found {describe_value(node)}, must be {self.expected_text}")
        return {name: self._read_member(name, member, place.enter_member(name)) for name, member in node.value.items()}

    def _read_member(self, name: str, node: DocumentNode, place: ReadContext) -> Any:
        if self.name_type is not None and not re.fullmatch(self.name_type.pattern, name):
            return place.report_problem(node, f"found '{name}' as a name, must be {self.name_type.description}")
        return self.value_type.read(node, place)

    def write(self, value: Any) -> JsonValue:
        """A JSON object."""
        return {name: self.value_type.write(member) for name, member in value.items()}

    def schema(self) -> dict[str, JsonValue]:
        """An object with such names."""
        if self.name_type is None:
            return {"type": "object", "additionalProperties": self.value_type.schema()}
        accepted = {self.name_type.pattern: self.value_type.schema()}
        return {"type": "object", "patternProperties": accepted, "additionalProperties": False}


@dataclass(frozen=True, slots=True)
class AnyJsonType:
    """Any JSON value: what is passed on to the user's code or to Kubernetes as it is."""

    @property
    def expected_text(self) -> str:
        """What is allowed, to stand after 'must be'."""
        return "any value"

    def read(self, node: DocumentNode, place: ReadContext) -> Any:
        """The plain value."""
        return node.to_plain_value()

    def write(self, value: Any) -> JsonValue:
        """The value itself."""
        plain: JsonValue = value
        return plain

    def schema(self) -> dict[str, JsonValue]:
        """No restriction."""
        return {}


_PATH_TYPE = TextType(PATH)

"""Field types. Each reads a node of the document, writes the value as JSON, and gives its own JSON Schema.

A type never raises for a user's mistake: it reports a problem and returns None. The loader raises once, with all
problems of the file. edl.jobfile.section_type has the type of mappings with named fields.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import Any, Protocol

from edl.api.fields import PATH, JsonValue, ScalarValue, TextForm
from edl.core.strict_json import MAX_INTEGER
from edl.jobfile.document_tree import DocumentNode, ReadContext, closest_match, find_number_fault


class FieldType(Protocol):
    """The type of a field. Its implementations' methods have no docstrings of their own."""

    @property
    def expected_text(self) -> str:
        """The allowed values, phrased to follow "must be" in a message."""

    def read(self, node: DocumentNode, place: ReadContext) -> Any:
        """The value of a node; None, and a problem reported to ``place``, if the node does not hold one."""

    def write(self, value: Any) -> JsonValue:
        """The value as JSON, from which ``read`` gives an equal value."""

    def schema(self) -> dict[str, JsonValue]:
        """The JSON Schema of the values that ``read`` accepts."""


@dataclass(frozen=True, slots=True)
class ScalarType:
    """Base of the scalar types: a common error message, and JSON that is the value itself."""

    @property
    def expected_text(self) -> str:
        raise NotImplementedError

    def report_invalid_value(self, node: DocumentNode, place: ReadContext, hint: str | None = None) -> None:
        """Report the value that was found and those that are allowed."""
        place.report_problem(node, f"found {describe_value(node)}, must be {self.expected_text}", hint)

    def write(self, value: Any) -> JsonValue:
        plain: ScalarValue = value
        return plain


@dataclass(frozen=True, slots=True)
class IntegerType(ScalarType):
    """A whole number of at least ``minimum`` and at most ``maximum``. Without a limit, any 64-bit number is valid."""

    minimum: int | None = 0
    maximum: int | None = None

    @property
    def expected_text(self) -> str:
        least = "" if self.minimum is None else f" of at least {self.minimum}"
        return f"a whole number{least}" + ("" if self.maximum is None else f" and at most {self.maximum}")

    def read(self, node: DocumentNode, place: ReadContext) -> Any:
        number = to_whole_number(node.value)
        if (
            number is None
            or number < _minimum_or_infinity(self.minimum)
            or (self.maximum is not None and number > self.maximum)
        ):
            return self.report_invalid_value(node, place, _suggest_removing_quotes(node.value))
        # checked apart from the limits above, so that the message names the bound and not only the minimum
        if abs(number) > MAX_INTEGER:
            most = f"a whole number of at most {MAX_INTEGER}"
            return place.report_problem(node, f"found {describe_value(node)}, must be {most}")
        return number

    def schema(self) -> dict[str, JsonValue]:
        limits = {"minimum": self.minimum, "maximum": self.maximum}
        return {"type": "integer"} | {name: limit for name, limit in limits.items() if limit is not None}


@dataclass(frozen=True, slots=True)
class NumberType(ScalarType):
    """A finite number of at least ``minimum``. It is read as a float, also if it is written as an integer."""

    minimum: float | None = None

    @property
    def expected_text(self) -> str:
        return "a number" if self.minimum is None else f"a number of at least {self.minimum:g}"

    def read(self, node: DocumentNode, place: ReadContext) -> Any:
        number = to_finite_float(node.value)
        if number is None or number < _minimum_or_infinity(self.minimum):
            return self.report_invalid_value(node, place, _suggest_removing_quotes(node.value))
        return number

    def schema(self) -> dict[str, JsonValue]:
        return {"type": "number"} | ({} if self.minimum is None else {"minimum": self.minimum})


@dataclass(frozen=True, slots=True)
class MeasurementType(NumberType):
    """A measured number, such as a loss. NaN and infinity are written as null, because JSON has neither."""

    def write(self, value: Any) -> JsonValue:
        return float(value) if math.isfinite(value) else None


@dataclass(frozen=True, slots=True)
class BooleanType(ScalarType):
    """True or false."""

    @property
    def expected_text(self) -> str:
        return "true or false"

    def read(self, node: DocumentNode, place: ReadContext) -> Any:
        return node.value if isinstance(node.value, bool) else self.report_invalid_value(node, place)

    def schema(self) -> dict[str, JsonValue]:
        return {"type": "boolean"}


@dataclass(frozen=True, slots=True)
class TextType(ScalarType):
    """Text that matches a form."""

    form: TextForm

    @property
    def expected_text(self) -> str:
        return self.form.description

    def read(self, node: DocumentNode, place: ReadContext) -> Any:
        # fullmatch: in Python's re, $ also matches before a final line feed
        if isinstance(node.value, str) and re.fullmatch(self.form.pattern, node.value):
            # a pattern cannot limit the length of each part of a path
            if self.form == PATH and _is_path_too_long(node.value):
                return place.report_problem(
                    node, f"found a path that is too long, must be {_MAX_NAME_BYTES} bytes at most from / to /"
                )
            return node.value
        quoted = None if isinstance(node.value, str | dict | list | None) else "put it in quotes to make it text"
        return self.report_invalid_value(node, place, quoted)

    def schema(self) -> dict[str, JsonValue]:
        return {"type": "string", "pattern": self.form.pattern}


@dataclass(frozen=True, slots=True)
class ChoiceType(ScalarType):
    """One of several names."""

    names: tuple[str, ...]

    @property
    def expected_text(self) -> str:
        return join_alternatives(self.names)

    def read(self, node: DocumentNode, place: ReadContext) -> Any:
        if node.value in self.names:
            return node.value
        close = closest_match(node.value, self.names) if isinstance(node.value, str) else None
        return self.report_invalid_value(node, place, close and f"did you mean '{close}'?")

    def schema(self) -> dict[str, JsonValue]:
        return {"enum": list(self.names)}


def format_value(value: object) -> str:
    """A value in the syntax of a job file."""
    return str(value) if isinstance(value, str) else json.dumps(value)


def describe_value(node: DocumentNode) -> str:
    """The value of a node, for an error message."""
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
            return f"'{_shorten(node.value)}'"
        case int() if abs(node.value) > 10**SHOWN_CHARACTERS:
            return f"a number of {node.value.bit_length():,} bits"
        case number:
            return f"{number}"


SHOWN_CHARACTERS = 200
_MAX_NAME_BYTES, _MAX_PATH_BYTES = 255, 4095  # NAME_MAX and PATH_MAX of Linux


def _shorten(text: str) -> str:
    if len(text) <= SHOWN_CHARACTERS:
        return text
    return f"{text[:SHOWN_CHARACTERS]}…, {len(text):,} characters"


def _is_path_too_long(path: str) -> bool:
    plain = path.encode("utf-8", "replace")
    return len(plain) > _MAX_PATH_BYTES or any(len(name) > _MAX_NAME_BYTES for name in plain.split(b"/"))


def join_alternatives(names: tuple[str, ...]) -> str:
    """Names joined for an error message: ``a, b or c``."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"


def to_finite_float(value: object) -> float | None:
    """The number as a float if it is finite; None for anything else."""
    # bool is a subclass of int, and true is not a number in YAML or JSON
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # an int beyond the largest float
        return None


def to_whole_number(value: object) -> int | None:
    """An integer, also if it is written as 1e3, which JSON Schema accepts as one; None for anything else."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    return int(value) if isinstance(value, float) and value.is_integer() else None


def _suggest_removing_quotes(value: object) -> str | None:
    quoted = isinstance(value, str) and re.fullmatch(r"[-+]?\d+(\.\d*)?", value)
    return "leave the quotes out to make it a number" if quoted else None


def _minimum_or_infinity(minimum: float | None) -> float:
    return -math.inf if minimum is None else minimum


# --------------------------------------------------------------------------------------------------
# Composed types: nullable values, lists, and mappings with names that the user chooses.


@dataclass(frozen=True, slots=True)
class NullableType:
    """A value or null. The field's description says what null means."""

    inner_type: FieldType

    @property
    def expected_text(self) -> str:
        return f"{self.inner_type.expected_text}, or null"

    @property
    def section(self) -> type | None:
        """The dataclass of the inner type, if that is a section."""
        inner: type | None = getattr(self.inner_type, "section", None)
        return inner

    def read(self, node: DocumentNode, place: ReadContext) -> Any:
        return None if node.value is None else self.inner_type.read(node, place)

    def write(self, value: Any) -> JsonValue:
        return None if value is None else self.inner_type.write(value)

    def schema(self) -> dict[str, JsonValue]:
        return {"anyOf": [{"type": "null"}, self.inner_type.schema()]}


@dataclass(frozen=True, slots=True)
class TextOrMappingType:
    """Text, or a mapping instead."""

    text_type: FieldType
    mapping_type: FieldType

    @property
    def expected_text(self) -> str:
        return f"{self.text_type.expected_text}, or {self.mapping_type.expected_text}"

    @property
    def section(self) -> type | None:
        """The dataclass of the mapping, if that is a section."""
        inner: type | None = getattr(self.mapping_type, "section", None)
        return inner

    def read(self, node: DocumentNode, place: ReadContext) -> Any:
        return (self.mapping_type if isinstance(node.value, dict) else self.text_type).read(node, place)

    def write(self, value: Any) -> JsonValue:
        return (self.text_type if isinstance(value, str) else self.mapping_type).write(value)

    def schema(self) -> dict[str, JsonValue]:
        return {"anyOf": [self.text_type.schema(), self.mapping_type.schema()]}


@dataclass(frozen=True, slots=True)
class ListType:
    """A list, read as a tuple."""

    inner_type: FieldType

    @property
    def expected_text(self) -> str:
        return f"a list, each item {self.inner_type.expected_text}"

    def read(self, node: DocumentNode, place: ReadContext) -> Any:
        if not isinstance(node.value, list):
            return place.report_problem(node, f"found {describe_value(node)}, must be {self.expected_text}")
        return tuple(self.inner_type.read(member, inner) for member, inner in place.enter_items(node.value))

    def write(self, value: Any) -> JsonValue:
        return [self.inner_type.write(member) for member in value]

    def schema(self) -> dict[str, JsonValue]:
        return {"type": "array", "items": self.inner_type.schema()}


@dataclass(frozen=True, slots=True)
class PathListType:
    """One path, a list of paths, or null. Read as a tuple of strings."""

    @property
    def expected_text(self) -> str:
        return "a path, a list of paths, or null"

    def read(self, node: DocumentNode, place: ReadContext) -> Any:
        if node.value is None:
            return ()
        if isinstance(node.value, list):
            return ListType(_PATH_TYPE).read(node, place)
        if isinstance(node.value, str) and node.value:
            path = _PATH_TYPE.read(node, place)
            return None if path is None else (path,)
        return place.report_problem(node, f"found {describe_value(node)}, must be {self.expected_text}")

    def write(self, value: Any) -> JsonValue:
        return list(value)

    def schema(self) -> dict[str, JsonValue]:
        return {"anyOf": [{"type": "null"}, _PATH_TYPE.schema(), ListType(_PATH_TYPE).schema()]}


@dataclass(frozen=True, slots=True)
class MappingType:
    """A mapping with names that the user chooses and values of one type.

    ``name_type`` limits the names; None: any name.
    """

    value_type: FieldType
    name_type: TextForm | None = None

    @property
    def expected_text(self) -> str:
        return f"a mapping of names, each value {self.value_type.expected_text}"

    def read(self, node: DocumentNode, place: ReadContext) -> Any:
        if not isinstance(node.value, dict):
            return place.report_problem(node, f"found {describe_value(node)}, must be {self.expected_text}")
        return {name: self._read_member(name, member, place.enter_member(name)) for name, member in node.value.items()}

    def _read_member(self, name: str, node: DocumentNode, place: ReadContext) -> Any:
        if self.name_type is not None and not re.fullmatch(self.name_type.pattern, name):
            return place.report_problem(node, f"found '{name}' as a name, must be {self.name_type.description}")
        return self.value_type.read(node, place)

    def write(self, value: Any) -> JsonValue:
        return {name: self.value_type.write(member) for name, member in value.items()}

    def schema(self) -> dict[str, JsonValue]:
        if self.name_type is None:
            return {"type": "object", "additionalProperties": self.value_type.schema()}
        accepted = {self.name_type.pattern: self.value_type.schema()}
        return {"type": "object", "patternProperties": accepted, "additionalProperties": False}


@dataclass(frozen=True, slots=True)
class AnyJsonType:
    """Any JSON value. It is passed unchanged to the user's code or to Kubernetes."""

    @property
    def expected_text(self) -> str:
        return "any value"

    def read(self, node: DocumentNode, place: ReadContext) -> Any:
        return node.to_plain_value() if self._is_json(node, place) else None

    def _is_json(self, node: DocumentNode, place: ReadContext) -> bool:
        # lists instead of generators, so that all() does not stop at the first problem
        if isinstance(node.value, dict):
            members = [self._is_json(member, place.enter_member(name)) for name, member in node.value.items()]
            return all(members)
        if isinstance(node.value, list):
            items = [self._is_json(member, inner) for member, inner in place.enter_items(node.value)]
            return all(items)
        if isinstance(node.value, int | float) and (fault := find_number_fault(node.value)):
            place.report_problem(node, f"found a number that {fault}")
            return False
        return True

    def write(self, value: Any) -> JsonValue:
        plain: JsonValue = value
        return plain

    def schema(self) -> dict[str, JsonValue]:
        return {}


_PATH_TYPE = TextType(PATH)

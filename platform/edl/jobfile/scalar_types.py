"""The kinds of values a document holds: each reads a node, writes it back as JSON, and describes itself.

A kind never raises on a user's mistake: it reports to the place and returns None, and whoever started the reading
raises once, with all problems. Mappings with named fields are in edl.jobfile.section_type.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any, Protocol

from edl.jobfile.document_tree import DocumentNode, JsonValue, ReadContext, ScalarValue
from edl.jobfile.problems import closest_match


class FieldType(Protocol):
    """What a value may be."""

    @property
    def expected(self) -> str:
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
    def expected(self) -> str:
        """What is allowed, to stand after 'must be'."""
        raise NotImplementedError

    def refuse(self, node: DocumentNode, place: ReadContext, hint: str | None = None) -> None:
        """Report what was found and what is allowed."""
        place.report(node, f"found {describe_value(node)}, must be {self.expected}", hint)

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
    def expected(self) -> str:
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
            return self.refuse(node, place, _suggest_removing_quotes(node.value))
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
    def expected(self) -> str:
        """What is allowed, to stand after 'must be'."""
        return "a number" if self.minimum is None else f"a number of at least {self.minimum:g}"

    def read(self, node: DocumentNode, place: ReadContext) -> Any:
        """The value, or None with a problem reported."""
        number = to_finite_float(node.value)
        if number is None or number < _minimum_or_infinity(self.minimum):
            return self.refuse(node, place, _suggest_removing_quotes(node.value))
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
    def expected(self) -> str:
        """What is allowed, to stand after 'must be'."""
        return "true or false"

    def read(self, node: DocumentNode, place: ReadContext) -> Any:
        """The value, or None with a problem reported."""
        return node.value if isinstance(node.value, bool) else self.refuse(node, place)

    def schema(self) -> dict[str, JsonValue]:
        """JSON Schema of what read accepts."""
        return {"type": "boolean"}


@dataclass(frozen=True, slots=True)
class TextType(ScalarType):
    """Text, not empty unless a pattern says so; ``meaning`` names what the pattern admits."""

    pattern: str = r"^[\s\S]+$"
    description: str = "text"

    @property
    def expected(self) -> str:
        """What is allowed, to stand after 'must be'."""
        return self.description

    def read(self, node: DocumentNode, place: ReadContext) -> Any:
        """The value, or None with a problem reported."""
        # fullmatch, because $ of a Python pattern also matches before a last line feed
        if isinstance(node.value, str) and re.fullmatch(self.pattern, node.value):
            return node.value
        quoted = None if isinstance(node.value, str | dict | list | None) else "put it in quotes to make it text"
        return self.refuse(node, place, quoted)

    def schema(self) -> dict[str, JsonValue]:
        """JSON Schema of what read accepts."""
        return {"type": "string", "pattern": self.pattern}


@dataclass(frozen=True, slots=True)
class ChoiceType(ScalarType):
    """One of a few names; those that come ``later`` are known, refused as not built yet, and offered to nobody."""

    names: tuple[str, ...]
    later: tuple[str, ...] = ()

    @property
    def expected(self) -> str:
        """What is allowed, to stand after 'must be'."""
        return join_alternatives(self.names)

    def read(self, node: DocumentNode, place: ReadContext) -> Any:
        """The value, or None with a problem reported."""
        if node.value in self.names:
            return node.value
        if node.value in self.later:
            return place.report(node, f"{node.value} is not built yet", f"built: {', '.join(self.names)}")
        close = closest_match(node.value, (*self.names, *self.later)) if isinstance(node.value, str) else None
        if close in self.later:
            return self.refuse(node, place, f"{close} is not built yet")
        return self.refuse(node, place, close and f"did you mean '{close}'?")

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

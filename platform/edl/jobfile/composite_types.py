"""Kinds made of other kinds: optional values, lists, and mappings whose names the user chooses."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from edl.jobfile.document_tree import DocumentNode, JsonValue, ReadContext
from edl.jobfile.scalar_types import FieldType, TextType, describe_value


@dataclass(frozen=True, slots=True)
class NullableType:
    """A value or null; what null means is said by the field's sentence."""

    kind: FieldType

    @property
    def expected(self) -> str:
        """What is allowed, to stand after 'must be'."""
        return f"{self.kind.expected}, or null"

    @property
    def section(self) -> type | None:
        """The section inside, where there is one."""
        inner: type | None = getattr(self.kind, "section", None)
        return inner

    def read(self, node: DocumentNode, place: ReadContext) -> Any:
        """None for null."""
        return None if node.value is None else self.kind.read(node, place)

    def write(self, value: Any) -> JsonValue:
        """Null for None."""
        return None if value is None else self.kind.write(value)

    def schema(self) -> dict[str, JsonValue]:
        """Null, or the inner kind."""
        return {"anyOf": [{"type": "null"}, self.kind.schema()]}


@dataclass(frozen=True, slots=True)
class TextOrMappingType:
    """Text, or a mapping in its place."""

    text: FieldType
    mapping: FieldType

    @property
    def expected(self) -> str:
        """What is allowed, to stand after 'must be'."""
        return f"{self.text.expected}, or {self.mapping.expected}"

    @property
    def section(self) -> type | None:
        """The section that a mapping is."""
        inner: type | None = getattr(self.mapping, "section", None)
        return inner

    def read(self, node: DocumentNode, place: ReadContext) -> Any:
        """What the mapping means, or the text."""
        return (self.mapping if isinstance(node.value, dict) else self.text).read(node, place)

    def write(self, value: Any) -> JsonValue:
        """The text, or the mapping."""
        return (self.text if isinstance(value, str) else self.mapping).write(value)

    def schema(self) -> dict[str, JsonValue]:
        """Either of the two."""
        return {"anyOf": [self.text.schema(), self.mapping.schema()]}


@dataclass(frozen=True, slots=True)
class ListType:
    """A list, a tuple once read."""

    kind: FieldType

    @property
    def expected(self) -> str:
        """What is allowed, to stand after 'must be'."""
        return f"a list, each of it {self.kind.expected}"

    def read(self, node: DocumentNode, place: ReadContext) -> Any:
        """A tuple of the members."""
        if not isinstance(node.value, list):
            return place.report(node, f"found {describe_value(node)}, must be {self.expected}")
        return tuple(self.kind.read(member, inner) for member, inner in place.items(node.value))

    def write(self, value: Any) -> JsonValue:
        """A JSON array."""
        return [self.kind.write(member) for member in value]

    def schema(self) -> dict[str, JsonValue]:
        """An array of the inner kind."""
        return {"type": "array", "items": self.kind.schema()}


@dataclass(frozen=True, slots=True)
class PathListType:
    """One path, a list of paths, or null for none: always a tuple of text once read."""

    @property
    def expected(self) -> str:
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
        return place.report(node, f"found {describe_value(node)}, must be {self.expected}")

    def write(self, value: Any) -> JsonValue:
        """A JSON array."""
        return list(value)

    def schema(self) -> dict[str, JsonValue]:
        """Null, a string, or an array of strings."""
        return {"anyOf": [{"type": "null"}, _PATH_TYPE.schema(), ListType(_PATH_TYPE).schema()]}


@dataclass(frozen=True, slots=True)
class MappingType:
    """A mapping whose names the user chooses, each value of one kind; ``names`` is what a name may be, if not any."""

    kind: FieldType
    names: TextType | None = None

    @property
    def expected(self) -> str:
        """What is allowed, to stand after 'must be'."""
        return f"a mapping of names, each of it {self.kind.expected}"

    def read(self, node: DocumentNode, place: ReadContext) -> Any:
        """A dict of the members."""
        if not isinstance(node.value, dict):
            return place.report(node, f"found {describe_value(node)}, must be {self.expected}")
        return {name: self._member(name, member, place.member(name)) for name, member in node.value.items()}

    def _member(self, name: str, node: DocumentNode, place: ReadContext) -> Any:
        if self.names is not None and not re.fullmatch(self.names.pattern, name):
            return place.report(node, f"found '{name}' as a name, must be {self.names.description}")
        return self.kind.read(node, place)

    def write(self, value: Any) -> JsonValue:
        """A JSON object."""
        return {name: self.kind.write(member) for name, member in value.items()}

    def schema(self) -> dict[str, JsonValue]:
        """An object with such names."""
        if self.names is None:
            return {"type": "object", "additionalProperties": self.kind.schema()}
        accepted = {self.names.pattern: self.kind.schema()}
        return {"type": "object", "patternProperties": accepted, "additionalProperties": False}


@dataclass(frozen=True, slots=True)
class AnyJsonType:
    """Any JSON value: what is passed on to the user's code or to Kubernetes as it is."""

    @property
    def expected(self) -> str:
        """What is allowed, to stand after 'must be'."""
        return "any value"

    def read(self, node: DocumentNode, place: ReadContext) -> Any:
        """The plain value."""
        return node.plain()

    def write(self, value: Any) -> JsonValue:
        """The value itself."""
        plain: JsonValue = value
        return plain

    def schema(self) -> dict[str, JsonValue]:
        """No restriction."""
        return {}


_PATH_TYPE = TextType(description="a path")

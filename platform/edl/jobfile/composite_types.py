"""Kinds made of other kinds: optional values, lists, and mappings whose names the user chooses."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from edl.jobfile.document_tree import Json, Node, Place
from edl.jobfile.scalar_types import Kind, Text, found


@dataclass(frozen=True, slots=True)
class Nullable:
    """A value or null; what null means is said by the field's sentence."""

    kind: Kind

    @property
    def expected(self) -> str:
        """What is allowed, to stand after 'must be'."""
        return f"{self.kind.expected}, or null"

    @property
    def section(self) -> type | None:
        """The section inside, where there is one."""
        inner: type | None = getattr(self.kind, "section", None)
        return inner

    def read(self, node: Node, place: Place) -> Any:
        """None for null."""
        return None if node.value is None else self.kind.read(node, place)

    def write(self, value: Any) -> Json:
        """Null for None."""
        return None if value is None else self.kind.write(value)

    def schema(self) -> dict[str, Json]:
        """Null, or the inner kind."""
        return {"anyOf": [{"type": "null"}, self.kind.schema()]}


@dataclass(frozen=True, slots=True)
class TextOr:
    """Text, or a mapping in its place."""

    text: Kind
    mapping: Kind

    @property
    def expected(self) -> str:
        """What is allowed, to stand after 'must be'."""
        return f"{self.text.expected}, or {self.mapping.expected}"

    @property
    def section(self) -> type | None:
        """The section that a mapping is."""
        inner: type | None = getattr(self.mapping, "section", None)
        return inner

    def read(self, node: Node, place: Place) -> Any:
        """What the mapping means, or the text."""
        return (self.mapping if isinstance(node.value, dict) else self.text).read(node, place)

    def write(self, value: Any) -> Json:
        """The text, or the mapping."""
        return (self.text if isinstance(value, str) else self.mapping).write(value)

    def schema(self) -> dict[str, Json]:
        """Either of the two."""
        return {"anyOf": [self.text.schema(), self.mapping.schema()]}


@dataclass(frozen=True, slots=True)
class ListOf:
    """A list, a tuple once read."""

    kind: Kind

    @property
    def expected(self) -> str:
        """What is allowed, to stand after 'must be'."""
        return f"a list, each of it {self.kind.expected}"

    def read(self, node: Node, place: Place) -> Any:
        """A tuple of the members."""
        if not isinstance(node.value, list):
            return place.report(node, f"found {found(node)}, must be {self.expected}")
        return tuple(self.kind.read(member, inner) for member, inner in place.items(node.value))

    def write(self, value: Any) -> Json:
        """A JSON array."""
        return [self.kind.write(member) for member in value]

    def schema(self) -> dict[str, Json]:
        """An array of the inner kind."""
        return {"type": "array", "items": self.kind.schema()}


@dataclass(frozen=True, slots=True)
class Paths:
    """One path, a list of paths, or null for none: always a tuple of text once read."""

    @property
    def expected(self) -> str:
        """What is allowed, to stand after 'must be'."""
        return "a path, a list of paths, or null"

    def read(self, node: Node, place: Place) -> Any:
        """A tuple of paths, as written."""
        if node.value is None:
            return ()
        if isinstance(node.value, list):
            return ListOf(_PATH).read(node, place)
        if isinstance(node.value, str) and node.value:
            return (node.value,)
        return place.report(node, f"found {found(node)}, must be {self.expected}")

    def write(self, value: Any) -> Json:
        """A JSON array."""
        return list(value)

    def schema(self) -> dict[str, Json]:
        """Null, a string, or an array of strings."""
        return {"anyOf": [{"type": "null"}, _PATH.schema(), ListOf(_PATH).schema()]}


@dataclass(frozen=True, slots=True)
class Named:
    """A mapping whose names the user chooses, each value of one kind; ``names`` is what a name may be, if not any."""

    kind: Kind
    names: Text | None = None

    @property
    def expected(self) -> str:
        """What is allowed, to stand after 'must be'."""
        return f"a mapping of names, each of it {self.kind.expected}"

    def read(self, node: Node, place: Place) -> Any:
        """A dict of the members."""
        if not isinstance(node.value, dict):
            return place.report(node, f"found {found(node)}, must be {self.expected}")
        return {name: self._member(name, member, place.member(name)) for name, member in node.value.items()}

    def _member(self, name: str, node: Node, place: Place) -> Any:
        if self.names is not None and not re.fullmatch(self.names.pattern, name):
            return place.report(node, f"found '{name}' as a name, must be {self.names.meaning}")
        return self.kind.read(node, place)

    def write(self, value: Any) -> Json:
        """A JSON object."""
        return {name: self.kind.write(member) for name, member in value.items()}

    def schema(self) -> dict[str, Json]:
        """An object with such names."""
        if self.names is None:
            return {"type": "object", "additionalProperties": self.kind.schema()}
        accepted = {self.names.pattern: self.kind.schema()}
        return {"type": "object", "patternProperties": accepted, "additionalProperties": False}


@dataclass(frozen=True, slots=True)
class Anything:
    """Any JSON value: what is passed on to the user's code or to Kubernetes as it is."""

    @property
    def expected(self) -> str:
        """What is allowed, to stand after 'must be'."""
        return "any value"

    def read(self, node: Node, place: Place) -> Any:
        """The plain value."""
        return node.plain()

    def write(self, value: Any) -> Json:
        """The value itself."""
        plain: Json = value
        return plain

    def schema(self) -> dict[str, Json]:
        """No restriction."""
        return {}


_PATH = Text(meaning="a path")

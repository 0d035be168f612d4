"""A document as a tree of nodes, each with the place where it was written."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from edl.api.errors import BadInputError
from edl.api.fields import JsonValue, ScalarValue
from edl.core.strict_json import MAX_DEPTH, MAX_INTEGER

# --------------------------------------------------------------------------------------------------
# Problems of a document.


@dataclass(frozen=True, slots=True)
class SpecProblem:
    """One mistake in a document.

    Attributes:
        source_location: file and line (``job.yaml:7``), or the option that set the value (``--set train.epochs=x``).
        field_path: path in the document, ``train.epochs`` or ``volumes[0].mount``; empty for the document itself.
        message: what was found and what is valid, in one sentence.
        hint: what the user can do about it.
    """

    source_location: str
    field_path: str
    message: str
    hint: str | None = None

    def __str__(self) -> str:
        place = f"{self.source_location}: {self.field_path}" if self.field_path else self.source_location
        return f"{place}: {self.message}" + (f"\n  {self.hint}" if self.hint else "")


@dataclass(frozen=True, slots=True)
class RuleViolation:
    """A rule that a spec breaks: the path of the field to change, what is wrong, and a remedy.

    Attributes:
        conflicting_field: the path of a field that contradicts it.
    """

    field_path: str
    message: str
    hint: str | None = None
    conflicting_field: str = ""


_SHOWN_PROBLEMS = 50


class SpecError(BadInputError):
    """A document is invalid. ``problems`` contains every mistake that was found, in the document's order."""

    def __init__(self, problems: Sequence[SpecProblem]) -> None:
        self.problems = tuple(problems)
        shown = [str(problem) for problem in self.problems[:_SHOWN_PROBLEMS]]
        more = len(self.problems) - len(shown)
        super().__init__("\n".join([*shown, f"  and {more:,} more problems"] if more else shown))


TOO_DEEP = f"nested too deeply: more than {MAX_DEPTH} levels"


def find_text_fault(text: str) -> str | None:
    """Why no file, message or path can hold the text, phrased to follow "a text that"; None: it is valid."""
    if "\0" in text:
        return "has a NUL character"
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return "has half of a surrogate pair"
    return None


def find_number_fault(number: float) -> str | None:
    """Why a number cannot be stored, phrased to follow "a number that"; None: it is valid."""
    if isinstance(number, int):
        return None if -MAX_INTEGER - 1 <= number <= 2 * MAX_INTEGER + 1 else "has more than 64 bits"
    return None if math.isfinite(number) else "is not finite, which JSON cannot hold"


def closest_match(name: str, valid: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The valid name of which ``name`` is most likely a misspelling; None if none is as close as ``cutoff``."""
    by_folded = {normalize_spelling(candidate): candidate for candidate in valid}
    # compared without case and separators, so that only real misspellings count as a distance
    close = get_close_matches(normalize_spelling(name), by_folded, n=1, cutoff=cutoff)
    return by_folded[close[0]] if close else None


def normalize_spelling(spelled_name: str) -> str:
    """A name for comparison: minibatchSize, Minibatch-Size and minibatch_size become equal."""
    return spelled_name.lower().replace("-", "").replace("_", "")


@dataclass(frozen=True, slots=True)
class DocumentNode:
    """A value and its place: a scalar, a mapping of text to nodes, or a list of nodes.

    The place of a mapping's member is the line of its key. ``source_location`` is text for messages.
    """

    value: ScalarValue | dict[str, DocumentNode] | list[DocumentNode]
    source_location: str

    def to_plain_value(self) -> JsonValue:
        """The value without locations."""
        if isinstance(self.value, dict):
            return {key: node.to_plain_value() for key, node in self.value.items()}
        if isinstance(self.value, list):
            return [node.to_plain_value() for node in self.value]
        return self.value


def build_tree(value: object, where: str) -> DocumentNode:
    """The tree of a plain JSON value. All nodes have the location ``where``."""
    if isinstance(value, Mapping):
        return DocumentNode({str(key): build_tree(member, where) for key, member in value.items()}, where)
    if isinstance(value, list | tuple):
        return DocumentNode([build_tree(member, where) for member in value], where)
    # bool is a subclass of int
    if value is None or isinstance(value, str | int | float):
        return DocumentNode(value, where)
    raise TypeError(f"not a JSON value: {value!r}")


def parse_json_tree(text: str, where: str) -> DocumentNode | None:
    """The tree of a JSON text, all of it at one location; None if it is not an object, or has duplicate names.

    This is much faster than the YAML parser, which reads JSON too but also finds the line of a mistake.
    """
    try:
        value = json.loads(text, object_pairs_hook=_reject_duplicate_names)
        _check_plain_value(value, MAX_DEPTH)
        return build_tree(value, where) if isinstance(value, dict) else None
    except (ValueError, RecursionError):
        return None


def _check_plain_value(value: object, depth: int) -> None:
    if isinstance(value, str) and find_text_fault(value):
        raise ValueError("invalid text")
    if isinstance(value, dict | list):
        if not depth:
            raise ValueError(TOO_DEEP)
        # names are checked too: a name may become part of a path or message
        for member in (*value, *value.values()) if isinstance(value, dict) else value:
            _check_plain_value(member, depth - 1)


def _reject_duplicate_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # json.loads would keep the last of two members and ignore the first
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("duplicate names")
    return members


@dataclass(frozen=True, slots=True)
class ReadContext:
    """The state of a reader: the path of the current node, and the list that collects problems."""

    field_path: str
    problems: list[SpecProblem]

    def enter_member(self, name: str) -> ReadContext:
        """The context of a mapping's member."""
        return ReadContext(f"{self.field_path}.{name}" if self.field_path else name, self.problems)

    def enter_items(self, nodes: list[DocumentNode]) -> Iterator[tuple[DocumentNode, ReadContext]]:
        for index, node in enumerate(nodes):
            yield node, ReadContext(f"{self.field_path}[{index}]", self.problems)

    def report_problem(self, node: DocumentNode, message: str, hint: str | None = None) -> None:
        """Add a problem. Reading continues, so that all problems of a file are reported at once."""
        self.problems.append(SpecProblem(node.source_location, self.field_path, message, hint))

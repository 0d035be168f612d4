"""Parses YAML into a tree of nodes that know their line.

Only scalars, mappings and lists are read, never objects: tags of YAML are rejected. Problems of the text are added to
the caller's list, and parsing continues as far as possible.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.composer import MaxDepthExceededError
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, ScalarNode, SequenceNode
from ruamel.yaml.scanner import Scanner, ScannerError

from edl.api.fields import ScalarValue
from edl.core.strict_json import MAX_DEPTH, escape_surrogates
from edl.jobfile.document_tree import TOO_DEEP, DocumentNode, ReadContext, SpecProblem, find_text_fault
from edl.jobfile.scalar_types import SHOWN_CHARACTERS

_YAML_TAG_PREFIX = "tag:yaml.org,2002:"
_TRUE_WORDS = frozenset({"true", "yes", "on", "y"})
# ruamel tags text that looks like a date as a timestamp; a job file has no dates, so such text stays text
_TEXT_TAGS = frozenset(f"{_YAML_TAG_PREFIX}{name}" for name in ("str", "timestamp", "merge", "value"))


_MAX_NODES = 100_000
"""Maximum values in a document. A value counts once for each alias of it, so that nested aliases cannot exhaust memory
(the "billion laughs" attack)."""


def parse_yaml(text: str, source: str, problems: list[SpecProblem]) -> DocumentNode | None:
    """The tree of a YAML text; None if it is empty or invalid. ``source`` is the file's name for messages."""
    try:
        parser = YAML(typ="safe", pure=True)
        parser.Scanner = _BoundedScanner
        parser.max_depth = MAX_DEPTH
        root = parser.compose(text)
        return None if root is None else _NodeConverter(source, problems).convert_node(root, ReadContext("", problems))
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{source}:{mark.line + 1}" if mark else source
        reason = TOO_DEEP if isinstance(error, MaxDepthExceededError) else error.problem or error.context
        problems.append(SpecProblem(where, "", f"cannot be parsed: {reason}", _yaml_error_hint(error)))
    except YAMLError as error:
        position = getattr(error, "position", 0)
        where = f"{source}:{text.count(chr(10), 0, position) + 1}"
        problems.append(SpecProblem(where, "", f"cannot be parsed: {str(error).splitlines()[0]}"))
    except RecursionError:
        problems.append(SpecProblem(source, "", TOO_DEEP))
    except ValueError:  # ruamel reads the version in a %YAML directive with int(), which limits the number of digits
        problems.append(SpecProblem(f"{source}:1", "", "cannot be parsed: a directive is malformed"))
    return None


class _BoundedScanner(Scanner):
    """Rejects two inputs that ruamel's scanner handles badly.

    Flow collections that are nested without limit cost without limit, and for an escape sequence of an invalid
    character it raises an error without a line.
    """

    def fetch_flow_collection_start(self, TokenClass: Any, to_push: str) -> None:  # noqa: N803
        # checked while scanning: ruamel checks max_depth only when it composes the nodes
        if len(self.flow_context) >= MAX_DEPTH:
            raise ScannerError(None, None, TOO_DEEP, self.reader.get_mark())
        super().fetch_flow_collection_start(TokenClass, to_push)

    def scan_flow_scalar(self, style: Any) -> Any:
        mark = self.reader.get_mark()
        try:
            return super().scan_flow_scalar(style)
        except (ValueError, OverflowError):
            problem = "a text has an escape that stands for no character"
            raise ScannerError(None, None, problem, mark) from None


class _NodeConverter:
    """Converts ruamel's nodes into DocumentNodes. Reports duplicate keys, tags, and aliases that contain themselves."""

    def __init__(self, source: str, problems: list[SpecProblem]) -> None:
        self._source = source
        self._problems = problems
        self._open_node_ids: set[int] = set()
        self._node_count = 0

    def convert_node(self, raw: Any, place: ReadContext, line: int | None = None) -> DocumentNode:
        where = f"{self._source}:{(raw.start_mark.line if line is None else line) + 1}"
        self._node_count += 1
        if self._node_count > _MAX_NODES:
            problem = f"it has more than {_MAX_NODES:,} values, with those that its aliases repeat"
            raise MarkedYAMLError(None, None, problem, raw.start_mark)
        if len(self._open_node_ids) >= MAX_DEPTH:
            raise MarkedYAMLError(None, None, TOO_DEEP, raw.start_mark)
        if id(raw) in self._open_node_ids:
            place.report_problem(DocumentNode(None, where), "an alias that contains itself")
            return DocumentNode(None, where)
        self._open_node_ids.add(id(raw))
        try:
            return self._convert_by_type(raw, place, where)
        finally:
            self._open_node_ids.remove(id(raw))  # an alias of a finished node is valid

    def _convert_by_type(self, raw: Any, place: ReadContext, where: str) -> DocumentNode:
        if isinstance(raw, MappingNode):
            return DocumentNode(self._convert_mapping(raw, place), where)
        if isinstance(raw, SequenceNode):
            items = [DocumentNode(None, "") for _ in raw.value]
            inner = [item_place for _, item_place in place.enter_items(items)]
            return DocumentNode(
                [self.convert_node(member, item_place) for member, item_place in zip(raw.value, inner, strict=True)],
                where,
            )
        return self._convert_scalar(raw, place, where)

    def _convert_mapping(self, raw: MappingNode, place: ReadContext) -> dict[str, DocumentNode]:
        members: dict[str, DocumentNode] = {}
        for key, value in raw.value:
            line = key.start_mark.line
            key_node = DocumentNode(None, f"{self._source}:{line + 1}")
            if not isinstance(key, ScalarNode):
                place.report_problem(key_node, "found a list or mapping as the name of a field, must be text")
            elif fault := find_text_fault(key.value):
                place.report_problem(key_node, f"found a name that {fault}")
            elif key.value in members:
                place.enter_member(key.value).report_problem(
                    key_node, f"is given twice, first at {members[key.value].source_location}"
                )
            else:
                members[key.value] = self.convert_node(value, place.enter_member(key.value), line)
        return members

    def _convert_scalar(self, raw: ScalarNode, place: ReadContext, where: str) -> DocumentNode:
        name = str(raw.tag).removeprefix(_YAML_TAG_PREFIX)
        if str(raw.tag) in _TEXT_TAGS:
            if fault := find_text_fault(raw.value):
                place.report_problem(DocumentNode(None, where), f"found a text that {fault}")
                # the value stays in the tree, and later messages may quote it: they must be printable
                return DocumentNode(escape_surrogates(raw.value).replace("\0", "\\0"), where)
            return DocumentNode(raw.value, where)
        if name in ("null", "bool", "int", "float"):
            return DocumentNode(_convert_scalar_text(name, raw.value), where)
        place.report_problem(DocumentNode(None, where), f"found the YAML tag '{raw.tag}', must be a plain value")
        return DocumentNode(None, where)


def _convert_scalar_text(name: str, text: str) -> ScalarValue:
    plain = text.replace("_", "").lower()
    match name:
        case "null":
            return None
        case "bool":
            return plain in _TRUE_WORDS
        case "int":
            return _parse_whole_number(plain, text)
        case _:
            return _parse_float(plain, text)


_MAX_DIGITS = 4000  # int() raises ValueError above 4300 digits (sys.get_int_max_str_digits)


def _parse_whole_number(plain: str, text: str) -> float | str:
    if len(plain) > _MAX_DIGITS:
        return -math.inf if plain.startswith("-") else math.inf
    try:
        return int(plain, 0) if plain.lstrip("+-")[:2] in ("0x", "0o", "0b") else int(plain)
    except ValueError:  # an explicit tag !!int on text that is not a number
        return text


def _parse_float(plain: str, text: str) -> float | str:
    try:
        return float(plain.replace(".inf", "inf").replace(".nan", "nan"))
    except ValueError:  # an explicit tag !!float on other text, or a sexagesimal number of YAML 1.1
        return text


def _yaml_error_hint(error: MarkedYAMLError) -> str | None:
    problem = error.problem or ""
    if "\\t" in problem:
        return "indent with spaces, YAML does not allow tabs"
    if "mapping values are not allowed" in problem:
        return "a value that contains ': ' needs quotes; or the line is indented wrongly"
    if "another document" in problem:
        return "a job file holds one document: remove the line ---"
    return None


# --------------------------------------------------------------------------------------------------
# ``--set train.epochs=3``: values from the command line are put into the tree before it is checked.


_PATH_STEP = re.compile(r"[^.\[\]=]+")


def apply_override(root: DocumentNode, assignment: str, problems: list[SpecProblem]) -> DocumentNode:
    """The tree with one more value: ``a.b=value`` or ``volumes[0].local=./data``. The value is YAML.

    Mappings on the path are created if they are absent or null. Whether the fields exist is checked later, with the
    rest of the tree; messages then show ``--set a.b=value`` instead of file and line.
    """
    where = f"--set {assignment[:SHOWN_CHARACTERS]}{'…' * (len(assignment) > SHOWN_CHARACTERS)}"
    path, equals, text = assignment.partition("=")
    steps = _PATH_STEP.findall(path)
    if fault := find_text_fault(assignment):
        problems.append(SpecProblem(escape_surrogates(where).replace("\0", "\\0"), "", f"is a text that {fault}"))
        return root
    if len(steps) > MAX_DEPTH:
        problems.append(SpecProblem(where, "", TOO_DEEP))
        return root
    if not equals or not steps:
        problems.append(SpecProblem(where, "", "must be FIELD=VALUE, such as train.epochs=3"))
        return root
    wrong: list[SpecProblem] = []
    parsed = parse_yaml(text, where, wrong) or DocumentNode(None, where)
    if wrong:
        problems.extend(replace(problem, source_location=where, field_path=path) for problem in wrong)
        return root
    return _assign_at_path(root, steps, _with_source_location(parsed, where), ReadContext("", problems))


def assign_value(root: DocumentNode, path: str, leaf: DocumentNode, problems: list[SpecProblem]) -> DocumentNode:
    """The tree with ``leaf`` at a path such as ``workers.max``."""
    return _assign_at_path(root, _PATH_STEP.findall(path), leaf, ReadContext("", problems))


def _assign_at_path(node: DocumentNode, steps: list[str], leaf: DocumentNode, place: ReadContext) -> DocumentNode:
    if not steps:
        return leaf
    if isinstance(node.value, list):
        return _assign_list_item(node, node.value, steps, leaf, place)
    members, where = (node.value, node.source_location) if isinstance(node.value, dict) else ({}, leaf.source_location)
    name, *rest = steps
    inner = members.get(name, DocumentNode(None, leaf.source_location))
    return DocumentNode({**members, name: _assign_at_path(inner, rest, leaf, place.enter_member(name))}, where)


def _assign_list_item(
    node: DocumentNode, items: list[DocumentNode], steps: list[str], leaf: DocumentNode, place: ReadContext
) -> DocumentNode:
    index = int(steps[0]) if steps[0].isdecimal() else -1
    if not 0 <= index < len(items):
        place.report_problem(leaf, f"has no item '{steps[0]}'; it has {len(items)}, counted from 0")
        return node
    inner = ReadContext(f"{place.field_path}[{index}]", place.problems)
    return DocumentNode(
        [*items[:index], _assign_at_path(items[index], steps[1:], leaf, inner), *items[index + 1 :]],
        node.source_location,
    )


def _with_source_location(node: DocumentNode, where: str) -> DocumentNode:
    """The tree with one location for all nodes: line numbers mean nothing inside an option."""
    if isinstance(node.value, dict):
        return DocumentNode({name: _with_source_location(member, where) for name, member in node.value.items()}, where)
    if isinstance(node.value, list):
        return DocumentNode([_with_source_location(member, where) for member in node.value], where)
    return DocumentNode(node.value, where)

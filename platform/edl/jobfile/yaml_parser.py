"""YAML text as a tree of nodes that know their line.

YAML 1.2 without tags of its own: text is read into scalars, mappings and lists, never into objects. Everything that
is wrong with the text itself is reported to the caller's list of problems, as far as the reading can go on.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, ScalarNode, SequenceNode

from edl.api.fields import ScalarValue
from edl.jobfile.document_tree import DocumentNode, ReadContext, SpecProblem

_YAML_TAG_PREFIX = "tag:yaml.org,2002:"
_TRUE_WORDS = frozenset({"true", "yes", "on", "y"})
# a timestamp's tag is given to what looks like one; nothing in a document of ours is a date
_TEXT_TAGS = frozenset(f"{_YAML_TAG_PREFIX}{name}" for name in ("str", "timestamp", "merge", "value"))


def parse_yaml(text: str, source: str, problems: list[SpecProblem]) -> DocumentNode | None:
    """The tree of a YAML text, None when there is none; ``source`` is the file's name for messages."""
    try:
        root = YAML(typ="safe", pure=True).compose(text)
        return None if root is None else _NodeConverter(source, problems).convert_node(root, ReadContext("", problems))
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{source}:{mark.line + 1}" if mark else source
        problems.append(
            SpecProblem(where, "", f"cannot be parsed: {error.problem or error.context}", _yaml_error_hint(error))
        )
    except YAMLError as error:
        position = getattr(error, "position", 0)
        where = f"{source}:{text.count(chr(10), 0, position) + 1}"
        problems.append(SpecProblem(where, "", f"cannot be parsed: {str(error).splitlines()[0]}"))
    except RecursionError:
        problems.append(SpecProblem(source, "", "nested too deeply"))
    return None


class _NodeConverter:
    """Turns ruamel's nodes into ours, reporting duplicate keys, tags and aliases that contain themselves."""

    def __init__(self, source: str, problems: list[SpecProblem]) -> None:
        self._source = source
        self._problems = problems
        self._open_node_ids: set[int] = set()

    def convert_node(self, raw: Any, place: ReadContext, line: int | None = None) -> DocumentNode:
        where = f"{self._source}:{(raw.start_mark.line if line is None else line) + 1}"
        if id(raw) in self._open_node_ids:
            place.report_problem(DocumentNode(None, where), "an alias that contains itself")
            return DocumentNode(None, where)
        self._open_node_ids.add(id(raw))
        try:
            return self._convert_by_type(raw, place, where)
        finally:
            self._open_node_ids.remove(id(raw))

    def _convert_by_type(self, raw: Any, place: ReadContext, where: str) -> DocumentNode:
        if isinstance(raw, MappingNode):
            return DocumentNode(self._convert_mapping(raw, place), where)
        if isinstance(raw, SequenceNode):
            items = [DocumentNode(None, "") for _ in raw.value]
            inner = [at for _, at in place.enter_items(items)]
            return DocumentNode(
                [self.convert_node(member, at) for member, at in zip(raw.value, inner, strict=True)], where
            )
        return self._convert_scalar(raw, place, where)

    def _convert_mapping(self, raw: MappingNode, place: ReadContext) -> dict[str, DocumentNode]:
        members: dict[str, DocumentNode] = {}
        for key, value in raw.value:
            line = key.start_mark.line
            at = DocumentNode(None, f"{self._source}:{line + 1}")
            if not isinstance(key, ScalarNode):
                place.report_problem(at, "found a list or mapping as the name of a field, must be text")
            elif key.value in members:
                place.enter_member(key.value).report_problem(
                    at, f"is given twice, first at {members[key.value].source_location}"
                )
            else:
                members[key.value] = self.convert_node(value, place.enter_member(key.value), line)
        return members

    def _convert_scalar(self, raw: ScalarNode, place: ReadContext, where: str) -> DocumentNode:
        name = str(raw.tag).removeprefix(_YAML_TAG_PREFIX)
        if str(raw.tag) in _TEXT_TAGS:
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
            return float(plain.replace(".inf", "inf").replace(".nan", "nan"))


def _parse_whole_number(plain: str, text: str) -> int | str:
    try:
        return int(plain, 0) if plain.lstrip("+-")[:2] in ("0x", "0o", "0b") else int(plain)
    except ValueError:  # longer than Python reads: no field admits it, and the message quotes it
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
# ``--set train.epochs=3``: values from the command line, put into the tree before it is checked.


_PATH_STEP = re.compile(r"[^.\[\]=]+")


def apply_override(root: DocumentNode, assignment: str, problems: list[SpecProblem]) -> DocumentNode:
    """The tree with one more value: ``a.b=value`` or ``volumes[0].local=./data``; the value is YAML.

    Mappings on the way are made where they are absent or null. Whether such fields exist is checked with the rest of
    the tree, with ``--set a.b=value`` in the place of file and line.
    """
    where = f"--set {assignment}"
    path, equals, text = assignment.partition("=")
    steps = _PATH_STEP.findall(path)
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
    """The tree with one place for all of it: lines mean nothing within a command line."""
    if isinstance(node.value, dict):
        return DocumentNode({name: _with_source_location(member, where) for name, member in node.value.items()}, where)
    if isinstance(node.value, list):
        return DocumentNode([_with_source_location(member, where) for member in node.value], where)
    return DocumentNode(node.value, where)

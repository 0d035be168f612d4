"""``--set train.epochs=3``: values from the command line, put into the tree before it is checked."""

from __future__ import annotations

import re
from dataclasses import replace

from edl.jobfile.document_tree import DocumentNode, ReadContext
from edl.jobfile.problems import SpecProblem
from edl.jobfile.yaml_parser import parse_yaml

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
        problems.extend(replace(problem, where=where, path=path) for problem in wrong)
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
    members, where = (node.value, node.where) if isinstance(node.value, dict) else ({}, leaf.where)
    name, *rest = steps
    inner = members.get(name, DocumentNode(None, leaf.where))
    return DocumentNode({**members, name: _assign_at_path(inner, rest, leaf, place.member(name))}, where)


def _assign_list_item(
    node: DocumentNode, items: list[DocumentNode], steps: list[str], leaf: DocumentNode, place: ReadContext
) -> DocumentNode:
    index = int(steps[0]) if steps[0].isdecimal() else -1
    if not 0 <= index < len(items):
        place.report(leaf, f"has no item '{steps[0]}'; it has {len(items)}, counted from 0")
        return node
    inner = ReadContext(f"{place.path}[{index}]", place.problems)
    return DocumentNode(
        [*items[:index], _assign_at_path(items[index], steps[1:], leaf, inner), *items[index + 1 :]], node.where
    )


def _with_source_location(node: DocumentNode, where: str) -> DocumentNode:
    """The tree with one place for all of it: lines mean nothing within a command line."""
    if isinstance(node.value, dict):
        return DocumentNode({name: _with_source_location(member, where) for name, member in node.value.items()}, where)
    if isinstance(node.value, list):
        return DocumentNode([_with_source_location(member, where) for member in node.value], where)
    return DocumentNode(node.value, where)

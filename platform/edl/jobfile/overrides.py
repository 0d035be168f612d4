"""``--set train.epochs=3``: values from the command line, put into the tree before it is checked."""

from __future__ import annotations

import re
from dataclasses import replace

from edl.jobfile.document_tree import Node, Place
from edl.jobfile.problems import Problem
from edl.jobfile.yaml_parser import parse_yaml

_STEP = re.compile(r"[^.\[\]=]+")


def override(root: Node, assignment: str, problems: list[Problem]) -> Node:
    """The tree with one more value: ``a.b=value`` or ``volumes[0].local=./data``; the value is YAML.

    Mappings on the way are made where they are absent or null. Whether such fields exist is checked with the rest of
    the tree, with ``--set a.b=value`` in the place of file and line.
    """
    where = f"--set {assignment}"
    path, equals, text = assignment.partition("=")
    steps = _STEP.findall(path)
    if not equals or not steps:
        problems.append(Problem(where, "", "must be FIELD=VALUE, such as train.epochs=3"))
        return root
    wrong: list[Problem] = []
    parsed = parse_yaml(text, where, wrong) or Node(None, where)
    if wrong:
        problems.extend(replace(problem, where=where, path=path) for problem in wrong)
        return root
    return _assign(root, steps, _moved(parsed, where), Place("", problems))


def assign(root: Node, path: str, leaf: Node, problems: list[Problem]) -> Node:
    """The tree with ``leaf`` at a path such as ``workers.max``."""
    return _assign(root, _STEP.findall(path), leaf, Place("", problems))


def _assign(node: Node, steps: list[str], leaf: Node, place: Place) -> Node:
    if not steps:
        return leaf
    if isinstance(node.value, list):
        return _assign_item(node, node.value, steps, leaf, place)
    members, where = (node.value, node.where) if isinstance(node.value, dict) else ({}, leaf.where)
    name, *rest = steps
    inner = members.get(name, Node(None, leaf.where))
    return Node({**members, name: _assign(inner, rest, leaf, place.member(name))}, where)


def _assign_item(node: Node, items: list[Node], steps: list[str], leaf: Node, place: Place) -> Node:
    index = int(steps[0]) if steps[0].isdecimal() else -1
    if not 0 <= index < len(items):
        place.report(leaf, f"has no item '{steps[0]}'; it has {len(items)}, counted from 0")
        return node
    inner = Place(f"{place.path}[{index}]", place.problems)
    return Node([*items[:index], _assign(items[index], steps[1:], leaf, inner), *items[index + 1 :]], node.where)


def _moved(node: Node, where: str) -> Node:
    """The tree with one place for all of it: lines mean nothing within a command line."""
    if isinstance(node.value, dict):
        return Node({name: _moved(member, where) for name, member in node.value.items()}, where)
    if isinstance(node.value, list):
        return Node([_moved(member, where) for member in node.value], where)
    return Node(node.value, where)

"""The tables of docs/reference/rights.md: what tests compare a cluster and kustomize/base with."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, takewhile
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "rights.md"
EVERYBODY = "everybody"


def rights() -> dict[str, dict[str, set[str]]]:
    """Verbs by resource (``resource[/subresource][.group]``) by ClusterRole, and for everybody who has logged in."""
    (_, *roles), *rows = table("resource")
    verbs_by_role: dict[str, dict[str, set[str]]] = {role: {} for role in roles}
    for resource, *verbs in rows:
        for role, granted in zip(roles, verbs, strict=True):
            if granted:
                verbs_by_role[role][resource] = set(granted.split())
    return verbs_by_role


def answers(identity: str) -> dict[str, str]:
    """What is tried as ``a data scientist`` or ``a master``, and the answer."""
    _, *rows = table("request", below=identity)
    answer_by_request = dict(rows)
    assert len(answer_by_request) == len(rows), "a request stands there twice"
    return answer_by_request


def policies() -> set[str]:
    """The admission policies that the page names."""
    _, *rows = table("policy")
    return {row[0] for row in rows}


def table(first: str, *, below: str = "") -> list[list[str]]:
    """The cells of the first table whose head begins with this word; its head is the first row.

    Args:
        below: how the heading above it ends.
    """
    heading = ""
    lines = iter(PAGE.read_text(encoding="utf-8").splitlines())
    for line in lines:
        if line.startswith("#"):
            heading = line
        if line.startswith(f"| {first} |") and heading.endswith(below):
            head, _, *rows = _rows(chain([line], lines))
            return [head, *rows]
    raise AssertionError(f"{PAGE.name} has no table of each {first} below a heading that ends with '{below}'")


def _rows(lines: Iterator[str]) -> Iterator[list[str]]:
    for line in takewhile(lambda line: line.startswith("|"), lines):
        yield [cell.strip().strip("`") for cell in line.strip("|").split("|")]

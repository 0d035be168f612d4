"""The tables of docs/reference/rights.md: what tests compare a cluster and kustomize/base with."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "rights.md"
EVERYBODY = "everybody"


def rights() -> dict[str, dict[str, set[str]]]:
    """Verbs by resource (``resource[/subresource][.group]``) by ClusterRole, and for everybody who has logged in."""
    (_, *roles), *rows = table("What RBAC grants")
    found: dict[str, dict[str, set[str]]] = {role: {} for role in roles}
    for resource, *verbs in rows:
        for role, granted in zip(roles, verbs, strict=True):
            if granted:
                found[role][resource] = set(granted.split())
    return found


def answers(identity: str) -> dict[str, str]:
    """What is tried as ``a data scientist`` or ``a master``, and the answer."""
    _, *rows = table(f"Tried as {identity}")
    found = dict(rows)
    assert len(found) == len(rows), "a request stands there twice"
    return found


def table(heading: str) -> list[list[str]]:
    """The cells of the first table after a heading; its head is the first row."""
    lines = iter(PAGE.read_text().splitlines())
    for line in lines:
        if line.lstrip("#").strip() == heading:
            break
    else:
        raise AssertionError(f"{PAGE.name} has no heading '{heading}'")
    head, _, *rows = _rows(lines)
    return [head, *rows]


def _rows(lines: Iterator[str]) -> Iterator[list[str]]:
    first = next(line for line in lines if line.startswith("|"))
    for line in (first, *takewhile(lambda line: line.startswith("|"), lines)):
        yield [cell.strip().strip("`") for cell in line.strip("|").split("|")]

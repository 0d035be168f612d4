"""The files of the package, read and parsed once for all tests that look at them."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "edl"


@dataclass(frozen=True, slots=True, eq=False)
class SourceModule:
    """One file of the package."""

    name: str
    """Its path in the package: ``core/state.py``."""
    text: str
    tree: ast.Module
    nodes: tuple[ast.AST, ...]
    """All nodes of the tree, as `ast.walk` finds them."""


@cache
def modules() -> tuple[SourceModule, ...]:
    """Every file of the package."""
    source_modules = []
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
        source_modules.append(SourceModule(path.relative_to(PACKAGE).as_posix(), text, tree, tuple(ast.walk(tree))))
    return tuple(source_modules)

"""Docstrings of the package name what is in the code: parameters, fields, exceptions, classes and modules."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
from install.source_modules import PACKAGE, SourceModule, modules

pytestmark = pytest.mark.install

SECTION = re.compile(r"(?P<indent> *)(?P<title>Args|Attributes|Raises|Returns|Yields|Example|Examples|Note|Notes):")
ENTRY = re.compile(r"(?P<indent> *)(?P<names>\**[\w.]+(?:, \**[\w.]+)*): ")
REFERENCE = re.compile(
    r"(?::(?:class|func|meth|mod|attr|data):`~?|``)(?P<name>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)(?:\(\))?``?"
)
CLASS_NAME = re.compile(r"(?:[A-Z][a-z0-9]+){2,}")
FOREIGN = {"FailJob", "FailedScheduling", "OutOfcpu", "SeedGenerator", "on_epoch_end"}
"""Names of Keras and Kubernetes that the package's code does not use."""

Documented = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def documented(module: SourceModule) -> Iterator[tuple[Documented, str]]:
    """Functions and classes that have a docstring."""
    for node in module.nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            text = ast.get_docstring(node)
            if text is not None:
                yield node, text


@cache
def classes() -> dict[str, list[ast.ClassDef]]:
    """Classes of the package by name."""
    nodes_by_name: dict[str, list[ast.ClassDef]] = {}
    for module in modules():
        for node in module.nodes:
            if isinstance(node, ast.ClassDef):
                nodes_by_name.setdefault(node.name, []).append(node)
    return nodes_by_name


def read_section(text: str, title: str) -> list[str]:
    """The names that a section of a docstring lists."""
    names: list[str] = []
    inside = False
    entry_indent: int | None = None
    for line in text.splitlines():
        heading = SECTION.fullmatch(line)
        if heading is not None:
            inside, entry_indent = heading["title"] == title, None
            continue
        entry = ENTRY.match(line + " ") if inside else None
        if entry is None:
            continue
        entry_indent = len(entry["indent"]) if entry_indent is None else entry_indent
        if len(entry["indent"]) == entry_indent:
            names.extend(name.strip("* ") for name in entry["names"].split(","))
    return names


def parameters(node: Documented) -> set[str]:
    """Parameters of a function, or those with which a class is made: its constructor's or a dataclass's fields."""
    if isinstance(node, ast.ClassDef):
        constructors = [
            item for item in node.body if isinstance(item, ast.FunctionDef) and item.name in {"__init__", "__new__"}
        ]
        return set().union(*map(parameters, constructors)) if constructors else members(node)
    arguments = node.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    return {argument.arg for argument in every if argument is not None}


@cache
def members(node: ast.ClassDef) -> set[str]:
    """Fields, properties and methods of a class and of its bases in the package."""
    names: set[str] = set()
    for item in node.body:
        if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(item.name)
        elif isinstance(item, ast.Assign | ast.AnnAssign):
            targets = item.targets if isinstance(item, ast.Assign) else [item.target]
            names |= {inner.id for target in targets for inner in ast.walk(target) if isinstance(inner, ast.Name)}
    for inner in ast.walk(node):
        match inner:
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store()):
                names.add(name)
    for base in node.bases:
        name = _last_name(base)
        for parent in classes().get(name, []):
            if parent is not node:
                names |= members(parent)
    return names


def _last_name(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Subscript(value=value):
            return _last_name(value)
    return ""


@cache
def imported_names(module: SourceModule) -> set[str]:
    """Names that a module imports."""
    names: set[str] = set()
    for node in module.nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            names |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
    return names


def _docstrings(module: SourceModule) -> Iterator[ast.Constant]:
    """Strings that stand alone: docstrings, also those below an assignment."""
    for node in module.nodes:
        match node:
            case ast.Expr(value=ast.Constant(value=str()) as constant):
                yield constant


@cache
def code_words() -> set[str]:
    """Every identifier of the package's code, and every word of its strings that are no docstrings."""
    words: set[str] = set()
    for module in modules():
        documentation = {id(constant) for constant in _docstrings(module)}
        words |= set(re.findall(r"\w+", module.name))
        for node in module.nodes:
            match node:
                case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
                    words.add(name)
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                    words.add(name)
                case ast.keyword(arg=str(name)):
                    words.add(name)
                case ast.alias(name=name):
                    words |= set(name.split("."))
                case ast.Constant(value=str(text)) if id(node) not in documentation:
                    words |= set(re.findall(r"\w+", text))
    return words


@cache
def module_names() -> dict[str, set[str]]:
    """What modules of one name define, by that name."""
    names_by_stem: dict[str, set[str]] = {}
    for module in modules():
        parts = module.name.removesuffix(".py").split("/")
        stem = parts[-2] if parts[-1] == "__init__" and len(parts) > 1 else parts[-1]
        defined = names_by_stem.setdefault(stem, set())
        defined |= imported_names(module)
        if parts[-1] == "__init__":
            folder = PACKAGE / Path(module.name).parent
            defined |= {path.stem for path in folder.iterdir()}
        for node in module.tree.body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                defined.add(node.name)
            for inner in ast.walk(node):
                if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
                    defined.add(inner.id)
    return names_by_stem


def is_unresolved(name: str) -> bool:
    """Whether a class, or a member of a class or module of the package, is nowhere in the code."""
    parts = name.split(".")
    for owner, member in pairwise(parts):
        if owner in classes():
            if not any(member in FOREIGN | members(node) for node in classes()[owner]):
                return True
        elif "_" in owner and owner in module_names() and member not in module_names()[owner]:
            return True
    return any(CLASS_NAME.fullmatch(part) and part not in code_words() and part not in FOREIGN for part in parts)


def test_args_are_parameters() -> None:
    wrong = [
        f"{module.name}:{node.lineno} {node.name}: {name}"
        for module in modules()
        for node, text in documented(module)
        for name in read_section(text, "Args")
        if name not in parameters(node)
    ]
    assert wrong == []


def test_attributes_are_members() -> None:
    wrong = [
        f"{module.name}:{node.lineno} {node.name}: {name}"
        for module in modules()
        for node, text in documented(module)
        if isinstance(node, ast.ClassDef)
        for name in read_section(text, "Attributes")
        if name not in members(node)
    ]
    assert wrong == []


def test_raised_exceptions_exist() -> None:
    known = {*classes(), *dir(builtins)}
    wrong = [
        f"{module.name}:{node.lineno} {node.name}: {name}"
        for module in modules()
        for node, text in documented(module)
        for name in read_section(text, "Raises")
        if name.split(".")[0] not in known and name.split(".")[0] not in imported_names(module)
    ]
    assert wrong == []


def test_quoted_names_are_in_the_code() -> None:
    wrong = [
        f"{module.name}:{constant.lineno}: {match['name']}"
        for module in modules()
        for constant in _docstrings(module)
        for match in REFERENCE.finditer(str(constant.value))
        if is_unresolved(match["name"])
    ]
    assert wrong == []

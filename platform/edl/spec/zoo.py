"""Where a model's code is and what it defines, found without running it.

``model.definition`` is a path under the zoo, then a name: ``mnist.mnist_functional_api.custom_model`` is
``custom_model`` in ``<zoo>/mnist/mnist_functional_api.py``. The command line and the master ask here, because they
never run user code; the worker asks before it imports, because these errors name what is there.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from edl.core.errors import BadInputError
from edl.spec.problem import nearest

ANYTHING = "*"
"""What a module with ``from x import *`` defines besides its other names: it cannot be known without running it."""


@dataclass(frozen=True, slots=True)
class ZooModule:
    """A model module that exists and defines what is asked of it.

    Attributes:
        path: the module's file.
        name: what to import it as, with the zoo's parent folder on the path where the zoo's name allows that
            (``model_zoo.mnist.mnist_functional_api``), else with the zoo itself there.
        function: the name of the model's function or class in it.
    """

    path: Path
    name: str
    function: str


def locate(zoo: Path, definition: str) -> ZooModule:
    """The module and function that a definition means.

    Raises:
        BadInputError: no such zoo, no such module, or the module does not define the function.
    """
    if not zoo.is_dir():
        raise BadInputError("the model zoo is not a directory", where=str(zoo), hint="model.zoo names the folder")
    *parts, function = definition.split(".")
    if not parts:
        raise BadInputError(
            f"'{definition}' names no module", hint="write <module>.<function>, as in mnist.custom_model"
        )
    path = _module_file(zoo.resolve(), parts)
    _require(path, names(path), function)
    return ZooModule(path, ".".join([*_package(zoo.resolve()), *parts]), function)


def _package(zoo: Path) -> list[str]:
    """The zoo as a package of its parent folder, where it can be one.

    A module of the zoo that is called like the zoo (``digits/digits.py``) is found before a folder that is no package.
    """
    hidden = not (zoo / "__init__.py").exists() and (zoo / f"{zoo.name}.py").exists()
    return [zoo.name] if zoo.name.isidentifier() and not hidden else []


def names(path: Path) -> tuple[str, ...]:
    """The names that a module's top level defines or imports, in order; with :data:`ANYTHING` after a star import.

    Raises:
        BadInputError: the file cannot be read, or is not Python.
    """
    try:
        tree = ast.parse(path.read_bytes(), str(path))
    except SyntaxError as error:
        raise BadInputError(f"not valid Python: {error.msg}", where=f"{path}:{error.lineno}") from error
    except (OSError, ValueError) as error:
        raise BadInputError(f"the model module cannot be read: {error}", where=str(path)) from error
    return tuple(dict.fromkeys(_bound(tree.body)))


def _module_file(zoo: Path, parts: Sequence[str]) -> Path:
    base = zoo.joinpath(*parts)
    for candidate in (base.with_name(f"{base.name}.py"), base / "__init__.py"):
        if candidate.is_file():
            return candidate
    known = _modules(zoo)
    close = nearest(".".join(parts), known)
    hint = f"did you mean {close}?" if close else f"modules there: {', '.join(known[:20]) or 'none'}"
    raise BadInputError(f"the zoo has no module '{'.'.join(parts)}'", where=str(zoo), hint=hint)


def _modules(zoo: Path) -> list[str]:
    found = []
    for path in sorted(zoo.rglob("*.py")):
        parts = path.relative_to(zoo).with_suffix("").parts
        if all(part.isidentifier() for part in parts) and parts[-1] != "__init__":
            found.append(".".join(parts))
    return found


def _require(path: Path, defined: Sequence[str], function: str) -> None:
    if function in defined or ANYTHING in defined:
        return
    close = nearest(function, defined)
    public = [name for name in defined if not name.startswith("_")]
    listing = f"it defines {', '.join(public) or 'nothing'}"
    hint = f"did you mean {close}? {listing}" if close else listing
    raise BadInputError(f"the module does not define '{function}'", where=str(path), hint=hint)


def _bound(statements: Sequence[ast.stmt]) -> Iterator[str]:
    """Names that executing statements binds, also inside top-level if, try, with and loops."""
    for statement in statements:
        match statement:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Import(names=aliases):
                yield from (alias.asname or alias.name.partition(".")[0] for alias in aliases)
            case ast.ImportFrom(names=aliases):
                yield from (alias.asname or alias.name for alias in aliases)
            case _:
                yield from _stored(statement)
                yield from _bound(_nested(statement))


def _stored(statement: ast.stmt) -> Iterator[str]:
    """Names that the statement's own targets bind, nested statements left out."""
    targets: list[ast.expr] = []
    match statement:
        case ast.Assign(targets=several):
            targets = several
        case ast.AnnAssign(target=target, value=ast.expr()) | ast.For(target=target):
            targets = [target]
        case ast.With(items=items):
            targets = [item.optional_vars for item in items if item.optional_vars]
    for target in targets:
        yield from (node.id for node in ast.walk(target) if isinstance(node, ast.Name))


def _nested(statement: ast.stmt) -> list[ast.stmt]:
    nested: list[ast.stmt] = []
    for block in ("body", "orelse", "finalbody"):
        nested += getattr(statement, block, [])
    for handler in getattr(statement, "handlers", []):
        nested += handler.body
    return nested

"""Finds imports of ElasticDL's packages that fail on this machine, without running the model's code.

Other packages are not checked: what a model needs besides TensorFlow may be in the job's image only.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from edl.api.errors import BadInputError
from edl.jobfile.document_tree import closest_match
from edl.jobfile.zoo_lookup import STAR_IMPORT, defined_names, find_model_function, find_zoo_source, parse_module

MIGRATION_PAGE = "docs/migrating-from-elasticdl.md"
COMPAT_PACKAGES = ("elasticdl", "elasticdl_preprocessing", "recordio")
"""The packages of the distribution elasticdl-compat."""
_COMPAT_IMPORT = re.compile(rf"^\s*(?:from|import)\s+({'|'.join(COMPAT_PACKAGES)})\b", re.MULTILINE)
_PROGRAMS_PACKAGE = "elasticai_api"


def explain_missing_package(package: str) -> str | None:
    """What to do if this package is not installed; None if it is none of ElasticDL's."""
    if package in COMPAT_PACKAGES:
        return f"install elasticdl-compat, which has the package {package}: {MIGRATION_PAGE}, Imports"
    if package == _PROGRAMS_PACKAGE:
        return f"{package} is not in EDL: a program (command) takes its records with edl.sharding: {MIGRATION_PAGE}"
    return None


def find_compat_import(zoo: Path) -> Path | None:
    """The first file of a zoo that imports one of these packages; None if no file does."""
    files = sorted(zoo.rglob("*.py"))
    return next((file for file in files if _COMPAT_IMPORT.search(file.read_text("utf-8", errors="replace"))), None)


def find_missing_imports(zoo: Path, definition: str) -> Iterator[BadInputError]:
    """Errors for imports of ElasticDL's packages that fail here, in the model's module and in zoo modules it imports.

    Imports inside of functions and of ``try`` are left out: they may never run, or may fail.

    Args:
        zoo: the zoo's folder.
        definition: the model's definition.

    Raises:
        BadInputError: there is no such module, or a file is not Python.
    """
    zoo = zoo.resolve()
    pending = [find_model_function(zoo, definition).path]
    seen = set(pending)
    while pending:
        path = pending.pop(0)
        for statement in _imports(parse_module(path).body):
            for module, names in _imported_names(statement):
                sources = [find_zoo_source(path, each, zoo) for each in _possible_modules(module, names)]
                if found := [source for source in sources if source is not None]:
                    pending += [source for source in dict.fromkeys(found) if source not in seen]
                    seen.update(found)
                elif (error := _find_fault(module, names, f"{path}:{statement.lineno}")) is not None:
                    yield error


def _imports(statements: list[ast.stmt]) -> Iterator[ast.Import | ast.ImportFrom]:
    for statement in statements:
        if isinstance(statement, ast.Import | ast.ImportFrom):
            yield statement
        elif isinstance(statement, ast.If):
            yield from _imports([*statement.body, *statement.orelse])


def _imported_names(statement: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, list[str]]]:
    """The modules of a statement, and the names that it takes from them."""
    if isinstance(statement, ast.Import):
        for alias in statement.names:
            yield alias.name, []
    else:
        yield "." * statement.level + (statement.module or ""), [alias.name for alias in statement.names]


def _possible_modules(module: str, names: list[str]) -> Iterator[str]:
    """The module, and its submodules that the names may be."""
    if module.strip("."):
        yield module
    for name in names:
        yield f"{module}{'' if module.endswith('.') else '.'}{name}"


def _find_fault(module: str, names: list[str], where: str) -> BadInputError | None:
    package, *parts = module.split(".")
    remedy = explain_missing_package(package)
    if remedy is None:
        return None
    spec = find_spec(package)
    if spec is None:
        return BadInputError(f"imports {module}, which is not installed here", where=where, hint=remedy)
    if package not in COMPAT_PACKAGES or not spec.submodule_search_locations:
        return None
    folder = Path(spec.submodule_search_locations[0])
    if not (folder / "py.typed").is_file():  # another distribution of this name, which is not read
        return None
    path = _module_file(folder.joinpath(*parts))
    if path is None:
        return _not_in_compat(module, where)
    defined = defined_names(path)
    submodules = [each.stem for each in path.parent.iterdir()] if path.name == "__init__.py" else []
    for name in names:
        if name != STAR_IMPORT and name not in defined and name not in submodules:
            return _not_in_compat(f"{module}.{name}", where, closest_match(name, [*submodules, *defined]))
    return None


def _module_file(base: Path) -> Path | None:
    for candidate in (base.with_name(f"{base.name}.py"), base / "__init__.py"):
        if candidate.is_file():
            return candidate
    return None


def _not_in_compat(name: str, where: str, close: str | None = None) -> BadInputError:
    hint = f"{MIGRATION_PAGE}, Imports, lists what it has and what to write instead"
    return BadInputError(
        f"imports {name}, which elasticdl-compat does not have",
        where=where,
        hint=f"did you mean {close}? {hint}" if close else hint,
    )

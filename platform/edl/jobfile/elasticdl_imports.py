"""Finds imports of ElasticDL's packages that fail on this machine, without running the model's code.

Other packages are not checked: what a model needs besides TensorFlow may be in the job's image only.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator
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
_CONTRACT = (
    "PredictionOutputsProcessor",
    "callbacks",
    "custom_data_reader",
    "eval_metrics_fn",
    "feed",
    "loss",
    "optimizer",
    "weighted_metrics_fn",
)
"""What a job calls of a model's module, besides the model itself."""


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

    Imports inside of functions and of ``try`` are left out: they may never run, or may fail. Attributes of what the
    model's module imports, such as ``layers.Hashing``, are looked at where the module and the functions of the contract
    use them, with the functions of the module that these call.

    Args:
        zoo: the zoo's folder.
        definition: the model's definition.

    Raises:
        BadInputError: there is no such module, or a file is not Python.
    """
    zoo = zoo.resolve()
    model = find_model_function(zoo, definition)
    pending = [model.path]
    queued = set(pending)
    while pending:
        path = pending.pop(0)
        for statement in _imports(parse_module(path).body):
            for module, names in _imported_names(statement):
                sources = [find_zoo_source(path, each, zoo) for each in _possible_modules(module, names)]
                if zoo_sources := [source for source in sources if source is not None]:
                    pending += [source for source in dict.fromkeys(zoo_sources) if source not in queued]
                    queued.update(zoo_sources)
                elif (error := _find_fault(module, names, f"{path}:{statement.lineno}")) is not None:
                    yield error
    yield from _find_missing_attributes(model.path, zoo, {model.function, *_CONTRACT})


def _find_missing_attributes(path: Path, zoo: Path, roots: Collection[str]) -> Iterator[BadInputError]:
    """Errors for attributes that the packages do not have, in the module's own statements and in what ``roots`` use."""
    tree = parse_module(path)
    bound = _bound_modules(path, zoo, tree)
    if not bound:
        return
    functions = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    definitions = [statement for statement in tree.body if isinstance(statement, functions)]
    pending: list[ast.stmt] = [each for each in tree.body if each not in definitions or each.name in roots]
    queued_ids = set(map(id, pending))
    errors: dict[tuple[int, str], BadInputError] = {}
    while pending:
        for node in _walk_without_try(pending.pop(0)):
            if isinstance(node, ast.Name):
                used = [each for each in definitions if each.name == node.id and id(each) not in queued_ids]
                pending += used
                queued_ids.update(map(id, used))
            elif isinstance(node, ast.Attribute) and (name := _dotted_name(node)) is not None:
                first, _, rest = name.partition(".")
                error = _find_missing_attribute(bound[first], rest, path, node.lineno) if first in bound else None
                if error is not None:
                    errors.setdefault((node.lineno, error.message), error)
    yield from errors.values()


def _bound_modules(path: Path, zoo: Path, tree: ast.Module) -> dict[str, str]:
    """Modules of the packages by the name that the module has for them and uses for nothing else."""
    bound = {}
    for statement in _imports(tree.body):
        for alias in statement.names:
            if isinstance(statement, ast.Import):
                name, module = (alias.asname, alias.name) if alias.asname else (alias.name.partition(".")[0],) * 2
            else:
                module = f"{'.' * statement.level}{statement.module or ''}.{alias.name}"
                name = alias.asname or alias.name
            package, *parts = module.split(".")
            folder = _compat_folder(package) if find_zoo_source(path, module, zoo) is None else None
            if folder is not None and _module_file(folder.joinpath(*parts)) is not None:
                bound[name] = module
    others = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    others |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    return {name: module for name, module in bound.items() if name not in others}


def _walk_without_try(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.Try):
            yield from _walk_without_try(child)


def _dotted_name(node: ast.expr) -> str | None:
    if isinstance(node, ast.Attribute):
        inner = _dotted_name(node.value)
        return f"{inner}.{node.attr}" if inner else None
    return node.id if isinstance(node, ast.Name) else None


def _find_missing_attribute(module: str, attributes: str, path: Path, line: int) -> BadInputError | None:
    """An error if one of the attributes is not there; an object's own attributes are not looked at."""
    package, *parts = module.split(".")
    folder = _compat_folder(package)
    assert folder is not None, "it is bound"
    for name in attributes.split("."):
        file = _module_file(folder.joinpath(*parts))
        if file is None or name.startswith("_"):
            return None
        defined = defined_names(file)
        submodules = [each.stem for each in file.parent.iterdir()] if file.name == "__init__.py" else []
        if name in defined and name not in submodules:
            return None
        parts.append(name)
        if name not in submodules:
            missing = ".".join([package, *parts])
            return _not_in_compat(missing, f"{path}:{line}", closest_match(name, [*submodules, *defined]), "uses")
    return None


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
    if find_spec(package) is None:
        return BadInputError(f"imports {module}, which is not installed here", where=where, hint=remedy)
    folder = _compat_folder(package)
    if folder is None:
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


def _compat_folder(package: str) -> Path | None:
    """The folder of a package of elasticdl-compat; another distribution of this name is not read."""
    spec = find_spec(package) if package in COMPAT_PACKAGES else None
    if spec is None or not spec.submodule_search_locations:
        return None
    folder = Path(spec.submodule_search_locations[0])
    return folder if (folder / "py.typed").is_file() else None


def _module_file(base: Path) -> Path | None:
    for candidate in (base.with_name(f"{base.name}.py"), base / "__init__.py"):
        if candidate.is_file():
            return candidate
    return None


def _not_in_compat(name: str, where: str, close: str | None = None, verb: str = "imports") -> BadInputError:
    hint = f"{MIGRATION_PAGE}, Imports, lists what it has and what to write instead"
    return BadInputError(
        f"{verb} {name}, which elasticdl-compat does not have",
        where=where,
        hint=f"did you mean {close}? {hint}" if close else hint,
    )

"""Finds a model's code and the names that it defines, without running it.

``model.definition`` is a path under the zoo, then a name: ``mnist.mnist_functional_api.custom_model`` is
``custom_model`` in ``<zoo>/mnist/mnist_functional_api.py``. The command line and the master use this module because
they never run user code. The worker uses it before it imports, because its errors list the names that exist.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from edl.api.errors import BadInputError
from edl.core.short_list import format_short_list
from edl.jobfile.document_tree import closest_match

STAR_IMPORT = "*"
"""Stands for the unknown names of ``from x import *``, if ``x`` is not a module of the zoo."""


@dataclass(frozen=True, slots=True)
class ZooModule:
    """A model module that exists and defines the requested function.

    Attributes:
        path: the module's file.
        name: the name to import it by. It begins with the zoo's name if that is a valid package name, and the zoo's
            parent folder must then be on the path (``model_zoo.mnist.mnist_functional_api``); otherwise the zoo itself.
        function: the name of the model's function or class.
        names: the names that the module defines, see :func:`defined_names`, and those of ``functions``.
        functions: ``model.functions``: names of the model contract, and what the module calls them.
    """

    path: Path
    name: str
    function: str
    names: tuple[str, ...] = ()
    functions: Mapping[str, str] = field(default_factory=dict)

    def may_define(self, name: str) -> bool:
        """Whether the module may define a name. A star import can define any name."""
        return name in self.names or STAR_IMPORT in self.names


def find_model_function(zoo: Path, definition: str, functions: Mapping[str, str] | None = None) -> ZooModule:
    """Find the module and function of a definition.

    Args:
        zoo: the zoo's folder.
        definition: ``model.definition``.
        functions: ``model.functions``, the names that functions of the contract have instead.

    Raises:
        BadInputError: there is no such zoo or module, or the module does not define one of the functions.
    """
    _check_zoo(zoo)
    *parts, function = definition.split(".")
    if not parts:
        raise BadInputError(
            f"'{definition}' names no module", hint="write <module>.<function>, as in mnist.custom_model"
        )
    path = _find_module_file(zoo.resolve(), parts)
    names = defined_names(path, zoo.resolve())
    _check_defined(path, names, function)
    functions = functions or {}
    for contract_name, name in functions.items():
        try:
            if "." in name:
                find_model_function(zoo, name)
            else:
                _check_defined(path, names, name)
        except BadInputError as error:
            raise BadInputError(
                f"model.functions.{contract_name}: {error.message}", where=error.where, hint=error.hint
            ) from error
    known = (*names, *(name for name in functions if name not in names))
    return ZooModule(path, ".".join([*_zoo_package(zoo.resolve()), *parts]), function, known, functions)


METRICS_FUNCTION = "eval_metrics_fn"
"""Function that a model module defines for a job that evaluates."""
REPLACED_BY_COMPILE = ("loss", "optimizer", "loss_weights", "eval_metrics_fn", "weighted_metrics_fn")
"""What ``compile()`` gives instead. A module that defines one of them defines all that the contract requires."""


def may_return_compiled_model(module: ZooModule) -> bool:
    """Whether the module calls ``compile()`` of something, and defines none of the names that this replaces."""
    return not any(name in module.names for name in REPLACED_BY_COMPILE) and calls_compile(module)


def calls_compile(module: ZooModule) -> bool:
    """Whether the module's own file calls ``compile()`` of something."""
    calls = (node.func for node in ast.walk(parse_module(module.path)) if isinstance(node, ast.Call))
    return any(isinstance(function, ast.Attribute) and function.attr == "compile" for function in calls)


def _zoo_package(zoo: Path) -> list[str]:
    """The zoo's name as a package of its parent folder, or nothing if it cannot be imported as one.

    It cannot if a module inside has the zoo's name (``digits/digits.py``) and the zoo has no ``__init__.py``: Python
    prefers a module to a folder without that file.
    """
    hidden = not (zoo / "__init__.py").exists() and (zoo / f"{zoo.name}.py").exists()
    return [zoo.name] if zoo.name.isidentifier() and not hidden else []


def defined_names(path: Path, zoo: Path | None = None) -> tuple[str, ...]:
    """The names that a module's top level defines or imports, in order.

    ``from x import *`` adds the public names of ``x`` if that is a module below ``zoo``, otherwise :data:`STAR_IMPORT`.

    Raises:
        BadInputError: a file cannot be read, or is not Python.
    """
    return tuple(dict.fromkeys(_iter_defined_names(path, zoo, ())))


def _iter_defined_names(path: Path, zoo: Path | None, importers: tuple[Path, ...]) -> Iterator[str]:
    for name in _bound_names(parse_module(path).body):
        if not name.startswith(STAR_IMPORT):
            yield name
            continue
        source = find_zoo_source(path, name.removeprefix(STAR_IMPORT), zoo) if zoo else None
        if source is None:
            yield STAR_IMPORT
        elif source not in importers:  # modules may import each other
            inner = _iter_defined_names(source, zoo, (*importers, path))
            # like Python in a module without __all__: names with a leading underscore are not imported
            yield from (each for each in inner if not each.startswith("_"))


def find_zoo_source(path: Path, module: str, zoo: Path) -> Path | None:
    """The file in the zoo of a module that the module at ``path`` imports; None: it is not in the zoo.

    Args:
        path: the module that imports.
        module: the imported module as the statement has it, with leading dots if it is relative.
        zoo: the zoo's folder, as a resolved path.
    """
    above = len(module) - len(module.lstrip("."))
    parts = [part for part in module.split(".") if part]
    folders = [path.parents[above - 1]] if above else [zoo, zoo.parent] if parts[0] == zoo.name else [zoo]
    for folder in folders:
        base = folder.joinpath(*parts)
        for candidate in (base.with_name(f"{base.name}.py"), base / "__init__.py"):
            if candidate.is_file() and candidate.is_relative_to(zoo):
                return candidate
    return None


def parse_module(path: Path) -> ast.Module:
    """The syntax tree of a module.

    Raises:
        BadInputError: the file cannot be read, or is not Python.
    """
    try:
        return ast.parse(path.read_bytes(), str(path))
    except SyntaxError as error:
        raise BadInputError(f"not valid Python: {error.msg}", where=f"{path}:{error.lineno}") from error
    except (OSError, ValueError) as error:
        raise BadInputError(f"the model module cannot be read: {error}", where=str(path)) from error


_EXPECTED_NAMES = {
    "callback": "callbacks",
    "callback_fn": "callbacks",
    "callbacks_fn": "callbacks",
    "class_weights": "class_weight",
    "custom_reader": "custom_data_reader",
    "data_reader": "custom_data_reader",
    "eval_metrics": "eval_metrics_fn",
    "loss_weight": "loss_weights",
    "metrics": "eval_metrics_fn",
    "metrics_fn": "eval_metrics_fn",
    "prediction_outputs_processor": "PredictionOutputsProcessor",
    "sample_weight": "a third element of what feed yields",
    "sample_weights": "a third element of what feed yields",
    "weighted_metrics": "weighted_metrics_fn",
}
"""Names that users give to functions that the contract calls differently."""
_FIELD_OF_FIT_ARGUMENT = {
    "batch_size": "train.minibatch_size",
    "epochs": "train.epochs",
    "initial_epoch": "edl run --resume, which continues a run",
    "shuffle": "train.shuffle",
    "steps_per_epoch": "train.max_steps",
    "validation_batch_size": "train.minibatch_size",
    "validation_data": "data.validation",
    "validation_freq": "train.evaluation_steps",
    "validation_split": "data.validation, which names records apart from data.training",
    "validation_steps": "data.validation; all of its records are evaluated",
}
"""Arguments of Keras' ``fit`` that a module may define as constants, and the field of the job file for each."""

_COMPILE_SETTINGS = {
    "auto_scale_loss": "return a keras.optimizers.LossScaleOptimizer from optimizer()",
    "jit_compile": "EDL traces its own steps and compiles no model with XLA; a layer's call() may use "
    "tf.function(jit_compile=True)",
    "run_eagerly": "EDL traces its steps; print with tf.print(), or use breakpoint() in eager code",
    "steps_per_execution": "EDL runs one step at a time, with the same result",
}
"""Arguments of Keras' ``compile`` that have no counterpart in a module, and what to do instead."""
_RETIRED_FUNCTIONS = {
    "learning_rate_scheduler": "give the optimizer a Keras schedule as its learning rate",
}
"""Functions that older versions of ElasticDL called, and what to do instead."""
_OPTIONAL_NAMES = (
    "PredictionOutputsProcessor",
    "callbacks",
    "class_weight",
    "custom_data_reader",
    "eval_metrics_fn",
    "loss_weights",
    "serving_model",
    "weighted_metrics_fn",
)
"""Names of the contract without which a module may be complete: a misspelt one would be ignored."""


def find_misnamed(path: Path, model: str = "", functions: Collection[str] = ()) -> Iterator[tuple[str, str]]:
    """Names that a model module defines and nothing uses, each with the name that was probably meant.

    The job would silently train without a ``class_weights``, ``calbacks`` or ``epochs = 3``. A name that the module
    itself uses is a helper of its own and is not reported. ``model`` is the name of the model's function.
    """
    tree = parse_module(path)
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    imports = (ast.Import, ast.ImportFrom)
    own = dict.fromkeys(_bound_names([statement for statement in tree.body if not isinstance(statement, imports)]))
    constants = set(_assigned_constants(tree.body))
    absent = [name for name in _OPTIONAL_NAMES if name not in set(_bound_names(tree.body))]
    for name in own:
        if name in used or name in _OPTIONAL_NAMES or name.startswith("_") or name == model or name in functions:
            continue
        if name in _EXPECTED_NAMES:
            yield name, _EXPECTED_NAMES[name]
        elif name in _RETIRED_FUNCTIONS:
            yield name, _RETIRED_FUNCTIONS[name]
        elif name in constants and name in _FIELD_OF_FIT_ARGUMENT:
            yield name, _FIELD_OF_FIT_ARGUMENT[name]
        elif name in constants and name in _COMPILE_SETTINGS:
            yield name, _COMPILE_SETTINGS[name]
        elif close := closest_match(name, absent, cutoff=_MISSPELT_RATIO):
            yield name, close


_MISSPELT_RATIO = 0.85
"""Likeness from which an unused name is taken for a misspelt name of the contract: two letters of a dozen differ."""


def _assigned_constants(statements: Sequence[ast.stmt]) -> Iterator[str]:
    """Names that a module's top level assigns literals to; None does not count as a setting."""
    for statement in statements:
        value = getattr(statement, "value", None)
        if isinstance(value, ast.expr) and not (isinstance(value, ast.Constant) and value.value is None):
            with suppress(ValueError, TypeError):  # calls, names and so on are not literals
                ast.literal_eval(value)
                yield from _assigned_names(statement)


def check_misnamed(module: ZooModule) -> None:
    """Raise for the first name that the model module defines and nothing uses.

    Raises:
        BadInputError: there is such a name.
    """
    path = module.path
    for name, meant in find_misnamed(path, module.function, module.functions.values()):
        remedy = f"did you mean {meant}?"
        if name in _FIELD_OF_FIT_ARGUMENT:
            remedy = f"use {meant} instead."
        elif name in _COMPILE_SETTINGS or name in _RETIRED_FUNCTIONS:
            remedy = f"{meant}."
        raise BadInputError(
            f"the model module defines '{name}', which nothing uses",
            where=str(path),
            hint=f"{remedy} Otherwise rename it to _{name}, or remove it",
        )


def find_undefined_model(zoo: Path, definition: str) -> BadInputError | None:
    """An error if the module of a definition exists and does not define the model; None if there is no such module."""
    *parts, function = definition.split(".")
    if not zoo.is_dir() or not parts:
        return None
    try:
        path = _find_module_file(zoo.resolve(), parts)
        names = defined_names(path, zoo.resolve())
    except BadInputError:  # no such module, or one that is no Python, which a run says
        return None
    try:
        _check_defined(path, names, function)
    except BadInputError as error:
        return error
    return None


def find_missing_module(zoo: Path, definition: str) -> BadInputError | None:
    """An error if there is no such zoo, or no module of the definition in it."""
    *parts, _ = definition.split(".")
    try:
        _check_zoo(zoo)
        if parts:
            _find_module_file(zoo.resolve(), parts)
    except BadInputError as error:
        return error
    return None


def find_unknown_params(zoo: Path, definition: str, params: Collection[str]) -> Iterator[BadInputError]:
    """Errors for params that the model's function does not accept, as far as the module's text shows it.

    It shows nothing of a class, of a decorated function, and of one that the module imports.
    """
    module = find_model_function(zoo, definition)
    for statement in parse_module(module.path).body:
        if not isinstance(statement, ast.FunctionDef) or statement.name != module.function:
            continue
        arguments = statement.args
        if arguments.kwarg is not None or statement.decorator_list:
            return
        accepted = [argument.arg for argument in (*arguments.args, *arguments.kwonlyargs)]
        for name in sorted(set(params) - set(accepted)):
            close = closest_match(name, accepted)
            listing = f"its arguments are {', '.join(accepted)}" if accepted else "it has no arguments"
            yield BadInputError(
                f"{module.function}() has no argument '{name}'",
                where=f"{module.path}:{statement.lineno}",
                hint=f"did you mean {close}? {listing}" if close else listing,
            )


def _check_zoo(zoo: Path) -> None:
    if not zoo.is_dir():
        raise BadInputError("the model zoo is not a directory", where=str(zoo), hint="model.zoo names the folder")


def _find_module_file(zoo: Path, parts: Sequence[str]) -> Path:
    base = zoo.joinpath(*parts)
    for candidate in (base.with_name(f"{base.name}.py"), base / "__init__.py"):
        if candidate.is_file():
            return candidate
    known = _list_modules(zoo)
    close = closest_match(".".join(parts), known)
    hint = f"did you mean {close}?" if close else f"modules there: {format_short_list(known, 20) or 'none'}"
    raise BadInputError(f"the zoo has no module '{'.'.join(parts)}'", where=str(zoo), hint=hint)


def _list_modules(zoo: Path) -> list[str]:
    modules = []
    for folder, subfolders, files in os.walk(zoo):
        # A folder that is no package has no modules. It may be an environment with tens of thousands of files.
        subfolders[:] = [name for name in subfolders if name.isidentifier()]
        package = Path(folder).relative_to(zoo).parts
        names = [name.removesuffix(".py") for name in files if name.endswith(".py")]
        modules += [".".join((*package, name)) for name in names if name.isidentifier() and name != "__init__"]
    return sorted(modules)


def _check_defined(path: Path, defined: Sequence[str], function: str) -> None:
    if function in defined or STAR_IMPORT in defined:
        return
    if path.name == "__init__.py" and (path.parent / f"{function}.py").is_file():
        hint = f"{function} is a module: add the function in it, such as {path.parent.name}.{function}.custom_model"
        raise BadInputError(f"the package does not define '{function}'", where=str(path), hint=hint)
    close = closest_match(function, defined)
    public = [name for name in defined if not name.startswith("_")]
    listing = f"it defines {', '.join(public) or 'nothing'}"
    hint = f"did you mean {close}? {listing}" if close else listing
    raise BadInputError(f"the module does not define '{function}'", where=str(path), hint=hint)


def _bound_names(statements: Sequence[ast.stmt]) -> Iterator[str]:
    """Names that the statements bind when they run, also inside top-level if, try, with and loops.

    ``from ..x import *`` is returned as ``*..x``.
    """
    for statement in statements:
        match statement:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Import(names=aliases):
                yield from (alias.asname or alias.name.partition(".")[0] for alias in aliases)
            case ast.ImportFrom(module=module, names=aliases, level=level):
                star = f"{STAR_IMPORT}{'.' * level}{module or ''}"
                yield from (star if alias.name == "*" else alias.asname or alias.name for alias in aliases)
            case _:
                yield from _assigned_names(statement)
                yield from _bound_names(_nested_statements(statement))


def _assigned_names(statement: ast.stmt) -> Iterator[str]:
    """Names that the statement itself binds, without those of nested statements."""
    targets: list[ast.expr] = []
    match statement:
        case ast.Assign(targets=several):
            targets = several
        # x: int alone declares a type and binds nothing
        case ast.AnnAssign(target=target, value=ast.expr()) | ast.For(target=target):
            targets = [target]
        case ast.With(items=items):
            targets = [item.optional_vars for item in items if item.optional_vars]
    for target in targets:
        yield from (node.id for node in ast.walk(target) if isinstance(node, ast.Name))


def _nested_statements(statement: ast.stmt) -> list[ast.stmt]:
    nested: list[ast.stmt] = []
    for block in ("body", "orelse", "finalbody"):
        nested += getattr(statement, block, [])
    for handler in getattr(statement, "handlers", []):
        nested += handler.body
    return nested

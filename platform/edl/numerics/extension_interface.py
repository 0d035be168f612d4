"""Refuses a native extension that was compiled from other sources than those beside this module.

In a working tree ``git pull`` changes the code in Python, and only ``make native`` compiles the extensions anew.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from edl.api.errors import BadInputError

_BRACKETS = re.compile(r"\[[^\[\]]*\]")
_PARAMETER = re.compile(r"[(,]\s*(\w+)")


def check_extension_interface(extension: ModuleType) -> None:
    """Compare the names and parameters of an extension with its stub (``.pyi``), which lies beside it.

    It finds what would otherwise be a TypeError or an AttributeError of a call. A change of the C++ that keeps all
    parameters is not found.

    Raises:
        BadInputError: they differ.
    """
    stub = Path(extension.__file__ or "").parent / f"{extension.__name__.rpartition('.')[2]}.pyi"
    if not stub.is_file():
        return
    difference = _find_difference(extension, ast.parse(stub.read_bytes()).body)
    if difference is not None:
        raise BadInputError(
            f"the native code was compiled from other sources than this version of EDL: {difference}",
            where=extension.__file__,
            hint="Run `make native`, which compiles it anew; it is needed after `git pull`.",
        )


def _find_difference(owner: Any, declared: Iterable[ast.stmt]) -> str | None:
    """The first declaration that the compiled module or class lacks or has otherwise, in words."""
    for statement in declared:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            name = statement.target.id
        elif isinstance(statement, ast.FunctionDef | ast.ClassDef):
            name = statement.name
        else:
            continue
        compiled = getattr(owner, name, None)
        if compiled is None:
            return f"it has no {owner.__name__}.{name}"
        if isinstance(statement, ast.ClassDef):
            difference = _find_difference(compiled, statement.body)
            if difference is not None:
                return difference
        elif isinstance(statement, ast.FunctionDef):
            wanted, actual = _declared_parameters(statement), _compiled_parameters(compiled)
            if actual is not None and wanted != actual:
                return f"{owner.__name__}.{name} takes ({', '.join(actual)}), not ({', '.join(wanted)})"
    return None


def _declared_parameters(function: ast.FunctionDef) -> list[str]:
    return [argument.arg for argument in function.args.args]


def _compiled_parameters(function: Any) -> list[str] | None:
    """The parameters' names as nanobind has them; None: of a property, or of a function that takes any."""
    signatures = getattr(function, "__nb_signature__", None)
    if not signatures:
        return None
    text, shorter = signatures[0][0], ""
    while text != shorter:
        text, shorter = _BRACKETS.sub("", text), text
    return None if "**" in text else _PARAMETER.findall(text)

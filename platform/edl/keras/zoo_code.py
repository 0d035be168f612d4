"""What the code of a model zoo says, so that ranks of strategy AllReduce notice that theirs differs.

Names, types and shapes of variables do not tell two losses or two optimizers apart: a worker that starts after the user
has edited the module would train the others' variables with another loss, and all would apply its gradients.
"""

from __future__ import annotations

import ast
import hashlib
import os
import sys
from pathlib import Path

_EDL = Path(__file__).parents[1]
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def digest_zoo_code(zoo: Path) -> dict[str, str]:
    """A digest of each Python file of the zoo that this process has imported, by its path in the zoo, in order.

    Comments, docstrings and line breaks are no part of it: to change them while a job runs does no harm.

    Args:
        zoo: the zoo's folder, as a resolved path.
    """
    digests: dict[str, str] = {}
    folder = os.path.join(zoo, "")
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        # Some thousand modules have been imported. As paths instead of text they would take 30 ms.
        if not isinstance(file, str) or not file.endswith(".py"):
            continue
        file = os.path.normpath(file)
        if file.startswith(folder) and not _is_installed(Path(file)):
            try:
                digests[file.removeprefix(folder)] = digest_code(Path(file).read_bytes())
            except OSError:
                # It was removed after the import: nobody can compare it.
                continue
    return dict(sorted(digests.items()))


def _is_installed(path: Path) -> bool:
    """Whether a file is of a package and not of the user: the zoo may be a folder that has the environment in it.

    These are thousands of files, of which two workers need not have imported the same ones.
    """
    in_packages = not {"site-packages", "dist-packages"}.isdisjoint(path.parts)
    return in_packages or path.is_relative_to(sys.prefix) or path.is_relative_to(_EDL)


def digest_code(source: bytes) -> str:
    """A digest of what the source does."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        # It has been changed since the import, and is not complete yet.
        return _digest(source)
    for node in ast.walk(tree):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            node.body = [*node.body[1:], ast.Pass()]
    return _digest(ast.unparse(tree).encode())


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:12]

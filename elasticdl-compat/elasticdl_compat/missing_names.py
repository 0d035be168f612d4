"""Errors for imports of ElasticDL that this distribution does not have."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from edl.api.errors import BadInputError

MIGRATION_PAGE = "docs/migrating-from-elasticdl.md"
_PACKAGES = ("elasticdl", "elasticdl_preprocessing", "recordio")


class _MissingModuleFinder:
    """The last finder: no other one has found the module."""

    @staticmethod
    def find_spec(fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Raise for a module below one of the packages; None leaves all other names to Python's own error.

        Raises:
            ModuleNotFoundError: the name is below one of the packages.
        """
        if path is not None and fullname.partition(".")[0] in _PACKAGES:
            raise ModuleNotFoundError(_explain(f"module {fullname}"), name=fullname)
        return None


def _explain(missing: str) -> str:
    return (
        f"elasticdl-compat has no {missing}: it has what ElasticDL's model modules import, and not ElasticDL itself. "
        f"{MIGRATION_PAGE} ('Migrating from ElasticDL') lists what it has and what to write instead"
    )


def explain_missing_modules() -> None:
    """Make the import of a missing module below the packages raise an error that names the migration page."""
    if _MissingModuleFinder not in sys.meta_path:
        sys.meta_path.append(_MissingModuleFinder)


def explain_missing_names(module: str) -> Callable[[str], Any]:
    """The ``__getattr__`` of a module: names that are not there raise an error that names the migration page.

    ``from module import name`` replaces an AttributeError by a message of its own, so this is an ImportError. Names
    with a leading underscore keep the AttributeError, because Python and tools ask modules for them.
    """

    def __getattr__(name: str) -> Any:  # noqa: N807
        if name.startswith("_"):
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        if hasattr(sys.modules[module], "__path__"):
            # Python asks a package for the attribute before it imports the submodule of that name.
            return importlib.import_module(f"{module}.{name}")
        raise ImportError(_explain(f"{module}.{name}"), name=module)

    return __getattr__


def refuse_max_compute(name: str) -> BadInputError:
    """The error for a use of MaxCompute (ODPS) tables."""
    return BadInputError(
        f"{name}: EDL reads and writes no MaxCompute (ODPS) tables",
        hint="export the table to CSV or RecordIO files, or read it with a custom_data_reader of your own "
        f"({MIGRATION_PAGE})",
    )

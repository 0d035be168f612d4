"""A module of the user's zoo that ``TO TRAIN`` names: ``my_module.py``, or a definition such as ``a.custom_model``.

Nothing of it runs here. Its files become part of what is trained, exported and stored with the model.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from edl.api.errors import BadInputError
from edl.jobfile.zoo_lookup import find_model_function, find_unknown_params, parse_module
from edl.sql_jobs.statement_parser import StatementError
from edl.sql_jobs.statements import Attribute, TextPosition, TrainStatement

COLUMNS_MODULE = "edl_columns"
"""The module that is written beside the user's: inputs, their encoding, and what a training needs."""
ZOO_SETTING = "model.zoo"
_FUNCTION = "custom_model"
_MOST_FILES = 500


@dataclass(frozen=True, slots=True)
class UserModule:
    """A module that exists and defines the model.

    Attributes:
        zoo: its folder.
        definition: of the job file.
        names: that the module defines or imports.
    """

    zoo: Path
    definition: str
    names: tuple[str, ...]

    def files(self) -> Mapping[str, str]:
        """The Python files beside the module, and those of its package, by their path within the zoo.

        Raises:
            BadInputError: there are too many.
        """
        package = self.zoo / self.definition.partition(".")[0]
        modules = sorted([*self.zoo.glob("*.py"), *(package.rglob("*.py") if package.is_dir() else ())])
        if len(modules) > _MOST_FILES:
            raise BadInputError(
                f"has {len(modules):,} Python files",
                where=str(self.zoo),
                hint="put the module into a folder of its own",
            )
        return {str(path.relative_to(self.zoo)): path.read_text(encoding="utf-8") for path in modules}

    def takes(self, name: str) -> bool:
        """Whether the module imports a name of the columns' module."""
        path = self.zoo.joinpath(*self.definition.split(".")[:-1])
        file = path.with_name(f"{path.name}.py")
        tree = parse_module(file if file.is_file() else path / "__init__.py")
        statements = [each for each in ast.walk(tree) if isinstance(each, ast.ImportFrom)]
        imports = [alias for each in statements if each.module == COLUMNS_MODULE for alias in each.names]
        return any(alias.name in (name, "*") for alias in imports)

    def check_arguments(self, arguments: Mapping[str, Attribute], place: TextPosition) -> None:
        """Refuse arguments that the model's function does not take.

        Raises:
            BadInputError: there is one; names its place.
        """
        for error in find_unknown_params(self.zoo, self.definition, arguments):
            at = next((each.place for name, each in arguments.items() if f"'{name}'" in error.message), place)
            raise StatementError(f"{self.definition}: {error.message}", at, error.hint)


def find_user_module(statement: TrainStatement, builtin: Iterable[str]) -> UserModule | None:
    """The module that a statement names; None: it looks like no module.

    Args:
        statement: a training.
        builtin: names of EDL's own models.

    Raises:
        BadInputError: there is no such module or function; names its place.
    """
    name, attribute = statement.estimator, statement.attributes.get(ZOO_SETTING)
    if name is None or name.lower() in builtin:
        return None
    zoo = Path("." if attribute is None else str(attribute.value))
    place = statement.estimator_place or statement.into.place
    if name.endswith(".py"):
        path = zoo / name
        if not path.parent.is_dir():
            hint = "the path begins at the current folder, or at the one that model.zoo names"
            raise StatementError(f"{name}: there is no folder {path.parent}", place, hint)
        # A file in a folder: this folder is the zoo.
        zoo, definition = path.parent, f"{path.stem}.{_FUNCTION}"
    else:
        definition = f"{name}.{_FUNCTION}" if _is_module(zoo, name) else name
        if attribute is None and not _is_module(zoo, definition.rpartition(".")[0]):
            return None
    try:
        module = find_model_function(zoo, definition)
    except BadInputError as error:
        raise StatementError(f"{name}: {error.message} ({error.where})", place, error.hint) from error
    return UserModule(zoo.resolve(), definition, module.names)


def _is_module(zoo: Path, name: str) -> bool:
    base = zoo.joinpath(*name.split("."))
    return bool(name) and (base.with_name(f"{base.name}.py").is_file() or (base / "__init__.py").is_file())

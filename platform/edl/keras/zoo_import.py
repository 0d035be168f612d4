"""Imports a job's model module only from the job's model zoo.

Python imports the first regular package on ``sys.path``, also if a folder of the same name without ``__init__.py``
comes earlier. So a package ``model_zoo`` of the current folder or of ``PYTHONPATH`` could replace the zoo that a job
names. To prevent this, a finder before all others finds the zoo's names.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

from edl.api.errors import BadInputError
from edl.jobfile.zoo_lookup import ZooModule

_RESERVED_NAMES = frozenset({"edl", "keras", "numpy", "tensorflow"})


class _ZooFinder(MetaPathFinder):
    """Finds the top-level name of the job's definition, and the zoo's folders without ``__init__.py``.

    An installed package takes precedence over such a folder: a folder called ``rich`` or ``yaml`` may contain anything.

    A package of the zoo may have the name of an installed one, such as ``deepctr``. Modules that it does not have are
    those of the installed one.
    """

    def __init__(self, zoo: Path, root_name: str, *, zoo_is_package: bool) -> None:
        """Find ``root_name``: the zoo itself if ``zoo_is_package``, otherwise a module or folder in it."""
        self._zoo, self._root_name, self._zoo_is_package = zoo, root_name, zoo_is_package
        self._folder = zoo if zoo_is_package else zoo / root_name
        # Without the folders that import_zoo_module adds, which would find the zoo's own folders.
        added = (zoo, zoo.parent, Path.cwd())
        self._installed = [path for path in sys.path if Path(path or ".").resolve() not in added]

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of a top-level name in the zoo; None leaves the name to Python's own finders."""
        # Submodules are found in their package.
        if path is not None:
            return None
        if fullname == self._root_name:
            # Another package with the zoo's own name is another zoo.
            return self._with_installed(_module_spec(fullname, self._folder), is_zoo=self._zoo_is_package)
        folder = self._zoo / fullname
        if not folder.is_dir() or not any(folder.glob("*.py")):
            return None
        if (folder / "__init__.py").exists():
            return self._with_installed(_module_spec(fullname, folder), is_zoo=False)
        installed = PathFinder.find_spec(fullname, self._installed)
        return _module_spec(fullname, folder) if installed is None or installed.loader is None else None

    def _with_installed(self, spec: ModuleSpec | None, *, is_zoo: bool) -> ModuleSpec | None:
        """A spec that also finds the modules of an installed package with the same name, after those of the zoo."""
        if spec is None or is_zoo or spec.submodule_search_locations is None:
            return spec
        installed = PathFinder.find_spec(spec.name, self._installed)
        if installed is not None and installed.loader is not None:
            spec.submodule_search_locations.extend(installed.submodule_search_locations or ())
        return spec


def _module_spec(name: str, folder: Path) -> ModuleSpec | None:
    """The spec of a package, a module or a plain folder, in the order in which Python looks for them."""
    init, module = folder / "__init__.py", folder.with_name(f"{folder.name}.py")
    if init.is_file():
        return spec_from_file_location(name, init, submodule_search_locations=[str(folder)])
    if module.is_file() and folder.name == name and not folder.is_dir():
        return spec_from_file_location(name, module)
    spec = ModuleSpec(name, None, is_package=True)
    spec.submodule_search_locations = [str(folder)]
    return spec


def import_zoo_module(zoo: Path, zoo_module: ZooModule) -> ModuleType:
    """Import a module of the zoo.

    Args:
        zoo: the zoo's folder, as a resolved path.
        zoo_module: the module in the zoo.

    Raises:
        BadInputError: the zoo has the name of a package that every model needs, or Python imported another module.
    """
    root = zoo_module.name.partition(".")[0]
    if root in _RESERVED_NAMES:
        raise BadInputError(
            f"a model zoo, or a folder in it, must not be called {root}: it hides the package {root}",
            where=str(zoo_module.path),
            hint="rename the folder",
        )
    for folder in (str(zoo.parent), str(zoo)):
        if folder in sys.path:
            sys.path.remove(folder)
        sys.path.insert(0, folder)
    if str(Path.cwd()) not in sys.path:
        # Role processes start without the current folder, but a model may import from it. It comes
        # last so that it hides nothing.
        sys.path.append(str(Path.cwd()))
    path_parts = [part for part in zoo_module.path.relative_to(zoo).with_suffix("").parts if part != "__init__"]
    # A name with the zoo's own name in front has one part more than the path inside the zoo.
    zoo_is_package = zoo_module.name.count(".") == len(path_parts)
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _ZooFinder)]
    sys.meta_path.insert(0, _ZooFinder(zoo, root, zoo_is_package=zoo_is_package))
    importlib.invalidate_caches()
    _forget_other_zoos(zoo, root)
    module = importlib.import_module(zoo_module.name)
    if Path(module.__file__ or "").resolve() != zoo_module.path:
        raise BadInputError(
            f"Python imported another module as {zoo_module.name}: {module.__file__}",
            where=str(zoo_module.path),
            hint="rename the zoo or the module, or clean PYTHONPATH",
        )
    return module


def _forget_other_zoos(zoo: Path, root: str) -> None:
    """Remove imported modules of another zoo whose folder has the same name."""
    inside = f"{root}."
    for name, module in list(sys.modules.items()):
        if name == root or name.startswith(inside):
            places = [getattr(module, "__file__", None) or "", *getattr(module, "__path__", [])]
            if not any(Path(place).resolve().is_relative_to(zoo) for place in places if place):
                del sys.modules[name]

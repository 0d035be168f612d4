"""What a program must do before Keras loads an exported ``.keras`` file, if anything.

Keras finds its own classes by itself. A class or function of the user's it finds only when it is given
(``custom_objects``), or when the module was imported that registers it (``register_keras_serializable``).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras

_LAMBDA_CLASS = "__lambda__"
_MAX_LISTED_OBJECTS = 20
"""Names that are told at most."""


@dataclass(frozen=True, slots=True)
class CustomObject:
    """A class or function that Keras does not bring.

    Attributes:
        module: that defines it.
        name: of it in there.
        registered: whether importing the module suffices.
    """

    module: str
    name: str
    registered: bool


def format_loading_code(model: Any, path: Path, zoo: Path) -> str:
    """Python that loads the file of a model; empty where ``keras.models.load_model(path)`` alone does it.

    Args:
        model: that Keras can describe.
        path: of its ``.keras`` file.
        zoo: the model zoo. Its modules import each other as they do in a run, from it and from its parent folder.
    """
    described = keras.saving.serialize_keras_object(model)
    own = {*_custom_classes(described), *_custom_functions(described, model)}
    found = sorted(own, key=lambda each: (each.module, each.name))
    unsafe = any(node.get("class_name") == _LAMBDA_CLASS for node in _iter_class_nodes(described))
    if not found and not unsafe:
        return ""
    lines = []
    if any(_is_in_zoo(zoo, own.module) for own in found):
        lines += ["import sys", f"sys.path[:0] = {json.dumps([str(zoo), str(zoo.parent)])}"]
    lines += [f"import {module}" for module in dict.fromkeys(own.module for own in found if own.registered)]
    given = [own for own in found if not own.registered]
    by_module = {own.module: [each.name for each in given if each.module == own.module] for own in given}
    lines += [f"from {module} import {', '.join(names)}" for module, names in by_module.items()]
    arguments = [json.dumps(str(path))]
    if given:
        names = ", ".join(f'"{own.name}": {own.name}' for own in given[:_MAX_LISTED_OBJECTS])
        arguments.append(f"custom_objects={{{names}{', ...' if len(given) > _MAX_LISTED_OBJECTS else ''}}}")
    if unsafe:  # a Lambda layer of a Python lambda is code in the file
        arguments.append("safe_mode=False")
    return "; ".join([*lines, f"keras.models.load_model({', '.join(arguments)})"])


def _is_in_zoo(zoo: Path, module: str) -> bool:
    file = getattr(sys.modules.get(module), "__file__", None)
    return file is not None and Path(file).resolve().is_relative_to(zoo.resolve())


def _custom_classes(described: Any) -> Iterator[CustomObject]:
    for node in _iter_class_nodes(described):
        module, name = node.get("module"), node.get("class_name")
        if not isinstance(module, str) or not isinstance(name, str) or name in ("function", _LAMBDA_CLASS):
            continue
        if module.split(".")[0] not in ("keras", "builtins", "numpy", "tensorflow"):
            yield CustomObject(module, name, ">" in str(node.get("registered_name") or ""))


def _custom_functions(described: Any, model: Any) -> Iterator[CustomObject]:
    """Keras describes a function by its name alone: the layers know which one it is."""
    names = {node["config"] for node in _iter_class_nodes(described) if node["class_name"] == "function"}
    for layer in model._flatten_layers():
        for value in vars(layer).values():
            name, module = getattr(value, "__name__", None), str(getattr(value, "__module__", ""))
            own = module.split(".")[0] not in ("keras", "builtins", "numpy", "tensorflow")
            if own and callable(value) and not isinstance(value, type) and name:
                registered = keras.saving.get_registered_name(value)
                if {name, registered} & names:
                    yield CustomObject(module, name, registered != name)


def _iter_class_nodes(described: Any) -> Iterator[dict[str, Any]]:
    """Every object within Keras' description of a model that names a class."""
    if isinstance(described, dict):
        if "class_name" in described:
            yield described
        for value in described.values():
            yield from _iter_class_nodes(value)
    elif isinstance(described, list | tuple):
        for value in described:
            yield from _iter_class_nodes(value)

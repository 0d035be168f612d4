"""Exports trained parameters as files that plain Keras and TensorFlow load without EDL.

The export builds the user's model again, with full tables in place of PS-backed tables, and assigns
the values of one consistent snapshot. It writes each file under a temporary name and renames it:
the final path always holds a complete export, either the previous one or the new one.
"""

from __future__ import annotations

import copy
import errno
import functools
import inspect
import json
import logging
import os
import shutil
import sys
import warnings
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.backend.common import global_state
from keras.src.saving.serialization_lib import SafeModeScope

from edl.api.errors import BadInputError
from edl.api.tables import TableSpec
from edl.keras.edl_layer_replacement import needs_edl_layers, replace_edl_layers
from edl.keras.keras2_models import (
    Keras2Model,
    find_undescribed,
    format_keras2_loading,
    write_keras2_file,
    write_keras2_saved_model,
)
from edl.keras.model_building import (
    ModelVariables,
    build_model,
    check_same_model,
    derive_feature_spec,
    make_serving_model,
    named_component_specs,
)
from edl.keras.network import KerasNetwork
from edl.keras.ps_embedding import initializer_mean
from edl.keras.traced_function import as_array, host_array
from edl.keras.user_code import user_code
from edl.layers import Embedding as AnyId
from edl.layers.known_rows import KnownRows, constant_initializer, provide_known_rows
from edl.numerics import aligned_memory
from edl.numerics.array_types import Floats, Ids
from edl.numerics.initializers import initial_rows
from edl.storage.durable_files import sync_directory, sync_file, to_storage_error

# --------------------------------------------------------------------------------------------------
# The Python code that must run before Keras loads an exported ``.keras`` file, if any is needed.
# Keras finds its own classes. It finds a user's class or function only through ``custom_objects``,
# or if the module that registers it was imported (``register_keras_serializable``).


_LAMBDA_CLASS = "__lambda__"
_OWN_PACKAGES = ("keras", "edl")
_MAX_LISTED_OBJECTS = 20
"""Maximum number of names in a message."""


@dataclass(frozen=True, slots=True)
class CustomObject:
    """A class or function that Keras does not provide.

    Attributes:
        module: the module that defines it.
        name: its name in that module.
        is_registered: whether Keras finds it once the module is imported.
    """

    module: str
    name: str
    is_registered: bool


def format_loading_code(model: Any, path: Path, zoo: Path) -> str:
    """Python code that loads a model's file; empty if ``keras.models.load_model(path)`` is enough.

    The result is a comment with the reason if no such code loads all that the file has: ``__init__`` of a class
    does not accept the arguments that ``get_config()`` returns, or Keras cannot build the model.

    Args:
        model: a model that Keras can serialize.
        path: the path of its ``.keras`` file.
        zoo: the model zoo. The code puts it and its parent folder on ``sys.path``, as a run does.
    """
    model_config = keras.saving.serialize_keras_object(model)
    if reason := _find_unloadable(model_config, model) or _find_lost_variables(model_config, model):
        return f"# {reason}"
    custom_objects = {*_custom_classes(model_config), *_custom_functions(model_config, model)}
    sorted_objects = sorted(custom_objects, key=lambda each: (each.module, each.name))
    unsafe = any(node.get("class_name") == _LAMBDA_CLASS for node in _iter_class_nodes(model_config))
    if not sorted_objects and not unsafe:
        return ""
    lines = []
    if any(_is_in_zoo(zoo, own.module) for own in sorted_objects):
        lines += ["import sys", f"sys.path[:0] = {json.dumps([str(zoo), str(zoo.parent)])}"]
    lines += [f"import {module}" for module in dict.fromkeys(own.module for own in sorted_objects if own.is_registered)]
    unregistered = [own for own in sorted_objects if not own.is_registered]
    by_module = {own.module: [each.name for each in unregistered if each.module == own.module] for own in unregistered}
    lines += [f"from {module} import {', '.join(names)}" for module, names in by_module.items()]
    arguments = [json.dumps(str(path))]
    if unregistered:
        names = ", ".join(f'"{own.name}": {own.name}' for own in unregistered[:_MAX_LISTED_OBJECTS])
        arguments.append(f"custom_objects={{{names}{', ...' if len(unregistered) > _MAX_LISTED_OBJECTS else ''}}}")
    # The file stores a Lambda layer of a Python lambda as code. Keras runs such code only if the
    # caller turns safe mode off.
    if unsafe:
        arguments.append("safe_mode=False")
    return "; ".join(["import keras", *lines, f"keras.models.load_model({', '.join(arguments)})"])


def _find_unloadable(model_config: Any, model: Any) -> str:
    """Why Keras cannot rebuild a layer or the model from its config; empty if no reason is known."""
    kinds: dict[tuple[str, str], Any] = {
        (kind.__module__, kind.__name__): kind for kind in map(type, model._flatten_layers())
    }
    inherited = {kind.from_config.__func__ for kind in (keras.Model, keras.layers.Layer, keras.Operation)}
    for node in _iter_class_nodes(model_config):
        kind, config = kinds.get((str(node.get("module")), str(node["class_name"]))), node.get("config")
        if kind is None or not isinstance(config, dict) or kind.__module__.split(".")[0] == "keras":
            continue
        # Only an inherited from_config is known to call __init__ with the whole config.
        if kind.from_config.__func__ not in inherited or _is_functional_config(config):
            continue
        try:
            inspect.signature(kind.__init__).bind(None, **config)
        except TypeError as error:
            return (
                f"load_model cannot make {kind.__name__} again: {kind.__name__}.__init__(): {error}. It must take what"
                " get_config() gives: add **kwargs and pass them to super().__init__(**kwargs), or define get_config()."
                " The SavedModel loads without it"
            )
    return ""


def warn_about_keras_file(model: Any) -> None:
    """Warn if the model's export will have no ``.keras`` file, or one that Keras cannot load.

    Unlike an export, this also makes the user's layers from their configs, as loading does; their code runs.
    """
    if isinstance(model, Keras2Model):
        if _can_serialize_keras2(model):
            loading = format_keras2_loading(model, Path("model.keras"), Path())
            if loading.startswith("#"):
                _LOG.warning("the .keras file: %s", loading.removeprefix("# "))
        return
    if not _can_serialize(model):
        return
    model_config = keras.saving.serialize_keras_object(model)
    if (
        reason := _find_unloadable(model_config, model)
        or _find_failing_config(model_config, model)
        or _find_lost_variables(model_config, model)
    ):
        _LOG.warning("the .keras file: %s", reason)


def _find_failing_config(model_config: Any, model: Any) -> str:
    """The first layer of the user's that its own ``from_config`` does not make again; empty if there is none."""
    layers = [layer for layer in model._flatten_layers() if type(layer).__module__.split(".")[0] not in _OWN_PACKAGES]
    for layer in layers:
        kind, config = type(layer), keras.saving.serialize_keras_object(layer)["config"]
        if _is_functional_config(config):
            continue
        try:
            with _finding_custom_objects(model_config, model):
                kind.from_config(config)
        except Exception as error:  # noqa: BLE001  the user's code may raise anything
            return (
                f"load_model cannot make {kind.__name__} again: from_config() of the layer '{layer.name}' raises "
                f"{type(error).__name__}: {error}. The SavedModel loads without it"
            )
    return ""


def _find_lost_variables(model_config: Any, model: Any) -> str:
    """Why a loaded model lacks variables that the file has: Keras does not raise, it makes them anew later.

    A subclassed model has its variables once it is built. On loading, Keras builds it by calling it with dense inputs,
    which fails for a model of sparse or ragged ones. The same happens here, but no variable gets memory or a value.
    """
    if _is_of_keras_alone(model):
        return ""
    uninitialized = global_state.get_global_attribute("uninitialized_variables")
    try:
        # Not into Keras' list of the variables that the end of its next scope gives values to.
        global_state.set_global_attribute("uninitialized_variables", [])
        with (
            warnings.catch_warnings(record=True) as raised,
            keras.StatelessScope(initialize_variables=False),
            _finding_custom_objects(model_config, model),
        ):
            warnings.simplefilter("always")
            loaded = keras.saving.deserialize_keras_object(copy.deepcopy(model_config))  # Lambda layers change it
    except Exception as error:  # noqa: BLE001  the user's code may raise anything
        _LOG.debug("the model was not made again without values: %s", error)
        return ""
    finally:
        global_state.set_global_attribute("uninitialized_variables", uninitialized)
    missing = len(model.variables) - len(loaded.variables)
    if missing <= 0:
        return ""
    unbuilt = [layer.name for layer in loaded._flatten_layers() if layer is not loaded and not layer.built]
    names = f" (of the layers {', '.join(unbuilt[:_MAX_LISTED_OBJECTS])})" if unbuilt else ""
    kind = type(model).__name__
    if any("cannot be built automatically" in str(warning.message) for warning in raised):
        reason = f"Keras cannot build {kind} from its config"
        remedy = "Call the loaded model once with data, then load_weights() of the same file; or define"
    else:
        reason, remedy = f"call() of {kind} does not use them", "Define"
    return (
        f"load_model leaves {missing} of {len(model.variables)} variables{names} with new values, without an error:"
        f" {reason}. {remedy} build(), or get_build_config() and build_from_config(). The SavedModel loads without it"
    )


def _is_of_keras_alone(model: Any) -> bool:
    """Whether a functional model has layers of Keras only. Keras connects and builds them, which takes a minute for a
    model with thousands of inputs.
    """
    return (
        all(
            type(layer).__module__.startswith("keras.") and not isinstance(layer, keras.Sequential)
            for layer in model._flatten_layers()
        )
        and type(model).__name__ == "Functional"
    )


@contextmanager
def _finding_custom_objects(model_config: Any, model: Any) -> Iterator[None]:
    """Let Keras find the user's classes and functions of a serialized model, and run its Lambda layers."""
    named = {*_custom_classes(model_config), *_custom_functions(model_config, model)}
    known = {each.name: getattr(sys.modules.get(each.module), each.name, None) for each in named}
    with keras.saving.custom_object_scope(known), SafeModeScope(safe_mode=False):
        yield


def _is_functional_config(config: Mapping[str, Any]) -> bool:
    """Whether the config is a functional model's; Keras may connect its layers without ``__init__``."""
    return {"name", "layers", "input_layers", "output_layers"} <= config.keys()


def _is_in_zoo(zoo: Path, module: str) -> bool:
    file = getattr(sys.modules.get(module), "__file__", None)
    return file is not None and Path(file).resolve().is_relative_to(zoo.resolve())


def _custom_classes(model_config: Any) -> Iterator[CustomObject]:
    for node in _iter_class_nodes(model_config):
        module, name = node.get("module"), node.get("class_name")
        if not isinstance(module, str) or not isinstance(name, str) or name in ("function", _LAMBDA_CLASS):
            continue
        if module.split(".")[0] not in ("keras", "builtins", "numpy", "tensorflow"):
            # Keras writes a registered class as "package>name", every other class without ">".
            yield CustomObject(module, name, ">" in str(node.get("registered_name") or ""))


def _custom_functions(model_config: Any, model: Any) -> Iterator[CustomObject]:
    """The user's functions in a model.

    The serialized model has only their names. Their modules come from the layers' attributes.
    """
    names = {node["config"] for node in _iter_class_nodes(model_config) if node["class_name"] == "function"}
    for layer in model._flatten_layers():
        for value in vars(layer).values():
            name, module = getattr(value, "__name__", None), str(getattr(value, "__module__", ""))
            own = module.split(".")[0] not in ("keras", "builtins", "numpy", "tensorflow")
            if own and callable(value) and not isinstance(value, type) and name:
                registered = keras.saving.get_registered_name(value)
                if {name, registered} & names:
                    yield CustomObject(module, name, registered != name)


def _iter_class_nodes(model_config: Any) -> Iterator[dict[str, Any]]:
    """Every object of a serialized model that names a class."""
    if isinstance(model_config, dict):
        if "class_name" in model_config:
            yield model_config
        for value in model_config.values():
            yield from _iter_class_nodes(value)
    elif isinstance(model_config, list | tuple):
        for value in model_config:
            yield from _iter_class_nodes(value)


# --------------------------------------------------------------------------------------------------
# Whole tables for an export, each held only once: they may take most of a worker's memory. Left to
# itself, Keras draws initial values (three times the table's size), assigns the trained ones
# (twice), and copies them twice while writing. Here the values are computed directly in the
# variable's memory, and Keras gets a view instead of a copy.


# Initial values are drawn in chunks, so that their temporary arrays stay small beside the table.
_CHUNK_ROWS = 1 << 16

RowChunks = Iterable[tuple[Ids, Floats]]


def materialize_table(table: TableSpec, stored_chunks: RowChunks) -> Floats:
    """All rows of a PS-backed table; rows that are not stored get their initial values."""
    all_rows = aligned_memory.allocate_aligned(table.rows, table.dim)
    for start in range(0, table.rows, _CHUNK_ROWS):
        ids = np.arange(start, min(table.rows, start + _CHUNK_ROWS), dtype=np.int64)
        all_rows[start : start + len(ids)] = initial_rows(table.initializer, table.seed, ids, table.dim)
    for ids, values in stored_chunks:
        all_rows[ids] = values
    return all_rows


def collect_known_rows(table: TableSpec, stored_chunks: RowChunks) -> KnownRows:
    """The stored rows of an unbounded table, and one row that stands for all other ids.

    That row is the mean of the initial values.
    """
    chunks = list(stored_chunks)
    ids = np.concatenate([np.empty(0, np.int64), *(ids for ids, _ in chunks)])
    ids.sort()
    rows = aligned_memory.allocate_aligned(1 + len(ids), table.dim)
    rows[0] = initializer_mean(table.initializer)
    # Each chunk is freed before the next is copied, so that the rows are not held twice.
    while chunks:
        chunk_ids, values = chunks.pop()
        rows[1 + np.searchsorted(ids, chunk_ids)] = values
    return KnownRows(ids, rows)


@contextmanager
def filling_embeddings(tables: Mapping[str, Floats]) -> Iterator[list[Any]]:
    """Fill Embeddings with trained values when Keras builds them within this context.

    The user's function may build a model more than once (``clone_model``), and which of them it
    returns is known only at the end. Every Embedding with a table's name therefore gets the values.
    All of them share one copy in memory.

    Args:
        tables: values by the variable's name. Do not write to them.

    Yields:
        The variables that were filled from ``tables``.
    """
    build = keras.layers.Embedding.build
    filled_variables: list[Any] = []

    @functools.wraps(build)
    def build_filled(layer: Any, input_shape: Any = None) -> None:
        # Embedding.build() of edl.layers found no known rows under this name, and a table without
        # a bound has no shape that Keras could build.
        if layer.input_dim is None and isinstance(layer, AnyId):
            _build_without_rows(layer, input_shape)
            return
        values = tables.get(f"{layer.path}/embeddings")
        if values is None or values.shape != (layer.input_dim, layer.output_dim):
            build(layer, input_shape)
            return
        original_initializer = layer.embeddings_initializer
        layer.embeddings_initializer = constant_initializer(values)
        try:
            build(layer, input_shape)
        finally:
            layer.embeddings_initializer = original_initializer
        filled_variables.append(layer._embeddings)

    keras.layers.Embedding.build = build_filled
    try:
        yield filled_variables
    finally:
        keras.layers.Embedding.build = build


def _build_without_rows(layer: Any, input_shape: Any) -> None:
    """Build a layer for unbounded ids without a trained table; its model is usually discarded."""
    layer.known = 0
    AnyId.build(layer, input_shape)


@contextmanager
def saving_without_copies() -> Iterator[None]:
    """Let Keras save Embeddings with one copy of the values instead of two."""
    save = keras.layers.Embedding.save_own_variables

    @functools.wraps(save)
    def save_views(layer: Any, store: Any) -> None:
        save(layer, _ZeroCopyStore(store))

    keras.layers.Embedding.save_own_variables = save_views
    try:
        yield
    finally:
        keras.layers.Embedding.save_own_variables = save


class _ZeroCopyStore:
    """A Keras store that takes float32 variables as views of their memory, without a copy."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def __setitem__(self, key: str, value: Any) -> None:
        if isinstance(value, keras.Variable) and value.dtype == "float32":
            value = as_array(value.value.read_value())
        self._store[key] = value


_LOG = logging.getLogger(__name__)

RowChunksByTable = Mapping[str, RowChunks]
"""Chunks of ids and their rows by PS-backed table. Rows that are missing have initial values."""


def export_model(
    network: KerasNetwork, flat_values: Floats, table_rows: RowChunksByTable, keras_path: Path, saved_model_path: Path
) -> dict[str, Any]:
    """Write a ``.keras`` file and a SavedModel.

    Args:
        network: the network that was trained.
        flat_values: the values of the dense variables, as one flat array.
        table_rows: the stored rows of the PS-backed tables.
        keras_path: the path of the ``.keras`` file. Its folder is created.
        saved_model_path: the folder of the SavedModel.

    Returns:
        JSON. ``keras`` and ``saved_model`` are the paths. ``keras`` is None for a subclassed model
        that Keras cannot serialize (no ``get_config``); the log has the reason. ``loading`` is
        Python code that loads the ``.keras`` file, and empty if ``load_model`` alone does.

    Raises:
        StorageError: the files cannot be written. The previous export is still valid.
        BadInputError: the user's function builds a different model than the trained one.
        UserCodeError: the user's code raised.
    """
    model = build_export_model(network, flat_values, table_rows)
    features = derive_feature_spec(model, network.sample)
    if isinstance(model, Keras2Model):
        return _export_keras2_model(model, features, network.module.zoo, keras_path, saved_model_path)
    served = make_serving_model(network.module, model)
    serializable = _can_serialize(served)
    with (
        user_code(network.module.zoo, "export of the model"),
        _without_default_signature(),
        _replacing_atomically(saved_model_path) as temporary_path,
    ):
        _write_saved_model(served, features if served is model else derive_feature_spec(served, None), temporary_path)
    loading = ""
    if serializable:
        loadable_model = _with_keras_layers(model, features, network.sample)
        loadable_model = served if loadable_model is model else make_serving_model(network.module, loadable_model)
        with _replacing_atomically(keras_path) as temporary_path:
            _write_keras(loadable_model, temporary_path)
        loading = format_loading_code(loadable_model, keras_path, network.module.zoo)
        if loading.startswith("#"):
            _LOG.warning("the .keras file: %s", loading.removeprefix("# "))
        elif loading:
            _LOG.info("the .keras file has classes or functions that Keras does not know; this loads it: %s", loading)
    return {
        "keras": str(keras_path) if serializable else None,
        "saved_model": str(saved_model_path),
        "loading": loading,
    }


def _export_keras2_model(
    model: Keras2Model, features: Any, zoo: Path, keras_path: Path, saved_model_path: Path
) -> dict[str, Any]:
    with user_code(zoo, "export of the model"), _replacing_atomically(saved_model_path) as temporary_path:
        write_keras2_saved_model(model, features, named_component_specs(features), temporary_path)
    has_file = _can_serialize_keras2(model)
    if has_file:
        with user_code(zoo, "export of the model"), _replacing_atomically(keras_path) as temporary_path:
            write_keras2_file(model, temporary_path)
    loading = format_keras2_loading(model, keras_path, zoo) if has_file else ""
    if loading.startswith("#"):
        _LOG.warning("the .keras file: %s", loading.removeprefix("# "))
    return {
        "keras": str(keras_path) if has_file else None,
        "saved_model": str(saved_model_path),
        "loading": loading,
    }


def _can_serialize_keras2(model: Keras2Model) -> bool:
    if reason := find_undescribed(model):
        _LOG.warning("no .keras file is exported, only the SavedModel: Keras 2 cannot describe the model: %s", reason)
    return not reason


def export_keras_file(
    network: KerasNetwork, flat_values: Floats, table_rows: RowChunksByTable, path: Path, *, weights_only: bool
) -> None:
    """Write one Keras file.

    Args:
        network: the network that was trained.
        flat_values: the values of the dense variables, as one flat array.
        table_rows: the stored rows of the PS-backed tables.
        path: the path of the file. Its folder is created.
        weights_only: write a ``.weights.h5`` file instead of the whole model.

    Raises:
        BadInputError: Keras cannot serialize the model, or the user's function builds a different
            model than the trained one.
        StorageError: the file cannot be written. The previous file is still valid.
    """
    model = build_export_model(network, flat_values, table_rows)
    if isinstance(model, Keras2Model):
        with user_code(network.module.zoo, "writing the best model"), _replacing_atomically(path) as temporary_path:
            suffix = ".weights.h5" if weights_only else ".keras"
            named = temporary_path.with_name(f"{temporary_path.name}{suffix}")
            write_keras2_file(model, named, weights_only=weights_only)
            named.replace(temporary_path)
        return
    if not weights_only and not _can_serialize(model):
        raise BadInputError(
            "the callback ModelCheckpoint cannot write a .keras file: Keras cannot describe the model, see the "
            "worker's log",
            hint="give the model a get_config(), or use save_weights_only=True",
        )
    with user_code(network.module.zoo, "writing the best model"), _replacing_atomically(path) as temporary_path:
        if weights_only:
            # save_weights() refuses every other file extension.
            named = temporary_path.with_name(f"{temporary_path.name}.weights.h5")
            model.save_weights(named)
            named.replace(temporary_path)
        else:
            _write_keras(
                _with_keras_layers(model, derive_feature_spec(model, network.sample), network.sample), temporary_path
            )


def build_export_model(network: KerasNetwork, flat_values: Floats, table_rows: RowChunksByTable) -> Any:
    """The user's Keras model with the given values, independent of parameter servers.

    Raises:
        BadInputError: the user's function builds a different model than the trained one.
    """
    known_rows_by_table = {
        table.name: collect_known_rows(table, table_rows[table.name]) for table in network.tables if not table.rows
    }
    full_tables = {
        table.name: materialize_table(table, table_rows[table.name]) for table in network.tables if table.rows
    }
    by_layer = {name.rpartition("/")[0]: rows for name, rows in known_rows_by_table.items()}
    with provide_known_rows(by_layer), filling_embeddings(full_tables) as filled_variables:
        model = build_model(network.module, seed=0, sample=network.sample)
    variable_slices = zip(network.variables, network.offsets, strict=True)
    values = full_tables | {spec.name: flat_values[place].reshape(spec.shape) for spec, place in variable_slices}
    export_variables = ModelVariables.from_model(model, lambda name: 0, 1, trained_by_ps=False, float32_only=False)
    # Counters, and statistics of other types than float32: the flat buffer has none of them.
    states = {name: v for name, v in export_variables.states.items() if name in network.states}
    check_same_model(
        trained={name: array.shape for name, array in values.items()}
        | {n: k.rows.shape for n, k in known_rows_by_table.items()}
        | {name: tuple(state.shape) for name, state in network.states.items()},
        rebuilt={spec.name: spec.shape for spec in export_variables.specs}
        | {name: tuple(state.shape) for name, state in states.items()},
    )
    # Tables have their values since they were built. Assigning them again would hold them twice.
    for spec, weight in zip(export_variables.specs, export_variables.weights, strict=True):
        if spec.name not in known_rows_by_table and not any(weight is each for each in filled_variables):
            weight.assign(values[spec.name])
    for name, state in states.items():
        state.assign(host_array(network.states[name]))
    return model


def _can_serialize(model: Any) -> bool:
    try:
        keras.saving.serialize_keras_object(model)
    except Exception as error:  # noqa: BLE001  a user's get_config may raise anything; the SavedModel needs none
        _LOG.warning(
            "no .keras file is exported, only the SavedModel: Keras cannot describe %s: %s",
            _name_undescribed(model),
            # Keras adds an example of a class; of several lines a user sees one.
            " ".join(str(error).partition("Example:")[0].split()),
        )
        return False
    return True


def _name_undescribed(model: Any) -> str:
    """The innermost layer that Keras cannot describe, or else the model."""
    for layer in reversed(list(model._flatten_layers(include_self=False))):
        try:
            keras.saving.serialize_keras_object(layer)
        except Exception:  # noqa: BLE001  as above
            return f"the layer '{layer.name}' ({type(layer).__name__})"
    return "the model"


def _with_keras_layers(model: Any, features: Any, sample: Any) -> Any:
    """The model with Keras layers in place of EDL's, if Keras can clone the model."""
    try:
        model = replace_edl_layers(model, features, sample)
    except Exception as error:  # noqa: BLE001  Keras clones the user's model with the user's code; the file needs none
        _LOG.warning("layers of edl.layers stay in the .keras file: Keras cannot clone the model: %s", error)
    if needs_edl_layers(model):
        _LOG.info("the .keras file has layers of edl.layers: `import edl.layers` before loading it")
    return model


def _write_keras(model: Any, path: Path) -> None:
    """Write the file as ``model.save(path)`` does, without holding it in memory.

    ``model.save`` builds the weights in memory if it believes that they fit: psutil, where it is
    installed, reports all free memory of the machine.
    """
    # With a relative path, Keras loses the assets.
    parts = path.absolute().with_name(f"{path.name}.parts")
    _remove_path(parts)
    try:
        with saving_without_copies():
            model.save(parts, zipped=False)
        with zipfile.ZipFile(path, "w") as archive:
            for part in sorted(parts.rglob("*")):
                if part.is_file():
                    archive.write(part, part.relative_to(parts))
    finally:
        _remove_path(parts)


def _write_saved_model(model: Any, features: Any, path: Path) -> None:
    """Write a SavedModel with explicit input signatures.

    Subclassed models, and models of ragged or sparse features, do not declare their inputs.
    """
    parts = named_component_specs(features)

    def whole(flat: Any) -> Any:
        return tf.nest.pack_sequence_as(features, flat, expand_composites=True)

    if all(isinstance(spec, tf.TensorSpec) for spec in tf.nest.flatten(features)):
        graph = getattr(model, "inputs", None)
        signature = {} if graph else {"input_signature": [whole(parts) if parts else features]}
        model.export(str(path), format="tf_saved_model", verbose=False, **signature)
        return
    serve = tf.function(lambda given: model(given, training=False), input_signature=[features], autograph=False)
    serve.get_concrete_function()
    archive = keras.export.ExportArchive()
    archive.track(model)
    archive.add_endpoint("serve", serve)
    # A signature accepts plain tensors only. Without names for the components, TensorFlow would
    # call the arguments given, given_1 and so on.
    if parts:
        archive.add_endpoint("serving_default", lambda *flat: model(whole(flat), training=False), parts)
    archive.write_out(str(path), verbose=False)


@contextmanager
def _without_default_signature() -> Iterator[None]:
    """Disable the property through which TensorFlow traces every subclassed model a second time.

    That trace passes dense features. A model that takes sparse or ragged features apart raises.
    """
    keras.Model._default_save_signature = None
    try:
        yield
    finally:
        del keras.Model._default_save_signature


@contextmanager
def _replacing_atomically(path: Path) -> Iterator[Path]:
    """Yield a temporary path that replaces ``path`` on success and is removed after an error.

    It lies in the same folder: a rename is atomic only within one file system.
    """
    temporary_path, previous_path = path.with_name(f".new-{path.name}"), path.with_name(f".earlier-{path.name}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Undo an earlier export that was killed between the two renames below.
        if previous_path.exists() and not path.exists():
            previous_path.rename(path)
        _remove_path(temporary_path)
        yield temporary_path
        # The data must be on disk before the rename: a rename may survive a crash that loses data.
        _sync_tree(temporary_path)
        _remove_path(previous_path)
        # A directory cannot be renamed over an existing one.
        if path.is_dir():
            path.rename(previous_path)
        temporary_path.replace(path)
        _remove_path(previous_path)
        sync_directory(path.parent)
    except (OSError, RuntimeError, tf.errors.OpError) as error:
        # TensorFlow and HDF5 report a full disk in their own lengthy messages, without an errno.
        if "No space left" in str(error):
            raise to_storage_error(
                OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), path, "export the model"
            ) from error
        if isinstance(error, OSError):
            raise to_storage_error(error, path, "export the model") from error
        raise
    finally:
        _remove_path(temporary_path)


def _sync_tree(written: Path) -> None:
    if written.is_file():
        sync_file(written)
        return
    for folder, _, files in os.walk(written):
        for name in files:
            sync_file(Path(folder) / name)
        sync_directory(Path(folder))


def _remove_path(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)

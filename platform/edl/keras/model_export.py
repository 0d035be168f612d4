"""Trained parameters as files that plain Keras and TensorFlow load without EDL.

The user's model is made anew, with full tables in place of served ones, and given the values of a pinned cut. Files are
written beside their place and renamed: at every moment the place holds a complete export, the earlier or this one.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from edl.api.errors import BadInputError
from edl.keras.edl_layer_replacement import needs_edl_layers, replace_edl_layers
from edl.keras.export_tables import (
    RowChunks,
    collect_known_rows,
    filling_embeddings,
    materialize_table,
    saving_without_copies,
)
from edl.keras.feature_spec import derive_feature_spec, named_component_specs
from edl.keras.flat_buffer import Floats
from edl.keras.loading_code import format_loading_code
from edl.keras.model_building import build_model
from edl.keras.model_consistency import check_same_model
from edl.keras.model_variables import ModelVariables
from edl.keras.network import KerasNetwork
from edl.keras.user_code import user_code
from edl.layers.known_rows import provide_known_rows
from edl.storage.durable_files import sync_directory, sync_file, to_storage_error

_LOG = logging.getLogger(__name__)

RowChunksByTable = Mapping[str, RowChunks]
"""By served table: chunks of ids and their rows; rows that are missing have their initial values."""


def export_model(
    network: KerasNetwork, slab: Floats, tables: RowChunksByTable, keras_path: Path, saved_model_path: Path
) -> dict[str, Any]:
    """Write a ``.keras`` file and a SavedModel.

    Args:
        network: whose model it is.
        slab: dense values.
        tables: rows of served tables.
        keras_path: of the ``.keras`` file; its folder is made.
        saved_model_path: folder of the SavedModel.

    Returns:
        JSON: ``keras`` and ``saved_model``, the paths. ``keras`` is None for a subclassed model that Keras cannot
        describe (no ``get_config``); the log says why. ``loading``: Python that loads the file, where it takes more
        than ``load_model``; else empty.

    Raises:
        StorageError: the files cannot be written; what was there before is still valid.
        BadInputError: the user's function makes another model than the one that was trained.
        UserCodeError: the user's code raised.
    """
    model = build_export_model(network, slab, tables)
    features = derive_feature_spec(model, network.sample)
    described = _can_serialize(model)
    with (
        user_code(network.module.zoo, "export of the model"),
        _without_default_signature(),
        _replacing_atomically(saved_model_path) as beside,
    ):
        _write_saved_model(model, features, beside)
    loading = ""
    if described:
        plain = _with_keras_layers(model, features, network.sample)
        with _replacing_atomically(keras_path) as beside:
            _write_keras(plain, beside)
        loading = format_loading_code(plain, keras_path, network.module.zoo)
        if loading:
            _LOG.info("the .keras file has classes or functions that Keras does not know; this loads it: %s", loading)
    return {
        "keras": str(keras_path) if described else None,
        "saved_model": str(saved_model_path),
        "loading": loading,
    }


def export_keras_file(
    network: KerasNetwork, slab: Floats, tables: RowChunksByTable, path: Path, *, weights_only: bool
) -> None:
    """Write one Keras file.

    Args:
        network: whose model it is.
        slab: dense values.
        tables: rows of served tables.
        path: of the file; its folder is made.
        weights_only: a ``.weights.h5`` file instead of the whole model.

    Raises:
        BadInputError: Keras cannot describe the model, or the user's function makes another one than was trained.
        StorageError: the file cannot be written; what was there before is still valid.
    """
    model = build_export_model(network, slab, tables)
    if not weights_only and not _can_serialize(model):
        raise BadInputError(
            "the callback ModelCheckpoint cannot write a .keras file: Keras cannot describe the model, see the "
            "worker's log",
            hint="give the model a get_config(), or use save_weights_only=True",
        )
    with user_code(network.module.zoo, "writing the best model"), _replacing_atomically(path) as beside:
        if weights_only:
            named = beside.with_name(f"{beside.name}.weights.h5")  # Keras takes no other ending
            model.save_weights(named)
            named.replace(beside)
        else:
            _write_keras(_with_keras_layers(model, derive_feature_spec(model, network.sample), network.sample), beside)


def build_export_model(network: KerasNetwork, slab: Floats, tables: RowChunksByTable) -> Any:
    """The user's Keras model, without parameter servers, with the given values.

    Raises:
        BadInputError: the user's function makes another model than the one that was trained.
    """
    unbound = {table.name: collect_known_rows(table, tables[table.name]) for table in network.tables if not table.rows}
    full = {table.name: materialize_table(table, tables[table.name]) for table in network.tables if table.rows}
    by_layer = {name.rpartition("/")[0]: rows for name, rows in unbound.items()}
    with provide_known_rows(by_layer), filling_embeddings(full) as filled:
        model = build_model(network.module, seed=0, sample=network.sample)
    places = zip(network.variables, network.offsets, strict=True)
    values = full | {spec.name: slab[place].reshape(spec.shape) for spec, place in places}
    plain = ModelVariables.of(model, lambda name: 0, 1, served=False)
    check_same_model(
        trained={name: array.shape for name, array in values.items()} | {n: k.rows.shape for n, k in unbound.items()},
        made={spec.name: spec.shape for spec in plain.specs},
    )
    for spec, weight in zip(plain.specs, plain.weights, strict=True):
        if spec.name not in unbound and not any(weight is each for each in filled):
            weight.assign(values[spec.name])
    return model


def _can_serialize(model: Any) -> bool:
    try:
        keras.saving.serialize_keras_object(model)
    except Exception as error:  # noqa: BLE001  a user's get_config may raise anything; the SavedModel needs none
        _LOG.warning("no .keras file is exported, only the SavedModel: Keras cannot describe the model: %s", error)
        return False
    return True


def _with_keras_layers(model: Any, features: Any, sample: Any) -> Any:
    """The model with layers of Keras in place of EDL's where that can be."""
    try:
        model = replace_edl_layers(model, features, sample)
    except Exception as error:  # noqa: BLE001  Keras clones the user's model with the user's code; the file needs none
        _LOG.warning("layers of edl.layers stay in the .keras file: Keras cannot clone the model: %s", error)
    if needs_edl_layers(model):
        _LOG.info("the .keras file has layers of edl.layers: `import edl.layers` before loading it")
    return model


def _write_keras(model: Any, path: Path) -> None:
    """As ``model.save(path)``, which would hold the file in memory where psutil is installed."""
    parts = path.absolute().with_name(f"{path.name}.parts")  # Keras loses the assets of a relative one
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
    """A SavedModel that takes what the model takes: subclassed models and ragged or sparse features do not say it."""
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
    if parts:  # a signature has plain tensors only, and those of `serve` would be called given, given_1 and so on
        archive.add_endpoint("serving_default", lambda *flat: model(whole(flat), training=False), parts)
    archive.write_out(str(path), verbose=False)


@contextmanager
def _without_default_signature() -> Iterator[None]:
    """TensorFlow finds this property of Keras and traces every subclassed model anew, of dense features of one type.

    A model that takes sparse or ragged features apart raises then.
    """
    keras.Model._default_save_signature = None
    try:
        yield
    finally:
        del keras.Model._default_save_signature


@contextmanager
def _replacing_atomically(path: Path) -> Iterator[Path]:
    """A place beside ``path`` to write to, which then becomes ``path``; removed after an error."""
    beside, earlier = path.with_name(f".new-{path.name}"), path.with_name(f".earlier-{path.name}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if earlier.exists() and not path.exists():  # an export died between the two renames below
            earlier.rename(path)
        _remove_path(beside)
        yield beside
        _sync_tree(beside)
        _remove_path(earlier)
        if path.is_dir():  # a directory cannot be renamed over another
            path.rename(earlier)
        beside.replace(path)
        _remove_path(earlier)
        sync_directory(path.parent)
    except (OSError, RuntimeError, tf.errors.OpError) as error:
        if "No space left" in str(error):  # TensorFlow and HDF5 say it in ways, and at a length, of their own
            raise to_storage_error(
                OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), path, "export the model"
            ) from error
        if isinstance(error, OSError):
            raise to_storage_error(error, path, "export the model") from error
        raise
    finally:
        _remove_path(beside)


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

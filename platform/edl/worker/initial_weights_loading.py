"""Begins a model with the weights of another job (``model.init_from``), under every strategy.

A ``.keras`` file is read by Keras, into a model without tables on parameter servers, and written once into the run's
folder as arrays. From there on it is read like a checkpoint, by workers and by parameter servers.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import keras
import numpy as np

from edl.api.errors import BadInputError
from edl.api.job_spec import JobSpec
from edl.keras.model_building import ModelVariables, build_model, is_seed_state, load_weights
from edl.keras.model_contract import ModelModule
from edl.storage.initial_weights import (
    CONVERTED_FILE,
    STATE_PREFIX,
    InitialWeights,
    StateVariable,
    find_initial_weights,
)
from edl.storage.run_directory import RunDirectory
from edl.storage.run_weights import HELD_DIRECTORY
from edl.storage.safetensors_writer import write_array_file

_LOG = logging.getLogger(__name__)


def open_initial_weights(run: RunDirectory, spec: JobSpec, module: ModelModule, sample: Any) -> InitialWeights | None:
    """The weights that this run begins with; None: its own initial values, or it has begun already.

    Call it before the model is built: to read a ``.keras`` file, another model is built first.

    Args:
        run: the run.
        spec: the job.
        module: the user's module.
        sample: the features of a minibatch, for a model that is built by its first call.

    Raises:
        BadInputError: there are no such weights, or they belong to another model.
        StorageError: a file is damaged, or cannot be read or written.
    """
    weights = find_initial_weights(run, spec)
    if weights is None:
        return None
    path = weights.readable_path
    _LOG.info("the model begins with the weights of %s", weights.path)
    if path.is_dir():
        return InitialWeights.open(path)
    converted = run.path / HELD_DIRECTORY / CONVERTED_FILE
    if not converted.exists():
        _convert_keras_file(path, converted, module, spec.train.seed, sample)
    return InitialWeights.open(converted)


def assign_initial_weights(variables: ModelVariables, initial: InitialWeights | None) -> None:
    """Assign the weights to the variables of a model that has all of its tables, as ``keras.Model.load_weights`` does.

    Counters, and statistics of other types than float32, are among them. States of random generators are not: they
    follow from the seed of this job.

    Raises:
        BadInputError: they belong to another model.
        StorageError: a file is damaged or cannot be read.
    """
    if initial is None:
        return
    initial.check_model(variables.specs)
    for spec, weight in zip(variables.specs, variables.weights, strict=True):
        weight.assign(initial.read_variable(spec))
    local = variables.local_variables
    states = [
        StateVariable(v.path, keras.backend.standardize_dtype(v.dtype), tuple(v.shape), is_seed_state(v)) for v in local
    ]
    for number, value in initial.read_states(states).items():
        local[number].assign(value)


def _convert_keras_file(path: Path, converted: Path, module: ModelModule, seed: int, sample: Any) -> None:
    model = build_model(module, seed=seed, sample=sample)
    variables = ModelVariables.from_model(model, lambda name: 0, 1, trained_by_ps=False, float32_only=False)
    try:
        load_weights(module, model, path)
    # Keras, HDF5 and zipfile raise many kinds of exceptions for a file that does not fit.
    except Exception as error:
        raise BadInputError(
            f"these weights cannot be loaded into the model (model.init_from): {error}",
            where=str(path),
            hint="Give the layers the names and sizes of that model, or name the run that trained it.",
        ) from error
    arrays = {
        f"dense/{spec.name}": np.asarray(weight)
        for spec, weight in zip(variables.specs, variables.weights, strict=True)
    }
    arrays |= {
        f"{STATE_PREFIX}{number}": np.asarray(variable)
        for number, variable in enumerate(variables.local_variables)
        if not is_seed_state(variable)
    }
    # Several workers may do so at the same time, with the same arrays.
    write_array_file(converted, arrays, {})

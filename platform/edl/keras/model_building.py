"""The user's model, made anew: the same initial values in every process, other random numbers in every worker."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any

import keras
import numpy as np

from edl.api.errors import BadInputError
from edl.core.partition import splitmix64
from edl.keras.embedding_conversion import converting_large_embeddings
from edl.keras.model_contract import ModelModule
from edl.keras.user_code import user_code

_UINT32 = 0xFFFFFFFF


def build_model(module: ModelModule, *, seed: int, sample: Any = None, lean_from: int | None = None) -> Any:
    """The user's model, built, with initial values and names that do not depend on what was made before.

    Args:
        module: the user's.
        seed: of the initial values.
        sample: features of a minibatch, for a model that is built by its first call.
        lean_from: bytes of an Embedding from which on it is served; see ``converting_large_embeddings``. None: every
            table is made.

    Raises:
        BadInputError: it can only be built by calling it, and there is no sample; or a large Embedding cannot be
            served.
        UserCodeError: the user's code raised.
    """
    policy = keras.config.dtype_policy()
    with nullcontext() if lean_from is None else converting_large_embeddings(lean_from, seed):
        keras.utils.clear_session(free_memory=False)
        keras.config.set_dtype_policy(policy)  # cleared too, and perhaps set when the module was imported
        keras.utils.set_random_seed(seed)
        model = module.model()
        if sample is not None and not _is_functional(model):
            with user_code(module.zoo, "the model, called on features of feed,"):
                model(sample, training=False)
    if not model.built:
        raise BadInputError("the model is built by its first call, and there are no features to call it on")
    return model


def _is_functional(model: Any) -> bool:
    """Whether the model is made of inputs and outputs: it is built, and calling it would build nothing more."""
    return bool(model.built and getattr(model, "inputs", None))


def seed_worker_randomness(local: Iterable[Any], seed: int, worker: int) -> None:
    """From now on this worker draws random numbers of its own: in the model's layers, in NumPy, TensorFlow and Python.

    Args:
        local: the model's variables that are not in the slab; those of random generators get a new state.
        seed: the job's.
        worker: index.
    """
    own = splitmix64(splitmix64(seed) ^ worker)
    for number, variable in enumerate(v for v in local if is_seed_state(v)):
        variable.assign(np.array([splitmix64(own ^ number) & _UINT32, 0], np.uint32))
    keras.utils.set_random_seed(own & _UINT32)


def is_seed_state(variable: Any) -> bool:
    """Whether this is the state of a ``keras.random.SeedGenerator``."""
    return bool(variable.path.endswith("seed_generator_state"))

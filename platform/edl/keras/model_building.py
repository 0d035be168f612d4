"""Builds the user's model reproducibly: equal initial values in all processes, own random numbers in each worker."""

from __future__ import annotations

import hashlib
import json
import keyword
import logging
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from edl.api.errors import BadInputError
from edl.api.variables import VariableSpec
from edl.core.partition import splitmix64
from edl.core.short_list import format_short_list
from edl.keras.adapted_layers import read_adapted_variables
from edl.keras.keras2_models import Keras2Model, reset_names_and_seed
from edl.keras.model_contract import ModelModule, find_carried_states, refuse_metrics_in_layers
from edl.keras.ps_embedding import converting_large_embeddings
from edl.keras.traced_function import host_array, read_value, spec_for_any_count
from edl.keras.user_code import user_code

_UINT32 = 0xFFFFFFFF


def build_model(module: ModelModule, *, seed: int, sample: Any = None, ps_embedding_bytes: int | None = None) -> Any:
    """Build the user's model with initial values and names that do not depend on earlier models.

    Args:
        module: the user's module.
        seed: the seed of the initial values.
        sample: features of a minibatch, for a model that is built by its first call.
        ps_embedding_bytes: the size in bytes from which an Embedding's table is stored on the PS; see
            ``converting_large_embeddings``. None: the model has all tables itself.

    Raises:
        BadInputError: the model is built by its first call, but there is no sample; or the PS cannot store a large
            Embedding.
        UserCodeError: the user's code raised an exception.
    """
    policy = keras.config.dtype_policy()
    with nullcontext() if ps_embedding_bytes is None else converting_large_embeddings(ps_embedding_bytes, seed):
        keras.utils.clear_session(free_memory=False)
        # clear_session also resets the dtype policy, which the module may have set at import.
        keras.config.set_dtype_policy(policy)
        keras.utils.set_random_seed(seed)
        reset_names_and_seed(seed)
        model = module.make_model()
        if sample is not None and not _is_functional(model):
            with user_code(module.zoo, "the model, called on features of feed,"), undoing_changes(model):
                model(sample, training=False)
    if not model.built:
        raise BadInputError("the model is built by its first call, but there are no records to call it with")
    # Layers may create metrics in build(), after the check in make_model().
    refuse_metrics_in_layers(model)
    read_adapted_variables(model)
    return model


@contextmanager
def undoing_changes(model: Any) -> Iterator[None]:
    """Undo what a call of the model does to its variables, also to those that the call makes.

    So the call that builds a model leaves random generators, statistics and the states of stateful layers as they
    begin: ``fit`` builds a model without such changes.
    """
    kept: dict[int, tuple[Any, Any]] = {}

    def keep(variables: Iterable[Any]) -> None:
        for variable in variables:
            # Not ``value``: within a call with mixed precision that is a copy of another type.
            made = variable._value
            if made is not None and id(variable) not in kept:
                kept[id(variable)] = variable, tf.raw_ops.ReadVariableOp(resource=made.handle, dtype=made.dtype)

    def build_and_keep(layer: Any, *arguments: Any, **named: Any) -> None:
        maybe_build(layer, *arguments, **named)
        # Keras may build a model by a symbolic call, in which variables have no value yet.
        if tf.executing_eagerly():
            keep(layer.variables)

    keep((*model.variables, *find_carried_states(model)))
    maybe_build = keras.layers.Layer._maybe_build
    keras.layers.Layer._maybe_build = build_and_keep
    try:
        yield
    finally:
        keras.layers.Layer._maybe_build = maybe_build
    for variable, old in kept.values():
        _restore(variable, old)
    for variable in model.variables:
        if is_seed_state(variable) and id(variable) not in kept:
            variable.assign(np.array([np.asarray(variable)[0], 0], np.uint32))
    for variable in find_carried_states(model):
        if id(variable) not in kept:
            variable.assign(np.zeros(variable.shape, variable.dtype))


def _restore(variable: Any, old: Any) -> None:
    """Assign the value that was read before, if it is another one now.

    TensorFlow gives a variable new memory if somebody has read the old one and still holds it.
    """
    places = [host_array(each).__array_interface__["data"] for each in (old, read_value(variable))]
    if places[0] != places[1]:
        variable.assign(old)


def _is_functional(model: Any) -> bool:
    """Whether the model is functional and therefore already built."""
    return bool(model.built and getattr(model, "inputs", None))


def seed_worker_randomness(local_variables: Iterable[Any], seed: int, worker_index: int) -> None:
    """Seed this worker's random numbers: in the model's layers, NumPy, TensorFlow and Python.

    Args:
        local_variables: the model's variables outside the flat buffer; states of random generators are replaced.
        seed: the job's seed.
        worker_index: this worker's index.
    """
    worker_seed = splitmix64(splitmix64(seed) ^ worker_index)
    for number, variable in enumerate(v for v in local_variables if is_seed_state(v)):
        variable.assign(np.array([splitmix64(worker_seed ^ number) & _UINT32, 0], np.uint32))
    keras.utils.set_random_seed(worker_seed & _UINT32)


def is_seed_state(variable: Any) -> bool:
    """Whether this variable is the state of a ``keras.random.SeedGenerator``."""
    return bool(variable.path.endswith("seed_generator_state"))


def find_users_statistics(model: Any, changed: Iterable[Any]) -> list[str]:
    """Paths of those of the variables ``changed`` by a forward pass that are of layers that are not Keras' own."""
    of_keras = {
        id(variable)
        for layer in model._flatten_layers()
        if type(layer).__module__.startswith("keras.")
        for variable in (*layer._trainable_variables, *layer._non_trainable_variables)
    }
    return [variable.path for variable in changed if id(variable) not in of_keras]


# --------------------------------------------------------------------------------------------------
# The dense variables of a model: names, owners, and order in the flat buffer.


_LOG = logging.getLogger(__name__)

FLOAT_TYPES = frozenset({"bfloat16", "float16", "float32", "float64"})
"""The types of variables that Keras' own optimizers train."""


@dataclass(frozen=True)
class ModelVariables:
    """A model's variables in flat order: by PS, trained ones first, then in the model's order.

    Attributes:
        specs: the variables in the flat buffer.
        weights: the Keras variable of each spec.
        ps_slices: the slice of the flat buffer that each PS owns.
        local_variables: variables outside the flat buffer: states of random generators, constants of other types.
    """

    specs: tuple[VariableSpec, ...]
    weights: tuple[Any, ...]
    ps_slices: tuple[slice, ...]
    local_variables: tuple[Any, ...]

    @classmethod
    def from_model(
        cls,
        model: Any,
        ps_of_variable: Callable[[str], int],
        ps_count: int,
        *,
        trained_by_ps: bool = True,
        float32_only: bool = True,
    ) -> ModelVariables:
        """The variables of a built model.

        Args:
            model: the user's built model.
            ps_of_variable: the index of the PS that owns a variable.
            ps_count: number of PS.
            trained_by_ps: whether the PS train the variables; otherwise Keras' optimizer does, which applies
                constraints.
            float32_only: refuse trained variables of other types. If False, trained variables of all float types are
                among ``specs``; ``read_values`` and ``assign_values`` then round them to float32.

        Raises:
            BadInputError: a trained variable is quantized or not float32, or has a constraint that the PS cannot apply.
        """
        trained_types = frozenset({"float32"}) if float32_only else FLOAT_TYPES
        named_variables = _name_variables(
            [weight for weight in model.weights if _is_in_flat_buffer(weight, trained_by_ps, trained_types)]
        )
        order = sorted(named_variables, key=lambda item: (ps_of_variable(item[0].name), item[0].statistic))
        sizes = [
            sum(spec.size for spec, _ in named_variables if ps_of_variable(spec.name) == index)
            for index in range(ps_count)
        ]
        bounds = list(accumulate(sizes, initial=0))
        included_ids = {id(weight) for _, weight in named_variables}
        return cls(
            specs=tuple(spec for spec, _ in order),
            weights=tuple(weight for _, weight in order),
            ps_slices=tuple(slice(start, stop) for start, stop in pairwise(bounds)),
            local_variables=tuple(v for v in model.non_trainable_variables if id(v) not in included_ids),
        )

    @property
    def trained_positions(self) -> tuple[int, ...]:
        return tuple(index for index, spec in enumerate(self.specs) if not spec.statistic)

    @property
    def states(self) -> dict[str, Any]:
        """The variables that a flat buffer of float32 lacks or rounds, by name and type.

        Without the states of random generators, which every process makes anew.
        """
        rounded = [v for v in self.weights if v.dtype != "float32"]
        named = _name_variables([*rounded, *(v for v in self.local_variables if not is_seed_state(v))])
        return {f"{spec.name} ({variable.dtype})": variable for spec, variable in named}

    @property
    def offsets(self) -> tuple[slice, ...]:
        """The slice of the flat buffer that each variable has."""
        return tuple(slice(a, b) for a, b in pairwise(accumulate((s.size for s in self.specs), initial=0)))

    def read_values(self) -> NDArray[np.float32]:
        """The current values of the Keras variables in a new flat buffer."""
        flat = [np.asarray(weight, np.float32).ravel() for weight in self.weights]
        return np.concatenate([np.empty(0, np.float32), *flat])

    def assign_values(self, flat_values: NDArray[np.float32]) -> None:
        """Assign the flat values to the Keras variables."""
        for weight, spec, place in zip(self.weights, self.specs, self.offsets, strict=True):
            weight.assign(flat_values[place].reshape(spec.shape))

    def fingerprint(self, *more: Any) -> str:
        """A digest of names, shapes, owners and ``more`` JSON values.

        Only workers whose models have equal digests may train together.
        """
        # Sorted, because the flat order depends on the number of PS, and a job may be resumed with
        # another number.
        facts = sorted([s.name, s.shape, s.statistic] for s in self.specs)
        return hashlib.sha256(json.dumps([facts, *more], sort_keys=True).encode()).hexdigest()


def refuse_lossy_export(model: Any) -> None:
    """Refuse a trained variable that an export would round, before anything is trained.

    Raises:
        BadInputError: names the variable.
    """
    for weight in model.trainable_weights:
        if weight.dtype != "float32":
            raise BadInputError(
                f"the trained variable '{weight.path}' is {weight.dtype}, and exported files have float32 variables",
                where="export",
                hint="set export: null (checkpoints keep the type), or train float32 variables; for mixed precision "
                "use the policy mixed_bfloat16",
            )


_EXPORTED_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*", re.ASCII)
"""Names of inputs that a SavedModel can have. Dots and hyphens become underscores there."""


def is_exported_name(name: str) -> bool:
    """Whether a SavedModel can have an input of this name: TensorFlow makes it a parameter of a Python function."""
    return _EXPORTED_NAME.fullmatch(name) is not None and not keyword.iskeyword(name) and name != "self"


def refuse_unexportable_inputs(model: Any) -> None:
    """Refuse names of inputs with which Keras cannot write a SavedModel, before anything is trained.

    They do no harm to training. Of a model that does not declare its inputs, and of sparse or ragged inputs, Keras does
    not use the names.

    Raises:
        BadInputError: names the input.
    """
    inputs = getattr(model, "inputs", None) or ()
    if isinstance(model, Keras2Model) or any(each.sparse or each.ragged for each in inputs):
        return
    names_by_argument: dict[str, str] = {}
    for name in (each.name for each in inputs):
        if not is_exported_name(name):
            raise BadInputError(
                f"the model cannot be exported: a SavedModel has no input '{name}'",
                where="export",
                hint="use ASCII letters, digits, '_', '-' and '.', begin with a letter or a digit, and use no keyword "
                "of Python, in keras.Input(name=...) and in the features that feed returns, or set export: null",
            )
        argument = name.lower().replace(".", "_").replace("-", "_")
        other = names_by_argument.setdefault(argument, name)
        if other != name:
            raise BadInputError(
                f"the model cannot be exported: the inputs '{other}' and '{name}' have the same name in a SavedModel",
                where="export",
                hint="give keras.Input(name=...) names that differ in more than upper case, '.' and '-', or set "
                "export: null",
            )


def _is_in_flat_buffer(weight: Any, trained_by_ps: bool, trained_types: frozenset[str]) -> bool:
    if weight.dtype == "float32" or (weight.trainable and weight.dtype in trained_types):
        return _check_constraint(weight, trained_by_ps)
    if weight.trainable:
        raise BadInputError(
            f"the trained variable '{weight.path}' is {weight.dtype}; EDL trains float32 variables only",
            hint="for mixed precision use the policy mixed_bfloat16: its variables stay float32",
        )
    return False


def _check_constraint(weight: Any, trained_by_ps: bool) -> bool:
    if trained_by_ps and weight.trainable and getattr(weight, "constraint", None) is not None:
        raise BadInputError(
            f"the constraint {type(weight.constraint).__name__} of '{weight.path}' cannot be applied by the parameter "
            "servers",
            hint="remove the constraint, use a regularizer, or train with strategy: {name: AllReduce} or "
            "strategy: {name: Local}, which apply it",
        )
    if getattr(weight, "overwrite_with_gradient", False):
        raise BadInputError(f"the quantized variable '{weight.path}' cannot be trained by EDL")
    return True


def _name_variables(weights: Sequence[Any]) -> list[tuple[VariableSpec, Any]]:
    counts: dict[str, int] = {}
    named = []
    for weight in weights:
        # Keras does not require unique paths.
        counts[weight.path] = count = counts.get(weight.path, 0) + 1
        name = weight.path if count == 1 else f"{weight.path}#{count}"
        named.append((VariableSpec(name, tuple(weight.shape), not weight.trainable), weight))
    return named


# --------------------------------------------------------------------------------------------------
# A model's inputs without values: types and shapes for any number of records.


_ARGUMENT_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*", re.ASCII)
"""Names that TensorFlow accepts as signature arguments and returns unchanged."""


def derive_feature_spec(model: Any, sample: Any) -> Any:
    """Nested TensorSpecs of a model's features.

    Args:
        model: a built model.
        sample: features of a minibatch; None for a model that declares its inputs.

    Raises:
        BadInputError: the model does not declare its inputs, and there is no sample.
    """
    if sample is not None:
        return tf.nest.map_structure(spec_for_any_count, sample)
    # A Sequential keeps its functional graph here.
    graph = getattr(model, "_functional", model)
    if getattr(graph, "_inputs_struct", None) is None:
        raise BadInputError("the model does not declare its inputs, and there are no records to derive them from")
    return tf.nest.map_structure(_input_spec, graph._inputs_struct)


def _input_spec(keras_input: Any) -> Any:
    shape = [None, *keras_input.shape[1:]]
    if keras_input.ragged:
        return tf.RaggedTensorSpec(shape, keras_input.dtype, keras_input.ragged_rank or 1)
    if keras_input.sparse:
        return tf.SparseTensorSpec(shape, keras_input.dtype)
    return tf.TensorSpec(shape, keras_input.dtype)


def named_component_specs(features: Any) -> list[tf.TensorSpec] | None:
    """The dense tensors that features consist of, in the order of ``tf.nest.flatten``, named after the features.

    A dense feature ``tags`` is one tensor ``tags``. A ragged one is ``tags_values`` and ``tags_row_splits``, a sparse
    one ``tags_indices``, ``tags_values`` and ``tags_dense_shape``.

    Args:
        features: nested TensorSpecs.

    Returns:
        None if there are no usable names: the features are not a flat mapping, TensorFlow would change a name, or two
        names are equal without regard to case.
    """
    if not isinstance(features, Mapping) or any(isinstance(spec, Mapping | list | tuple) for spec in features.values()):
        return None
    names = [name for key in sorted(features, key=str) for name in _component_names(str(key), features[key])]
    if not all(_ARGUMENT_NAME.fullmatch(name) and is_exported_name(name) for name in names) or len(
        {name.lower() for name in names}
    ) < len(names):
        return None
    parts = tf.nest.flatten(features, expand_composites=True)
    return [tf.TensorSpec(part.shape, part.dtype, name) for part, name in zip(parts, names, strict=True)]


def _component_names(name: str, spec: Any) -> Iterator[str]:
    if isinstance(spec, tf.SparseTensorSpec):
        yield from (f"{name}_indices", f"{name}_values", f"{name}_dense_shape")
    elif isinstance(spec, tf.RaggedTensorSpec):
        yield f"{name}_values"
        splits = f"{name}_row_splits"
        yield from [splits] if spec.ragged_rank == 1 else [f"{splits}_{rank}" for rank in range(spec.ragged_rank)]
    else:
        yield name


# --------------------------------------------------------------------------------------------------
# Check that the model function builds the same model again, by names and shapes of its variables.
# The export finds a variable's value by its name. If a name differed at each call, for example
# because of a counter, the exported variable would keep its initial value.


_MAX_LISTED_NAMES = 3
"""Maximum number of names in an error."""

ShapesByName = Mapping[str, tuple[int, ...]]


def make_serving_model(module: ModelModule, model: Any) -> Any:
    """The model that is exported: what the module's ``serving_model`` makes of the trained one, or that itself.

    Raises:
        BadInputError: the function returns no functional model.
        UserCodeError: it raised.
    """
    if module.serving_model is None:
        return model
    served = module.serving_model(model)
    if not isinstance(served, keras.Model) or getattr(served, "_inputs_struct", None) is None:
        raise BadInputError(
            f"serving_model() returned {type(served).__name__}, expected a keras.Model with inputs",
            where=str(module.zoo),
            hint="return keras.Model(inputs, model(...))",
        )
    return served


def load_weights(module: ModelModule, model: Any, path: Path) -> None:
    """Load a file of Keras into a model, also one of the model that was exported for it."""
    if module.serving_model is not None:
        # The serving model of a wide table has thousands of inputs, and takes minutes.
        makers = (partial(_wrap_trained_model, model, path), partial(make_serving_model, module, model))
        for make_exported in makers:
            try:
                make_exported().load_weights(path)
            except Exception as error:  # noqa: BLE001  of Keras, HDF5 and zipfile: it may be a file of the model itself
                _LOG.debug("%s is no file of the serving model: %s", path, error)
            else:
                return
    model.load_weights(path)


def _wrap_trained_model(model: Any, path: Path) -> Any:
    """A model around the trained one that loads a file of the serving model.

    Raises:
        ValueError: the file holds other models, too.
    """
    with zipfile.ZipFile(path) as archive:
        layers = json.loads(archive.read("config.json"))["config"]["layers"]
    # Keras finds the weights of a layer by its class, and its number among those of this class.
    kind = type(model).__name__
    if sum(each["class_name"] == kind for each in layers) != 1:
        raise ValueError(f"not one layer is a {kind}")
    given = keras.tree.map_structure(lambda each: keras.Input(batch_shape=each.shape, dtype=each.dtype), model.input)
    return keras.Model(keras.tree.flatten(given), model(given))


def check_same_model(*, trained: ShapesByName, rebuilt: ShapesByName) -> None:
    """Refuse a rebuilt model that differs from the trained one.

    Args:
        trained: shapes of the trained model's variables and tables, by name.
        rebuilt: the same for the new model.

    Raises:
        BadInputError: they differ; the error lists the differences.
    """
    missing, added = sorted(trained.keys() - rebuilt.keys()), sorted(rebuilt.keys() - trained.keys())
    differing = sorted(name for name in trained.keys() & rebuilt.keys() if trained[name] != rebuilt[name])
    differences = [f"missing: {_quote_first_names(missing)}"] if missing else []
    differences += [f"new: {_quote_first_names(added)}"] if added else []
    differences += [
        f"'{name}' is {_format_shape(rebuilt[name])}, but was {_format_shape(trained[name])} in training"
        for name in differing[:_MAX_LISTED_NAMES]
    ]
    if differences:
        again = ". After you restore the missing names, a resumed run exports the model" if missing else ""
        raise BadInputError(
            f"the model function returned a different model for the export than for training "
            f"({'; '.join(differences)})",
            hint="it is called once for each: layer names and sizes must be the same at each call, without a running "
            f"counter or a random number{again}",
        )


def _quote_first_names(names: Iterable[str]) -> str:
    return format_short_list([f"'{name}'" for name in names], _MAX_LISTED_NAMES)


def _format_shape(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) or "a number"

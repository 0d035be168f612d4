"""Models for Keras 2 (``tf_keras``): all that differs from Keras 3 is in this module.

EDL is written for Keras 3. A model of Keras 2 becomes a Keras 3 model with the same variables (:class:`Keras2Model`),
and optimizer, losses, metrics and callbacks of Keras 2 become those of Keras 3 that compute the same. So every strategy
works with both, and nothing else in EDL knows of Keras 2. Exports are the user's own Keras 2 model.

With ``model.keras: 2``, or ``TF_USE_LEGACY_KERAS=1`` in the environment, ``tf.keras`` is ``tf_keras``. TensorFlow reads
this variable when it is imported.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.common.stateless_scope import in_stateless_scope

from edl.api.errors import BadInputError
from edl.jobfile.keras_version import LEGACY_VARIABLE, uses_keras2
from edl.keras import row_binding
from edl.keras.adapted_layers import read_adapted_variables
from edl.keras.traced_function import spec_for_any_count
from edl.keras.user_code import source_file
from edl.keras.written_variables import find_written_variables
from edl.reporting.unit_formats import format_bytes

_LOG = logging.getLogger(__name__)
_OWN_PACKAGE = "tf_keras"
_INSTALL = (
    "install EDL with the extra keras2 in an environment of its own, or build the training image with "
    "--build-arg EXTRA=keras2 --build-arg TENSORFLOW=tensorflow"
)


def is_keras2(value: Any) -> bool:
    """Whether a value is an object of Keras 2, or of a class derived from one."""
    return any(base.__module__.split(".")[0] == _OWN_PACKAGE for base in type(value).__mro__)


def _is_builtin(value: Any) -> bool:
    return type(value).__module__.split(".")[0] == _OWN_PACKAGE


def check_installation() -> None:
    """Check that this process can run models of Keras 2.

    Raises:
        BadInputError: tf_keras is not installed, or TensorFlow was imported without the variable.
    """
    if importlib.util.find_spec(_OWN_PACKAGE) is None:
        raise BadInputError("the job's model is for Keras 2, but tf_keras is not installed", hint=_INSTALL)
    if not uses_keras2(None):
        raise BadInputError(
            f"the job's model is for Keras 2, but TensorFlow was imported without {LEGACY_VARIABLE}=1",
            hint=f"set {LEGACY_VARIABLE}=1 in the environment of the process",
        )


# --------------------------------------------------------------------------------------------------
# Imports of the user's module.

_PRIVATE_COPY = "tensorflow.python.keras"
"""A private, older copy of Keras in TensorFlow. Its layers cannot be used in models of tf_keras; those of tf_keras have
the same names."""
_PRIVATE_MODULES = (
    "activations",
    "backend",
    "callbacks",
    "constraints",
    "initializers",
    "layers",
    "losses",
    "metrics",
    "models",
    "optimizers",
    "regularizers",
    "utils",
)


@contextmanager
def public_names_for_private_imports() -> Iterator[None]:
    """Let ``tensorflow.python.keras`` be ``tf_keras`` while the user's module is imported."""
    replaced = {}
    for name in ("", *(f".{each}" for each in _PRIVATE_MODULES)):
        # What only the copy has, such as functions on tensors, stays.
        private, public = (importlib.import_module(f"{package}{name}") for package in (_PRIVATE_COPY, _OWN_PACKAGE))
        replaced[private.__name__] = merged = ModuleType(private.__name__)
        own = {key: value for key, value in vars(public).items() if not key.startswith("_")}
        vars(merged).update(vars(private) | own)
    for name in _PRIVATE_MODULES:
        setattr(replaced[_PRIVATE_COPY], name, replaced[f"{_PRIVATE_COPY}.{name}"])
    parent: Any = importlib.import_module("tensorflow.python")
    before = {name: sys.modules.get(name) for name in replaced}
    attribute = getattr(parent, "keras", None)
    sys.modules.update(replaced)
    parent.keras = replaced[_PRIVATE_COPY]
    try:
        yield
    finally:
        parent.keras = attribute
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module


def adapt_module(module: ModuleType) -> ModuleType:
    """The user's module with optimizer, losses, metrics and callbacks of Keras 3 in place of those of Keras 2."""
    adapted = ModuleType(module.__name__)
    vars(adapted).update(vars(module))
    for name, adapt in (
        ("loss", to_keras3_loss),
        ("optimizer", to_keras3_optimizer),
        ("eval_metrics_fn", to_keras3_metrics),
        ("weighted_metrics_fn", to_keras3_metrics),
        ("callbacks", to_keras3_callbacks),
    ):
        value = getattr(module, name, None)
        if value is None:
            continue
        if name != "loss" and callable(value) and not is_keras2(value):
            value = _adapt_result(value, adapt)
        else:
            value = adapt(value)
        setattr(adapted, name, value)
    return adapted


def _adapt_result(function: Callable[..., Any], adapt: Callable[[Any], Any]) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        return adapt(function(*arguments))

    call.__wrapped__ = function  # type: ignore[attr-defined]  # its signature, name and file are the user's
    call.__name__ = getattr(function, "__name__", "call")
    call.__module__ = getattr(function, "__module__", __name__)
    return call


def reset_names_and_seed(seed: int) -> None:
    """Let the next model of Keras 2 have names and initial values that do not depend on earlier models."""
    if _OWN_PACKAGE in sys.modules:
        tf_keras = sys.modules[_OWN_PACKAGE]
        tf_keras.backend.reset_uids()
        tf_keras.utils.set_random_seed(seed)


# --------------------------------------------------------------------------------------------------
# The model.


@contextmanager
def finding_keras3_layers() -> Iterator[list[Any]]:
    """Yields a list of the layers of Keras 3 with variables that are called until the end of the context.

    An error within a call would not do: Keras 2 replaces it by one of its own.
    """
    keras3_layers: list[Any] = []
    call = keras.layers.Layer.__call__

    def noting_call(layer: Any, *arguments: Any, **named: Any) -> Any:
        result = call(layer, *arguments, **named)
        if type(layer).__module__.split(".")[0] != "edl" and layer.trainable_variables:
            keras3_layers.append(layer)
        return result

    keras.layers.Layer.__call__ = noting_call
    try:
        yield keras3_layers
    finally:
        keras.layers.Layer.__call__ = call


def refuse_keras3_layers(layers: Sequence[Any], where: str) -> None:
    """Refuse a model of Keras 2 that calls layers of Keras 3: it does not know their variables, and trains none.

    Raises:
        BadInputError: there are such layers.
    """
    for layer in layers:
        kind = type(layer).__name__
        raise BadInputError(
            f"the layer '{layer.name}' ({kind}) is one of Keras 3 in a model of Keras 2, which would not train its "
            "variables",
            where=where,
            hint=f"use tf.keras.layers.{kind}, or derive your layer from tf.keras.layers.Layer: `import keras` is "
            "Keras 3",
        )


class _Instance:
    """A model of Keras 2, and its variables in the order of the Keras 3 model's.

    A plain object: neither Keras 3 nor TensorFlow tracks what is in it.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self.trained: list[Any] = []
        self.others: list[Any] = []
        self.trained_twins: list[Any] = []
        self.other_twins: list[Any] = []
        self.written: frozenset[int] = frozenset()

    @property
    def declares_inputs(self) -> bool:
        """Whether the model is functional, or a Sequential that knows its inputs."""
        return bool(getattr(self.model, "_is_graph_network", False) and self.model.inputs)

    def bind(self, features: Any) -> None:
        """Let the model create its variables, and find those that a call in training changes, by position.

        Args:
            features: of a minibatch; None for a model that declares its inputs.
        """
        read_adapted_variables(self.model)
        with finding_keras3_layers() as keras3_layers:
            self._trace(features)
        refuse_keras3_layers(keras3_layers, "the model")

    def _trace(self, features: Any) -> None:
        if not self.declares_inputs:
            self.model(features, training=False)
        self.trained = list(self.model.trainable_variables)
        self.others = list(self.model.non_trainable_variables)
        specs = tf.nest.map_structure(
            spec_for_any_count if features is not None else _input_type,
            features if features is not None else self.model._nested_inputs,
        )
        forward = tf.function(lambda given: self.model(given, training=True), autograph=False)
        handles = {handle for _, handle in find_written_variables(forward.get_concrete_function(specs).graph)}
        self.written = frozenset(at for at, variable in enumerate(self.others) if id(variable.handle) in handles)
        for variable in self.trained:
            if id(variable.handle) in handles:
                raise BadInputError(
                    f"the model of Keras 2 writes its trained variable '{variable.name.split(':')[0]}' itself, as "
                    "SpectralNormalization does, which EDL would ignore",
                    where="the model",
                    hint="write the model for Keras 3 (keras instead of tf.keras, without model.keras: 2) and train "
                    "with strategy: {name: Local}",
                )


class Keras2Model(keras.Model):  # type: ignore[misc]  # Keras has no types
    """A Keras 3 model that calls a model of Keras 2 with the values of its own variables.

    Each call assigns the values to the variables of the Keras 2 model, runs it, and takes the values of those that it
    changes (moving statistics). Gradients are those with respect to the assigned values.

    A second instance of the user's model serves calls with copied values, because the evaluation of a copy runs beside
    the training step on another thread.

    Args:
        legacy: the user's model.
        make_again: makes it once more.
    """

    def __init__(self, legacy: Any, make_again: Callable[[], Any]) -> None:
        # Values are cast as the user's layers say, not by this model.
        super().__init__(name=legacy.name, dtype="float32", autocast=False)
        self._own = _Instance(legacy)
        self._make_again = make_again
        self._copy: _Instance | None = None
        if self._own.declares_inputs:
            self._bind(None)

    @property
    def legacy(self) -> Any:
        """The user's model."""
        return self._own.model

    @property
    def assigned_variables(self) -> tuple[Any, ...]:
        """The variables of the user's models, which each call assigns; they are no state."""
        copied = () if self._copy is None else (*self._copy.trained, *self._copy.others)
        return (*self._own.trained, *self._own.others, *copied)

    @property
    def inputs(self) -> Any:
        """The declared inputs of a functional model; None if it has none."""
        return self._own.model.inputs if self._own.declares_inputs else None

    @property
    def output_names(self) -> Sequence[str]:
        """The names of the outputs of a functional model."""
        return list(self._own.model.output_names) if self._own.declares_inputs else []

    @property
    def _inputs_struct(self) -> Any:
        return tf.nest.map_structure(_describe_input, self._own.model._nested_inputs) if self.inputs else None

    def __call__(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if not self.built:
            with tf.init_scope():
                self._bind(inputs)
        return super().__call__(inputs, *args, **kwargs)

    def _bind(self, features: Any) -> None:
        own, names = self._own, dict[str, int]()
        own.bind(features)
        own.trained_twins = [self._make_twin(variable, names, trainable=True) for variable in own.trained]
        own.other_twins = [self._make_twin(variable, names, trainable=False) for variable in own.others]
        # Keras tracks them and their variables as parts of this model.
        self.edl_layers = [each.edl_layer for each in own.model._flatten_layers() if hasattr(each, "edl_layer")]
        # In a plain object, which Keras does not track.
        self._sample_holder = SimpleNamespace(features=features)
        self.built = True

    def _make_twin(self, variable: Any, names: dict[str, int], *, trainable: bool) -> Any:
        # A name in Keras 3 has no slash.
        name = variable.name.split(":")[0].replace("/", ".")
        names[name] = count = names.get(name, 0) + 1
        return self.add_weight(
            name=name if count == 1 else f"{name}_{count}",
            shape=variable.shape,
            dtype=tf.as_dtype(variable.dtype).name,
            trainable=trainable,
            initializer=lambda shape, dtype: tf.cast(tf.convert_to_tensor(variable), dtype),
            constraint=_to_keras3_constraint(getattr(variable, "constraint", None)) if trainable else None,
        )

    def build(self, input_shape: Any = None) -> None:
        """Nothing is left to build: the variables exist since the first call."""

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        """Run the user's model with the values of this model's variables."""
        instance = self._choose_instance(training)
        trained = [tf.convert_to_tensor(twin.value) for twin in self._own.trained_twins]
        others = [tf.convert_to_tensor(twin.value) for twin in self._own.other_twins]
        ran: list[Any] = []
        # What layers of EDL read is passed as well: only arguments have gradients.
        inner = [variable for layer in self.edl_layers for variable in layer.trainable_variables]
        inner_values = [tf.convert_to_tensor(variable.value) for variable in inner]
        rows = row_binding.bound_rows() if self.edl_layers else None
        row_values = [] if rows is None else [values for _, values in rows.pulled_rows.values()]

        @tf.custom_gradient  # type: ignore[untyped-decorator]
        def run(*arguments: Any) -> Any:
            values, more = arguments[: len(trained)], arguments[len(trained) :]
            assigned = [
                variable.assign(tf.cast(value, variable.dtype))
                for variable, value in zip((*instance.trained, *instance.others), (*values, *others), strict=True)
            ]
            with tf.control_dependencies([each for each in assigned if isinstance(each, tf.Tensor)]):
                with tf.GradientTape() as tape, ExitStack() as scopes:
                    tape.watch(more)
                    if inner:
                        scopes.enter_context(keras.StatelessScope(list(zip(inner, more, strict=False))))
                    if rows is not None:
                        scopes.enter_context(row_binding.using_row_provider(rows.with_values(more[len(inner) :])))
                    outputs = instance.model(inputs, training=bool(training))
                    losses = [tf.convert_to_tensor(loss) for loss in instance.model.losses]
                ran[:] = [outputs, len(losses)]
                flat = tf.nest.flatten(outputs)
                changed = [tf.convert_to_tensor(variable) for variable in instance.others]

            def grad(*upstream: Any, variables: Sequence[Any] = ()) -> Any:
                count = len(flat) + len(losses)
                # As Keras 2 has them: None for a variable that the loss does not use, rows of an embedding.
                gradients = tape.gradient(
                    [*flat, *losses], [*instance.trained, *more], output_gradients=list(upstream[:count])
                )
                return gradients, [None] * len(variables)

            return [*flat, *losses, *changed], grad

        results = list(run(*trained, *inner_values, *row_values))
        outputs, loss_count = ran
        flat_count = len(tf.nest.flatten(outputs))
        for loss in results[flat_count : flat_count + loss_count]:
            self.add_loss(loss)
        if training:
            for at, value in enumerate(results[flat_count + loss_count :]):
                if at in instance.written:
                    self._own.other_twins[at].assign(value)
        return _with_masks(outputs, tf.nest.pack_sequence_as(outputs, results[:flat_count]))

    def _choose_instance(self, training: bool | None) -> _Instance:
        if training or not in_stateless_scope():
            return self._own
        if self.edl_layers:
            # A second model would have other tables. With parameter servers, one thread trains and evaluates.
            if row_binding.has_row_provider():
                return self._own
            raise BadInputError(
                "a model of Keras 2 with layers of edl.layers cannot be evaluated while it trains",
                where="evaluation.max_workers",
                hint="set evaluation.max_workers: 0, so that all workers pause for an evaluation",
            )
        if self._copy is None:
            # The scope has no values for new variables, and this one's are never trained.
            with tf.init_scope(), keras.StatelessScope(initialize_variables=False):
                self._copy = _Instance(self._make_again())
                self._copy.bind(self._sample_holder.features)
            own = {id(variable) for variable in (*self._own.trained, *self._own.others)}
            if any(id(variable) in own for variable in (*self._copy.trained, *self._copy.others)):
                raise BadInputError(
                    "the model function returned a model of Keras 2 that shares variables with its first one, so a "
                    "copy cannot be evaluated while the model trains",
                    where="the model",
                    hint="make all layers inside the function, or set evaluation.max_workers: 0",
                )
        return self._copy

    def assign_legacy(self) -> Any:
        """Assign the present values to the user's model, and return it."""
        for twin, variable in self._pairs():
            variable.assign(tf.cast(twin.value, variable.dtype))
        return self._own.model

    def _pairs(self) -> Iterator[tuple[Any, Any]]:
        own = self._own
        yield from zip((*own.trained_twins, *own.other_twins), (*own.trained, *own.others), strict=True)

    def load_weights(self, filepath: Any, *args: Any, **kwargs: Any) -> None:
        """Load a file that Keras 2 wrote."""
        self._own.model.load_weights(filepath, *args, **kwargs)
        for twin, variable in self._pairs():
            twin.assign(tf.convert_to_tensor(variable))


def name_class(model: Any) -> str:
    """The name of the class of the user's model."""
    return type(model.legacy if isinstance(model, Keras2Model) else model).__name__


def assigned_handles(model: Any) -> tuple[Any, ...]:
    """Handles of variables that a call of the model assigns, and that are no state of it."""
    return tuple(each.handle for each in model.assigned_variables) if isinstance(model, Keras2Model) else ()


def refuse_overlap(model: Any) -> None:
    """Refuse ``strategy.overlap`` for a model whose ids are found by calling it, while another thread trains it.

    Raises:
        BadInputError: it is a model of Keras 2 with layers of ``edl.layers``.
    """
    if isinstance(model, Keras2Model) and model.edl_layers:
        raise BadInputError(
            "found true, but a model of Keras 2 with layers of edl.layers makes one step at a time",
            where="strategy.overlap",
            hint="leave it out",
        )


def warn_of_dense_embeddings(model: Any, least_bytes: int) -> None:
    """Warn of Embeddings that would be tables on parameter servers in a model of Keras 3."""
    if not isinstance(model, Keras2Model):
        return
    kind = importlib.import_module(_OWN_PACKAGE).layers.Embedding
    for layer in model.legacy._flatten_layers():
        size = 4 * layer.input_dim * layer.output_dim if isinstance(layer, kind) else 0
        if size and size >= least_bytes:
            _LOG.warning(
                "the embedding '%s' of Keras 2 (%s) is an ordinary variable: each worker pulls and pushes it as "
                "a whole in every step; in a model of Keras 3 its rows would be on the parameter servers",
                layer.name,
                format_bytes(size),
            )


def _input_type(tensor: Any) -> Any:
    """The TensorSpec of an input of Keras 2, for any number of records."""
    spec = tensor.type_spec
    shape = [None, *spec.shape[1:]]
    if isinstance(spec, tf.RaggedTensorSpec):
        return tf.RaggedTensorSpec(shape, spec.dtype, spec.ragged_rank)
    return (
        tf.SparseTensorSpec(shape, spec.dtype)
        if isinstance(spec, tf.SparseTensorSpec)
        else tf.TensorSpec(shape, spec.dtype)
    )


def _describe_input(tensor: Any) -> Any:
    """An input of Keras 2 with the attributes of one of Keras 3."""
    spec = _input_type(tensor)
    ragged = isinstance(spec, tf.RaggedTensorSpec)
    return SimpleNamespace(
        shape=tuple(spec.shape),
        dtype=spec.dtype.name,
        ragged=ragged,
        sparse=isinstance(spec, tf.SparseTensorSpec),
        ragged_rank=spec.ragged_rank if ragged else None,
    )


def _with_masks(outputs: Any, results: Any) -> Any:
    """The results with the masks of the outputs that they are copies of."""
    for output, result in zip(tf.nest.flatten(outputs), tf.nest.flatten(results), strict=True):
        if (mask := getattr(output, "_keras_mask", None)) is not None:
            result._keras_mask = mask
    return results


def refuse_unsupported(legacy: Any, made_by: str, where: str, remedies: Mapping[str, str]) -> None:
    """Refuse a model of Keras 2 that has its own training logic, or that EDL would train in another way.

    Args:
        legacy: the value that the user's function returned.
        made_by: that function, as messages name it.
        where: its file.
        remedies: methods that EDL never calls, and the place for their logic.

    Raises:
        BadInputError: EDL would ignore a part of the model.
    """
    for method, remedy in remedies.items():
        definer = next((base for base in type(legacy).__mro__ if method in vars(base)), None)
        own = method in vars(legacy) or (definer is not None and definer.__module__.split(".")[0] != _OWN_PACKAGE)
        if own:
            raise BadInputError(
                f"the model that {made_by} returned has a {method} of its own ({type(legacy).__name__}), which EDL "
                "does not call for a model of Keras 2",
                where=where,
                hint=remedy,
            )
    if getattr(legacy, "_is_compiled", False):
        raise BadInputError(
            f"the model of Keras 2 that {made_by} returned is compiled, which EDL would ignore",
            where=where,
            hint="remove compile(), and define loss(), optimizer() and eval_metrics_fn() in the module",
        )
    for layer in legacy._flatten_layers(include_self=False):
        kind = type(layer).__name__
        if layer._metrics:
            raise BadInputError(
                f"the layer '{layer.name}' ({kind}) has a metric of its own, which EDL does not use",
                where=where,
                hint="return metrics from eval_metrics_fn()",
            )
        if getattr(layer, "stateful", False) and hasattr(layer, "reset_states"):
            raise BadInputError(
                f"the layer '{layer.name}' ({kind}) is stateful: the next minibatch needs its state, but another "
                "worker may train it",
                where=where,
                hint="remove stateful=True, or train with strategy: {name: Local}",
            )
        if getattr(layer, "synchronized", False):
            raise BadInputError(
                f"the layer '{layer.name}' ({kind}) is synchronized, which Keras 2 does only within tf.distribute",
                where=where,
                hint="remove synchronized=True: under AllReduce the moving values are combined anyway",
            )


# --------------------------------------------------------------------------------------------------
# Optimizers, losses, metrics and callbacks.


def to_keras3_optimizer(optimizer: Any) -> Any:
    """The optimizer of Keras 3 that computes the same as one of Keras 2; anything else is returned as it is.

    Raises:
        BadInputError: there is none.
    """
    if not is_keras2(optimizer):
        return optimizer
    name = type(optimizer).__name__
    kind = getattr(keras.optimizers, name, None)
    config = dict(optimizer.get_config())
    unused = ("jit_compile", "is_legacy_optimizer")
    if not _is_builtin(optimizer) or kind is None:
        raise _no_counterpart("optimizer", optimizer)
    # An optimizer of tf_keras.optimizers.legacy.
    if config.pop("decay", 0.0):
        raise BadInputError(
            f"the optimizer {name} has a decay, which Keras 3 does not have",
            hint="use a schedule: learning_rate=keras.optimizers.schedules.InverseTimeDecay(...)",
        )
    config = {key: value for key, value in config.items() if key not in unused}
    # Those of tf_keras.optimizers.legacy keep it among their hyperparameters.
    schedule = getattr(optimizer, "_learning_rate", None) or getattr(optimizer, "_hyper", {}).get("learning_rate")
    if "learning_rate" in config:
        config["learning_rate"] = _to_keras3_schedule(schedule, config["learning_rate"])
    converted = _make_counterpart("optimizer", optimizer, lambda: kind(**config))
    if getattr(optimizer, "_exclude_from_weight_decay", None):
        raise BadInputError(
            f"exclude_from_weight_decay(var_list=...) of {name} is not known for a model of Keras 2",
            hint="use var_names=[...]",
        )
    if names := getattr(optimizer, "_exclude_from_weight_decay_names", None):
        # A variable of Keras 3 has points in its name.
        converted.exclude_from_weight_decay(var_names=[each.replace("/", ".") for each in names])
    return converted


def _make_counterpart(role: str, value: Any, make: Callable[[], Any]) -> Any:
    """What ``make`` returns; an argument that Keras 3 does not have is an error that names the class."""
    try:
        return make()
    except (TypeError, ValueError) as error:
        raise _no_counterpart(role, value) from error


def _to_keras3_constraint(constraint: Any) -> Any:
    if constraint is None:
        return None
    kind = getattr(keras.constraints, type(constraint).__name__, None)
    if not _is_builtin(constraint) or kind is None:
        raise _no_counterpart("constraint", constraint)
    return _make_counterpart("constraint", constraint, lambda: kind(**constraint.get_config()))


def _to_keras3_schedule(schedule: Any, value: Any) -> Any:
    if not isinstance(value, Mapping):
        if callable(schedule) and not isinstance(schedule, tf.Variable):
            raise BadInputError(
                "the learning rate of the optimizer is a function, of which Keras 2 keeps only its first value",
                hint="use a schedule (tf.keras.optimizers.schedules), or a LearningRateScheduler among the callbacks",
            )
        return float(value)
    kind = getattr(keras.optimizers.schedules, type(schedule).__name__, None)
    if _is_builtin(schedule) and kind is not None:
        # Keras 2 writes None for a name that was not given.
        return kind.from_config({key: value for key, value in schedule.get_config().items() if value is not None})
    return _Schedule(schedule)


class _Schedule(keras.optimizers.schedules.LearningRateSchedule):  # type: ignore[misc]
    """A schedule of the user's own class."""

    def __init__(self, schedule: Any) -> None:
        self._schedule = schedule

    def __call__(self, step: Any) -> Any:
        return self._schedule(step)

    def get_config(self) -> dict[str, Any]:
        return dict(self._schedule.get_config())


def to_keras3_loss(loss: Any) -> Any:
    """The loss of Keras 3 for a class or an object of Keras 2; a function is returned as it is."""
    if isinstance(loss, Mapping):
        return {name: to_keras3_loss(each) for name, each in loss.items()}
    if isinstance(loss, list | tuple):
        return [to_keras3_loss(each) for each in loss]
    if isinstance(loss, type) and loss.__module__.split(".")[0] == _OWN_PACKAGE:
        loss = loss()
    if not is_keras2(loss):
        return loss
    kind = getattr(keras.losses, type(loss).__name__, None)
    if not _is_builtin(loss) or kind is None:
        raise _no_counterpart("loss", loss)
    # Its function is that of the class.
    config = {key: value for key, value in loss.get_config().items() if key != "fn"}
    if config.get("reduction") == "auto":
        config["reduction"] = "sum_over_batch_size"
    return _make_counterpart("loss", loss, lambda: kind(**config))


def to_keras3_metrics(metrics: Any) -> Any:
    """Metrics of Keras 3 for those of Keras 2, in the same mapping or list; functions and names stay."""
    if isinstance(metrics, Mapping):
        return {name: to_keras3_metrics(each) for name, each in metrics.items()}
    if isinstance(metrics, list | tuple):
        return [to_keras3_metrics(each) for each in metrics]
    if not is_keras2(metrics):
        return metrics
    kind = getattr(keras.metrics, type(metrics).__name__, None)
    if not _is_builtin(metrics) or kind is None:
        raise _no_counterpart("metric", metrics)
    if kind is keras.metrics.MeanMetricWrapper:
        return kind(metrics._fn, name=metrics.name, **metrics._fn_kwargs)
    return _make_counterpart("metric", metrics, lambda: kind.from_config(metrics.get_config()))


_CALLBACK_ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    "EarlyStopping": (
        "monitor",
        "min_delta",
        "patience",
        "verbose",
        "mode",
        "baseline",
        "restore_best_weights",
        "start_from_epoch",
    ),
    "LearningRateScheduler": ("schedule", "verbose"),
    "ReduceLROnPlateau": ("monitor", "factor", "patience", "verbose", "mode", "min_delta", "cooldown", "min_lr"),
    "TerminateOnNaN": (),
}
"""Callbacks of Keras 2 that have the same counterpart in Keras 3: the attributes that are arguments of both."""


def to_keras3_callbacks(callbacks: Any) -> Any:
    """Callbacks of Keras 3 for those of Keras 2; others stay.

    Raises:
        BadInputError: one has no counterpart.
    """
    if not isinstance(callbacks, list | tuple):
        return callbacks
    return [_to_keras3_callback(each) for each in callbacks]


def _to_keras3_callback(callback: Any) -> Any:
    if not is_keras2(callback):
        return callback
    name = type(callback).__name__
    if _is_builtin(callback) and name in _CALLBACK_ARGUMENTS:
        arguments = {key: getattr(callback, key) for key in _CALLBACK_ARGUMENTS[name] if hasattr(callback, key)}
        if "min_delta" in arguments:
            arguments["min_delta"] = abs(arguments["min_delta"])
        if name == "EarlyStopping":
            # Keras 2 keeps the comparison instead of the mode.
            compares = getattr(callback.monitor_op, "__name__", "")
            arguments["mode"] = "max" if compares == "greater" else "min"
        return getattr(keras.callbacks, name)(**arguments)
    # A class derived from another callback than the base would lose what that one does.
    bases = [base.__name__ for base in type(callback).__mro__ if base.__module__.split(".")[0] == _OWN_PACKAGE]
    if _is_builtin(callback) or bases != ["Callback"]:
        raise _no_counterpart("callback", callback)
    return _forwarding_class(type(callback))(callback)


def _forwarding_class(kind: type) -> type:
    """A class of Keras 3 with the methods that the user's class defines, so that EDL knows which these are."""

    def forward(name: str) -> Callable[..., Any]:
        def call(self: Any, *arguments: Any, **named: Any) -> Any:
            return getattr(self._callback, name)(*arguments, **named)

        return call

    defined = {
        name
        for base in kind.__mro__
        if base.__module__.split(".")[0] not in (_OWN_PACKAGE, "builtins")
        for name in vars(base)
        if name.startswith("on_")
    }
    members = {name: forward(name) for name in defined}
    return type(kind.__name__, (_ForwardedCallback,), {**members, "__module__": kind.__module__})


class _ForwardedCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Calls a callback of the user's own class."""

    def __init__(self, callback: Any) -> None:
        super().__init__()
        self._callback = callback

    def set_model(self, model: Any) -> None:
        """The Keras 3 model: the user's own one does not have the trained weights."""
        super().set_model(model)
        self._callback.model = model

    def set_params(self, params: Any) -> None:
        super().set_params(params)
        self._callback.set_params(params)


def _no_counterpart(role: str, value: Any) -> BadInputError:
    kind = type(value)
    return BadInputError(
        f"the {role} {kind.__name__} of Keras 2 has no counterpart in Keras 3, which EDL trains with",
        where=source_file(kind),
        hint=f"use a {role} of Keras 3: `import keras` gives it, also beside a model of Keras 2",
    )


# --------------------------------------------------------------------------------------------------
# Exports: the user's own Keras 2 model.


def write_keras2_saved_model(model: Keras2Model, features: Any, parts: Any, path: Path) -> None:
    """Write a SavedModel of the user's model.

    Args:
        model: has the values.
        features: nested TensorSpecs of the features.
        parts: the dense tensors that features consist of, named; None if there are no usable names.
        path: the folder.
    """
    legacy = model.assign_legacy()

    def whole(flat: Any) -> Any:
        return tf.nest.pack_sequence_as(features, flat, expand_composites=True)

    archive = importlib.import_module(f"{_OWN_PACKAGE}.export").ExportArchive()
    archive.track(legacy)
    for at, layer in enumerate(model.edl_layers):
        # Not through track(): it knows the variables of Keras 2 only.
        setattr(archive, f"edl_layer_{at}", layer)
    archive.add_endpoint("serve", lambda given: legacy(given, training=False), [features])
    if parts:
        archive.add_endpoint("serving_default", lambda *flat: legacy(whole(flat), training=False), parts)
    with _no_prints():
        archive.write_out(str(path))


@contextmanager
def _no_prints() -> Iterator[None]:
    """Keras 2 prints what it has exported: on standard output, which may be JSON lines."""
    utils: Any = importlib.import_module(_OWN_PACKAGE).utils
    prints = utils.is_interactive_logging_enabled()
    utils.disable_interactive_logging()
    try:
        yield
    finally:
        if prints:
            utils.enable_interactive_logging()


def write_keras2_file(model: Keras2Model, path: Path, *, weights_only: bool = False) -> None:
    """Write the ``.keras`` or ``.weights.h5`` file of the user's model."""
    legacy = model.assign_legacy()
    if weights_only:
        legacy.save_weights(path)
    else:
        legacy.save(path, save_format="keras")


def find_undescribed(model: Keras2Model) -> str:
    """Why Keras 2 cannot describe the user's model; empty if it can."""
    try:
        for layer in model.legacy._flatten_layers():  # the description of a subclass asks none of its layers
            if hasattr(layer, "edl_layer"):
                layer.get_config()
        importlib.import_module(f"{_OWN_PACKAGE}.saving").serialize_keras_object(model.legacy)
    except Exception as error:  # noqa: BLE001  a user's get_config may raise anything; the SavedModel needs none
        # Keras 2 adds an example of many lines.
        return " ".join(str(error).partition("Example:")[0].split())
    return ""


_LONGEST_REASON = 300
_MOST_REMADE_BYTES = 1 << 28
"""A larger model is not made again to see whether its file can be loaded."""


def format_keras2_loading(model: Keras2Model, path: Path, zoo: Path) -> str:
    """Python code that loads the ``.keras`` file, or a comment with the reason why none does."""
    fault = find_unloadable_keras2(model)
    is_unsafe = bool(fault) and not find_unloadable_keras2(model, safe_mode=False)
    if fault and not is_unsafe:
        return f"# {fault}"
    folders = json.dumps([str(zoo), str(zoo.parent)])
    argument = ", safe_mode=False" if is_unsafe else ""
    call = f"tf_keras.models.load_model({json.dumps(str(path))}{argument})"
    modules = list(_registering_modules(model))
    imports = "; ".join(f"import {module}" for module in ("tf_keras", *modules))
    # Modules may take their base classes from tf.keras, which is Keras 3 without the variable.
    begin = f'import os, sys; os.environ["{LEGACY_VARIABLE}"] = "1"' if modules else "import sys"
    return f"{begin}; sys.path[:0] = {folders}; {imports}; {call}"


def _registering_modules(model: Keras2Model) -> Iterator[str]:
    """Modules with layers that are registered when the module is imported; loading does not import them."""
    for module in sorted({type(layer).__module__ for layer in model.legacy._flatten_layers()}):
        if module.partition(".")[0] not in (_OWN_PACKAGE, "keras", "tensorflow"):
            yield module


def find_unloadable_keras2(model: Keras2Model, *, safe_mode: bool = True) -> str:
    """Why ``load_model`` fails with the ``.keras`` file; empty if it does not, as far as is known.

    The user's model is made again from its description, as loading does.

    Args:
        model: a model that Keras 2 can describe.
        safe_mode: refuse functions that are stored as code, those of Lambda layers.
    """
    legacy = model.legacy
    if sum(variable.shape.num_elements() * variable.dtype.size for variable in legacy.variables) > _MOST_REMADE_BYTES:
        return ""
    saving = importlib.import_module(f"{_OWN_PACKAGE}.saving")
    try:
        again = saving.deserialize_keras_object(saving.serialize_keras_object(legacy), safe_mode=safe_mode)
        missing = len(legacy.variables) - len(again.variables)
        reason = f"the model that it makes lacks {missing} of {len(legacy.variables)} variables" if missing > 0 else ""
    except Exception as error:  # noqa: BLE001  the user's code may raise anything
        reason = f"{type(error).__name__}: {' '.join(str(error).partition('Call arguments')[0].split()).rstrip('.')}"
    if not reason:
        return ""
    if len(reason) > _LONGEST_REASON:  # Keras adds its frames to the user's error, which stands at the end
        reason = f"{reason[: _LONGEST_REASON // 2]} ... {reason[-_LONGEST_REASON // 2 :]}"
    return (
        f"tf_keras.models.load_model fails: {reason}. The SavedModel loads without it. Or make the model with the "
        "zoo's function, call it once with data, and load_weights() of the same file"
    )

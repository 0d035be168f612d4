"""The model contract: the names that a user's module must define. Imports the module and checks it.

``custom_model()`` (or a Keras model class), ``loss(labels, predictions)``, ``optimizer()``, ``eval_metrics_fn()`` and
``feed(dataset, mode, metadata)``; optionally ``callbacks()``, ``custom_data_reader(...)``, ``serving_model(model)`` and
``PredictionOutputsProcessor``. These are ElasticDL's names and argument orders. Arguments of Keras' ``compile`` and
``fit`` are also accepted: ``loss`` and ``optimizer`` by name or as objects, ``loss_weights``, ``class_weight`` and
``weighted_metrics_fn()``.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn, Protocol, TypeAlias

import keras

from edl.api.errors import BadInputError
from edl.api.job_spec import SchemaSpec
from edl.jobfile.keras_version import uses_keras2
from edl.jobfile.zoo_lookup import (
    METRICS_FUNCTION,
    REPLACED_BY_COMPILE,
    ZooModule,
    check_misnamed,
    find_model_function,
)
from edl.keras.compiled_model import CompileArguments, kept_arguments, read_compile_arguments, remove_compile
from edl.keras.feed_schema import SchemaFeed
from edl.keras.user_code import source_file, user_code
from edl.keras.zoo_code import digest_zoo_code
from edl.keras.zoo_import import import_zoo_module

# ``keras2_models`` and ``default_feed`` are imported where they are used: most models need neither.

# --------------------------------------------------------------------------------------------------
# The model that callbacks see when the parameter servers hold the weights. It has the initial
# weights, and methods that would use them raise an error.


_WEIGHT_METHODS = (
    "evaluate",
    "export",
    "fit",
    "get_weights",
    "load_weights",
    "predict",
    "save",
    "save_weights",
    "set_weights",
)
"""Methods of a Keras model that use or change its weights."""


def block_weight_methods(model: Any) -> None:
    """Make methods of ``model`` raise that would use the initial weights, except those that the user's class
    defines.
    """
    for name in _WEIGHT_METHODS:
        if getattr(type(model), name) is getattr(keras.Model, name):
            setattr(model, name, partial(_raise_untrained_weights, name))


def _raise_untrained_weights(method: str, *_: Any, **__: Any) -> NoReturn:
    # Not an EdlError: user_code() passes those on without the lines of the user's code.
    raise RuntimeError(
        f"model.{method}: a callback's model has the initial weights; the trained ones are on the parameter servers. "
        "checkpoint.every_steps saves them, and the exported model has them"
    )


_COMPILED_METHODS = ("evaluate", "fit", "test_on_batch", "train_on_batch")
"""Methods of a Keras model that need ``compile()``."""


def block_compiled_methods(model: Any) -> None:
    """Make methods of ``model`` raise that need a compiled model, unless it is one or the user's class defines them."""
    if model.compiled:
        return
    for name in _COMPILED_METHODS:
        if getattr(type(model), name) is getattr(keras.Model, name):
            setattr(model, name, partial(_raise_uncompiled, name))


def _raise_uncompiled(method: str, *_: Any, **__: Any) -> NoReturn:
    # Not an EdlError, as above. Keras' own error advises to compile the model, which a callback cannot do.
    raise RuntimeError(
        f"model.{method}: a callback's model is not compiled, because the job's own steps train and evaluate it. "
        "train.evaluation_steps sets when the job evaluates; model.predict() and a call of the model work"
    )


def is_blocked_method(model: Any, method: str) -> bool:
    """Whether :func:`block_weight_methods` made this method raise."""
    instance_method = vars(model).get(method)
    return isinstance(instance_method, partial) and instance_method.func is _raise_untrained_weights


# --------------------------------------------------------------------------------------------------
# Models with their own training logic are refused, because EDL would ignore it. A step of EDL calls
# the model and takes the loss, the optimizer and the metrics from the functions of the user's
# module. Keras' ``fit``, ``evaluate`` and ``predict``, and the methods that they call, are never
# used.


_OWN_LOOP_REMEDY = "EDL iterates over the records itself; rename the method if call() uses it"
_TRAINING_REMEDY = "transform records in feed(); add terms of the loss in loss(), or with add_loss() in call()"
_EVALUATION_REMEDY = "evaluations use loss() and eval_metrics_fn()"
_PREDICTION_REMEDY = "transform outputs in call(), or in a PredictionOutputsProcessor"
_REMEDY_BY_METHOD: Mapping[str, str] = {
    "train_step": f"{_TRAINING_REMEDY}; or train with strategy: {{name: AllReduce}} or {{name: Local}}, which call "
    "train_step()",
    "test_step": _EVALUATION_REMEDY,
    "predict_step": _PREDICTION_REMEDY,
    "compute_loss": "move it to loss(labels, predictions); terms that need the model's layers to add_loss() in call()",
    "compute_metrics": "move it to eval_metrics_fn()",
    "make_train_function": _TRAINING_REMEDY,
    "make_test_function": _EVALUATION_REMEDY,
    "make_predict_function": _PREDICTION_REMEDY,
    "fit": f"{_OWN_LOOP_REMEDY}: {_TRAINING_REMEDY}",
    "evaluate": f"{_OWN_LOOP_REMEDY}: {_EVALUATION_REMEDY}",
    "predict": f"{_OWN_LOOP_REMEDY}: {_PREDICTION_REMEDY}",
    "train_on_batch": f"{_OWN_LOOP_REMEDY}: {_TRAINING_REMEDY}",
    "test_on_batch": f"{_OWN_LOOP_REMEDY}: {_EVALUATION_REMEDY}",
    "predict_on_batch": f"{_OWN_LOOP_REMEDY}: {_PREDICTION_REMEDY}",
    "get_metrics_result": "move it to eval_metrics_fn()",
    "metrics": "return them from eval_metrics_fn()",
}
"""Methods of Keras' training, evaluation and prediction that EDL never calls, and the place for their logic in EDL."""

_COMPILE_ARGUMENTS = ("loss", "loss_weights", "metrics", "weighted_metrics")


def has_own_train_step(model: Any) -> bool:
    """Whether the user's class defines ``train_step``."""
    return "train_step" in vars(model) or type(model).train_step is not keras.Model.train_step


def call_model(model: Any, features: Any, *, training: bool) -> Any:
    """Call a model as the steps of ``fit``, ``evaluate`` and ``predict`` do.

    If its ``call()`` has no argument ``training``, they pass none, and its layers get none: Dropout does nothing, and
    BatchNormalization uses its moving values. A ``train_step`` of the user's may pass one to the model nevertheless, so
    what such a model changes in training is found with it.
    """
    if model._call_has_training_arg or (training and has_own_train_step(model)):
        return model(features, training=training)
    return model(features)


def refuse_custom_training(
    model: Any, made_by: str, where: str, *, may_be_compiled: bool = False, may_have_train_step: bool = False
) -> None:
    """Refuse a model that overrides a step of Keras' training, or is compiled although the module defines the same.

    Nested models are not checked, because Keras only calls them. Every ``compile()`` is refused, even with metrics
    alone: it sets Keras' default optimizer, which EDL would ignore.

    Args:
        model: the value that the user's function returned.
        made_by: that function, as messages name it.
        where: its file.
        may_be_compiled: whether the arguments of ``compile()`` are used.
        may_have_train_step: whether a ``train_step`` is called (strategies AllReduce and Local).

    Raises:
        BadInputError: EDL would ignore a part of the model; the error names it and the place for it in EDL.
    """
    # A train_step of the user's uses the metrics of the model, if it likes.
    allowed = ("train_step", "metrics") if may_have_train_step and has_own_train_step(model) else ()
    for method, instead in _REMEDY_BY_METHOD.items():
        if is_blocked_method(model, method) or method in allowed:
            continue
        if method in vars(model) or getattr(type(model), method, None) is not getattr(keras.Model, method, None):
            kind = type(model)
            definer = next((base for base in kind.__mro__ if method in vars(base)), kind)
            class_text = kind.__name__ if definer is kind else f"{kind.__name__}, from {definer.__name__}"
            # Set on the instance: Keras' own source file is not the place to change.
            on_object = method in vars(model)
            owner = f"set on the object of class {kind.__name__}" if on_object else f"class {class_text}"
            named, ignored = f"a {method}()", "does not call: the model would be trained without it"
            if isinstance(getattr(kind, method, None), property):
                named, ignored = f"a property {method}", "does not use"
            raise BadInputError(
                f"the model that {made_by} returned has {named} of its own ({owner}), which EDL {ignored}",
                where=(None if on_object else source_file(definer)) or where,
                hint=instead,
            )
    # The second name is that of Keras 2.
    is_compiled = getattr(model, "compiled", False) or getattr(model, "_is_compiled", False)
    if is_compiled and not may_be_compiled:
        arguments = ", ".join(_compile_arguments(model))
        compiled = f"compiled ({arguments})" if arguments else "compiled"
        raise BadInputError(
            f"the model that {made_by} returned is {compiled}, but EDL would ignore that: it trains with the "
            "module's loss() and optimizer() and evaluates with its eval_metrics_fn()",
            where=where,
            hint="remove loss(), optimizer() and eval_metrics_fn() from the module to use compile()'s arguments; "
            "or remove compile(): load a saved model with load_model(..., compile=False); if a library compiles the "
            "model, return keras.Model(model.inputs, model.outputs)",
        )
    refuse_metrics_in_layers(model, where)


def refuse_metrics_in_layers(model: Any, where: str = "the model") -> None:
    """Refuse metrics that a layer updates in ``call()``: EDL neither collects nor reports them.

    Raises:
        BadInputError: a layer has a metric.
    """
    for layer in model._flatten_layers():
        if layer is model and has_own_train_step(model):
            continue
        for metric in getattr(layer, "_metrics", ()):
            owner = "the model" if layer is model else f"the layer '{layer.name}'"
            raise BadInputError(
                f"{owner} ({type(layer).__name__}) has a metric '{metric.name}' ({type(metric).__name__}) of its own, "
                "which EDL does not use",
                where=where,
                hint="return metrics from eval_metrics_fn(); values of inner layers that they need can be outputs",
            )


def find_carried_states(model: Any) -> Iterator[Any]:
    """The variables in which stateful layers keep what the next minibatch begins with, each once."""
    known = {id(variable) for variable in model.variables}
    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.RNN) and layer.stateful:
            for variable in keras.tree.flatten(layer.states):
                if variable is not None and id(variable) not in known:
                    known.add(id(variable))
                    yield variable


def refuse_stateful_layers(model: Any) -> None:
    """Refuse stateful layers: the next minibatch may be trained by another worker.

    Raises:
        BadInputError: the model has a stateful layer.
    """
    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.RNN) and layer.stateful:
            raise BadInputError(
                f"the layer '{layer.name}' ({type(layer).__name__}) is stateful: the next minibatch needs its state, "
                "but another worker may train it",
                where="the model",
                hint="remove stateful=True, or train with strategy: {name: Local}",
            )


def _compile_arguments(model: Any) -> Iterator[str]:
    """The arguments of compile(), as far as Keras keeps them, including its default optimizer."""
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None:
        yield f"optimizer {type(optimizer).__name__}"
    config = getattr(model, "_compile_config", None)
    arguments = getattr(config, "config", None) or {}
    for name in _COMPILE_ARGUMENTS:
        if arguments.get(name):
            yield name


FEED_MODES = ("training", "evaluation", "prediction")
"""The modes passed to ``feed``, as plain strings; ElasticDL's Mode constants are equal to them."""

UserFeedFunction: TypeAlias = Callable[[Any, str, Any], Any]

_EXPECTED_ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    "loss": ("labels", "predictions"),
    "optimizer": (),
    "eval_metrics_fn": (),
    "feed": ("dataset", "mode", "metadata"),
    "callbacks": (),
    "weighted_metrics_fn": (),
    "serving_model": ("model",),
}
_OPTIONAL_FUNCTIONS = frozenset({"callbacks", "weighted_metrics_fn", "serving_model"})
_PREDICTION_ARGUMENT_NAMES = frozenset({"predictions", "prediction", "preds", "outputs", "output", "logits", "y_pred"})
_LABEL_ARGUMENT_NAMES = frozenset({"labels", "label", "targets", "target", "y_true", "y"})
WEIGHT_ARGUMENT_NAMES = frozenset({"sample_weight", "sample_weights", "weight", "weights"})
"""The third argument of a loss that takes the sample weights itself."""


class ModelChoice(Protocol):
    """The part of a job that names its model.

    ``edl.api.job_spec.ModelSpec`` with the zoo's path on this machine.
    """

    @property
    def zoo(self) -> str | Path:
        """The zoo's folder."""

    @property
    def definition(self) -> str:
        """The dotted name of the module in the zoo and of the function in the module."""

    @property
    def params(self) -> Mapping[str, Any]:
        """Keyword arguments of the function."""

    @property
    def keras(self) -> int:
        """The version of Keras that the model is written for."""

    @property
    def functions(self) -> Mapping[str, str]:
        """Names of the contract, and the names that the module has instead."""


@dataclass(frozen=True)
class ModelModule:
    """A user's module that satisfies the contract.

    Attributes:
        zoo: the zoo's folder; frames of files below it are the user's in tracebacks.
        make_model: creates a Keras model. Raises UserCodeError if the user's code raises an exception, BadInputError
            if it does not return a Keras model or the model has its own training logic.
        loss: ``loss(labels, predictions)``, or an argument of ``compile(loss=...)``; see ``edl.keras.model_loss``.
        loss_of_each_output: whether a function ``loss`` gets one output after the other, with its mask, as after
            ``compile()``, and not all of them.
        optimizer: creates the Keras optimizer.
        eval_metrics_fn: creates the metrics.
        feed: ``feed(dataset, mode, metadata)`` returns a dataset of single (features, labels) or (features, labels,
            sample weights).
        loss_weights: weights of the outputs' losses, by output or in the order of the outputs.
        class_weight: weights of training records by class, or a function that returns them.
        weighted_metrics_fn: creates the metrics that get the sample weights.
        serving_model: makes the model that is exported, of the trained one; None: that itself is exported.
        code: a digest of each file of the zoo that was imported: see ``edl.keras.zoo_code``.
    """

    zoo: Path
    make_model: Callable[[], Any]
    loss: Any
    optimizer: Callable[[], Any]
    eval_metrics_fn: Callable[[], Mapping[str, Any]]
    feed: UserFeedFunction
    callbacks: Callable[[], Any] | None = None
    custom_data_reader: Callable[..., Any] | None = None
    prediction_outputs_processor: type | None = None
    loss_weights: Any = None
    class_weight: Any = None
    weighted_metrics_fn: Callable[[], Any] | None = None
    loss_of_each_output: bool = False
    serving_model: Callable[[Any], Any] | None = None
    code: Mapping[str, str] = field(default_factory=dict)


def load_model_module(
    choice: ModelChoice,
    *,
    needs_metrics: bool = True,
    may_have_train_step: bool = False,
    schema: SchemaSpec | None = None,
) -> ModelModule:
    """Import the user's module and check that it satisfies the contract.

    Args:
        choice: the job's zoo, definition and parameters.
        needs_metrics: whether the job evaluates; without evaluation the module needs no ``eval_metrics_fn``.
        may_have_train_step: whether the strategy calls a ``train_step`` of the model.
        schema: of the job; with it, a module without ``feed`` gets ``edl.keras.default_feed``.

    Raises:
        BadInputError: the module or a function does not exist, or a function has other arguments.
        UserCodeError: the module raised an exception while it was imported.
    """
    _check_keras_backend(choice)
    zoo = Path(choice.zoo).resolve()
    zoo_module = find_model_function(zoo, choice.definition, choice.functions)
    check_misnamed(zoo_module)
    is_keras2 = uses_keras2(choice)
    with user_code(zoo, f"import of {zoo_module.name}"), _imports_of(is_keras2):
        module = _with_chosen_functions(zoo, import_zoo_module(zoo, zoo_module), zoo_module)
    if is_keras2:
        from edl.keras import keras2_models

        module = keras2_models.adapt_module(module)
    if is_keras2 and hasattr(module, "serving_model"):
        raise BadInputError(
            "defines serving_model, which is for models of Keras 3",
            where=str(zoo_module.path),
            hint="remove it, or model.keras: 2",
        )
    make_model = _model_factory(
        zoo, module, zoo_module, choice.params, may_have_train_step=may_have_train_step, is_keras2=is_keras2
    )
    if schema is not None and schema.features and hasattr(module, "feed"):
        # The columns would reach feed in other types. Found here where the name comes from ``import *``.
        raise BadInputError(
            "has no effect: the model module defines feed", where="data.schema", hint="remove one of the two"
        )
    if schema is not None and not hasattr(module, "feed"):
        from edl.keras.default_feed import DefaultFeed

        origin = getattr(module, zoo_module.function)
        module = _with_function(module, "feed", DefaultFeed(schema, make_model(may_be_compiled=True), origin))
    if not any(hasattr(module, name) for name in REPLACED_BY_COMPILE):
        compiled = _read_compiled_model(zoo_module, make_model, needs_metrics=needs_metrics)
        if compiled is not None:
            return _compiled_module(zoo, module, zoo_module, make_model, compiled)
    functions = {
        name: _contract_function(module, zoo_module.path, name)
        for name in _EXPECTED_ARGUMENTS
        if needs_metrics or name != METRICS_FUNCTION
    }
    if not needs_metrics:
        # A job without evaluation needs only the loss.
        functions[METRICS_FUNCTION] = dict
    return ModelModule(
        zoo=zoo,
        make_model=make_model,
        code=digest_zoo_code(zoo),
        custom_data_reader=getattr(module, "custom_data_reader", None),
        prediction_outputs_processor=getattr(module, "PredictionOutputsProcessor", None),
        loss_weights=getattr(module, "loss_weights", None),
        class_weight=_value_or_function(zoo, module, "class_weight"),
        **{name: _wrap_user_function(zoo, name, function) for name, function in functions.items()},
    )


def _with_function(module: ModuleType, name: str, function: Any) -> ModuleType:
    """A module with one more function; the user's own module is not changed."""
    more = ModuleType(module.__name__)
    vars(more).update(vars(module))
    setattr(more, name, function)
    return more


def _with_chosen_functions(zoo: Path, module: ModuleType, zoo_module: ZooModule) -> ModuleType:
    """The module with the functions of ``model.functions`` under their names of the contract."""
    if not zoo_module.functions:
        return module
    chosen = ModuleType(module.__name__)
    vars(chosen).update(vars(module))
    for contract_name, name in zoo_module.functions.items():
        owner, function = module, name
        if "." in name:
            other = find_model_function(zoo, name)
            owner, function = import_zoo_module(zoo, other), other.function
        if not hasattr(owner, function):  # a star import might have brought it
            raise BadInputError(
                f"model.functions.{contract_name}: the module does not define '{function}'", where=str(zoo_module.path)
            )
        setattr(chosen, contract_name, getattr(owner, function))
    return chosen


def _read_compiled_model(
    zoo_module: ZooModule, make_model: Callable[..., Any], *, needs_metrics: bool
) -> CompileArguments | None:
    """The arguments of ``compile()`` if the user's function compiles its model; None if it does not."""
    model = make_model(may_be_compiled=True)
    if not getattr(model, "compiled", False):
        return None
    return read_compile_arguments(
        model,
        f"{zoo_module.function}()",
        str(zoo_module.path),
        # Only an evaluation needs one, if train_step() computes its own.
        needs_loss=needs_metrics or not has_own_train_step(model),
    )


def _compiled_module(
    zoo: Path,
    module: ModuleType,
    zoo_module: ZooModule,
    make_model: Callable[..., Any],
    compiled: CompileArguments,
) -> ModelModule:
    def make_uncompiled() -> Any:
        model = make_model(may_be_compiled=True)
        remove_compile(model)
        return model

    functions = {
        name: _wrap_user_function(zoo, name, _contract_function(module, zoo_module.path, name))
        for name in ("feed", "callbacks", "serving_model")
    }
    return ModelModule(
        zoo=zoo,
        make_model=make_uncompiled,
        code=digest_zoo_code(zoo),
        custom_data_reader=getattr(module, "custom_data_reader", None),
        prediction_outputs_processor=getattr(module, "PredictionOutputsProcessor", None),
        class_weight=_value_or_function(zoo, module, "class_weight"),
        loss_of_each_output=True,
        **functions,
        **_compiled_functions(zoo, compiled),
    )


def _compiled_functions(zoo: Path, compiled: CompileArguments, variables: Iterable[Any] = ()) -> dict[str, Any]:
    """What the arguments of ``compile()`` are in a module.

    Args:
        zoo: the zoo's folder.
        compiled: the arguments.
        variables: those of their model, for which the optimizer may be built.
    """
    return {
        "loss": _wrap_user_function(zoo, "loss", compiled.loss),
        "optimizer": _optimizer_factory(compiled.optimizer, zoo, variables),
        "eval_metrics_fn": compiled.make_metrics,
        "loss_weights": compiled.loss_weights,
        "weighted_metrics_fn": compiled.weighted_metrics_function,
    }


def with_arguments_of(model: Any, module: ModelModule) -> ModelModule:
    """The module with the arguments of this model's ``compile()``, which may refer to its layers and variables.

    Args:
        model: a model that the module made.
        module: the module, which is returned if its models are not compiled.
    """
    compiled = kept_arguments(model)
    return module if compiled is None else replace(module, **_compiled_functions(module.zoo, compiled, model.variables))


def _imports_of(is_keras2: bool) -> AbstractContextManager[None]:
    if not is_keras2:
        return nullcontext()
    from edl.keras import keras2_models

    return keras2_models.public_names_for_private_imports()


def _check_keras_backend(choice: ModelChoice) -> None:
    if uses_keras2(choice):
        from edl.keras import keras2_models

        keras2_models.check_installation()
    if keras.backend.backend() != "tensorflow":
        raise BadInputError(
            f"Keras uses the backend {keras.backend.backend()}, but EDL needs TensorFlow",
            hint="set KERAS_BACKEND=tensorflow",
        )


def _contract_function(module: ModuleType, path: Path, name: str) -> Any:
    function = getattr(module, name, None)
    if function is None and name in _OPTIONAL_FUNCTIONS:
        return None
    if name == "optimizer":
        function = _optimizer_factory(function, path)
    if name == "loss" and _is_keras_loss(function):
        return function
    expected_call = f"{name}({', '.join(_EXPECTED_ARGUMENTS[name])})"
    if not callable(function):
        defined = [key for key in vars(module) if not key.startswith("_")]
        missing = "does not define" if function is None else f"has a {type(function).__name__} called {name}, not"
        raise BadInputError(
            f"the model module {missing} {expected_call}", where=str(path), hint=f"it defines {', '.join(defined)}"
        )
    _check_arguments(function, path, name, expected_call)
    return function


def _is_keras_loss(loss: Any) -> bool:
    """Whether this is what ``compile(loss=...)`` accepts, other than a function."""
    if isinstance(loss, type):
        return issubclass(loss, keras.losses.Loss)
    return isinstance(loss, str | list | tuple | Mapping | keras.losses.Loss)


def _optimizer_factory(optimizer: Any, path: Path, variables: Iterable[Any] = ()) -> Any:
    """A function that makes the optimizer, from an optimizer, its name, or a function that returns either.

    An optimizer that is built is used itself if it is built for these variables.
    """
    if isinstance(optimizer, keras.optimizers.Optimizer | str):
        if isinstance(optimizer, str):
            return lambda: _optimizer_by_name(optimizer, path)
        # Use the object itself: a schedule of the user's own class could not be rebuilt from its
        # config.
        unused = [optimizer]
        known = {id(variable) for variable in variables}

        def make() -> Any:
            built_for = {id(each) for each in optimizer._trainable_variables} if optimizer.built else set()
            return unused.pop() if unused and built_for <= known else _renew_optimizer(optimizer, path)

        return make
    if not callable(optimizer):
        return optimizer

    @functools.wraps(optimizer)
    def call(*arguments: Any) -> Any:
        returned = optimizer(*arguments)
        if _is_of_keras2(returned) and not uses_keras2(None):
            raise BadInputError(
                f"optimizer() returned {type(returned).__name__} of Keras 2, but the job is for Keras 3",
                where=str(path),
                hint=f"use keras.optimizers or tf.keras.optimizers; {_FOR_KERAS2}",
            )
        return _optimizer_by_name(returned, path) if isinstance(returned, str) else returned

    return call


def _renew_optimizer(optimizer: Any, path: Path) -> Any:
    """A new optimizer with the same arguments, and those of ``exclude_from_weight_decay()``, which no config has.

    Raises:
        BadInputError: it cannot be made again.
    """
    remedy = "make it in a function optimizer(), or in the model function for compile()"
    try:
        renewed = type(optimizer).from_config(optimizer.get_config())
    except Exception as error:
        raise BadInputError(
            f"the optimizer {type(optimizer).__name__} cannot be made again from its get_config(): {error}",
            where=str(path),
            hint=remedy,
        ) from error
    for old, new in zip(_optimizers_in(optimizer), _optimizers_in(renewed), strict=False):
        if getattr(old, "_exclude_from_weight_decay", None):
            raise BadInputError(
                f"the optimizer {type(old).__name__} cannot be made again: its exclude_from_weight_decay(var_list=...) "
                "has variables of one model",
                where=str(path),
                hint=f"{remedy}; or give the variables by name: exclude_from_weight_decay(var_names=[...])",
            )
        new._exclude_from_weight_decay_pattern = getattr(old, "_exclude_from_weight_decay_pattern", None)
    return renewed


def _optimizers_in(optimizer: Any) -> Iterator[Any]:
    """The optimizer, and those that it wraps or chooses from."""
    yield optimizer
    inner = getattr(optimizer, "inner_optimizer", None)
    for each in getattr(optimizer, "optimizers", ()) if inner is None else (inner,):
        yield from _optimizers_in(each)


_FOR_KERAS2 = "if the module is written for Keras 2, set model.keras: 2 in the job file"


def _is_of_keras2(value: Any) -> bool:
    """Whether it is made by ``tf_keras``, or by the Keras 2 that TensorFlow keeps as ``tensorflow.python.keras``."""
    packages = ("tf_keras.", "tensorflow.python.keras.")
    return any(f"{base.__module__}.".startswith(packages) for base in type(value).__mro__)


def _optimizer_by_name(name: str, path: Path) -> Any:
    try:
        return keras.optimizers.get(name)
    except ValueError as error:
        raise BadInputError(
            f"optimizer: Keras knows no optimizer called '{name}'",
            where=str(path),
            hint="a name is one of keras.optimizers, such as adam",
        ) from error


def _value_or_function(zoo: Path, module: ModuleType, name: str) -> Any:
    value = getattr(module, name, None)
    return _wrap_user_function(zoo, name, value) if callable(value) else value


def _check_arguments(function: Callable[..., Any], path: Path, name: str, expected_call: str) -> None:
    try:
        signature = inspect.signature(function)
    except ValueError:
        # Built in C: there is no signature to check.
        return
    try:
        bound = signature.bind(*_EXPECTED_ARGUMENTS[name])
    except TypeError as error:
        third = next(islice(signature.parameters, 2, None), "").lower()
        takes_weights = name == "loss" and third in WEIGHT_ARGUMENT_NAMES
        raise BadInputError(
            f"{name}{signature} cannot be called as {expected_call}: {error}",
            where=str(path),
            hint="give the weights a default, such as sample_weights=None: they are passed if feed yields some"
            if takes_weights
            else None,
        ) from error
    first, *rest = (str(argument).lower() for argument in bound.arguments) if bound.arguments else ("",)
    if name == "loss" and first in _PREDICTION_ARGUMENT_NAMES and rest and rest[0] in _LABEL_ARGUMENT_NAMES:
        raise BadInputError(
            f"{name}{signature} has its arguments in the wrong order: EDL calls {expected_call}", where=str(path)
        )


def _model_factory(
    zoo: Path,
    module: ModuleType,
    zoo_module: ZooModule,
    params: Mapping[str, Any],
    *,
    may_have_train_step: bool,
    is_keras2: bool,
) -> Callable[..., Any]:
    build = partial(_find_model_function(module, zoo_module, params), **params)
    made_by, where = f"{zoo_module.function}()", str(zoo_module.path)

    def make(*, may_be_compiled: bool = False) -> Any:
        with user_code(zoo, made_by):
            model, keras3_layers = _build_with_keras2(build) if is_keras2 else (build(), ())
        _check_model_type(model, made_by, where, is_keras2=is_keras2)
        if is_keras2:
            return _adapt_keras2_model(build, model, keras3_layers, made_by, where)
        refuse_custom_training(
            model, made_by, where, may_be_compiled=may_be_compiled, may_have_train_step=may_have_train_step
        )
        return model

    return make


def _find_model_function(module: ModuleType, zoo_module: ZooModule, params: Mapping[str, Any]) -> Callable[..., Any]:
    """The user's function or model class, which takes ``model.params``."""
    function: Callable[..., Any] | None = getattr(module, zoo_module.function, None)
    if not callable(function):
        raise BadInputError(f"'{zoo_module.function}' is not a function or model class", where=str(zoo_module.path))
    try:
        inspect.signature(function).bind(**params)
    except TypeError as error:
        raise BadInputError(
            f"{zoo_module.function}{inspect.signature(function)} cannot be called with model.params: {error}",
            where=str(zoo_module.path),
        ) from error
    return function


def _check_model_type(model: Any, made_by: str, where: str, *, is_keras2: bool) -> None:
    """Refuse what is no model, and a model of another Keras than the job is for."""
    if any(base.__module__.split(".")[0] == "tf_keras" for base in type(model).__mro__):
        if is_keras2:
            return
        raise BadInputError(
            f"{made_by} returned a model of Keras 2 (tf_keras)",
            where=where,
            hint="set model.keras: 2 in the job file",
        )
    if isinstance(model, keras.Model):
        if not is_keras2:
            return
        raise BadInputError(
            f"{made_by} returned a model of Keras 3, but the job is for Keras 2",
            where=where,
            hint="use tf.keras, or remove model.keras: 2 (and TF_USE_LEGACY_KERAS)",
        )
    if _is_of_keras2(model):
        raise BadInputError(
            f"{made_by} returned a model of Keras 2 (tensorflow.python.keras)", where=where, hint=_FOR_KERAS2
        )
    raise BadInputError(f"{made_by} returned {type(model).__name__}, expected a keras.Model", where=where)


def _build_with_keras2(build: Callable[[], Any]) -> tuple[Any, Sequence[Any]]:
    """The model, and the layers of Keras 3 that were called meanwhile: Keras 2 would not train them."""
    from edl.keras import keras2_models

    with keras2_models.finding_keras3_layers() as keras3_layers:
        return build(), keras3_layers


def _adapt_keras2_model(
    build: Callable[[], Any], model: Any, keras3_layers: Sequence[Any], made_by: str, where: str
) -> Any:
    from edl.keras import keras2_models

    keras2_models.refuse_keras3_layers(keras3_layers, where)
    keras2_models.refuse_unsupported(model, made_by, where, _REMEDY_BY_METHOD)
    return keras2_models.Keras2Model(model, build)


def _wrap_user_function(zoo: Path, name: str, function: Any) -> Any:
    if not callable(function) or _is_keras_loss(function) or isinstance(function, SchemaFeed):
        return function

    @functools.wraps(function)
    def call(*arguments: Any) -> Any:
        with user_code(zoo, f"{name}()"):
            return function(*arguments)

    return call

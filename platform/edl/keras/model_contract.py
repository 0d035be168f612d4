"""The model contract: what a user's module defines, imported and checked before anything depends on it.

``custom_model()`` (or a Keras model class), ``loss(labels, predictions)``, ``optimizer()``, ``eval_metrics_fn()`` and
``feed(dataset, mode, metadata)``; optionally ``callbacks()``, ``custom_data_reader(...)`` and
``PredictionOutputsProcessor``. These are ElasticDL's names and argument orders. What Keras' ``compile`` and ``fit``
take is taken too: ``loss`` and ``optimizer`` by name or as objects, ``loss_weights``, ``class_weight`` and
``weighted_metrics_fn()``.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, TypeAlias

from edl.api.errors import BadInputError
from edl.jobfile.zoo_lookup import ZooModule, check_misnamed, find_model_function
from edl.keras.unsupported_models import refuse_custom_training
from edl.keras.user_code import user_code
from edl.keras.zoo_import import import_zoo_module

FEED_MODES = ("training", "evaluation", "prediction")
"""What ``feed`` is told, as plain strings; ElasticDL's Mode constants are equal to them."""

UserFeedFunction: TypeAlias = Callable[[Any, str, Any], Any]

_EXPECTED_ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    "loss": ("labels", "predictions"),
    "optimizer": (),
    "eval_metrics_fn": (),
    "feed": ("dataset", "mode", "metadata"),
    "callbacks": (),
    "weighted_metrics_fn": (),
}
_METRICS_FUNCTION = "eval_metrics_fn"
_OPTIONAL_FUNCTIONS = frozenset({"callbacks", "weighted_metrics_fn"})
_PREDICTION_ARGUMENT_NAMES = frozenset({"predictions", "prediction", "preds", "outputs", "output", "logits", "y_pred"})
_LABEL_ARGUMENT_NAMES = frozenset({"labels", "label", "targets", "target", "y_true", "y"})


class ModelChoice(Protocol):
    """The part of a job that names its model.

    ``edl.jobfile.job_spec.ModelSpec`` with the zoo's path on this machine.
    """

    @property
    def zoo(self) -> str | Path:
        """The zoo's folder."""

    @property
    def definition(self) -> str:
        """Module below the zoo and function in it."""

    @property
    def params(self) -> Mapping[str, Any]:
        """Keyword arguments of the function."""


@dataclass(frozen=True)
class ModelModule:
    """A user's module that keeps the contract.

    Attributes:
        zoo: the zoo's folder; frames of files below it are the user's in tracebacks.
        model: makes a new Keras model; raises UserCodeError when the user's code does, BadInputError when it returns
            something else, or a model that says itself how it is trained.
        loss: ``loss(labels, predictions)``; or what ``compile(loss=...)`` takes, see ``edl.keras.model_loss``.
        optimizer: makes the Keras optimizer.
        eval_metrics_fn: makes the metrics.
        feed: ``feed(dataset, mode, metadata)``, a dataset of single (features, labels), perhaps with sample weights.
        loss_weights: of the losses of several outputs, by output or in their order.
        class_weight: weights of records in training by their class, or a function that gives them.
        weighted_metrics_fn: makes the metrics that sample weights count in.
    """

    zoo: Path
    model: Callable[[], Any]
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


def load_model_module(choice: ModelChoice, *, evaluates: bool = True) -> ModelModule:
    """Import the user's module and check that it keeps the contract.

    Args:
        choice: of the job.
        evaluates: whether the job does: one that does not needs no ``eval_metrics_fn``.

    Raises:
        BadInputError: module or function not there, a function is missing or takes other arguments.
        UserCodeError: the module raised while it was imported.
    """
    _check_keras_backend()
    zoo = Path(choice.zoo).resolve()
    found = find_model_function(zoo, choice.definition)
    check_misnamed(found.path)
    with user_code(zoo, f"import of {found.name}"):
        module = import_zoo_module(zoo, found)
    functions = {
        name: _contract_function(module, found.path, name)
        for name in _EXPECTED_ARGUMENTS
        if evaluates or name != _METRICS_FUNCTION
    }
    if not evaluates:
        functions[_METRICS_FUNCTION] = dict  # the loss is all there is
    return ModelModule(
        zoo=zoo,
        model=_model_factory(zoo, module, found, choice.params),
        custom_data_reader=getattr(module, "custom_data_reader", None),
        prediction_outputs_processor=getattr(module, "PredictionOutputsProcessor", None),
        loss_weights=getattr(module, "loss_weights", None),
        class_weight=_value_or_function(zoo, module, "class_weight"),
        **{name: _wrap_user_function(zoo, name, function) for name, function in functions.items()},
    )


def _check_keras_backend() -> None:
    import keras

    if os.environ.get("TF_USE_LEGACY_KERAS", "").lower() in ("1", "true"):
        raise BadInputError("models for Keras 2 are not supported yet", where="TF_USE_LEGACY_KERAS", hint="unset it")
    if keras.backend.backend() != "tensorflow":
        raise BadInputError(
            f"Keras runs on {keras.backend.backend()}, EDL trains on TensorFlow", hint="set KERAS_BACKEND=tensorflow"
        )


def _contract_function(module: ModuleType, path: Path, name: str) -> Any:
    function = getattr(module, name, None)
    if function is None and name in _OPTIONAL_FUNCTIONS:
        return None
    if name == "optimizer":
        function = _optimizer_factory(function, path)
    if name == "loss" and _is_keras_loss(function):
        return function
    wanted = f"{name}({', '.join(_EXPECTED_ARGUMENTS[name])})"
    if not callable(function):
        defined = [key for key in vars(module) if not key.startswith("_")]
        missing = "does not define" if function is None else f"has a {type(function).__name__} called {name}, not"
        raise BadInputError(
            f"the model module {missing} {wanted}", where=str(path), hint=f"it defines {', '.join(defined)}"
        )
    _check_arguments(function, path, name, wanted)
    return function


def _is_keras_loss(given: Any) -> bool:
    """Whether it is what ``compile(loss=...)`` takes, besides a function."""
    import keras

    if isinstance(given, type):
        return issubclass(given, keras.losses.Loss)
    return isinstance(given, str | list | tuple | Mapping | keras.losses.Loss)


def _optimizer_factory(given: Any, path: Path) -> Any:
    """A function that makes the optimizer, of an optimizer, the name of one, or a function that gives either."""
    import keras

    if isinstance(given, keras.optimizers.Optimizer | str):
        if isinstance(given, str):
            return lambda: _optimizer_by_name(given, path)
        unused = [given]  # as it is: a schedule of the user's own class could not be made from its description

        def make() -> Any:
            return unused.pop() if unused and not given.built else type(given).from_config(given.get_config())

        return make
    if not callable(given):
        return given

    @functools.wraps(given)
    def call(*arguments: Any) -> Any:
        found = given(*arguments)
        return _optimizer_by_name(found, path) if isinstance(found, str) else found

    return call


def _optimizer_by_name(name: str, path: Path) -> Any:
    import keras

    try:
        return keras.optimizers.get(name)
    except ValueError as error:
        raise BadInputError(
            f"optimizer: Keras knows no optimizer called '{name}'",
            where=str(path),
            hint="a name is one of keras.optimizers, such as adam",
        ) from error


def _value_or_function(zoo: Path, module: ModuleType, name: str) -> Any:
    given = getattr(module, name, None)
    return _wrap_user_function(zoo, name, given) if callable(given) else given


def _check_arguments(function: Callable[..., Any], path: Path, name: str, wanted: str) -> None:
    try:
        signature = inspect.signature(function)
    except ValueError:  # built in C: nothing to check
        return
    try:
        bound = signature.bind(*_EXPECTED_ARGUMENTS[name])
    except TypeError as error:
        raise BadInputError(f"{name}{signature} cannot be called as {wanted}: {error}", where=str(path)) from error
    first, *rest = (str(argument).lower() for argument in bound.arguments) if bound.arguments else ("",)
    if name == "loss" and first in _PREDICTION_ARGUMENT_NAMES and rest and rest[0] in _LABEL_ARGUMENT_NAMES:
        raise BadInputError(
            f"{name}{signature} has its arguments the other way round: EDL calls {wanted}", where=str(path)
        )


def _model_factory(zoo: Path, module: ModuleType, found: ZooModule, params: Mapping[str, Any]) -> Callable[[], Any]:
    function = getattr(module, found.function, None)
    if not callable(function):
        raise BadInputError(f"'{found.function}' is not a function or model class", where=str(found.path))
    try:
        inspect.signature(function).bind(**params)
    except TypeError as error:
        raise BadInputError(
            f"{found.function}{inspect.signature(function)} cannot be called with model.params: {error}",
            where=str(found.path),
        ) from error

    def make() -> Any:
        import keras

        with user_code(zoo, f"{found.function}()"):
            model = function(**params)
        if not isinstance(model, keras.Model):
            raise BadInputError(
                f"{found.function}() returned {type(model).__name__}, expected a keras.Model", where=str(found.path)
            )
        refuse_custom_training(model, f"{found.function}()", str(found.path))
        return model

    return make


def _wrap_user_function(zoo: Path, name: str, function: Any) -> Any:
    if not callable(function) or _is_keras_loss(function):
        return function

    @functools.wraps(function)
    def call(*arguments: Any) -> Any:
        with user_code(zoo, f"{name}()"):
            return function(*arguments)

    return call

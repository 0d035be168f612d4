"""Models that say themselves how they are trained: EDL would ignore that, and so it is refused by name.

A step of EDL calls the model, and takes the loss, the optimizer and the metrics from the functions of the user's
module. What else Keras' ``fit``, ``evaluate`` and ``predict`` would run is never called, nor are those themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from edl.api.errors import BadInputError
from edl.keras.callback_model_guard import is_blocked_method
from edl.keras.user_code import source_file

_OWN_LOOP_REMEDY = "EDL goes through the records itself; a method that call() uses needs another name"
_TRAINING_REMEDY = (
    "what it does to records belongs in feed(), what it adds to the loss in loss(), or in add_loss() in call()"
)
_EVALUATION_REMEDY = "evaluations use loss() and eval_metrics_fn()"
_PREDICTION_REMEDY = "what it does to outputs belongs in call(), or in a PredictionOutputsProcessor"
_REMEDY_BY_METHOD: Mapping[str, str] = {
    "train_step": _TRAINING_REMEDY,
    "test_step": _EVALUATION_REMEDY,
    "predict_step": _PREDICTION_REMEDY,
    "compute_loss": "put it into loss(labels, predictions), what needs the model's inside into add_loss() in call()",
    "compute_metrics": "put it into eval_metrics_fn()",
    "make_train_function": _TRAINING_REMEDY,
    "make_test_function": _EVALUATION_REMEDY,
    "make_predict_function": _PREDICTION_REMEDY,
    "fit": f"{_OWN_LOOP_REMEDY}: {_TRAINING_REMEDY}",
    "evaluate": f"{_OWN_LOOP_REMEDY}: {_EVALUATION_REMEDY}",
    "predict": f"{_OWN_LOOP_REMEDY}: {_PREDICTION_REMEDY}",
    "train_on_batch": f"{_OWN_LOOP_REMEDY}: {_TRAINING_REMEDY}",
    "test_on_batch": f"{_OWN_LOOP_REMEDY}: {_EVALUATION_REMEDY}",
    "predict_on_batch": f"{_OWN_LOOP_REMEDY}: {_PREDICTION_REMEDY}",
    "get_metrics_result": "put it into eval_metrics_fn()",
    "metrics": "return them from eval_metrics_fn()",
}
"""What Keras, or who uses it, calls to train, evaluate or predict, and EDL does not: where its work belongs here."""

_COMPILE_ARGUMENTS = ("loss", "loss_weights", "metrics", "weighted_metrics")


def refuse_custom_training(model: Any, made_by: str, where: str) -> None:
    """Refuse a model that overrides a step of Keras' training, or is compiled.

    Only the model itself counts: Keras, too, asks nothing of the models that are nested in it but to be called. Every
    ``compile()`` is refused, one of nothing but metrics as well: it sets Keras' default optimizer, which is not used.

    Args:
        model: what the user's function returned.
        made_by: that function, for people.
        where: its file.

    Raises:
        BadInputError: it does; names what, and where that belongs.
    """
    import keras

    for method, instead in _REMEDY_BY_METHOD.items():
        if is_blocked_method(model, method):
            continue
        if method in vars(model) or getattr(type(model), method, None) is not getattr(keras.Model, method, None):
            kind = type(model)
            definer = next((base for base in kind.__mro__ if method in vars(base)), kind)
            of = kind.__name__ if definer is kind else f"{kind.__name__}, from {definer.__name__}"
            on_object = method in vars(model)  # and so in no class: Keras' own file is not where it is
            owner = f"set on the object of class {kind.__name__}" if on_object else f"class {of}"
            named, ignored = f"a {method}()", "does not call: the model would be trained without it"
            if isinstance(getattr(kind, method, None), property):
                named, ignored = f"a property {method}", "does not read"
            raise BadInputError(
                f"the model that {made_by} returned has {named} of its own ({owner}), which EDL {ignored}",
                where=(None if on_object else source_file(definer)) or where,
                hint=instead,
            )
    if getattr(model, "compiled", False) or getattr(model, "_is_compiled", False):  # the latter in Keras 2
        given = ", ".join(_compile_arguments(model))
        compiled = f"compiled ({given})" if given else "compiled"
        raise BadInputError(
            f"the model that {made_by} returned is {compiled}, and EDL would ignore that: it trains with the "
            "module's loss() and optimizer() and evaluates with its eval_metrics_fn()",
            where=where,
            hint="leave compile() out; load a saved model with load_model(..., compile=False); of a model that a "
            "library compiles, return keras.Model(model.inputs, model.outputs)",
        )


def refuse_stateful_layers(model: Any) -> None:
    """Refuse layers that hand their state on to the next minibatch, which another worker has.

    Raises:
        BadInputError: there is one; it is named.
    """
    import keras

    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.RNN) and layer.stateful:
            raise BadInputError(
                f"the layer '{layer.name}' ({type(layer).__name__}) is stateful: its state goes on to the next "
                "minibatch, and minibatches are spread over workers",
                where="the model",
                hint="leave stateful=True out, or train with strategy: {name: Local}",
            )


def _compile_arguments(model: Any) -> Iterator[str]:
    """What compile() was given, as far as Keras remembers it; its default optimizer counts."""
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None:
        yield f"optimizer {type(optimizer).__name__}"
    config = getattr(model, "_compile_config", None)
    given = getattr(config, "config", None) or {}
    for name in _COMPILE_ARGUMENTS:
        if given.get(name):
            yield name

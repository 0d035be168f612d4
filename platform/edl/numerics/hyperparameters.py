"""What there is to know of each optimizer: its hyperparameters with defaults and bounds, and its slot variables.

Names, meaning and defaults are those of keras.optimizers, and so are the slots' names, with three exceptions: Momentum
is SGD with momentum > 0 in Keras, AdamW is Adam with another default of ``weight_decay``, and Ftrl has no
``group_lasso_regularization_strength`` there (``edl.keras.group_ftrl``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

Hyperparameter = float | bool


@dataclass(frozen=True, slots=True)
class Bound:
    """What a number may be.

    Attributes:
        words: to stand after "must be".
        holds: whether a number is inside.
    """

    words: str
    holds: Callable[[float], bool]


@dataclass(frozen=True, slots=True)
class Parameter:
    """A hyperparameter: its default, and what it may be; without a bound it is a truth value."""

    default: Hyperparameter
    bound: Bound | None = None

    def refusal(self, value: object) -> str | None:
        """What is allowed, when ``value`` is not."""
        if self.bound is None:
            return None if isinstance(value, bool) else "true or false"
        inside = isinstance(value, int | float) and not isinstance(value, bool) and self.bound.holds(float(value))
        return None if inside else self.bound.words

    def typed(self, value: Hyperparameter) -> Hyperparameter:
        """An allowed value as the type that it is kept as."""
        return bool(value) if self.bound is None else float(value)


@dataclass(frozen=True, slots=True)
class Slot:
    """A slot variable.

    Attributes:
        start: the hyperparameter that every element of it starts at; None starts at zero.
        needs: the hyperparameter that must be true, or more than zero, for the slot to be there; None: it always is.
        former: what checkpoints of earlier versions call it.
    """

    start: str | None = None
    needs: str | None = None
    former: str | None = None


@dataclass(frozen=True, slots=True)
class Rule:
    """One optimizer; ``weight_decay`` is a hyperparameter of all."""

    parameters: Mapping[str, Parameter]
    slots: Mapping[str, Slot] = field(default_factory=dict)


_AMOUNT = Bound("a finite number of at least 0", lambda value: 0 <= value < float("inf"))
_NOT_POSITIVE = Bound("a finite number of at most 0", lambda value: float("-inf") < value <= 0)
_FRACTION = Bound("at least 0 and below 1", lambda value: 0 <= value < 1)


def _amount(default: float) -> Parameter:
    return Parameter(default, _AMOUNT)


def _fraction(default: float) -> Parameter:
    return Parameter(default, _FRACTION)


def _rule(slots: Mapping[str, Slot] | None = None, **parameters: Parameter) -> Rule:
    return Rule({**parameters, "weight_decay": _amount(0.0)}, slots or {})


_NO = Parameter(False)
_MOMENTS = {"beta_1": _fraction(0.9), "beta_2": _fraction(0.999), "epsilon": _amount(1e-7)}

RULES: Mapping[str, Rule] = {
    "sgd": _rule(),
    "momentum": _rule({"momentum": Slot()}, momentum=_fraction(0.9), nesterov=_NO),
    "adagrad": _rule(
        {"accumulator": Slot("initial_accumulator_value")},
        initial_accumulator_value=_amount(0.1),
        epsilon=_amount(1e-7),
    ),
    "adam": _rule(
        {
            "momentum": Slot(former="m"),
            "velocity": Slot(former="v"),
            "velocity_hat": Slot(needs="amsgrad"),
        },
        **_MOMENTS,
        amsgrad=_NO,
    ),
    "rmsprop": _rule(
        {"velocity": Slot(), "momentum": Slot(needs="momentum"), "average_gradient": Slot(needs="centered")},
        rho=_fraction(0.9),
        momentum=_fraction(0.0),
        epsilon=_amount(1e-7),
        centered=_NO,
    ),
    "adadelta": _rule(
        {"accumulated_grad": Slot(), "accumulated_delta_var": Slot()}, rho=_fraction(0.95), epsilon=_amount(1e-7)
    ),
    "adamax": _rule({"momentum": Slot(), "norm": Slot()}, **_MOMENTS),
    "nadam": _rule({"momentum": Slot(), "velocity": Slot()}, **_MOMENTS),
    "lion": _rule({"momentum": Slot()}, beta_1=_fraction(0.9), beta_2=_fraction(0.99)),
    "ftrl": _rule(
        {"accumulator": Slot("initial_accumulator_value"), "linear": Slot()},
        learning_rate_power=Parameter(-0.5, _NOT_POSITIVE),
        initial_accumulator_value=_amount(0.1),
        l1_regularization_strength=_amount(0.0),
        l2_regularization_strength=_amount(0.0),
        l2_shrinkage_regularization_strength=_amount(0.0),
        beta=_amount(0.0),
        group_lasso_regularization_strength=_amount(0.0),
    ),
    "lamb": _rule({"momentum": Slot(), "velocity": Slot()}, **_MOMENTS),
}
"""By name."""

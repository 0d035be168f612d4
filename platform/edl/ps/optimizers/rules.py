"""Which rule applies to what: by optimizer, and by weight decay of a variable or table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from edl.ps.arrays import Floats
from edl.ps.declaration import Declaration
from edl.ps.optimizers.adagrad import adadelta, adagrad, rmsprop
from edl.ps.optimizers.adam import adam, adamax, nadam
from edl.ps.optimizers.descent import lion, momentum, sgd
from edl.ps.optimizers.ftrl import ftrl
from edl.ps.optimizers.lamb import lamb
from edl.ps.optimizers.update import Rule, Scratch, Update
from edl.spec.optimizer import OptimizerSpec

_RULES: Mapping[str, Callable[[OptimizerSpec], Rule]] = {
    "sgd": sgd,
    "momentum": momentum,
    "adagrad": adagrad,
    "adam": adam,
    "rmsprop": rmsprop,
    "adadelta": adadelta,
    "adamax": adamax,
    "nadam": nadam,
    "lion": lion,
    "ftrl": ftrl,
    "lamb": lamb,
}
_OF_WHOLE_VARIABLES = frozenset({"lamb"})
"""Rules that are not elementwise."""


@dataclass(frozen=True, slots=True)
class Block:
    """A part of the slab to which a rule is applied at once."""

    place: slice
    decay: float


def rule(optimizer: OptimizerSpec, decay: float) -> Rule:
    """The function that applies updates of this optimizer.

    Args:
        optimizer: with its hyperparameters.
        decay: the weight decay of what it is applied to: ``OptimizerSpec.decay_of``.
    """
    plain = _RULES[optimizer.name](optimizer)
    return partial(_decayed, decay, plain) if decay else plain


def blocks(declaration: Declaration) -> tuple[Block, ...]:
    """The trained part of the slab, cut where the weight decay changes; at each variable for rules that want that."""
    each = declaration.optimizer.name in _OF_WHOLE_VARIABLES
    found: list[Block] = []
    for variable, place in declaration.places():
        if variable.statistic:
            break
        decay = declaration.optimizer.decay_of(variable.name)
        if found and found[-1].decay == decay and not each:
            found[-1] = Block(slice(found[-1].place.start, place.stop), decay)
        else:
            found.append(Block(place, decay))
    return tuple(found)


def _decayed(
    decay: float, plain: Rule, values: Floats, slots: Sequence[Floats], update: Update, scratch: Scratch
) -> None:
    """Decoupled, as Keras does it: first ``w -= w * decay * lr``, then the rule."""
    np.multiply(values, decay, out=scratch.first)
    np.multiply(scratch.first, update.learning_rate, out=scratch.first)
    np.subtract(values, scratch.first, out=values)
    plain(values, slots, update, scratch)

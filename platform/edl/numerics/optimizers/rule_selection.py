"""Which rule applies to what: by optimizer, and by weight decay of a variable or table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from edl.api.variables import VariableSpec
from edl.numerics.optimizer_spec import OptimizerSpec
from edl.numerics.optimizers.adagrad import adadelta, adagrad, rmsprop
from edl.numerics.optimizers.adam import adam, adamax, nadam
from edl.numerics.optimizers.ftrl import ftrl, makes_groups
from edl.numerics.optimizers.gradient_descent import lion, momentum, sgd
from edl.numerics.optimizers.lamb import lamb
from edl.numerics.optimizers.update_rule import Floats, Rule, Scratch, Update

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
    """A part of the slab to which a rule is applied at once.

    Attributes:
        place: in the slab.
        decay: weight decay of all variables in it.
        width: of its rows, when it is one embedding whose rows the rule regards as groups; else 0.
    """

    place: slice
    decay: float
    width: int = 0

    def apply(self, rule: Rule, values: Floats, slots: Iterable[Floats], update: Update, scratch: Scratch) -> None:
        """Apply a rule to this part of slabs."""
        part = Update(self._part(update.gradient), update.learning_rate, update.step)
        room = Scratch(self._part(scratch.first), self._part(scratch.second))
        rule(self._part(values), [self._part(slot) for slot in slots], part, room)

    def _part(self, slab: Floats) -> Floats:
        part = slab[self.place]
        return part.reshape(-1, self.width) if self.width else part


def rule(optimizer: OptimizerSpec, decay: float) -> Rule:
    """The function that applies updates of this optimizer.

    Args:
        optimizer: with its hyperparameters.
        decay: the weight decay of what it is applied to: ``OptimizerSpec.decay_of``.
    """
    plain = _RULES[optimizer.name](optimizer)
    return partial(_decayed, decay, plain) if decay else plain


def blocks(optimizer: OptimizerSpec, places: Iterable[tuple[VariableSpec, slice]]) -> tuple[Block, ...]:
    """The trained part of a slab, cut where the weight decay changes; at each variable for rules that want that.

    Args:
        optimizer: that moves it.
        places: the variables in slab order, those that are trained before statistics, each with its part of the slab.
    """
    each = optimizer.name in _OF_WHOLE_VARIABLES
    found: list[Block] = []
    for variable, place in places:
        if variable.statistic:
            break
        block = Block(place, optimizer.decay_of(variable.name), _width(variable) if makes_groups(optimizer) else 0)
        if found and not each and (found[-1].decay, found[-1].width, block.width) == (block.decay, 0, 0):
            block = replace(block, place=slice(found.pop().place.start, place.stop))
        found.append(block)
    return tuple(found)


def _width(variable: VariableSpec) -> int:
    """Of the rows of an embedding that is held dense; 0 for other variables."""
    is_embedding = len(variable.shape) == 2 and variable.name.rpartition("/")[2] == "embeddings"
    return variable.shape[1] if is_embedding else 0


def _decayed(
    decay: float, plain: Rule, values: Floats, slots: Sequence[Floats], update: Update, scratch: Scratch
) -> None:
    """Decoupled, as Keras does it: first ``w -= w * decay * lr``, then the rule."""
    np.multiply(values, decay, out=scratch.first)
    np.multiply(scratch.first, update.learning_rate, out=scratch.first)
    np.subtract(values, scratch.first, out=values)
    plain(values, slots, update, scratch)

"""Selects the update rule for an optimizer and the weight decay of a variable or table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from edl.api.variables import VariableSpec
from edl.numerics.optimizer_spec import OptimizerSpec
from edl.numerics.optimizers.adam import adam, adamax, nadam
from edl.numerics.optimizers.ftrl import ftrl, uses_row_groups
from edl.numerics.optimizers.gradient_descent import adadelta, adagrad, lion, momentum, rmsprop, sgd
from edl.numerics.optimizers.lamb import lamb
from edl.numerics.optimizers.update_rule import FlatBlock, Floats, ParameterUpdate, ScratchArrays, UpdateRule

_RULE_FACTORIES: Mapping[str, Callable[[OptimizerSpec], UpdateRule]] = {
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
_WHOLE_VARIABLE_OPTIMIZERS = frozenset({"lamb"})
"""Rules that are not elementwise."""


def make_rule(optimizer: OptimizerSpec, weight_decay: float) -> UpdateRule:
    """The function that applies updates of this optimizer.

    Args:
        optimizer: the optimizer with its hyperparameters.
        weight_decay: the weight decay of the updated values (``OptimizerSpec.weight_decay_for``).
    """
    base_rule = _RULE_FACTORIES[optimizer.name](optimizer)
    return partial(_apply_with_decay, weight_decay, base_rule) if weight_decay else base_rule


def make_blocks(
    optimizer: OptimizerSpec, variable_slices: Iterable[tuple[VariableSpec, slice]]
) -> tuple[FlatBlock, ...]:
    """Split the trained part of the flat buffer into blocks that a rule updates in one call.

    A block ends where the weight decay changes, before and after an embedding of a group lasso, and
    at each variable if the rule is not elementwise.

    Args:
        optimizer: the optimizer that updates the buffer.
        variable_slices: the variables with their slices of the flat buffer, in its order: trained
            variables before statistics.
    """
    block_per_variable = optimizer.name in _WHOLE_VARIABLE_OPTIMIZERS
    merged_blocks: list[FlatBlock] = []
    for variable, place in variable_slices:
        if variable.statistic:
            # No trained variable follows a statistic (ModelDeclaration).
            break
        block = FlatBlock(
            place,
            optimizer.weight_decay_for(variable.name),
            _embedding_width(variable) if uses_row_groups(optimizer) else 0,
        )
        # Merge with the block before if the rule treats both alike.
        if (
            merged_blocks
            and not block_per_variable
            and (merged_blocks[-1].weight_decay, merged_blocks[-1].row_width, block.row_width)
            == (block.weight_decay, 0, 0)
        ):
            block = replace(block, flat_slice=slice(merged_blocks.pop().flat_slice.start, place.stop))
        merged_blocks.append(block)
    return tuple(merged_blocks)


def _embedding_width(variable: VariableSpec) -> int:
    """The row width of an embedding held as a dense variable; 0 for other variables."""
    is_embedding = len(variable.shape) == 2 and variable.name.rpartition("/")[2] == "embeddings"
    return variable.shape[1] if is_embedding else 0


def _apply_with_decay(
    weight_decay: float,
    base_rule: UpdateRule,
    values: Floats,
    slots: Sequence[Floats],
    update: ParameterUpdate,
    scratch: ScratchArrays,
) -> None:
    """Decoupled weight decay, as in Keras: first ``w -= w * decay * lr``, then the rule."""
    np.multiply(values, weight_decay, out=scratch.first)
    np.multiply(scratch.first, update.learning_rate, out=scratch.first)
    np.subtract(values, scratch.first, out=values)
    base_rule(values, slots, update, scratch)

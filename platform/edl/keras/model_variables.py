"""The dense variables of a model: their names, their owners, and their order in the slab."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edl.api.errors import BadInputError
from edl.api.variables import VariableSpec

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class ModelVariables:
    """A model's variables in slab order: by part, in each the trained ones first, then in the model's order.

    Attributes:
        specs: what is in the slab.
        weights: the Keras variable of each.
        slices: the slab slice of each part.
        local: what stays with this worker: states of random generators and constants of other types.
    """

    specs: tuple[VariableSpec, ...]
    weights: tuple[Any, ...]
    slices: tuple[slice, ...]
    local: tuple[Any, ...]

    @classmethod
    def of(cls, model: Any, part: Callable[[str], int], parts: int, *, served: bool = True) -> ModelVariables:
        """The variables of a built model.

        Args:
            model: the user's.
            part: the index of the PS that owns a variable.
            parts: number of PS.
            served: whether PS train them; otherwise Keras' optimizer does, which applies constraints.

        Raises:
            BadInputError: a trained variable is not float32 or is quantized, or PS cannot apply its constraint; it is
                named.
        """
        found = _name_variables([weight for weight in model.weights if _is_in_flat_buffer(weight, served)])
        order = sorted(found, key=lambda item: (part(item[0].name), item[0].statistic))
        sizes = [sum(spec.size for spec, _ in found if part(spec.name) == index) for index in range(parts)]
        bounds = list(accumulate(sizes, initial=0))
        kept = {id(weight) for _, weight in found}
        return cls(
            specs=tuple(spec for spec, _ in order),
            weights=tuple(weight for _, weight in order),
            slices=tuple(slice(start, stop) for start, stop in pairwise(bounds)),
            local=tuple(v for v in model.non_trainable_variables if id(v) not in kept),
        )

    @property
    def trained(self) -> tuple[int, ...]:
        """Positions of the variables that gradients train."""
        return tuple(index for index, spec in enumerate(self.specs) if not spec.statistic)

    @property
    def offsets(self) -> tuple[slice, ...]:
        """The slab slice of each variable."""
        return tuple(slice(a, b) for a, b in pairwise(accumulate((s.size for s in self.specs), initial=0)))

    def values(self) -> NDArray[np.float32]:
        """The present values of the Keras variables as a new slab."""
        flat = [np.asarray(weight, np.float32).ravel() for weight in self.weights]
        return np.concatenate([np.empty(0, np.float32), *flat])

    def assign(self, slab: NDArray[np.float32]) -> None:
        """Give the Keras variables the slab's values."""
        for weight, spec, place in zip(self.weights, self.specs, self.offsets, strict=True):
            weight.assign(slab[place].reshape(spec.shape))

    def fingerprint(self, *more: Any) -> str:
        """A digest of names, shapes, owners and ``more`` JSON values: two models with equal ones may mix.

        Sorted, because the order of the slab depends on how many PS there are, and a job may be resumed with others.
        """
        facts = sorted([s.name, s.shape, s.statistic] for s in self.specs)
        return hashlib.sha256(json.dumps([facts, *more], sort_keys=True).encode()).hexdigest()


def _is_in_flat_buffer(weight: Any, served: bool) -> bool:
    if weight.dtype == "float32":
        return _check_constraint(weight, served)
    if weight.trainable:
        raise BadInputError(
            f"the trained variable '{weight.path}' is {weight.dtype}; EDL trains float32 variables only",
            hint="for mixed precision use the policy mixed_bfloat16: its variables stay float32",
        )
    return False


def _check_constraint(weight: Any, served: bool) -> bool:
    if served and weight.trainable and getattr(weight, "constraint", None) is not None:
        raise BadInputError(
            f"the constraint {type(weight.constraint).__name__} of '{weight.path}' cannot be applied by the parameter "
            "servers",
            hint="leave the constraint out, use a regularizer, or train with strategy: {name: Local}, which applies it",
        )
    if getattr(weight, "overwrite_with_gradient", False):
        raise BadInputError(f"the quantized variable '{weight.path}' cannot be trained by EDL")
    return True


def _name_variables(weights: Sequence[Any]) -> list[tuple[VariableSpec, Any]]:
    counts: dict[str, int] = {}
    named = []
    for weight in weights:
        counts[weight.path] = seen = counts.get(weight.path, 0) + 1
        name = weight.path if seen == 1 else f"{weight.path}#{seen}"
        named.append((VariableSpec(name, tuple(weight.shape), not weight.trainable), weight))
    return named

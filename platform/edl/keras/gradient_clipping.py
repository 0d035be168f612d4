"""Gradient clipping, as Keras' optimizers do it; each worker clips its own gradients before it pushes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class GradientClipping:
    """How gradients are clipped before they are pushed; at most one of the three is set, as in Keras.

    Attributes:
        norm: each variable's gradient is scaled down to this L2 norm.
        value: each element is cut to [-value, value].
        global_norm: all gradients together are scaled down to this L2 norm.
    """

    norm: float | None = None
    value: float | None = None
    global_norm: float | None = None

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> GradientClipping | None:
        """What an optimizer's configuration asks for; like Keras, a limit of 0 or less means none."""
        limits = [config[name] for name in ("clipnorm", "clipvalue", "global_clipnorm")]
        clipping = cls(*(float(limit) if limit and limit > 0 else None for limit in limits))
        return None if clipping == cls() else clipping

    def __call__(self, gradients: Sequence[NDArray[np.float32]]) -> None:
        """Clip in place: one array for each trained variable and each served table (rows with duplicates summed).

        What is NaN leaves NaN behind, and so does what is infinite, of which ``value`` makes the limit, as in Keras.
        """
        if self.norm is not None:
            for gradient in gradients:
                _scale_down(gradient, _l2_norm(gradient), self.norm)
        elif self.global_norm is not None:
            total = float(np.sqrt(sum(_l2_norm(gradient) ** 2 for gradient in gradients)))
            for gradient in gradients:
                _scale_down(gradient, total, self.global_norm)
        elif self.value is not None:
            for gradient in gradients:
                np.clip(gradient, -self.value, self.value, out=gradient)


def _l2_norm(gradient: NDArray[np.float32]) -> float:
    flat = gradient.ravel()
    return float(np.sqrt(np.dot(flat, flat)))


def _scale_down(gradient: NDArray[np.float32], norm: float, limit: float) -> None:
    if norm > limit:
        with np.errstate(invalid="ignore"):  # infinity times zero: the training loop finds and reports what is NaN
            gradient *= np.float32(limit / norm)

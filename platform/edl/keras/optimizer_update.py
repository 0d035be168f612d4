"""One update of variables by one optimizer, under strategies AllReduce and Local: the port that a step uses.

A step has three parts. Where it is traced, :meth:`ReplicaUpdate.make_addend` takes its gradients and what its forward
pass has changed. ``write`` keeps what the trace returned, and ``apply`` changes the variables. ``all_reduce_update`` is
the implementation for several ranks, ``local_strategy_update`` the one for a job that never has a second rank;
``replica_state`` chooses between them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from numpy.typing import NDArray

from edl.keras.model_loss import LossReduction, uses_dynamic_loss_scaling


class ReplicaUpdate(ABC):
    """One update of some variables by one optimizer.

    Args:
        optimizer: a Keras optimizer that is built.
        trained: the variables that it changes.
        statistics: the variables that the forward pass changes.
        of_own_step: a ``train_step`` of the user's computes the gradients, with what the optimizer's
            ``apply_gradients`` made of them.

    Attributes:
        buffers: what is summed over all ranks: one-dimensional, one for each float type of variables.
        gradient_counts: of each buffer, the elements at its beginning that are gradients.
        skips_infinite_gradients: whether the optimizer expects infinite gradients: it skips the update then.
    """

    def __init__(
        self, optimizer: Any, trained: Sequence[Any], statistics: Sequence[Any], *, of_own_step: bool = False
    ) -> None:
        self.optimizer = optimizer
        self.trained = tuple(trained)
        self.statistics = tuple(statistics)
        self.buffers: tuple[NDArray[Any], ...] = ()
        self.gradient_counts: tuple[int, ...] = ()
        self.skips_infinite_gradients = uses_dynamic_loss_scaling(optimizer)
        self._of_own_step = of_own_step

    # ------------------------------------------------------------------ traced functions

    def read_statistics(self) -> list[Any]:
        """The values of the statistics, for :meth:`make_addend`."""
        return [tf.identity(variable.value) for variable in self.statistics]

    def make_addend(
        self, gradients: Sequence[Any], before: Sequence[Any], reduction: LossReduction | None, records: Any
    ) -> tuple[list[Any], list[Any]]:
        """What the traced step returns for :meth:`write`: gradients and tails.

        Afterwards the statistics are as before: until the update is applied, this or another rank may fail.

        Args:
            gradients: of each trained variable; None: it has none.
            before: what :meth:`read_statistics` returned before the forward pass.
            reduction: of the loss.
            records: the number of records, a float64 scalar.
        """
        after = self.read_statistics()
        for variable, old in zip(self.statistics, before, strict=True):
            variable.value.assign(old)
        # A missing one becomes a 0, which fills its place in a buffer.
        addend = [
            tf.zeros([], variable.dtype) if gradient is None else tf.convert_to_tensor(gradient)
            for variable, gradient in zip(self.trained, gradients, strict=True)
        ]
        has_gradient = [gradient is not None for gradient in gradients]
        return addend, self._make_tails(addend, has_gradient, before, after, reduction, records)

    @abstractmethod
    def _make_tails(
        self,
        gradients: Sequence[Any],
        has_gradient: Sequence[bool],
        before: Sequence[Any],
        after: Sequence[Any],
        reduction: LossReduction | None,
        records: Any,
    ) -> list[Any]:
        """What :meth:`write` needs beside the gradients: tensors."""

    def _call_optimizer(self, gradients: Sequence[Any]) -> None:
        """Change the variables as ``fit`` does. Keras warns about those without a gradient and does not change them."""
        if self._of_own_step:
            self.optimizer.apply(gradients, list(self.trained))
        elif self.trained:
            # An optimizer may override it.
            self.optimizer.apply_gradients(zip(gradients, self.trained, strict=True))

    # ------------------------------------------------------------------ a step

    @abstractmethod
    def clear(self) -> None:
        """Forget what was written: the addend of a rank without records."""

    @abstractmethod
    def write(self, gradients: Sequence[Any], tails: Sequence[Any], weight: float, *, adds: bool) -> bool:
        """Keep what :meth:`make_addend` returned, and return whether it is finite.

        Args:
            gradients: of each trained variable; a scalar zero stands for a missing one.
            tails: what belongs to them.
            weight: of the minibatch.
            adds: add to what was written instead of replacing it.
        """

    @abstractmethod
    def find_nonfinite(self) -> str:
        """The first variable whose gradient, as written, is not finite; or else ``loss``."""

    @abstractmethod
    def apply(self, total_weight: float, rate_factor: float | None = None) -> None:
        """Change the variables by what was written.

        Args:
            total_weight: the sum of all ranks' weights.
            rate_factor: the update uses the optimizer's learning rate times this number. The rate that
                callbacks and checkpoints see stays as it is. None: 1.

        Raises:
            UserCodeError: the optimizer raised an exception.
        """

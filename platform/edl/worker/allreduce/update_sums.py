"""The updates of a step before its last one, under strategy AllReduce: a reduction and an update for each.

The last update goes through the loop as that of any other model: its reduction carries the message with which the step
counts. The reductions here carry the same message, but only its weight, its learning rate and whether the gradients are
finite have an effect. If a rank is lost meanwhile, or a gradient is not finite, the replica puts its state back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from edl.collective.communicator import Communicator
from edl.worker.allreduce.gradient_sums import GradientSums, SummedReplica
from edl.worker.allreduce.step_message import StepMessage, StepOutcome
from edl.worker.lease_client import LeasedTask
from edl.worker.trainer import add_record_range


class UpdateResult(Protocol):
    """What a rank has computed for one update; ``ReplicaStep`` is."""

    @property
    def loss(self) -> float: ...
    @property
    def weight(self) -> float: ...
    @property
    def is_finite(self) -> bool: ...
    @property
    def nonfinite_name(self) -> str: ...
    @property
    def common_loss(self) -> float | None: ...


class ClearableUpdate(SummedReplica, Protocol):
    """What is needed of ``edl.keras.optimizer_update``."""

    def clear(self) -> None: ...


class UpdatesReplica(Protocol):
    """What is needed of ``edl.keras.several_updates_train_step``."""

    @property
    def updates(self) -> Sequence[ClearableUpdate]: ...
    def apply_next(self, total_weight: float, rate_factor: float | None = None) -> None: ...
    def compute_update(self, number: int, minibatch: int) -> UpdateResult: ...


class UpdateSums:
    """The reductions of one rank's steps but for the last one of each step.

    Args:
        replica: the model.
        wire_type: ``strategy.gradient_compression``.
        enter_exchange: called before each reduction: the master learns how far this rank is.
        begin_update: called before an update with what the ranks said; returns the factor of the learning rate.
        report_not_finite: called when a gradient or the loss of a minibatch is not finite.
    """

    def __init__(
        self,
        replica: UpdatesReplica,
        wire_type: str,
        enter_exchange: Callable[[], None],
        begin_update: Callable[[StepOutcome], float | None],
        report_not_finite: Callable[[LeasedTask, int, Any], None],
    ) -> None:
        self._replica = replica
        self._sums = [GradientSums(update, wire_type) for update in replica.updates[:-1]]
        self._enter_exchange = enter_exchange
        self._begin_update = begin_update
        self._report_not_finite = report_not_finite
        self._minibatches: list[tuple[LeasedTask, int]] = []

    def begin_step(self) -> None:
        """A new step begins; it has no minibatch yet."""
        self._minibatches.clear()

    def add_minibatch(self, task: LeasedTask, step: int) -> None:
        """The gradients of the first update have been computed for a minibatch: this step of a lease."""
        self._minibatches.append((task, step))

    def reduce(self, communicator: Communicator, message: StepMessage, step: int) -> StepMessage:
        """Make the updates before the last one, and compute its gradients.

        Args:
            communicator: all ranks.
            message: what this rank says with the step.
            step: the newest step in this rank's state; this one is the next.

        Returns:
            The message for the last reduction.

        Raises:
            RoundBrokenError: a rank was lost.
            PeerRefusedError: the message of a rank is impossible.
            NotFiniteError: a gradient of this rank is not finite, and ``train.on_nan`` is ``stop``.
        """
        for number, sums in enumerate(self._sums):
            if not message.has_gradient:
                self._replica.updates[number].clear()
            self._enter_exchange()
            messages = sums.reduce(communicator, message.encode(), step, has_gradient=message.has_gradient)
            outcome = StepOutcome.from_messages(messages)
            if not outcome.changes_variables:
                # All ranks know it: the last reduction carries no gradient.
                return message if outcome.is_finite else _without_gradient(message)
            self._replica.apply_next(outcome.weight, self._begin_update(outcome))
            if message.has_gradient:
                message = self._compute(number + 1, message)
        return message

    def end_step(self, step: int, *, is_applied: bool) -> None:
        """The step is made: see :meth:`GradientSums.end_step`."""
        for sums in self._sums:
            sums.end_step(step, is_applied=is_applied)

    def forget_errors(self) -> None:
        """See :meth:`GradientSums.forget_errors`."""
        for sums in self._sums:
            sums.forget_errors()

    def _compute(self, number: int, message: StepMessage) -> StepMessage:
        """Compute the gradients of the update with this number for all minibatches of the step."""
        weight, weighted_loss = 0.0, 0.0
        for minibatch, (task, step) in enumerate(self._minibatches):
            with add_record_range(task, step):
                result = self._replica.compute_update(number, minibatch)
            if not result.is_finite:
                self._report_not_finite(task, step, result)
                return _without_gradient(message)
            weight, weighted_loss = weight + result.weight, weighted_loss + result.weight * result.loss
        return replace(message, loss=weighted_loss / weight if weight else 0.0)


def _without_gradient(message: StepMessage) -> StepMessage:
    return replace(message, has_gradient=False, weight=0.0, loss=0.0, is_finite=False)

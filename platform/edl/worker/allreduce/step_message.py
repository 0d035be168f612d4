"""What a rank tells all others with the reduction of a step: its share, and what all must do at this boundary."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from edl.core.world_rounds import Share, StepShares

_FORMAT = struct.Struct("<qqqddqdB")
_HAS_SHARE, _NOT_FINITE, _LEAVES_ROUND, _PAUSES, _HAS_GRADIENT = 1, 2, 4, 8, 16


@dataclass(frozen=True, slots=True)
class StepMessage:
    """One rank's part of a step.

    Attributes:
        share: its records; None: it has none now.
        has_gradient: whether it adds the gradient of a minibatch.
        weight: the weight of its loss among all ranks.
        loss: the loss of its minibatch.
        is_finite: whether loss and gradients are.
        leaves_round: the world is to change: all ranks leave the round after this step.
        pauses: an evaluation waits: nobody trains after this step.
        epoch: the epoch of its records.
        learning_rate: the rate that the callbacks set for these records; None: no callback sets one.
    """

    share: Share | None = None
    has_gradient: bool = False
    weight: float = 0.0
    loss: float = 0.0
    is_finite: bool = True
    leaves_round: bool = False
    pauses: bool = False
    epoch: int = 0
    learning_rate: float | None = None

    def encode(self) -> bytes:
        """The message as bytes, always of the same length."""
        lease, start, end = self.share or (0, 0, 0)
        flags = (
            (_HAS_SHARE if self.share is not None else 0)
            | (0 if self.is_finite else _NOT_FINITE)
            | (_LEAVES_ROUND if self.leaves_round else 0)
            | (_PAUSES if self.pauses else 0)
            | (_HAS_GRADIENT if self.has_gradient else 0)
        )
        rate = math.nan if self.learning_rate is None else self.learning_rate
        return _FORMAT.pack(lease, start, end, self.weight, self.loss, self.epoch, rate, flags)

    @classmethod
    def decode(cls, data: bytes) -> StepMessage:
        """Read a message.

        Raises:
            ValueError: it has another length.
        """
        try:
            lease, start, end, weight, loss, epoch, rate, flags = _FORMAT.unpack(data)
        except struct.error as error:
            raise ValueError(f"a rank's message has {len(data)} bytes, not {_FORMAT.size}") from error
        share = Share(lease, start, end) if flags & _HAS_SHARE else None
        leaves_round, pauses = bool(flags & _LEAVES_ROUND), bool(flags & _PAUSES)
        return cls(
            share,
            bool(flags & _HAS_GRADIENT),
            weight,
            loss,
            not flags & _NOT_FINITE,
            leaves_round,
            pauses,
            epoch,
            None if math.isnan(rate) else rate,
        )


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """What the messages of all ranks say together; the same on every rank.

    Attributes:
        shares: the shares of all ranks, by rank.
        weight: sum of the weights.
        has_gradient: whether any rank adds a gradient.
        loss: mean loss, weighted; None if no rank has a weight.
        is_finite: whether the step may be applied.
        leaves_round: whether all ranks leave the round now.
        pauses: whether no rank trains in the next step.
        learning_rate: the rate that callbacks set for this step; None: none sets one. With records of two epochs it is
            that of the later one. Every step says it anew, so a member that joins, or a new rank 0, misses none.
        rate_conflict: two ranks with records of the same epoch whose callbacks set different rates; None: there are
            none.
    """

    shares: StepShares
    weight: float
    has_gradient: bool
    loss: float | None
    is_finite: bool
    leaves_round: bool
    pauses: bool
    learning_rate: float | None = None
    rate_conflict: tuple[int, int] | None = None

    @classmethod
    def from_messages(cls, messages: Sequence[bytes]) -> StepOutcome:
        """Combine the messages of all ranks, by rank."""
        parts = [StepMessage.decode(data) for data in messages]
        weight = sum(part.weight for part in parts)
        epoch = max((part.epoch for part in parts if part.share is not None), default=0)
        rates = [(at, x.learning_rate) for at, x in enumerate(parts) if x.share is not None and x.epoch == epoch]
        rank, rate = rates[0] if rates else (0, None)
        conflict = next(((rank, other) for other, its_rate in rates if its_rate != rate), None)
        return cls(
            shares=tuple(part.share for part in parts if part.share is not None),
            weight=weight,
            has_gradient=any(part.has_gradient for part in parts),
            loss=sum(part.weight * part.loss for part in parts) / weight if weight else None,
            is_finite=all(part.is_finite for part in parts),
            leaves_round=any(part.leaves_round for part in parts),
            pauses=any(part.pauses for part in parts),
            learning_rate=rate,
            rate_conflict=conflict,
        )

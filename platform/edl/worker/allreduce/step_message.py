"""What a rank tells all others with the reduction of a step: its share, and what all must do at this boundary."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from edl.core.global_batch import NO_RECORDS, RankRecords
from edl.core.world_rounds import Share, StepShares
from edl.worker.allreduce.rank_answers import plain_rank_name, read_answers

_FORMAT = struct.Struct("<dddqdqqqB")
_SHARE = struct.Struct("<qqqq")
_NOT_FINITE, _LEAVES_ROUND, _PAUSES, _HAS_GRADIENT, _IS_INDIVISIBLE, _MAY_BE_SHORT, _STOPS = 1, 2, 4, 8, 16, 32, 64


@dataclass(frozen=True, slots=True)
class StepMessage:
    """One rank's part of a step.

    Attributes:
        shares: its records, at most one share of each lease; none: it has no records now.
        has_gradient: whether it adds the gradient of a minibatch.
        weight: the weight of its loss among all ranks.
        loss: the loss of its records.
        common_loss: of a summed loss, the part that every minibatch's has: the regularizers. None: the loss is a mean.
        is_finite: whether loss and gradients are.
        leaves_round: the world is to change: all ranks leave the round after this step.
        pauses: an evaluation waits: nobody trains after this step.
        epoch: the epoch of its records.
        learning_rate: the rate that the callbacks set for these records; None: no callback sets one.
        available: with a global batch, the records that it has for the next step.
        epoch_left: with a global batch, the records of the epoch after this step, as this rank knows. Rank 0's counts.
        may_be_short: whether the next step may have fewer records than the global batch. Rank 0's word counts, too.
        stops: whether a callback of the user's ended training: nobody trains after this step.
        copies_cut: the checkpoint of which ranks copy their shares after this step; 0: none. Rank 0's counts.
    """

    shares: StepShares = ()
    has_gradient: bool = False
    weight: float = 0.0
    loss: float = 0.0
    is_finite: bool = True
    leaves_round: bool = False
    pauses: bool = False
    epoch: int = 0
    learning_rate: float | None = None
    available: RankRecords = NO_RECORDS
    epoch_left: int = 0
    may_be_short: bool = False
    stops: bool = False
    copies_cut: int = 0
    common_loss: float | None = None

    def encode(self) -> bytes:
        flags = (
            (0 if self.is_finite else _NOT_FINITE)
            | (_LEAVES_ROUND if self.leaves_round else 0)
            | (_PAUSES if self.pauses else 0)
            | (_HAS_GRADIENT if self.has_gradient else 0)
            | (_IS_INDIVISIBLE if self.available.is_indivisible else 0)
            | (_MAY_BE_SHORT if self.may_be_short else 0)
            | (_STOPS if self.stops else 0)
        )
        common = math.nan if self.common_loss is None else self.common_loss
        rate = math.nan if self.learning_rate is None else self.learning_rate
        counts = self.available.count, self.epoch_left, self.copies_cut
        fixed = _FORMAT.pack(self.weight, self.loss, common, self.epoch, rate, *counts, flags)
        return b"".join([fixed, *(_SHARE.pack(*share) for share in self.shares)])

    @classmethod
    def decode(cls, data: bytes) -> StepMessage:
        """Read a message.

        Raises:
            ValueError: its length or one of its numbers is impossible.
        """
        size = _FORMAT.size
        if len(data) < size or (len(data) - size) % _SHARE.size:
            raise ValueError(f"it has {len(data)} bytes, not {size} and {_SHARE.size} for each share")
        weight, loss, common, epoch, rate, available, epoch_left, copies_cut, flags = _FORMAT.unpack(data[:size])
        shares = tuple(Share(*row) for row in _SHARE.iter_unpack(data[size:]))
        for share in shares:
            if not share.is_possible:
                raise ValueError(f"it has an impossible share, {share}")
        counts = {"epoch": epoch, "available": available, "epoch_left": epoch_left, "copies_cut": copies_cut}
        for name, number in counts.items():
            if number < 0:
                raise ValueError(f"its {name} is {number}")
        if not math.isfinite(weight) or math.isinf(rate):
            raise ValueError(f"its weight is {weight} and its learning rate {rate}")
        return cls(
            shares,
            bool(flags & _HAS_GRADIENT),
            weight,
            loss,
            not flags & _NOT_FINITE,
            bool(flags & _LEAVES_ROUND),
            bool(flags & _PAUSES),
            epoch,
            None if math.isnan(rate) else rate,
            RankRecords(available, bool(flags & _IS_INDIVISIBLE)),
            epoch_left,
            bool(flags & _MAY_BE_SHORT),
            bool(flags & _STOPS),
            copies_cut,
            None if math.isnan(common) else common,
        )


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """What the messages of all ranks say together; the same on every rank.

    Attributes:
        shares: the shares of all ranks, by rank.
        weight: sum of the weights.
        gradient_count: how many ranks add a gradient.
        loss: mean loss, weighted, or the sum if losses are summed; None if no rank has a weight.
        is_finite: whether the step may be applied.
        leaves_round: whether all ranks leave the round now.
        pauses: whether no rank trains in the next step.
        learning_rate: the rate that callbacks set for this step: that of the lowest rank whose callbacks set one; None:
            none sets one. With records of two epochs it is that of the later one. Every step says it anew, so a member
            that joins, or a new rank 0, misses none.
        rate_conflict: two ranks with records of the same epoch whose callbacks set different rates; None: there are
            none.
        available: the records that each rank has for the next step, by rank.
        epoch_left: the records of the epoch after this step, which bound the next one.
        may_be_short: whether the next step may have fewer records.
        epoch: the latest epoch of the records of this step.
        stops: whether a callback ended training on any rank.
        copies_cut: the checkpoint of which ranks copy their shares now; 0: none.
    """

    shares: StepShares
    weight: float
    gradient_count: int
    loss: float | None
    is_finite: bool
    leaves_round: bool
    pauses: bool
    learning_rate: float | None = None
    rate_conflict: tuple[int, int] | None = None
    available: tuple[RankRecords, ...] = ()
    epoch_left: int = 0
    may_be_short: bool = False
    epoch: int = 0
    stops: bool = False
    copies_cut: int = 0

    @property
    def changes_variables(self) -> bool:
        """Whether the sums are applied."""
        return self.is_finite and self.gradient_count > 0

    @classmethod
    def from_messages(cls, messages: Sequence[bytes], name_rank: Callable[[int], str] = plain_rank_name) -> StepOutcome:
        """Combine the messages of all ranks, by rank; there is at least one.

        Args:
            name_rank: the name of a rank in an error.

        Raises:
            PeerRefusedError: the message of a rank is impossible.
        """
        parts = read_answers(messages, StepMessage.decode, "a message of a step", name_rank)
        weight = sum(part.weight for part in parts)
        epoch = max((part.epoch for part in parts if part.shares), default=0)
        rates = [(at, x.learning_rate) for at, x in enumerate(parts) if x.shares and x.epoch == epoch]
        rank, rate = next((each for each in rates if each[1] is not None), (0, None))
        conflict = next(((rank, other) for other, its_rate in rates if its_rate != rate), None)
        return cls(
            shares=tuple(share for part in parts for share in part.shares),
            weight=weight,
            gradient_count=sum(part.has_gradient for part in parts),
            loss=_combine_losses(parts, weight) if weight else None,
            is_finite=all(part.is_finite for part in parts),
            leaves_round=any(part.leaves_round for part in parts),
            pauses=any(part.pauses for part in parts),
            learning_rate=rate,
            rate_conflict=conflict,
            available=tuple(part.available for part in parts),
            epoch_left=parts[0].epoch_left,
            may_be_short=parts[0].may_be_short,
            epoch=epoch,
            stops=any(part.stops for part in parts),
            copies_cut=parts[0].copies_cut,
        )


def _combine_losses(parts: Sequence[StepMessage], weight: float) -> float:
    """The loss of the step; of a summed one every minibatch has a weight of 1, and its own regularizers."""
    total = sum(part.weight * part.loss for part in parts)
    common = next((part.common_loss for part in parts if part.common_loss is not None), None)
    return total / weight if common is None else total - (weight - 1) * common

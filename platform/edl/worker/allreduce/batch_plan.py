"""What the ranks have agreed about the next step of a global batch; ``edl.core.global_batch`` decides."""

from __future__ import annotations

from edl.core.global_batch import NO_RECORDS, EpochProgress, RankRecords, divide_step
from edl.core.world_rounds import StepShares
from edl.worker.allreduce.share_source import BatchShareSource
from edl.worker.allreduce.step_message import StepOutcome


class BatchPlan:
    """The next step: its size, and this rank's part. All ranks compute the same from the messages of all.

    Args:
        global_batch: the records of a step.
        max_steps: ``train.max_steps``.
        shares: the records of this rank.

    Attributes:
        size: the records of the next step; 0: there is none yet.
        records: those of this rank.
        expected_records: those of this rank in the step after, unless a rank runs out of records or gets some again.
        is_idle: whether the last messages have led to no step.
    """

    def __init__(self, global_batch: int, max_steps: int | None, shares: BatchShareSource) -> None:
        self._global_batch = global_batch
        self.shares = shares
        self._max_steps = max_steps
        self.start_round()

    def start_round(self) -> None:
        """A round starts: the ledger has all steps before it."""
        self._progress = EpochProgress()
        self.size, self.records, self.expected_records, self.is_idle = 0, 0, 0, False

    def epoch_left(self, committed_step: int, left: int) -> int:
        """The records of the epoch after the next step; the arguments are those of the view."""
        return max(0, self._progress.records_left(committed_step, left) - self.size)

    def add_step(self, step: int, shares: StepShares) -> None:
        """A step was made."""
        self._progress.add_step(step, sum(share.end - share.start for share in shares))

    def agree(self, outcome: StepOutcome, rank: int, step: int) -> None:
        """Decide the next step after the messages of all ranks.

        Args:
            outcome: these messages.
            rank: the rank of this worker.
            step: the newest step that was made.
        """
        size = 0 if outcome.pauses else self._limit_step(outcome.epoch_left, step)
        parts = divide_step(size, outcome.available, step=step, may_be_short=outcome.may_be_short)
        self.size, self.records = sum(parts), parts[rank]
        self.is_idle = not self.size
        next_size = self._limit_step(outcome.epoch_left - self.size, step + 1)
        # A rank gets its leases in time. One that puts in nothing, as while it evaluates, probably does not in the next
        # step either, and one with indivisible records gets no others now.
        stocks = [
            RankRecords(next_size) if part and not its.is_indivisible else NO_RECORDS
            for part, its in zip(parts, outcome.available, strict=True)
        ]
        self.expected_records = divide_step(next_size, stocks, step=step + 1)[rank]

    def _limit_step(self, epoch_left: int, step: int) -> int:
        """The records of the step after ``step``, if the ranks have them."""
        is_last = self._max_steps is not None and step >= self._max_steps
        return 0 if is_last else min(self._global_batch, epoch_left)

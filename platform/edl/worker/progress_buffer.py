"""What is to be said of one lease, until it is said."""

from __future__ import annotations

from dataclasses import dataclass

from edl.transport import edl_pb2 as pb


@dataclass(slots=True)
class ProgressBuffer:
    """What is known of one lease; sums are of the steps since the last message."""

    expires_seconds: float
    through: int = 0
    told: int = 0
    loss_sum: float = 0.0
    loss_steps: int = 0
    skipped: int = 0

    def message(self, lease: int) -> pb.LeaseProgress:
        """What is known, as the master is told it."""
        return pb.LeaseProgress(
            lease=lease,
            through=self.through,
            loss_sum=self.loss_sum,
            loss_steps=self.loss_steps,
            skipped_records=self.skipped,
        )

    def take(self, lease: int) -> pb.LeaseProgress:
        """The message, and begin the next sums: the session asks until the master has it."""
        message = self.message(lease)
        self.loss_sum, self.loss_steps, self.skipped, self.told = 0.0, 0, 0, self.through
        return message


@dataclass(frozen=True, slots=True)
class TaskReport:
    """The end of a task: how far it got, and its result."""

    last: pb.LeaseProgress
    result: bytes

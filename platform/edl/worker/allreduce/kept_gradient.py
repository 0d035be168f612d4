"""The gradient of a step that was abandoned: it counts in the next round, if it is still that of the state.

The reduction sums in place, so an abandoned one leaves partial sums in the buffers. The replica has the gradient apart
from them until a step is applied, and writes it again (``ReplicaLike.write_again``). This decides when it may.
"""

from __future__ import annotations

from edl.core.world_rounds import StepShares
from edl.worker.allreduce.step_message import StepMessage


class KeptGradient:
    """What this rank has said with the gradient that the replica keeps.

    A gradient is that of some records and some parameters. The records are those of the shares. The parameters are
    compared by the digest of the state: between two rounds a rank may get the state of another one, and callbacks may
    change variables.
    """

    def __init__(self) -> None:
        self._message: StepMessage | None = None
        self._step = 0
        self._digest: int | None = None

    @property
    def lacks_digest(self) -> bool:
        """Whether a gradient is kept whose state is not known yet. A round that ends before it started has none."""
        return self._message is not None and self._digest is None

    def keep(self, step: int, message: StepMessage) -> None:
        """A gradient was computed.

        Args:
            step: the newest step in the state.
            message: the shares, and weight and loss of the gradient.
        """
        self._message, self._step, self._digest = message, step, None

    def forget(self) -> None:
        """The step is made, or the state may have changed."""
        self._message = None

    def end_round(self, digest: int) -> None:
        """The round is over, and the step was abandoned.

        Args:
            digest: of the state for which the gradient was computed.
        """
        self._digest = digest

    def start_round(self, digest: int) -> None:
        """All ranks of the next round have its first state, with this digest."""
        if digest != self._digest:
            self.forget()

    def find(self, step: int, shares: StepShares) -> StepMessage | None:
        """The message of these shares, if the gradient that is kept is theirs.

        Args:
            step: the newest step in the state.
            shares: the records of the next step.
        """
        if self._message is None or self._digest is None or (self._step, self._message.shares) != (step, shares):
            return None
        return self._message

"""Sums the buffers of a replica over all ranks, with float32 gradients as bfloat16 or float16 on the wire if asked.

The rounding errors of a rank's own gradients are added to its gradients of the next step (``wire_compression``). They
belong to a step: see :meth:`GradientSums.reduce`. Everything else travels as it is: statistics, counts, gradients of
other types.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, cast

import numpy as np

from edl.api.errors import BadInputError
from edl.collective.communicator import Communicator
from edl.collective.wire_compression import WireType, compress, expand

Array = np.ndarray[Any, Any]

_FLOAT16_EXPONENT = np.uint16(0x7C00)


class SummedReplica(Protocol):
    """What is needed of ``ReplicaLike``."""

    @property
    def buffers(self) -> Sequence[Array]: ...
    @property
    def gradient_counts(self) -> Sequence[int]: ...
    @property
    def skips_infinite_gradients(self) -> bool: ...


class GradientSums:
    """The reductions of one rank's steps.

    Args:
        replica: its buffers are summed in place.
        wire_type: ``strategy.gradient_compression``.

    Raises:
        BadInputError: the model has no float32 gradient.
    """

    def __init__(self, replica: SummedReplica, wire_type: str = "none") -> None:
        self._replica = replica
        self._parts: tuple[_CompressedPart | None, ...] = (None,) * len(replica.buffers)
        if wire_type == "none":
            return
        self._parts = tuple(
            _CompressedPart(buffer[:count], cast(WireType, wire_type)) if count and buffer.dtype == np.float32 else None
            for buffer, count in zip(replica.buffers, replica.gradient_counts, strict=True)
        )
        if not any(self._parts):
            raise BadInputError(
                f"strategy.gradient_compression is {wire_type}, but no trained variable of the model is float32",
                hint="remove the field: gradients of other types are not compressed",
            )

    def reduce(self, communicator: Communicator, control: bytes, step: int, *, has_gradient: bool) -> list[bytes]:
        """Sum the buffers over all ranks, in place; returns all ranks' messages.

        A step may be abandoned here while another rank finishes it. The rounding errors before and after it are kept,
        and the next call chooses by the step of this rank's state.

        Args:
            control: this rank's message.
            step: the newest step in this rank's state; this one is the next.
            has_gradient: whether the buffers have a gradient of this rank. Without one, it keeps its rounding errors.

        Raises:
            RoundBrokenError: a rank was lost; the buffers are undefined.
            BadInputError: a sum exceeds the range of float16, on all ranks.
        """
        parts = [part for part in self._parts if part is not None]
        for part in parts:
            part.begin_step(step, has_gradient=has_gradient, is_alone=communicator.size == 1)
        reduction = communicator.begin_step()
        *first, (last, _) = self._buckets(is_alone=communicator.size == 1)
        for bucket, element_type in first:
            reduction.reduce_bucket(bucket, element_type)
        messages = reduction.finish(control, last)
        if communicator.size > 1:
            for part in parts:
                part.expand_sum(may_be_infinite=self._replica.skips_infinite_gradients)
        return messages

    def end_step(self, step: int, *, is_applied: bool) -> None:
        """The step is made, and ``step`` is the newest one in the state; its sums were applied or dropped."""
        for part in self._parts:
            if part is not None:
                part.end_step(step, is_applied=is_applied)

    def forget_errors(self) -> None:
        """This rank gives its state up: its rounding errors belong to steps that the next state may not have."""
        for part in self._parts:
            if part is not None:
                part.forget_errors()

    def _buckets(self, *, is_alone: bool) -> list[tuple[Array, str | None]]:
        """What is reduced, in the same order on all ranks; the last one has its own type."""
        buckets: list[tuple[Array, str | None]] = []
        for part, buffer in zip(self._parts, self._replica.buffers, strict=True):
            if part is None or is_alone:
                buckets.append((buffer, None))
            else:
                buckets += [(part.halves, part.wire_type), (buffer[part.gradients.size :], None)]
        return buckets


class _CompressedPart:
    """The gradients in one buffer, and the rounding errors that were not sent yet."""

    def __init__(self, gradients: Array, wire_type: WireType) -> None:
        self.gradients = gradients
        self.wire_type = wire_type
        self.halves = np.zeros(gradients.size, np.uint16)
        self._state_step = 0
        """The newest step in the state to which ``_errors_before`` belong, those before the next step."""
        self._is_open = False
        """Whether the next step was begun and, as far as this rank knows, not made: ``_errors_after`` belong to it."""
        self._errors_before = np.zeros(gradients.size, np.float32)
        self._errors_after = np.zeros(gradients.size, np.float32)

    def begin_step(self, step: int, *, has_gradient: bool, is_alone: bool) -> None:
        if self._is_open and step == self._state_step + 1:
            # The round broke in the step that this rank had begun. Another finished it, and this rank got its state.
            self._errors_before, self._errors_after = self._errors_after, self._errors_before
        elif step != self._state_step:
            # This rank has joined, or training has gone back to a checkpoint: its errors belong to other steps.
            self._errors_before.fill(0)
        # Otherwise the newest step was made here, or one that was abandoned is made again: with the same errors.
        self._state_step, self._is_open = step, True
        np.copyto(self._errors_after, self._errors_before)
        if not has_gradient:
            self.halves.fill(0)
        elif is_alone:
            self.gradients += self._errors_after
            self._errors_after.fill(0)
        else:
            compress(self.gradients, self._errors_after, self.halves, self.wire_type)

    def end_step(self, step: int, *, is_applied: bool) -> None:
        if is_applied:
            self._errors_before, self._errors_after = self._errors_after, self._errors_before
        else:
            np.copyto(self._errors_after, self._errors_before)
        self._state_step, self._is_open = step, False

    def forget_errors(self) -> None:
        self._is_open = False
        self._errors_before.fill(0)

    def expand_sum(self, *, may_be_infinite: bool) -> None:
        if self.wire_type == "float16" and not may_be_infinite:
            is_infinite = (self.halves & _FLOAT16_EXPONENT) == _FLOAT16_EXPONENT
            if is_infinite.any():
                raise BadInputError(
                    "a sum of gradients exceeds the range of float16 (65,504)",
                    where="strategy.gradient_compression",
                    hint="use bfloat16, which has the range of float32 (--set strategy.gradient_compression=bfloat16)",
                )
        expand(self.halves, self.gradients, self.wire_type)

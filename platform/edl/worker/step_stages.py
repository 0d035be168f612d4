"""What a step is from part to part: prepared, ready to be computed, done."""

from __future__ import annotations

from typing import NamedTuple

from edl.keras.flat_buffer import Floats, RowsByTable
from edl.worker.gradient_push import GradientPush
from edl.worker.record_stream import LoadedStep


class PreparedStep(NamedTuple):
    """A minibatch with the rows of served tables that it needs."""

    loaded: LoadedStep
    rows: RowsByTable


class ReadyStep(NamedTuple):
    """A minibatch with all that it is computed from.

    Attributes:
        loaded: the minibatch.
        number: the global step that it is to be, as far as this worker knows.
        versions: by PS, of the dense values.
        slab: the dense values; nothing writes there while the step is computed.
        rows: of served tables.
    """

    loaded: LoadedStep
    number: int
    versions: tuple[int, ...]
    slab: Floats
    rows: RowsByTable


class ComputedStep(NamedTuple):
    """A minibatch's loss, None if it applies nothing, and its push: which lease follows is known when it is sent."""

    loss: float | None
    push: GradientPush

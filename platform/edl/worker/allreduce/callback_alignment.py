"""The user's callbacks of all ranks come to the same place when a round starts.

A round may end in the middle of a step. Then some ranks have called their callbacks before this step
(``on_epoch_begin``, ``on_train_batch_begin``), which may have changed variables, and others have not. Each rank says
where it is, and then:

* If any holder of the newest state has begun the step, all holders begin it, in the latest epoch in which one has. What
  a rank has called already is not called again.
* A member that lacks the state begins training, the epoch of the others and the step when its copy of the state is
  complete. It takes the state afterwards, which replaces what its callbacks change.

docs/design/0010-allreduce.md has the cases of ranks whose callbacks lack a step or an epoch.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from operator import index
from typing import NamedTuple, Protocol

from edl.api.round_id import RoundId
from edl.core.rank_state import NOT_BEGUN, CallbackEpoch, EndedStep
from edl.core.strict_json import decode_json


class AlignedCallbacks(Protocol):
    """The user's callbacks of one rank, as far as they are aligned."""

    @property
    def begun_step(self) -> tuple[int, int] | None: ...
    @property
    def callback_epoch(self) -> CallbackEpoch: ...
    @property
    def ended_step(self) -> EndedStep: ...
    def begin_step(self, step: int, epoch: int) -> None: ...
    def make_up_step(self, ended: EndedStep) -> None: ...
    def adopt_state(self, epoch: CallbackEpoch, step: int) -> None: ...
    def forget_old_values(self) -> None: ...


class CallbackPlace(NamedTuple):
    """Where the callbacks of a rank are.

    Attributes:
        begun_step: the newest step before which they were called.
        begun_epoch: the epoch of that step.
        epoch: how far they are in an epoch.
        ended: the newest step that is over for them.
    """

    begun_step: int
    begun_epoch: int
    epoch: CallbackEpoch
    ended: EndedStep


def describe_place(callbacks: AlignedCallbacks, *, is_holder: bool) -> bytes:
    """What a rank tells the others; nothing if it has no callbacks, or lacks the state."""
    own = callbacks.begun_step
    if own is None or not is_holder:
        return b""
    return json.dumps([own, callbacks.callback_epoch, callbacks.ended_step]).encode()


def read_place(data: bytes) -> CallbackPlace | None:
    """Read what ``describe_place`` told.

    Raises:
        TypeError: it names something that is no number.
        ValueError: it cannot be read, or names a place that cannot be.
    """
    if not data:
        return None
    place = decode_json(data, nonfinite_as_none=True)
    (step, number), (begun, loss_sum, steps, began_in, rate, first), (last, last_epoch, loss, is_applied) = place
    # A loss beyond the range of floats is no reason to end the job.
    epoch = CallbackEpoch(
        index(begun),
        0.0 if loss_sum is None else float(loss_sum),
        index(steps),
        RoundId(*map(index, began_in)),
        None if rate is None else float(rate),
        index(first),
    )
    ended = EndedStep(index(last), index(last_epoch), math.nan if loss is None else float(loss), bool(is_applied))
    if not epoch.is_possible or not ended.is_possible or index(step) < -1 or index(number) < 0:
        raise ValueError(f"it names step {step} of epoch {number}, {epoch} and {ended}")
    return CallbackPlace(step, number, epoch, ended)


class CallbackAlignment:
    """What one rank's callbacks have to do before the first step of a round.

    Args:
        callbacks: those of this rank.
        places: of the holders that have callbacks, by rank.
        step: the step from which the round starts.
    """

    def __init__(self, callbacks: AlignedCallbacks, places: Sequence[CallbackPlace], step: int) -> None:
        self._callbacks = callbacks
        self._places = places
        self._step = step

    def begin_step(self) -> None:
        """Begin the step if any holder has; to be called by holders."""
        if epochs := [place.begun_epoch for place in self._places if place.begun_step == self._step]:
            self._callbacks.begin_step(self._step, max(epochs))

    def adopt_state(self) -> None:
        """Begin what the holders have begun; to be called by a member that lacks the state, before it takes it.

        Not before the copy is complete: until then its own state may be the furthest one that is left, and callbacks
        may change variables.
        """
        not_begun = [place.epoch for place in self._places if place.begun_step != self._step]
        epochs = not_begun or [place.epoch for place in self._places]
        furthest = max(epochs, key=lambda epoch: epoch.place, default=NOT_BEGUN)
        # Of the lowest rank that has set one, as in a step.
        rate = next((epoch.learning_rate for epoch in epochs if epoch.learning_rate is not None), None)
        # This rank's steps are other ones if training has begun again meanwhile.
        if furthest.began_in == self._callbacks.callback_epoch.began_in:
            for ended in [place.ended for place in self._places if place.ended.step == self._step - 1][:1]:
                self._callbacks.make_up_step(ended)
        self._callbacks.adopt_state(furthest._replace(learning_rate=rate), self._step)
        if any(place.begun_step == self._step for place in self._places):
            self.begin_step()
            self._callbacks.forget_old_values()

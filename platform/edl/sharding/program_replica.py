"""A program as one rank of strategy AllReduce: its arrays are summed, and its state is that of the rank.

It stands where a Keras model stands otherwise (``edl.keras.replica``), so rounds, joins, checkpoints and their
guarantees are the same: docs/design/0010-allreduce.md.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from edl.api.errors import BadInputError
from edl.collective.element_types import find_element_type
from edl.core.rank_state import NO_ENDED_STEP, NOT_BEGUN, CallbackEpoch, EndedStep
from edl.numerics.aligned_memory import allocate_aligned
from edl.numerics.packed_state import array_checksum, pack_arrays, packed_size, split_packed
from edl.sharding.program_handoff import Contribution, ProgramHandoff
from edl.sharding.program_state import ProgramState, as_array
from edl.sharding.record_prefetch import WindowRecords

Array = NDArray[Any]
Reduction = Literal["mean", "sum"]


@dataclass(frozen=True, slots=True)
class OfferedStep:
    """A step that the program computes, or applies only.

    Attributes:
        number: the steps that were made before it.
        epoch: the epoch of its records, as far as this rank knows.
        window: the records of this rank; None: it has none.
    """

    number: int
    epoch: int
    window: WindowRecords | None


@dataclass(frozen=True, slots=True)
class ProgramResult:
    """What a program has computed of a minibatch; see ``edl.keras.replica_state.ReplicaStep``."""

    loss: float
    weight: float
    is_finite: bool
    nonfinite_name: str
    common_loss: float | None = None


class StepNumbers:
    """Where the loop is: it stands where the callbacks of a Keras model stand, and calls nothing of the user's.

    Args:
        on_round: called with this worker's rank when a round begins to run.
    """

    def __init__(self, on_round: Callable[[int], None]) -> None:
        self._on_round = on_round
        self.step, self.epoch = 0, 0
        self.learning_rate: float | None = None
        self.has_stopped = False
        """Whether the program ended training: all ranks hear of it with the next step."""

    def start_round(self, rank: int) -> None:
        self._on_round(rank)

    @property
    def callback_epoch(self) -> CallbackEpoch:
        """The program has no callbacks."""
        return NOT_BEGUN

    @property
    def begun_step(self) -> tuple[int, int] | None:
        """Nothing that the program does before a step changes its state."""
        return None

    def begin_step(self, step: int, epoch: int) -> None:
        self.step, self.epoch = step, epoch

    def end_step(self, step: int, epoch: int, loss: float, learning_rate: float | None) -> None:
        pass

    def skip_step(self, step: int, epoch: int) -> None:
        self.begin_step(step, epoch)

    def end_training(self) -> None:
        pass

    def forget_stop(self) -> None:
        self.has_stopped = False

    @property
    def ended_step(self) -> EndedStep:
        """The program has no callbacks."""
        return NO_ENDED_STEP

    def make_up_step(self, ended: EndedStep) -> None:
        pass

    def adopt_state(self, epoch: CallbackEpoch, step: int) -> None:
        """The program sets its learning rate itself."""

    def begin_again(self, step: int, began_in: tuple[int, int], epoch: int) -> None:
        pass

    lacks_old_values = False

    def forget_old_values(self) -> None:
        pass

    def showing_checkpoint(self) -> AbstractContextManager[None]:
        return nullcontext()


class ProgramReplica:
    """The arrays and the state of a program.

    Args:
        handoff: to the program's thread.
        numbers: the step that comes next.
        arrays_like: arrays with the shapes and types of those that each step sums, by name.
        reduction: whether the program gets the sum, or the mean by the weights of the ranks.
        state_dict: returns the program's state.
        load_state_dict: replaces it.

    Raises:
        BadInputError: arrays cannot be summed, or the state cannot be read.
    """

    skips_infinite_gradients = False

    def __init__(
        self,
        handoff: ProgramHandoff,
        numbers: StepNumbers,
        arrays_like: Mapping[str, Any],
        reduction: Reduction,
        state_dict: Callable[[], Any],
        load_state_dict: Callable[[Any], None],
    ) -> None:
        self._handoff = handoff
        self._numbers = numbers
        self._reduction = reduction
        self._state_dict = state_dict
        self._load_state_dict = load_state_dict
        self._state = ProgramState(state_dict())
        if not self._state.kinds:
            raise BadInputError("the program's state has no array", where="state_dict")
        likes = {name: as_array(value, name) for name, value in arrays_like.items()}
        if not likes:
            raise BadInputError("there is no array to sum", where="arrays_like")
        for name, like in likes.items():
            find_element_type(like.dtype)
            if like.dtype.kind != "f" and reduction == "mean":
                raise BadInputError(
                    f"'{name}' has the type {like.dtype}, of which there is no mean",
                    where="arrays_like",
                    hint="sum floats, or take the sum: reduction='sum'",
                )
        self._shapes = {name: (like.dtype, like.shape) for name, like in likes.items()}
        self._views, self.buffers = _make_buffers(likes)
        self.gradient_counts: tuple[int, ...] = tuple(buffer.size for buffer in self.buffers)

    @property
    def views(self) -> Mapping[str, Array]:
        """The arrays that are summed, by name, in the buffers."""
        return self._views

    # ------------------------------------------------------------------ a step

    def compute(self, features: WindowRecords, labels: Any, weights: Any, *, adds: bool = False) -> ProgramResult:
        """Let the program compute what this rank adds, and write it to the buffers."""
        assert not adds, "a step of a program has one minibatch a rank"
        contribution = self._handoff.compute(OfferedStep(self._numbers.step, self._numbers.epoch, features))
        if contribution.arrays is None:
            self.clear()
            return ProgramResult(0.0, 0.0, is_finite=True, nonfinite_name="")
        nonfinite = self._write(contribution)
        is_finite = math.isfinite(contribution.loss) and not nonfinite
        return ProgramResult(contribution.loss, contribution.weight, is_finite, nonfinite or "loss")

    def _write(self, contribution: Contribution) -> str:
        """Write the arrays, and return the name of the first one that is not finite; empty if all are."""
        assert contribution.arrays is not None
        nonfinite = ""
        for (name, view), array in zip(self._views.items(), contribution.arrays, strict=True):
            # Ranks may have different numbers of records: ``apply`` divides the sum by the sum of the weights.
            if self._reduction == "mean":
                np.multiply(array, array.dtype.type(contribution.weight), out=view)
            else:
                np.copyto(view, array)
            if not nonfinite and view.dtype.kind == "f" and not np.isfinite(array).all():
                nonfinite = name
        return nonfinite

    keeps_addend = False
    """A step that is given up is an exception in the program, which computes it again."""

    def write_again(self) -> None:
        """As of ``ModelReplica``."""
        raise AssertionError("the program computes an abandoned step again")

    def clear(self) -> None:
        """This rank adds nothing."""
        for buffer in self.buffers:
            buffer.fill(0)

    def apply(self, total_weight: float, rate_factor: float | None = None) -> None:
        """Let the program apply the sums in the buffers, which become means before."""
        # Without a weight no rank has added anything.
        if self._reduction == "mean" and total_weight > 0:
            for buffer in self.buffers:
                buffer /= buffer.dtype.type(total_weight)
        if not self._handoff.has_open_step:
            # A rank without records, or a worker that follows the others.
            self._handoff.compute(OfferedStep(self._numbers.step, self._numbers.epoch, None))
        self._handoff.apply(total_weight)

    def restore_statistics(self) -> None:
        """The step is given up."""
        self._handoff.abandon("the workers have changed, or the step was skipped: its records come again, or are left")

    def set_learning_rate(self, rate: float) -> None:
        raise AssertionError("a program sets its own learning rate")

    # ------------------------------------------------------------------ the state

    def _read_state(self) -> dict[str, Array]:
        return self._handoff.call(lambda: self._state.flatten(self._state_dict()))

    def _write_state(self, arrays: Mapping[str, Array]) -> None:
        state = self._state.restore(arrays)
        self._handoff.call(lambda: self._load_state_dict(state))

    @property
    def rate_names(self) -> frozenset[str]:
        """The program sets its learning rate itself."""
        return frozenset()

    def state_sizes(self) -> dict[str, int]:
        """The bytes of each array of the state."""
        return {name: array.nbytes for name, array in self._read_state().items()}

    def state_arrays(self, names: Iterable[str] | None = None) -> dict[str, Array]:
        """Copies of the arrays of the state, or of some of them."""
        wanted = None if names is None else set(names)
        return {name: np.array(array) for name, array in self._read_state().items() if wanted is None or name in wanted}

    def load_state(self, arrays: Mapping[str, Array]) -> None:
        """Give the program a state that :meth:`state_arrays` returned.

        Raises:
            BadInputError: another program has written it.
        """
        self._write_state(arrays)

    def pack_state(self) -> NDArray[np.uint8]:
        """A copy of the state as one array; its size is a multiple of eight bytes."""
        arrays = self._read_state().values()
        return pack_arrays(arrays, packed_size(array.nbytes for array in arrays))

    def hold_state(self) -> list[Array]:
        """The arrays of a packed state; copies, because the program may write to its own ones in place."""
        return list(self.state_arrays().values())

    def unpack_state(self, packed: Array) -> None:
        """Give the program a state that :meth:`pack_state` copied.

        Raises:
            BadInputError: it has another size.
        """
        state = self._read_state()
        sizes = [array.nbytes for array in state.values()]
        if packed.nbytes != packed_size(sizes):
            raise BadInputError(
                f"the state of the other worker has {packed.nbytes:,} bytes, this one's has {packed_size(sizes):,}: "
                "their programs differ"
            )
        parts = zip(state.items(), split_packed(packed, sizes), strict=True)
        self._write_state({name: part.view(array.dtype).reshape(array.shape) for (name, array), part in parts})

    def digest(self) -> int:
        """A digest of 64 bits of the state."""
        hasher = hashlib.blake2b(digest_size=8)
        for name, array in self._read_state().items():
            hasher.update(json.dumps([name, str(array.dtype), list(array.shape), array_checksum(array)]).encode())
        return int.from_bytes(hasher.digest(), "big")

    def variable_digests(self) -> dict[str, int]:
        """A digest of 32 bits of each array."""
        return {name: array_checksum(array) for name, array in self._read_state().items()}

    def describe_variables(self) -> dict[str, str]:
        """Type and shape of each array of the state, and of each one that is summed, for users."""
        summed = {f"arrays_like/{name}": f"{dtype} of shape {shape}" for name, (dtype, shape) in self._shapes.items()}
        return {**self._state.kinds, **summed}

    def fingerprint(self) -> str:
        """Only programs with equal ones may train together."""
        summed = [[name, str(dtype), list(shape)] for name, (dtype, shape) in self._shapes.items()]
        description = json.dumps([self._state.fingerprint, summed, self._reduction])
        return hashlib.sha256(description.encode()).hexdigest()


def _make_buffers(likes: Mapping[str, Array]) -> tuple[dict[str, Array], tuple[Array, ...]]:
    """A view for each array, and the buffers that have them: one for each type."""
    views: dict[str, Array] = {}
    buffers = []
    for dtype in dict.fromkeys(like.dtype for like in likes.values()):
        of_type = {name: like for name, like in likes.items() if like.dtype == dtype}
        buffer = allocate_aligned(sum(like.size for like in of_type.values()), dtype=dtype)
        buffer.fill(0)
        buffers.append(buffer)
        start = 0
        for name, like in of_type.items():
            views[name] = buffer[start : start + like.size].reshape(like.shape)
            start += like.size
    return {name: views[name] for name in likes}, tuple(buffers)


def read_arrays(given: Any, views: Mapping[str, Array]) -> tuple[Array, ...]:
    """The arrays that a program adds, in the order of the views.

    Args:
        given: a mapping by name, or a sequence in the order of ``arrays_like``.

    Raises:
        BadInputError: they have other names, shapes or types than ``arrays_like``.
    """
    names: Sequence[str] = tuple(views)
    if isinstance(given, Mapping):
        by_name = dict(given)
    else:
        values = list(given)
        if len(values) != len(names):
            raise BadInputError(f"allreduce got {len(values)} arrays, but arrays_like had {len(names)}")
        by_name = dict(zip(names, values, strict=True))
    if by_name.keys() != set(names):
        different = sorted(by_name.keys() ^ set(names))
        raise BadInputError(f"allreduce and arrays_like have different arrays: {', '.join(map(repr, different))}")
    arrays = []
    for name, view in views.items():
        array = as_array(by_name[name], name)
        if array.shape != view.shape or array.dtype != view.dtype:
            raise BadInputError(
                f"'{name}' is {array.dtype} of shape {array.shape}, but in arrays_like it was {view.dtype} of shape "
                f"{view.shape}"
            )
        arrays.append(array)
    return tuple(arrays)

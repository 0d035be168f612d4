"""A replica without TensorFlow whose steps make two updates; the second one shows whether the first was made before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from support.all_reduce_job import AllReduceJob, CountedStep, CountingReplica

Array = np.ndarray[Any, Any]


@dataclass
class CountedUpdate:
    """The buffer of one update."""

    buffers: tuple[Array, ...]
    gradient_counts: tuple[int, ...] = field(init=False)
    skips_infinite_gradients: bool = False

    def __post_init__(self) -> None:
        self.gradient_counts = tuple(len(buffer) for buffer in self.buffers)

    def clear(self) -> None:
        for buffer in self.buffers:
            buffer[:] = 0


class TwoUpdatesReplica(CountingReplica):
    """The first update counts the records, as that of a ``CountingReplica``. The second one counts them in ``sums``.

    It leaves out a record whose first update it does not see. So ``sums`` and ``counts`` are equal between two steps,
    unless a second update saw the counts of before, or a step was made in part. ``is_poor(record)`` names
    records with a second gradient that is not finite.
    """

    def __init__(self, records: int, *, seconds: float = 0.0) -> None:
        super().__init__(records, seconds=seconds)
        self.sums = np.zeros(records, np.float64)
        first, second = self.buffers[0], np.zeros(records, np.float64)
        self.updates_of_step = (CountedUpdate((first,)), CountedUpdate((second,)))
        self.buffers = (first, second)
        self.gradient_counts = (records, records)
        self.is_poor: Callable[[int], bool] = lambda record: False
        self._minibatches: list[Sequence[int]] = []
        self._next = 0
        self._kept: Array | None = None

    def compute(self, features: Sequence[int], labels: Any, weights: Any, *, adds: bool = False) -> CountedStep:
        if not adds:
            self._minibatches.clear()
            self.updates_of_step[0].clear()
        self._minibatches.append(features)
        assert self._next == 0
        return super().compute(features, labels, weights, adds=adds)

    @property
    def keeps_addend(self) -> bool:
        return False

    def compute_update(self, number: int, minibatch: int) -> CountedStep:
        assert number == self._next == 1
        self.fail_at("compute second")
        if minibatch == 0:
            self.clear()
        records = list(self._minibatches[minibatch])
        self.buffers[1][records] = np.clip(self.counts - self.sums, 0, 1)[records]
        self.fail_at("reduce second")
        if any(self.is_poor(record) for record in records):
            return CountedStep(float(len(records)), is_finite=False, nonfinite_name="sums")
        return CountedStep(float(len(records)))

    def clear(self) -> None:
        self.updates_of_step[-1].clear()

    def apply_next(self, total_weight: float, rate_factor: float | None = None) -> None:
        if self._next == 0:
            self._kept = self.pack_state().copy()
            super().apply(total_weight, rate_factor)
            self._next = 1
        else:
            self.fail_at("apply second")
            self.sums += self.buffers[1]
            self._next, self._kept = 0, None

    def apply(self, total_weight: float, rate_factor: float | None = None) -> None:
        self.apply_next(total_weight, rate_factor)
        if self._next:
            self.apply_next(total_weight, rate_factor)

    def restore_statistics(self) -> None:
        if self._kept is not None:
            fail_at, self.fail_at = self.fail_at, lambda point: None
            self.unpack_state(self._kept)
            self.fail_at = fail_at
        self._next, self._kept = 0, None

    def pack_state(self) -> Array:
        values: Array = np.concatenate([self.sums, super().pack_state().view(np.float64)])
        return values.view(np.uint8)

    def unpack_state(self, buffer: Array) -> None:
        values = buffer.view(np.float64)
        self.sums = np.array(values[: len(self.sums)])
        super().unpack_state(values[len(self.sums) :].view(np.uint8))

    def _arrays(self) -> dict[str, Array]:
        return super()._arrays() | {"sums": self.sums.copy()}

    def load_state(self, arrays: Any) -> None:
        super().load_state(arrays)
        self.sums = arrays["sums"].copy()


class _Updates:
    """What the loop gets as ``several_updates``: ``updates`` of a ``CountingReplica`` is a number."""

    def __init__(self, replica: TwoUpdatesReplica) -> None:
        self.updates = replica.updates_of_step
        self.apply_next = replica.apply_next
        self.compute_update = replica.compute_update


class TwoUpdatesJob(AllReduceJob):
    """A job whose steps make two updates."""

    def __init__(self, folder: Any, records: int = 96, *, seconds: float = 0.0, **settings: Any) -> None:
        super().__init__(folder, records, seconds=seconds, **settings)
        self.make_replica = lambda index: TwoUpdatesReplica(records, seconds=seconds)
        self.find_updates = _Updates

    def wait_for_end(self, seconds: float = 60.0) -> None:
        """Also check that each second update saw exactly the first update of its step."""
        super().wait_for_end(seconds)
        for rank in self.ranks:
            replica = rank.replica
            assert isinstance(replica, TwoUpdatesReplica)
            if not rank.is_killed and not rank.gate.closed and replica.updates:
                np.testing.assert_array_equal(replica.sums, replica.counts)

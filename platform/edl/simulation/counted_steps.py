"""The values of the recount: steps, leases and rollbacks."""

from __future__ import annotations

from dataclasses import dataclass, field

from edl.simulation.order_recount import RecordedEpoch


@dataclass(frozen=True, slots=True, order=True)
class CountedStep:
    """The ``step``-th minibatch of a lease: records ``[start, end)`` of a source in an epoch.

    With an ``order``, ``[start, end)`` are positions in that order of the epoch.
    """

    lease: int
    step: int
    epoch: int
    source: str
    start: int
    end: int
    order: RecordedEpoch | None = field(default=None, compare=False, repr=False)

    @property
    def records(self) -> int:
        """The number of records of the minibatch."""
        return self.end - self.start

    def source_records(self) -> list[tuple[str, int]]:
        """Source and number of each record."""
        if self.order is None:
            return [(self.source, record) for record in range(self.start, self.end)]
        return self.order.records_between(self.start, self.end)


@dataclass(slots=True)
class LeasedRange:
    """A lease as recorded in the journal."""

    number: int
    worker: str
    record_range: tuple[int, str, int, int]
    minibatch: int
    order: RecordedEpoch | None = None
    done_steps: int = 0
    is_closed: bool = False

    @property
    def step_count(self) -> int:
        return -(-(self.record_range[3] - self.record_range[2]) // self.minibatch)

    def first_steps(self, count: int) -> list[CountedStep]:
        epoch, source, start, end = self.record_range
        edges = [(k, start + k * self.minibatch) for k in range(count)]
        return [
            CountedStep(self.number, k, epoch, source, a, min(a + self.minibatch, end), self.order) for k, a in edges
        ]


Steps = frozenset[CountedStep]


@dataclass(frozen=True, slots=True)
class PartRollback:
    """One of several PS rolled back to a cut.

    Attributes:
        counted_before: steps that counted when the rollback was entered in the journal.
        live_leases: leases that workers held at that time. The parameters may have contained steps of
            these leases that the journal did not have yet.
    """

    ps: int
    cut: int
    counted_before: Steps
    live_leases: tuple[int, ...]

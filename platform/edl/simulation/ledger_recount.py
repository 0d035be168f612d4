"""Recounts the ledger from the journal's entries alone, with no code shared with the master.

It counts *steps*, into which every lease is divided. A step counts from the journal entry that
reports it as done until the job rolls back to a cut without it. The steps that count determine the
parameters (docs/design/0002-record-accounting.md).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from edl.simulation.counted_steps import CountedStep, LeasedRange, PartRollback, Steps
from edl.simulation.order_recount import RecordedEpoch, RecordedOrder

SHUFFLED_SOURCE = ""
"""The source of positions of a shuffled epoch, in the journal."""


class LedgerError(Exception):
    """The journal's entries contradict each other."""


@dataclass(slots=True)
class LedgerRecount:
    """The result of recounting.

    Attributes:
        sources: records of each training source.
        order: the shuffled order; None: leases are ranges of the sources.
        leases: training leases by number, open and closed. A rollback removes the leases that have
            no step in its cut.
        cuts: the steps in the parameters at each cut.
        repeated_records, rolled_back_records: numbers of records.
        partial_step_count: number of steps.
        updates_of: updates that each PS lacks according to the entries, by the index of the PS.
        partial_steps: they were leased again, so some PS hold them in addition to the steps that
            count.
        quarantined_ranges: skipped ranges ``(epoch, source, start, end)``.
        phases: phases of the job, in order.
    """

    sources: dict[str, int] = field(default_factory=dict)
    order: RecordedOrder | None = None
    epochs: dict[int, RecordedEpoch] = field(default_factory=dict)
    leases: dict[int, LeasedRange] = field(default_factory=dict)
    cuts: dict[int, Steps] = field(default_factory=dict)
    saved_cuts: list[int] = field(default_factory=list)
    part_rollbacks: list[PartRollback] = field(default_factory=list)
    rollbacks: list[tuple[int, int]] = field(default_factory=list)
    quarantined_ranges: list[tuple[int, str, int, int]] = field(default_factory=list)
    repeated_records: int = 0
    partial_step_count: int = 0
    partial_steps: list[CountedStep] = field(default_factory=list)
    updates_of: Counter[str] = field(default_factory=Counter)
    phases: list[str] = field(default_factory=list)

    @property
    def counted_steps(self) -> Steps:
        """The steps that count now."""
        return frozenset(step for lease in self.leases.values() for step in lease.first_steps(lease.done_steps))

    @property
    def rolled_back_records(self) -> int:
        """The number of records that rolled back to a checkpoint."""
        return sum(records for _, records in self.rollbacks)

    @property
    def updates_rolled_back(self) -> int:
        """The number of updates that the parameters lack."""
        return self.updates_of.total()

    def apply_entry(self, entry: Mapping[str, Any]) -> None:
        """Count one entry; kinds of entries that do not change the ledger are ignored."""
        count = _COUNT.get(entry["kind"])
        if count is not None:
            count(self, entry)

    def _apply_dataset(self, entry: Mapping[str, Any]) -> None:
        self.sources = dict(entry.get("training") or ())
        if entry.get("order"):
            self.order = RecordedOrder.from_entry(entry["training"], entry["order"])

    def _order_of(self, epoch: int) -> RecordedEpoch | None:
        if self.order is not None and epoch not in self.epochs:
            self.epochs[epoch] = self.order.epoch(epoch)
        return self.epochs.get(epoch)

    def _apply_lease(self, entry: Mapping[str, Any]) -> None:
        if entry["task"] == "training":
            number, work = entry["lease"], tuple(entry["work"])
            if number in self.leases:
                raise LedgerError(f"lease {number} was granted twice")
            self.leases[number] = LeasedRange(
                number, entry["worker"], work, entry["minibatch"], self._order_of(work[0])
            )

    def _find_open_lease(self, entry: Mapping[str, Any]) -> LeasedRange | None:
        lease = self.leases.get(entry["lease"])
        return None if lease is None or lease.is_closed else lease

    def _apply_progress(self, entry: Mapping[str, Any]) -> None:
        if lease := self._find_open_lease(entry):
            lease.done_steps = max(lease.done_steps, min(entry["through"], lease.step_count))

    def _apply_completion(self, entry: Mapping[str, Any]) -> None:
        if lease := self._find_open_lease(entry):
            lease.done_steps, lease.is_closed = lease.step_count, True

    def _apply_return(self, entry: Mapping[str, Any]) -> None:
        lease = self._find_open_lease(entry)
        if lease is None:
            return
        self._apply_progress(entry)
        lease.is_closed = True
        self.repeated_records += entry["repeated"]
        self.partial_step_count += entry["partial"]
        reached = lease.first_steps(lease.done_steps + entry["partial"])
        self.partial_steps += sorted(
            set(reached) - set(lease.first_steps(lease.done_steps)), key=lambda step: step.start
        )
        if entry.get("quarantine"):
            epoch, source, start, end = lease.record_range
            position = min(start + lease.done_steps * lease.minibatch, end)
            self.quarantined_ranges.append((epoch, source, position, min(end, position + entry["quarantine"])))

    def _apply_cut(self, entry: Mapping[str, Any]) -> None:
        """Record the steps in a cut.

        The entry lists the steps of each lease that was open. Of a lease below ``below`` that it
        does not list, all steps that counted are in the cut.
        """
        applied = {int(number): through for number, through in entry["applied"].items()}
        counted: set[CountedStep] = set()
        for number, lease in self.leases.items():
            closed = lease.done_steps if number < entry["below"] else 0
            counted.update(lease.first_steps(applied.get(number, closed)))
        if len(counted) != entry["step"]:
            raise LedgerError(f"cut {entry['cut']} holds {len(counted)} steps, its entry says {entry['step']}")
        self.cuts[entry["cut"]] = frozenset(counted)
        self.updates_of.update(Counter(entry.get("lacking", {})) - self.updates_of)

    def _apply_checkpoint(self, entry: Mapping[str, Any]) -> None:
        # Under AllReduce no entry lists the steps of a cut.
        if "world_step" in entry["ledger"]:
            self.cuts[entry["cut"]] = self._steps_before(entry["ledger"])
        counted = self.cuts[entry["cut"]]
        self.saved_cuts.append(entry["cut"])
        _check_position(entry["ledger"], counted)

    def _steps_before(self, position: Mapping[str, Any]) -> Steps:
        """The steps that a ledger position of AllReduce calls done: those in none of its open ranges.

        The last worker that leaves writes a state with steps that no entry has reported, so open leases count wholly.
        """
        rest = [*position["returned"], *position.get("begun", ())]
        begun = list(self.sources if self.order is None else {SHUFFLED_SOURCE: 0})[: position["index"]]

        def is_open(step: CountedStep) -> bool:
            if step.epoch > position["epoch"] or (step.epoch == position["epoch"] and step.source not in begun):
                return True
            ranges = [
                (start, end) for epoch, source, start, end in rest if (epoch, source) == (step.epoch, step.source)
            ]
            return any(step.start < end and start < step.end for start, end in ranges)

        leased = (
            lease.first_steps(lease.done_steps if lease.is_closed else lease.step_count)
            for lease in self.leases.values()
        )
        return frozenset(step for steps in leased for step in steps if not is_open(step))

    def _apply_world_steps(self, entry: Mapping[str, Any]) -> None:
        """The world has applied steps: ``done`` has the done records of leases."""
        for number, records in entry["done"]:
            lease = self._find_open_lease({"lease": number})
            if lease is None:
                continue
            done_steps = -(-records // lease.minibatch)
            if done_steps > lease.step_count:
                raise LedgerError(f"lease {number} has {lease.step_count} steps, the entry says {done_steps}")
            lease.done_steps = max(lease.done_steps, done_steps)
            lease.is_closed = lease.done_steps == lease.step_count

    def _apply_world_start(self, entry: Mapping[str, Any]) -> None:
        self._apply_world_steps(entry)
        self.repeated_records += entry.get("repeated", 0)
        for number in entry["returned"]:
            self.leases[number].is_closed = True

    def _apply_world_rollback(self, entry: Mapping[str, Any]) -> None:
        """A round without any state takes the ledger back to a checkpoint, or to the start."""
        if entry.get("ledger") is not None:
            self._go_back(entry.get("cut") or 0, entry["ledger"], entry["records"])

    def _apply_rollback(self, entry: Mapping[str, Any]) -> None:
        # Without a ledger position only one of several PS rolled back. The steps still count; the
        # PS lacks their updates.
        if entry["ledger"] is None:
            live = tuple(number for number, lease in sorted(self.leases.items()) if not lease.is_closed)
            self.part_rollbacks.append(PartRollback(entry["ps"], entry["cut"], self.counted_steps, live))
            self.updates_of[str(entry["ps"])] += entry["updates"]
            return
        self._go_back(entry["cut"], entry["ledger"], entry["records"])
        self.updates_of = Counter(entry["ledger"].get("lacking", {}))

    def _go_back(self, cut: int, position: Mapping[str, Any], records: int) -> None:
        """Only the steps of a cut count from now on."""
        counted = self.cuts.get(cut, frozenset())
        _check_position(position, counted)
        lost = max(0, sum(step.records for step in self.counted_steps) - sum(step.records for step in counted))
        if lost != records:
            raise LedgerError(f"{lost} records went back to cut {cut}, the entry says {records}")
        self.rollbacks.append((cut, lost))
        steps_by_lease = Counter(step.lease for step in counted)
        self.leases = {number: lease for number, lease in self.leases.items() if number in steps_by_lease}
        # Steps outside the cut are leased again under new numbers, so the old leases stay closed.
        for number, lease in self.leases.items():
            lease.done_steps, lease.is_closed = steps_by_lease[number], True

    def _apply_phase(self, entry: Mapping[str, Any]) -> None:
        self.phases.append(entry["name"])


_COUNT = {
    "dataset": LedgerRecount._apply_dataset,
    "leased": LedgerRecount._apply_lease,
    "progress": LedgerRecount._apply_progress,
    "done": LedgerRecount._apply_completion,
    "returned": LedgerRecount._apply_return,
    "cut_taken": LedgerRecount._apply_cut,
    "saved": LedgerRecount._apply_checkpoint,
    "rolled_back": LedgerRecount._apply_rollback,
    "world": LedgerRecount._apply_world_rollback,
    "world_started": LedgerRecount._apply_world_start,
    "steps": LedgerRecount._apply_world_steps,
    "phase": LedgerRecount._apply_phase,
}


def find_ledger_problems(recount: LedgerRecount, epochs: int) -> list[str]:
    """Errors in the ledger of a finished job: every record of every epoch must count exactly once.

    If records are shuffled, every position of the order must count once, and the order must contain
    every record once.
    """
    wrong: list[str] = []
    if recount.order is not None:
        wrong += [text for epoch in range(epochs) for text in _order_problems(recount, epoch)]
    sources = recount.sources if recount.order is None else {SHUFFLED_SOURCE: recount.order.records}
    ranges = [
        (step.epoch, step.source, step.start, step.end) for step in recount.counted_steps
    ] + recount.quarantined_ranges
    for epoch in range(epochs):
        for source, records in sources.items():
            covered = sorted((start, end) for e, s, start, end in ranges if (e, s) == (epoch, source))
            wrong += [f"epoch {epoch}, {source}: {text}" for text in _coverage_problems(covered, records)]
    strangers = {(e, s) for e, s, _, _ in ranges if e >= epochs or s not in sources}
    return wrong + [f"epoch {epoch} of {source} is not in the plan" for epoch, source in sorted(strangers)]


def _order_problems(recount: LedgerRecount, epoch: int) -> list[str]:
    order = recount._order_of(epoch)
    assert order is not None
    every_record = [
        (source, record) for source, records in sorted(recount.sources.items()) for record in range(records)
    ]
    if sorted(order.records_between(0, len(every_record))) == every_record:
        return []
    return [f"the order of epoch {epoch} has not every record once"]


def _coverage_problems(covered: Iterable[tuple[int, int]], records: int) -> list[str]:
    wrong, position = [], 0
    # The empty range at the end reveals a gap behind the last covered range.
    for start, end in [*covered, (records, records)]:
        if start > position:
            wrong.append(f"records {position} to {start} are not done")
        if start < position:
            wrong.append(f"records {start} to {min(position, end)} are done twice")
        position = max(position, end)
    return wrong


def _check_position(position: Mapping[str, Any], counted: Steps) -> None:
    """Check that a cut's ledger position matches the steps in its parameters."""
    records = sum(step.records for step in counted)
    if (position["done_steps"], position["done_records"]) != (len(counted), records):
        raise LedgerError(
            f"a position of {position['done_steps']} steps and {position['done_records']} records "
            f"for {len(counted)} steps with {records} records"
        )
    for epoch, source, start, end in position["returned"]:
        twice = [s for s in counted if (s.epoch, s.source) == (epoch, source) and s.start < end and start < s.end]
        if twice:
            raise LedgerError(f"{source}: records {start} to {end} are to be leased again, but {twice[0]} is in")

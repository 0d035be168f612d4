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
class Recount:
    """The result of recounting.

    Attributes:
        sources: records of each training source.
        order: the shuffled order; None: leases are ranges of the sources.
        leases: training leases by number, open and closed. A rollback removes the leases that have
            no step in its cut.
        cuts: the steps in the parameters at each cut.
        repeated, rolled_back: numbers of records. partial: number of steps.
        updates_of: updates that each PS lacks according to the entries, by the index of the PS.
        halves: partial steps. They were leased again, so some PS hold them in addition to the steps
            that count.
        quarantined: skipped ranges ``(epoch, source, start, end)``.
        phases: phases of the job, in order.
    """

    sources: dict[str, int] = field(default_factory=dict)
    order: RecordedOrder | None = None
    epochs: dict[int, RecordedEpoch] = field(default_factory=dict)
    leases: dict[int, LeasedRange] = field(default_factory=dict)
    cuts: dict[int, Steps] = field(default_factory=dict)
    saved: list[int] = field(default_factory=list)
    parts: list[PartRollback] = field(default_factory=list)
    rollbacks: list[tuple[int, int]] = field(default_factory=list)
    quarantined: list[tuple[int, str, int, int]] = field(default_factory=list)
    repeated: int = 0
    partial: int = 0
    halves: list[CountedStep] = field(default_factory=list)
    updates_of: Counter[str] = field(default_factory=Counter)
    phases: list[str] = field(default_factory=list)

    @property
    def counted(self) -> Steps:
        """The steps that count now."""
        return frozenset(step for lease in self.leases.values() for step in lease.steps(lease.through))

    @property
    def rolled_back(self) -> int:
        """The number of records that rolled back to a checkpoint."""
        return sum(records for _, records in self.rollbacks)

    @property
    def updates_rolled_back(self) -> int:
        """The number of updates that the parameters lack."""
        return self.updates_of.total()

    def enter(self, entry: Mapping[str, Any]) -> None:
        """Count one entry; kinds of entries that do not change the ledger are ignored."""
        count = _COUNT.get(entry["kind"])
        if count is not None:
            count(self, entry)

    def _dataset(self, entry: Mapping[str, Any]) -> None:
        self.sources = dict(entry.get("training") or ())
        if entry.get("order"):
            self.order = RecordedOrder.of(entry["training"], entry["order"])

    def _order_of(self, epoch: int) -> RecordedEpoch | None:
        if self.order is not None and epoch not in self.epochs:
            self.epochs[epoch] = self.order.epoch(epoch)
        return self.epochs.get(epoch)

    def _leased(self, entry: Mapping[str, Any]) -> None:
        if entry["task"] == "training":
            number, work = entry["lease"], tuple(entry["work"])
            if number in self.leases:
                raise LedgerError(f"lease {number} was granted twice")
            self.leases[number] = LeasedRange(
                number, entry["worker"], work, entry["minibatch"], self._order_of(work[0])
            )

    def _open(self, entry: Mapping[str, Any]) -> LeasedRange | None:
        lease = self.leases.get(entry["lease"])
        return None if lease is None or lease.closed else lease

    def _progress(self, entry: Mapping[str, Any]) -> None:
        if lease := self._open(entry):
            lease.through = max(lease.through, min(entry["through"], lease.count))

    def _done(self, entry: Mapping[str, Any]) -> None:
        if lease := self._open(entry):
            lease.through, lease.closed = lease.count, True

    def _returned(self, entry: Mapping[str, Any]) -> None:
        lease = self._open(entry)
        if lease is None:
            return
        self._progress(entry)
        lease.closed = True
        self.repeated += entry["repeated"]
        self.partial += entry["partial"]
        reached = lease.steps(lease.through + entry["partial"])
        self.halves += sorted(set(reached) - set(lease.steps(lease.through)), key=lambda step: step.start)
        if entry.get("quarantine"):
            epoch, source, start, end = lease.work
            at = min(start + lease.through * lease.minibatch, end)
            self.quarantined.append((epoch, source, at, min(end, at + entry["quarantine"])))

    def _cut_taken(self, entry: Mapping[str, Any]) -> None:
        """Record the steps in a cut.

        The entry lists the steps of each lease that was open. Of a lease below ``below`` that it
        does not list, all steps that counted are in the cut.
        """
        applied = {int(number): through for number, through in entry["applied"].items()}
        held: set[CountedStep] = set()
        for number, lease in self.leases.items():
            closed = lease.through if number < entry["below"] else 0
            held.update(lease.steps(applied.get(number, closed)))
        if len(held) != entry["step"]:
            raise LedgerError(f"cut {entry['cut']} holds {len(held)} steps, its entry says {entry['step']}")
        self.cuts[entry["cut"]] = frozenset(held)
        self.updates_of.update(Counter(entry.get("lacking", {})) - self.updates_of)

    def _saved(self, entry: Mapping[str, Any]) -> None:
        # Under AllReduce no entry lists the steps of a cut.
        if "world_step" in entry["ledger"]:
            self.cuts[entry["cut"]] = self._steps_before(entry["ledger"])
        held = self.cuts[entry["cut"]]
        self.saved.append(entry["cut"])
        _check_position(entry["ledger"], held)

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

        leased = (lease.steps(lease.through if lease.closed else lease.count) for lease in self.leases.values())
        return frozenset(step for steps in leased for step in steps if not is_open(step))

    def _steps_applied(self, entry: Mapping[str, Any]) -> None:
        """The world has applied steps: ``done`` has the done records of leases."""
        for number, records in entry["done"]:
            lease = self._open({"lease": number})
            if lease is None:
                continue
            through = -(-records // lease.minibatch)
            if through > lease.count:
                raise LedgerError(f"lease {number} has {lease.count} steps, the entry says {through}")
            lease.through = max(lease.through, through)
            lease.closed = lease.through == lease.count

    def _world_started(self, entry: Mapping[str, Any]) -> None:
        self._steps_applied(entry)
        self.repeated += entry.get("repeated", 0)
        for number in entry["returned"]:
            self.leases[number].closed = True

    def _world(self, entry: Mapping[str, Any]) -> None:
        """A round without any state takes the ledger back to a checkpoint, or to the start."""
        if entry.get("ledger") is not None:
            self._go_back(entry.get("cut") or 0, entry["ledger"], entry["records"])

    def _rolled_back(self, entry: Mapping[str, Any]) -> None:
        # Without a ledger position only one of several PS rolled back. The steps still count; the
        # PS lacks their updates.
        if entry["ledger"] is None:
            live = tuple(number for number, lease in sorted(self.leases.items()) if not lease.closed)
            self.parts.append(PartRollback(entry["ps"], entry["cut"], self.counted, live))
            self.updates_of[str(entry["ps"])] += entry["updates"]
            return
        self._go_back(entry["cut"], entry["ledger"], entry["records"])
        self.updates_of = Counter(entry["ledger"].get("lacking", {}))

    def _go_back(self, cut: int, position: Mapping[str, Any], records: int) -> None:
        """Only the steps of a cut count from now on."""
        held = self.cuts.get(cut, frozenset())
        _check_position(position, held)
        lost = max(0, sum(step.records for step in self.counted) - sum(step.records for step in held))
        if lost != records:
            raise LedgerError(f"{lost} records went back to cut {cut}, the entry says {records}")
        self.rollbacks.append((cut, lost))
        through = Counter(step.lease for step in held)
        self.leases = {number: lease for number, lease in self.leases.items() if number in through}
        # Steps outside the cut are leased again under new numbers, so the old leases stay closed.
        for number, lease in self.leases.items():
            lease.through, lease.closed = through[number], True

    def _phase(self, entry: Mapping[str, Any]) -> None:
        self.phases.append(entry["name"])


_COUNT = {
    "dataset": Recount._dataset,
    "leased": Recount._leased,
    "progress": Recount._progress,
    "done": Recount._done,
    "returned": Recount._returned,
    "cut_taken": Recount._cut_taken,
    "saved": Recount._saved,
    "rolled_back": Recount._rolled_back,
    "world": Recount._world,
    "world_started": Recount._world_started,
    "steps": Recount._steps_applied,
    "phase": Recount._phase,
}


def problems(found: Recount, epochs: int) -> list[str]:
    """Errors in the ledger of a finished job: every record of every epoch must count exactly once.

    If records are shuffled, every position of the order must count once, and the order must contain
    every record once.
    """
    wrong: list[str] = []
    if found.order is not None:
        wrong += [text for epoch in range(epochs) for text in _not_in_order(found, epoch)]
    sources = found.sources if found.order is None else {SHUFFLED_SOURCE: found.order.records}
    ranges = [(step.epoch, step.source, step.start, step.end) for step in found.counted] + found.quarantined
    for epoch in range(epochs):
        for source, records in sources.items():
            covered = sorted((start, end) for e, s, start, end in ranges if (e, s) == (epoch, source))
            wrong += [f"epoch {epoch}, {source}: {text}" for text in _gaps(covered, records)]
    strangers = {(e, s) for e, s, _, _ in ranges if e >= epochs or s not in sources}
    return wrong + [f"epoch {epoch} of {source} is not in the plan" for epoch, source in sorted(strangers)]


def _not_in_order(found: Recount, epoch: int) -> list[str]:
    order = found._order_of(epoch)
    assert order is not None
    every_record = [(source, record) for source, records in sorted(found.sources.items()) for record in range(records)]
    if sorted(order.places(0, len(every_record))) == every_record:
        return []
    return [f"the order of epoch {epoch} has not every record once"]


def _gaps(covered: Iterable[tuple[int, int]], records: int) -> list[str]:
    wrong, at = [], 0
    # The empty range at the end reveals a gap behind the last covered range.
    for start, end in [*covered, (records, records)]:
        if start > at:
            wrong.append(f"records {at} to {start} are not done")
        if start < at:
            wrong.append(f"records {start} to {min(at, end)} are done twice")
        at = max(at, end)
    return wrong


def _check_position(position: Mapping[str, Any], held: Steps) -> None:
    """Check that a cut's ledger position matches the steps in its parameters."""
    records = sum(step.records for step in held)
    if (position["done_steps"], position["done_records"]) != (len(held), records):
        raise LedgerError(
            f"a position of {position['done_steps']} steps and {position['done_records']} records "
            f"for {len(held)} steps with {records} records"
        )
    for epoch, source, start, end in position["returned"]:
        twice = [s for s in held if (s.epoch, s.source) == (epoch, source) and s.start < end and start < s.end]
        if twice:
            raise LedgerError(f"{source}: records {start} to {end} are to be leased again, but {twice[0]} is in")

"""The ledger against sets of records: each record is in one place, and every move is the one that was asked for."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from operator import methodcaller
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.examples import examples

from edl.core.ledger import Lease, Ledger
from edl.core.record_ranges import RecordRange, RecordSource, ShardPlan

Record = tuple[int, str, int]


def records(work: RecordRange) -> set[Record]:
    return {(work.epoch, work.source, number) for number in range(work.start, work.end)}


class LedgerMachine(RuleBasedStateMachine):
    """``self.todo`` and the other sets are the model: plain records, moved one by one."""

    @initialize(
        counts=st.lists(st.integers(1, 25), min_size=1, max_size=3),
        size=st.integers(1, 12),
        minibatch=st.integers(1, 5),
        epochs=st.integers(1, 3),
        seed=st.none() | st.integers(0, 9),
        portion=st.sampled_from([0, 0, 3, 7]),
    )
    def begin(self, counts: list[int], size: int, minibatch: int, epochs: int, seed: int | None, portion: int) -> None:
        sources = tuple(RecordSource(f"s{i}", n) for i, n in enumerate(counts))
        self.make = lambda epochs=epochs: Ledger(ShardPlan(sources, size, seed), epochs, minibatch, portion)
        self.ledger = self.make()
        self.epochs = epochs
        self.moves: list[Callable[[Ledger], object]] = []
        self.number = 0
        self.todo: set[Record] = {(e, s.name, i) for e in range(epochs) for s in sources for i in range(s.records)}
        self.leased: dict[int, set[Record]] = {}
        self.done: set[Record] = set()
        self.aside: set[Record] = set()
        self.total = len(self.todo)

    # ------------------------------------------------------------------ moves

    @rule(
        most=st.none() | st.integers(0, 4), worker=st.sampled_from(["v", "w"]), beginning=st.none() | st.integers(1, 6)
    )
    def lease(self, most: int | None, worker: str, beginning: int | None) -> None:
        work = self.ledger.next_range(most, worker)
        if work is None:
            assert not self.ledger.has_work or (most is not None and most <= 0)
            return
        if beginning is not None:
            work = work.split(min(work.end, work.start + beginning))[0]
        self.number += 1
        lease = self._move("grant_range", self.number, work, worker)
        assert most is None or lease.step_count <= most
        assert not self.ledger.lease_records or work.records <= self.ledger.lease_records
        assert records(work) <= self.todo
        self.todo -= records(work)
        self.leased[self.number] = records(work)

    @precondition(lambda self: self.leased)
    @rule(data=st.data())
    def progress(self, data: st.DataObject) -> None:
        lease, through = self._some(data)
        before = lease.done_steps
        added = self._move("record_progress", lease.number, through)
        assert lease.done_steps == max(before, min(through, lease.step_count))
        self._enter(lease, added)

    @precondition(lambda self: self.leased)
    @rule(data=st.data())
    def report(self, data: st.DataObject) -> None:
        lease, _ = self._some(data)
        added = self._move("finish_lease", lease.number)
        self._enter(lease, added)
        assert not self.leased.pop(lease.number)

    @precondition(lambda self: self.leased)
    @rule(data=st.data(), aside=st.integers(0, 4))
    def give_back(self, data: st.DataObject, aside: int) -> None:
        lease, through = self._some(data)
        before = self.ledger.done_records
        rest = self._move("return_lease", lease.number, through, aside)
        self._enter(lease, self.ledger.done_records - before)
        left = self.leased.pop(lease.number)
        assert records(rest) <= left
        assert len(left - records(rest)) == min(aside, len(left))
        self.aside |= left - records(rest)
        self.todo |= records(rest)
        if rest.records:
            assert self.ledger.next_range() == rest, "what was taken back is leased again before anything else"

    def _move(self, name: str, *what: Any) -> Any:
        self.moves.append(methodcaller(name, *what))
        return self.moves[-1](self.ledger)

    def _some(self, data: st.DataObject) -> tuple[Lease, int]:
        lease = self.ledger.leases[data.draw(st.sampled_from(sorted(self.leased)))]
        return lease, data.draw(st.integers(0, lease.step_count + 1))

    def _enter(self, lease: Lease, added: int) -> None:
        work = lease.record_range
        fresh = {
            (work.epoch, work.source, i) for i in range(work.start, lease.record_after_steps(lease.done_steps))
        } - self.done
        assert len(fresh) == added
        assert fresh <= self.leased[lease.number]
        self.leased[lease.number] -= fresh
        self.done |= fresh

    # ------------------------------------------------------------------ memory

    @rule()
    def forget_and_restore(self) -> None:
        restored = self.make()
        restored.restore_snapshot(json.loads(json.dumps(self.ledger.to_snapshot())))
        assert restored == self.ledger
        self.ledger = restored

    @rule(data=st.data())
    def go_back_to_a_cut(self, data: st.DataObject) -> None:
        """A cut that holds more steps than were reported: these are done in it, the rest is to be leased again."""
        applied = {
            n: data.draw(st.integers(lease.done_steps, lease.step_count)) for n, lease in self.ledger.leases.items()
        }
        before = self.ledger.to_snapshot()
        position = self.ledger.snapshot_at_cut(applied)
        assert self.ledger.to_snapshot() == before, "taking a position changes nothing"
        self._move("restore_snapshot", position)
        for number, left in self.leased.items():
            lease = Lease(number, *self._of(before, number))
            work = lease.record_range
            cut_records = {
                (work.epoch, work.source, i) for i in range(work.start, lease.record_after_steps(applied[number]))
            }
            self.done |= cut_records & left
            self.todo |= left - cut_records
        self.leased = {}

    def _of(self, snapshot: dict[str, list[list[object]]], number: int) -> tuple[RecordRange, int, str]:
        row, minibatch, worker = next(row[1:4] for row in snapshot["leases"] if row[0] == number)
        return RecordRange(*row), minibatch, worker  # type: ignore[misc, return-value]

    @rule(data=st.data())
    def go_on_with_fewer_epochs(self, data: st.DataObject) -> None:
        """What was done is the same, and what is left of the epochs that count is all that is handed out."""
        shorter = self.make(data.draw(st.integers(1, self.epochs)))
        for move in self.moves:
            move(shorter)
        assert shorter.to_snapshot() == self.ledger.to_snapshot()
        for number in [*shorter.leases]:
            shorter.return_lease(number, 0)
        left = sum(map(len, self.leased.values())) + len(self.todo)
        assert shorter.count_remaining_records() <= left
        while (work := shorter.next_range()) is not None:
            assert work.epoch < shorter.epochs
            shorter.grant_range(self.number + 1, work, "w")
            shorter.finish_lease(self.number + 1)
        assert shorter.is_finished
        assert not shorter.count_remaining_records()
        assert shorter.total_records == shorter.done_records + len(self.aside)
        longer = self.make()
        longer.restore_snapshot(shorter.to_snapshot())
        assert longer.total_records == longer.done_records + len(self.aside) + longer.count_remaining_records(), (
            "nothing was lost"
        )

    # ------------------------------------------------------------------ what holds

    @invariant()
    def every_record_is_in_one_place(self) -> None:
        places = [self.todo, self.done, self.aside, *self.leased.values()]
        assert sum(map(len, places)) == self.total
        assert len(set().union(*places)) == self.total

    @invariant()
    def the_ledger_counts_what_the_model_holds(self) -> None:
        ledger = self.ledger
        leased = sum(map(len, self.leased.values()))
        assert ledger.done_records == len(self.done)
        assert ledger.count_remaining_records() == len(self.todo) + leased
        assert ledger.total_records == self.total
        assert ledger.has_work == bool(self.todo)
        assert ledger.is_finished == (not self.todo and not self.leased)
        assert ledger.outstanding_steps == sum(x.step_count - x.done_steps for x in ledger.leases.values())
        assert ledger.oldest_lease() == min(self.leased, default=None)

    @invariant()
    def unfinished_steps_are_those_of_all_places(self) -> None:
        ledger = self.ledger
        shards = [(epoch, at) for epoch in range(ledger.epochs) for at in range(ledger.plan.shard_count)]
        planned = [ledger.plan.shard(*each) for each in shards if each >= (ledger.epoch, ledger.shard_index)]
        assert ledger.planned_shards == len(planned)
        back = [work for work in (*ledger.returned_ranges, *ledger.shard_rests.values()) if work.epoch < ledger.epochs]
        unleased = sum(-(-work.records // ledger.minibatch) for work in (*planned, *back))
        assert ledger.unfinished_steps == unleased + ledger.outstanding_steps

    @invariant()
    def who_holds_what_is_what_the_leases_say(self) -> None:
        ledger = self.ledger
        workers = {lease.worker for lease in ledger.leases.values()}
        for worker in {*workers, "nobody"}:
            assert list(ledger.worker_leases(worker)) == [x for x in ledger.leases.values() if x.worker == worker]

    @invariant()
    def ranges_show_what_is_neither_planned_nor_done(self) -> None:
        record_counts: dict[str, Counter[Record]] = {
            place: Counter() for place in ("returned", "begun", "leased", "quarantined")
        }
        for place, work in self.ledger.open_ranges():
            record_counts[place].update(records(work))
        assert record_counts["leased"] == Counter(record for left in self.leased.values() for record in left)
        assert record_counts["quarantined"] == Counter(self.aside)
        assert record_counts["returned"].keys() | record_counts["begun"].keys() <= self.todo
        assert all(count == 1 for place in record_counts.values() for count in place.values())


LedgerMachine.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
TestLedger = LedgerMachine.TestCase


def test_only_what_is_next_can_be_leased() -> None:
    ledger = Ledger(ShardPlan((RecordSource("a", 20),), 10), 1, 4)
    with pytest.raises(ValueError, match="is not next"):
        ledger.grant_range(1, RecordRange(0, "a", 10, 20), "w")


def test_a_shard_of_several_leases_stays_with_its_worker_and_others_help_at_the_end_of_an_epoch() -> None:
    ledger = Ledger(ShardPlan((RecordSource("", 40),), 20), 2, 5, lease_records=10)
    workers = ["v", "w", "v", "w", "w"]
    for number, worker in enumerate(workers):
        work = ledger.next_range(worker=worker)
        assert work is not None
        ledger.grant_range(number, work, worker)
    assert [(lease.worker, lease.record_range.epoch, lease.record_range.start) for lease in ledger.leases.values()] == [
        ("v", 0, 0),
        ("w", 0, 20),
        ("v", 0, 10),
        ("w", 0, 30),
        ("w", 1, 0),
    ]
    assert ledger.next_range(worker="v") == RecordRange(1, "", 20, 30), "a shard of its own, as long as there is one"
    ledger.grant_range(7, RecordRange(1, "", 20, 30), "v")
    assert ledger.next_range(worker="u") == RecordRange(1, "", 10, 20), "nothing is planned: it helps"
    ledger.return_lease(0, 1)
    assert ledger.next_range(worker="v") == RecordRange(0, "", 5, 10), "what came back goes before everything else"


def test_the_rest_of_a_shard_of_one_lease_comes_next_unless_it_is_left_for_later() -> None:
    """Under AllReduce, where a lease may be shorter than its shard."""
    ledger = Ledger(ShardPlan((RecordSource("a", 40),), 20), 1, 5, lease_records=20)
    ledger.grant_range(1, RecordRange(0, "a", 0, 10), "v")
    rest, planned = RecordRange(0, "a", 10, 20), RecordRange(0, "a", 20, 40)
    assert ledger.next_range(worker="w") == rest
    for worker in ("v", "w"):
        assert ledger.next_range(worker=worker, skips=lambda work: work.start == 10) == planned


def test_an_epoch_is_finished_before_the_next_one_is_begun() -> None:
    ledger = Ledger(ShardPlan((RecordSource("", 20),), 20), 2, 5, lease_records=10)
    ledger.grant_range(1, RecordRange(0, "", 0, 10), "v")
    assert ledger.next_range(worker="w") == RecordRange(0, "", 10, 20)


def test_nothing_planned_is_finished() -> None:
    assert Ledger(ShardPlan((), 10), 3, 4).is_finished


def test_a_huge_ledger_costs_nothing_until_it_is_worked_on() -> None:
    ledger = Ledger(ShardPlan((RecordSource("a", 10**15),), 10, seed=1), 10**6, 1)
    work = ledger.next_range()
    assert work is not None
    ledger.grant_range(1, work, "w")
    ledger.finish_lease(1)
    assert ledger.done_records == 10


def test_the_open_epoch_is_the_first_one_with_records_that_are_not_done() -> None:
    ledger = Ledger(ShardPlan((RecordSource("a", 20),), 8, None), 2, 1, 8)
    assert ledger.open_epoch() == (0, 20)
    for number in range(1, 4):
        work = ledger.next_range()
        assert work is not None
        ledger.grant_range(number, work, "w")
    assert ledger.open_epoch() == (0, 20)
    ledger.record_progress(1, 5)
    ledger.finish_lease(2)
    assert ledger.open_epoch() == (0, 7)
    ledger.return_lease(1, 5, quarantine_records=2)
    assert ledger.open_epoch() == (0, 5)
    work = ledger.next_range()
    assert work is not None
    ledger.grant_range(4, work, "w")
    ledger.finish_lease(4)
    ledger.finish_lease(3)
    assert ledger.open_epoch() == (1, 20)
    for number in range(5, 8):
        work = ledger.next_range()
        assert work is not None
        ledger.grant_range(number, work, "w")
        ledger.finish_lease(number)
    assert ledger.open_epoch() == (2, 0)


def test_the_open_epoch_is_not_over_while_records_of_the_next_one_are_done() -> None:
    """Epochs overlap until a callback with a file of each epoch is declared, in a run that is resumed."""
    ledger = Ledger(ShardPlan((RecordSource("a", 20),), 8, None), 3, 1, 8)
    for number in range(1, 6):
        work = ledger.next_range()
        assert work is not None
        ledger.grant_range(number, work, "w")
    for number in (1, 3, 4):
        ledger.finish_lease(number)
    assert ledger.open_epoch() == (0, 8)
    ledger.record_progress(2, 5)
    assert ledger.open_epoch() == (0, 3)
    ledger.return_lease(2, 5, quarantine_records=1)
    assert ledger.open_epoch() == (0, 2)
    snapshot = ledger.to_snapshot()
    ledger = ledger.empty_copy()
    ledger.restore_snapshot(snapshot)
    assert ledger.open_epoch() == (0, 2)
    work = ledger.next_range()
    assert work is not None
    ledger.grant_range(6, work, "w")
    ledger.finish_lease(6)
    # Of the second epoch one range is done and one is leased.
    assert ledger.open_epoch() == (1, 12)
    ledger.finish_lease(5)
    assert ledger.open_epoch() == (1, 12 - 8)

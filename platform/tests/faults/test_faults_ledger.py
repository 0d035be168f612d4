"""The second reader of the journal: it reads what the first one writes, and finds what a wrong ledger would do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.journal_bytes import MalformedJournalError, read_entries

from edl.core.ledger import Ledger
from edl.core.record_ranges import RecordSource, ShardPlan
from edl.simulation.ledger_recount import LedgerError, LedgerRecount, find_ledger_problems
from edl.storage.journal import Journal


def write(folder: Path, *entries: dict[str, Any]) -> None:
    journal, _ = Journal.open(folder, holder="test")
    for entry in entries:
        journal.wait_until_durable(journal.append(entry))
    journal.close()


def count(*entries: dict[str, Any]) -> LedgerRecount:
    counted = LedgerRecount()
    for entry in entries:
        counted.apply_entry(entry)
    return counted


DATASET = {"kind": "dataset", "training": [["a", 32]]}


def leased(lease: int, start: int, end: int, worker: str = "w") -> dict[str, Any]:
    work = [0, "a", start, end]
    return {"kind": "leased", "lease": lease, "task": "training", "work": work, "minibatch": 8, "worker": worker}


def returned(lease: int, through: int, repeated: int = 0) -> dict[str, Any]:
    return {"kind": "returned", "lease": lease, "through": through, "partial": 0, "repeated": repeated}


# ------------------------------------------------------------------ bytes


def test_entries_of_several_incarnations_are_read_in_order(tmp_path: Path) -> None:
    for number in range(3):
        write(tmp_path, *({"kind": "n", "n": 10 * number + i} for i in range(3)))
    assert [entry["n"] for entry in read_entries(tmp_path)] == [0, 1, 2, 10, 11, 12, 20, 21, 22]


def test_a_torn_tail_is_left_out(tmp_path: Path) -> None:
    write(tmp_path, {"kind": "n", "n": 1}, {"kind": "n", "n": 2})
    (segment,) = tmp_path.glob("*.edlj")
    segment.write_bytes(segment.read_bytes()[:-3])
    assert [entry["n"] for entry in read_entries(tmp_path)] == [1]


def test_a_changed_byte_that_counts_is_found(tmp_path: Path) -> None:
    write(tmp_path, {"kind": "n", "n": 1})
    write(tmp_path, {"kind": "n", "n": 2})
    first = min(tmp_path.glob("*.edlj"))
    data = bytearray(first.read_bytes())
    data[-2] ^= 1
    first.write_bytes(data)
    with pytest.raises(MalformedJournalError, match="intact up to byte"):
        read_entries(tmp_path)


def test_a_compacted_journal_has_no_history(tmp_path: Path) -> None:
    journal, _ = Journal.open(tmp_path, holder="test")
    journal.wait_until_durable(journal.compact({"kind": "snapshot"}))
    journal.close()
    with pytest.raises(MalformedJournalError, match="compacted"):
        read_entries(tmp_path)


# ------------------------------------------------------------------ counting


def test_steps_of_a_returned_lease_count_once() -> None:
    counted = count(
        DATASET, leased(1, 0, 32), {"kind": "progress", "lease": 1, "through": 1}, returned(1, 2, 8), leased(2, 16, 32)
    )
    assert find_ledger_problems(counted, 1) == ["epoch 0, a: records 16 to 32 are not done"]
    counted.apply_entry({"kind": "done", "lease": 2})
    assert find_ledger_problems(counted, 1) == []
    assert counted.repeated_records == 8
    assert len(counted.counted_steps) == 4


def test_a_step_that_some_ps_applied_counts_where_it_is_done_again_and_is_named() -> None:
    counted = count(DATASET, leased(1, 0, 32), {**returned(1, 2, 8), "partial": 1}, leased(2, 16, 32))
    counted.apply_entry({"kind": "done", "lease": 2})
    assert [(step.lease, step.start, step.end) for step in counted.partial_steps] == [(1, 16, 24)]
    assert (counted.partial_step_count, len(counted.counted_steps)) == (1, 4)


def test_a_late_report_of_a_returned_lease_counts_nothing() -> None:
    counted = count(DATASET, leased(1, 0, 32), returned(1, 1), {"kind": "done", "lease": 1})
    assert len(counted.counted_steps) == 1


def test_records_that_are_done_twice_are_named() -> None:
    counted = count(DATASET, leased(1, 0, 32), leased(2, 8, 16), *({"kind": "done", "lease": n} for n in (1, 2)))
    assert "epoch 0, a: records 8 to 16 are done twice" in find_ledger_problems(counted, 1)


def cut(number: int, step: int, applied: dict[str, int], below: int = 99) -> dict[str, Any]:
    return {"kind": "cut_taken", "cut": number, "step": step, "applied": applied, "below": below}


def test_a_cut_holds_what_the_ps_said_and_what_was_closed_before() -> None:
    counted = count(DATASET, leased(1, 0, 16), {"kind": "done", "lease": 1}, leased(2, 16, 32))
    counted.apply_entry({"kind": "progress", "lease": 2, "through": 2})
    counted.apply_entry(cut(1, 3, {"2": 1}))
    assert {(step.lease, step.step) for step in counted.cuts[1]} == {(1, 0), (1, 1), (2, 0)}


def test_a_cut_holds_nothing_of_a_lease_that_was_granted_later() -> None:
    """Its first steps were kept out until the cut was taken by all, and entered before its entry was."""
    counted = count(DATASET, leased(1, 0, 16), {"kind": "done", "lease": 1}, leased(2, 16, 32))
    counted.apply_entry({"kind": "progress", "lease": 2, "through": 2})
    counted.apply_entry(cut(1, 2, {}, below=2))
    assert {step.lease for step in counted.cuts[1]} == {1}


def test_a_cut_that_says_another_number_of_steps_is_refused() -> None:
    counted = count(DATASET, leased(1, 0, 16))
    with pytest.raises(LedgerError, match="cut 1 holds 1 steps, its entry says 2"):
        counted.apply_entry(cut(1, 2, {"1": 1}))


def test_a_rollback_goes_back_to_the_cut_and_says_how_far() -> None:
    counted = count(DATASET, leased(1, 0, 32), cut(1, 1, {"1": 1}))
    counted.apply_entry({"kind": "progress", "lease": 1, "through": 3})
    position = {"done_steps": 1, "done_records": 8, "returned": [[0, "a", 8, 32]]}
    entry = {"kind": "rolled_back", "cut": 1, "ledger": position}
    with pytest.raises(LedgerError, match="16 records went back"):
        counted.apply_entry({**entry, "records": 8})
    counted.apply_entry({**entry, "records": 16})
    assert [step.start for step in counted.counted_steps] == [0]
    assert counted.rolled_back_records == 16


def test_a_position_that_leases_again_what_is_in_is_refused() -> None:
    counted = count(DATASET, leased(1, 0, 32), cut(1, 1, {"1": 1}))
    position = {"done_steps": 1, "done_records": 8, "returned": [[0, "a", 0, 32]]}
    with pytest.raises(LedgerError, match="to be leased again"):
        counted.apply_entry({"kind": "saved", "cut": 1, "ledger": position})


@given(st.data())
def test_it_agrees_with_the_ledger_of_the_core(data: st.DataObject) -> None:
    """Whatever happens to leases, both count the same records."""
    ledger, counted = (
        Ledger(ShardPlan((RecordSource("a", 100),), 24), 2, 8),
        count({"kind": "dataset", "training": [["a", 100]]}),
    )
    number = 0
    while not ledger.is_finished:
        work = ledger.next_range()
        if work is not None and (not ledger.leases or data.draw(st.booleans())):
            number += 1
            ledger.grant_range(number, work, "w")
            row = [work.epoch, work.source, work.start, work.end]
            counted.apply_entry({**leased(number, 0, 0), "work": row})
            continue
        lease = data.draw(st.sampled_from(sorted(ledger.leases)))
        through = data.draw(st.integers(0, ledger.leases[lease].step_count))
        if data.draw(st.booleans()):
            ledger.return_lease(lease, through)
            counted.apply_entry(returned(lease, through))
        else:
            ledger.finish_lease(lease)
            counted.apply_entry({"kind": "done", "lease": lease})
        assert sum(step.records for step in counted.counted_steps) == ledger.done_records
    assert find_ledger_problems(counted, 2) == []

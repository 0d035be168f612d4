"""The second count of a journal of strategy AllReduce: what checkpoints and rounds say must agree with the steps."""

from __future__ import annotations

from typing import Any

import pytest

from edl.simulation.ledger_recount import LedgerError, LedgerRecount, find_ledger_problems

DATASET = {"kind": "dataset", "training": [["train", 8]]}
"""Two leases of two minibatches of two records."""


def leased(number: int, start: int) -> dict[str, Any]:
    work = [0, "train", start, start + 4]
    return {"kind": "leased", "lease": number, "task": "training", "worker": "w", "minibatch": 2, "work": work}


def steps(step: int, *done: list[int]) -> dict[str, Any]:
    return {"kind": "steps", "step": step, "done": list(done)}


def position(step: int, records: int, *returned: list[Any]) -> dict[str, Any]:
    counts = {"done_steps": records // 2, "done_records": records}
    return {"epoch": 1, "index": 0, "returned": list(returned), **counts, "world_step": step}


def saved(ledger: dict[str, Any]) -> dict[str, Any]:
    return {"kind": "saved", "cut": 1, "ledger": ledger}


def world(ledger: dict[str, Any], records: int) -> dict[str, Any]:
    return {"kind": "world", "ledger": ledger, "records": records, "cut": 1}


def count(*entries: dict[str, Any]) -> LedgerRecount:
    counted = LedgerRecount()
    for entry in (DATASET, leased(1, 0), leased(2, 4), *entries):
        counted.apply_entry(entry)
    return counted


def test_steps_of_all_ranks_count_once() -> None:
    counted = count(steps(1, [1, 2], [2, 2]), steps(2, [1, 4], [2, 4]), steps(2, [1, 4]))
    assert find_ledger_problems(counted, 1) == []
    assert len(counted.counted_steps) == 4


def test_a_record_that_no_step_contains_is_found() -> None:
    assert find_ledger_problems(count(steps(1, [1, 2], [2, 2]), steps(2, [1, 4])), 1) == [
        "epoch 0, train: records 6 to 8 are not done"
    ]


def test_a_lease_that_returns_is_done_by_another() -> None:
    started = {"kind": "world_started", "step": 1, "done": [[1, 2]], "returned": [1], "repeated": 2}
    rest = leased(3, 2) | {"work": [0, "train", 2, 4]}
    counted = count(started, rest, steps(2, [3, 2], [2, 4]))
    assert (find_ledger_problems(counted, 1), counted.repeated_records) == ([], 2)
    late = count(started, steps(2, [1, 4], [2, 4]))
    assert find_ledger_problems(late, 1) == ["epoch 0, train: records 2 to 4 are not done"]


def test_a_world_without_a_state_goes_back_to_its_checkpoint() -> None:
    ledger = position(1, 4, [0, "train", 2, 4], [0, "train", 6, 8])
    counted = count(steps(1, [1, 2], [2, 2]), saved(ledger), steps(2, [1, 4]), world(ledger, 2))
    assert (counted.rollbacks, len(counted.counted_steps)) == ([(1, 2)], 2)


def test_the_last_worker_may_save_steps_that_no_entry_has_reported() -> None:
    ledger = position(1, 4, [0, "train", 2, 4], [0, "train", 6, 8])
    counted = count(saved(ledger), world(ledger, 0))
    assert (counted.rollbacks, len(counted.counted_steps)) == ([(1, 0)], 2)


def test_a_checkpoint_that_counts_other_steps_than_its_ranges_is_refused() -> None:
    with pytest.raises(LedgerError, match="3 steps and 6 records"):
        count(steps(1, [1, 2], [2, 2]), saved(position(1, 6, [0, "train", 2, 4], [0, "train", 6, 8])))


def test_a_rollback_that_names_another_number_of_records_is_refused() -> None:
    ledger = position(1, 4, [0, "train", 2, 4], [0, "train", 6, 8])
    with pytest.raises(LedgerError, match="2 records went back"):
        count(steps(1, [1, 2], [2, 2]), saved(ledger), steps(2, [1, 4]), world(ledger, 0))


def test_more_records_than_a_lease_has_are_refused() -> None:
    with pytest.raises(LedgerError, match="lease 1 has 2 steps"):
        count(steps(1, [1, 6]))

"""The checker of random faults finds what it is there to find."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from chaos.__main__ import ROLES, schedule
from chaos.counting_check import ShardCounts, check_parameters
from chaos.counting_job import MINIBATCH

from edl.simulation.counted_steps import CountedStep
from edl.simulation.ledger_recount import LedgerRecount

RECORDS, EPOCHS = 8 * MINIBATCH, 2
HALF = CountedStep(lease=3, step=0, epoch=0, source="train", start=0, end=MINIBATCH)


def shard(*changes: tuple[slice, float]) -> ShardCounts:
    """A PS on which every record was applied in every epoch, but for ``changes``."""
    applied = np.full(RECORDS, float(EPOCHS))
    for part, by in changes:
        applied[part] += by
    return ShardCounts(applied, [])


def check(*shards: ShardCounts, halves: tuple[CountedStep, ...] = (), told: int = 0) -> list[str]:
    counted = LedgerRecount(partial_steps=list(halves))
    return check_parameters(list(shards), counted, records=RECORDS, epochs=EPOCHS, told=told)


def test_what_agrees_with_the_ledger_passes() -> None:
    assert check(shard(), shard()) == []
    assert check(shard(), shard((slice(16, 48), -1)), told=2) == []
    assert check(shard(), shard((slice(0, 16), 1)), halves=(HALF,)) == []


@pytest.mark.parametrize(
    ("shards", "told", "message"),
    [
        pytest.param((shard((slice(5, 6), 1)), shard()), 0, "records [5] were applied [3.0] times", id="applied twice"),
        pytest.param((shard(), shard((slice(0, 16), -1))), 0, "lack 1 updates", id="lost and not told"),
        pytest.param((shard(), shard()), 1, "lack 0 updates", id="told and not lost"),
        pytest.param((shard((slice(3, 4), -0.5)), shard()), 0, "records [3] count [1.5]", id="in part"),
        pytest.param((replace(shard(), torn=[7]), shard()), 0, "the elements of records [7] disagree", id="torn"),
        pytest.param((shard((slice(0, 9), np.nan)), shard()), 0, "holds no whole dense variable", id="blind"),
    ],
)
def test_what_does_not_is_named(shards: tuple[ShardCounts, ...], told: int, message: str) -> None:
    assert any(message in line for line in check(*shards, told=told))


def test_a_record_of_a_partial_step_may_be_in_once_more_and_no_other() -> None:
    twice = check(shard((slice(0, 16), 2)), halves=(HALF,))
    assert any("applied" in line for line in twice)


def test_a_schedule_is_a_function_of_its_seed() -> None:
    faults = list(schedule(7, 360.0))
    assert faults == list(schedule(7, 360.0)) != list(schedule(8, 360.0))
    assert {fault.role for fault in faults} == set(ROLES)
    gaps = np.diff([0.0, *[fault.at for fault in faults]])
    assert gaps.min() >= 3.0
    assert gaps.max() <= 8.0

"""Which ranks compute the same bits, and which one has another value."""

from __future__ import annotations

import math

import pytest
from support.all_reduce_master import AllReduceMaster

from edl.api.run_events import WarningRaised
from edl.core.allreduce import describe_world
from edl.core.rank_state import RankPhase
from edl.core.state_agreement import (
    CODE_PREFIX,
    DIGEST_STEPS,
    Divergence,
    Drift,
    RankFacts,
    count_digest_steps,
    describe_difference,
    describe_model_difference,
    describe_version_conflict,
    drift_tolerance,
    find_divergence,
    is_digest_step,
)
from edl.core.world_rounds import Share


def facts(worker: str, *instructions: str, tensorflow: str = "2.18", intra: int = 2) -> RankFacts:
    return RankFacts(worker, "m", {"tensorflow": tensorflow}, ("x86_64", *instructions), {"intra-op": intra})


def test_equal_ranks_neither_conflict_nor_differ() -> None:
    ranks = [facts("worker-0", "avx", "fma"), facts("worker-2", "fma", "avx")]
    assert (describe_version_conflict(ranks), describe_difference(ranks)) == ("", "")
    assert [RankFacts.from_json(rank.to_json()) for rank in ranks] == ranks


def test_another_version_names_both_ranks_and_both_versions() -> None:
    ranks = [facts("worker-0"), facts("worker-1"), facts("worker-4", tensorflow="2.19")]
    text = describe_version_conflict(ranks)
    assert text == "worker-0 (rank 0) has tensorflow 2.18, worker-4 (rank 2) has tensorflow 2.19"
    missing = describe_version_conflict([facts("worker-0"), RankFacts("worker-1")])
    assert "worker-1 (rank 1) has tensorflow in no version" in missing


def test_a_file_of_model_code_that_differs_is_named() -> None:
    variables = {"w": "float32 of shape ()"}
    mine, edited = (variables | {CODE_PREFIX + "zoo/model.py": digest} for digest in ("12", "34"))
    text = describe_model_difference("worker-0", mine, "worker-2", edited)
    assert text == "zoo/model.py has other code on worker-2"
    text = describe_model_difference("worker-0", mine, "worker-2", variables)
    assert text == "worker-2 has not imported zoo/model.py"
    # Variables say more: their code differs because of them, or the other way round.
    text = describe_model_difference("worker-0", mine, "worker-2", edited | {"w": "float64 of shape ()"})
    assert text == "'w' is float32 of shape () on worker-0 and float64 of shape () on worker-2"


def test_other_instructions_or_threads_are_named() -> None:
    first = facts("worker-0", "avx2", "avx512f")
    text = describe_difference([first, first, facts("worker-3", "avx2")])
    assert text == "worker-0 (rank 0) has the instructions avx512f, which worker-3 (rank 2) lacks"
    text = describe_difference([facts("worker-3", "avx2"), first])
    assert text == "worker-0 (rank 1) has the instructions avx512f, which worker-3 (rank 0) lacks"
    text = describe_difference([facts("worker-0", "avx2"), facts("worker-1", "fma")])
    assert text == "worker-0 (rank 0) has the instructions avx2 and worker-1 (rank 1) has the instructions fma"
    text = describe_difference([facts("worker-0"), facts("worker-1", intra=8)])
    assert text == "TensorFlow has 2 intra-op threads on worker-0 (rank 0) and 8 intra-op on worker-1 (rank 1)"


def test_the_rank_that_is_alone_with_its_value_has_diverged() -> None:
    assert find_divergence([[1, 2], [1, 2], [1, 2]]) is None
    assert find_divergence([[1, 2], [1, 2], [1, 3]]) == Divergence(variable=1, rank=2, other_rank=0)
    assert find_divergence([[9, 3], [1, 2], [1, 2]]) == Divergence(variable=0, rank=0, other_rank=1)
    assert find_divergence([[1, 2], [1, 3]]) == Divergence(variable=1, rank=1, other_rank=0)
    assert find_divergence([[], []]) is None


def test_comparisons_are_counted_by_the_steps_that_they_follow() -> None:
    for after, until in ((0, 0), (0, DIGEST_STEPS), (DIGEST_STEPS - 1, 3 * DIGEST_STEPS), (7, 5)):
        assert count_digest_steps(after, until) == sum(map(is_digest_step, range(after + 1, until + 1)))


FLOAT32, BFLOAT16 = 2.0**-23, 2.0**-7


@pytest.mark.parametrize(
    ("difference", "norm", "epsilon", "exceeds"),
    [
        (1e-6, 1.0, FLOAT32, False),
        (1e-2, 1.0, FLOAT32, True),
        (1e-2, 1.0, BFLOAT16, False),
        (0.5, 1.0, BFLOAT16, True),
        (1e-30, 0.0, FLOAT32, False),
        (1e-3, 0.0, FLOAT32, True),
        (math.nan, 1.0, FLOAT32, True),
        (1.0, 1e9, None, True),
    ],
)
def test_what_rounding_explains(difference: float, norm: float, epsilon: float | None, exceeds: bool) -> None:
    drift = Drift("v", difference, norm, epsilon)
    assert drift.exceeds_tolerance is exceeds
    if norm:
        assert math.isnan(difference) or drift.relative == difference / norm
    assert drift_tolerance(None) == 0.0


def test_a_round_of_different_processors_warns_once_and_counts_states_until_a_new_master_and_after() -> None:
    master = AllReduceMaster(records=100_000, task_records=50_000)
    master.report("w0", RankPhase.OUTSIDE)
    difference = "worker-0 (rank 0) has the instructions avx512f, which worker-1 (rank 1) lacks"
    master.start_round("w0")
    assert describe_world(master.state).difference == ""
    for joining in ("w1", "w2"):
        members = master.rounds.members
        master.report(joining, RankPhase.OUTSIDE)
        for worker in members:
            master.report(worker, RankPhase.ENDED, step=master.rounds.committed_step)
        master.report(joining, RankPhase.OUTSIDE)
        for worker in master.rounds.members:
            master.report(worker, RankPhase.CONFIRMED, difference=difference)
    warnings = [each for each in master.events if isinstance(each, WarningRaised)]
    assert [difference in each.message for each in warnings] == [True]
    assert describe_world(master.state).states_taken == 2
    shares = {1: (Share(master.lease("w0").lease, 0, 12 * DIGEST_STEPS),)}
    master.report("w0", RankPhase.RUNNING, stable=3 * DIGEST_STEPS, shares=shares)
    master.restart()
    world = describe_world(master.state)
    assert (world.difference, world.states_taken) == (difference, 5)

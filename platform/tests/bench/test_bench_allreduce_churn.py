"""The benchmark of kills compares whole curves of the loss, and says when a run has left an evaluation out."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]
NOTHING = {"records_total": 64, "records_done": 64, "records_lost": 0, "records_repeated": 0}
NOTHING |= {"records_rolled_back": 0, "killed": 2}


@pytest.fixture(scope="module")
def churn() -> Iterator[ModuleType]:
    sys.path.insert(0, str(ROOT / "bench"))
    import allreduce_churn

    yield allreduce_churn
    sys.path.remove(str(ROOT / "bench"))


def curves(churn: ModuleType, *offsets: float) -> list[dict[int, float]]:
    steps = range(churn.EVALUATION_STEPS, churn.STEPS + 1, churn.EVALUATION_STEPS)
    return [{step: 1.0 / step + offset for step in steps} for offset in offsets]


def test_a_point_in_the_middle_of_the_curve_counts(churn):
    others = curves(churn, 0.0, 0.1, 0.2)
    own_curves = curves(churn, 0.0, 0.1, 0.2)
    assert churn.largest_difference(own_curves, others) == 0
    for curve in own_curves:
        curve[4 * churn.EVALUATION_STEPS] += 0.5
    # The variance of each side is 0.01, that of the difference of two means of three values 0.02 / 3.
    assert churn.largest_difference(own_curves, others) == pytest.approx(0.5 / (0.02 / 3) ** 0.5)


def test_a_run_without_one_of_the_evaluations_is_an_error(churn):
    others = curves(churn, 0.0, 0.1)
    own_curves = curves(churn, 0.0, 0.1)
    del own_curves[1][churn.EVALUATION_STEPS]
    with pytest.raises(RuntimeError, match="were evaluated by all runs"):
        churn.largest_difference(own_curves, others)


def test_records_that_are_rolled_back_do_not_meet_the_limit(churn):
    summaries = [NOTHING, NOTHING | {"records_rolled_back": 64}]
    met = {f.measure: f.is_met for f in churn.figures(curves(churn, 0.0, 0.1), curves(churn, 0.0, 0.1), summaries)}
    assert met["AllReduce, 4 workers, 4 times one SIGKILLed: records rolled back"] is False


@pytest.mark.parametrize("missing", [{"records_done": 60}, {"records_lost": 4}])
def test_records_that_are_missing_in_one_run_do_not_meet_the_limit(churn, missing):
    summaries = [NOTHING, NOTHING | missing]
    lost = next(iter(churn.figures(curves(churn, 0.0, 0.1), curves(churn, 0.0, 0.1), summaries)))
    assert lost.measured == 4
    assert not lost.is_met

from __future__ import annotations

import pytest

from edl.api.errors import EdlError
from edl.cluster.kubernetes.api_errors import AwayError, BusyError, NoRightError
from edl.ops.master_start import SETTLE_SECONDS, Sight, Stage
from edl.ops.release.submitter_timeouts import (
    AWAY_SECONDS,
    CLEAR_SECONDS,
    REFUSED_SECONDS,
    START_SECONDS,
    ClearPatience,
    Patience,
    StartPatience,
)


@pytest.mark.parametrize(
    ("error", "seconds"),
    [(AwayError(""), AWAY_SECONDS), (BusyError(""), AWAY_SECONDS), (NoRightError(""), REFUSED_SECONDS)],
)
def test_patience_ends(error: EdlError, seconds: float) -> None:
    patience = Patience()
    assert patience.bears(error, 100.0)
    assert patience.bears(error, 99.0 + seconds)
    assert not patience.bears(error, 100.0 + seconds)


def test_success_begins_a_new_row() -> None:
    patience = Patience()
    assert patience.bears(NoRightError(""), 0.0)
    patience.succeeded()
    assert patience.bears(NoRightError(""), REFUSED_SECONDS)


def test_an_answer_after_an_absence_has_its_own_time() -> None:
    patience = Patience()
    assert patience.bears(AwayError(""), 0.0)
    assert patience.bears(NoRightError(""), AWAY_SECONDS - 1)
    assert patience.bears(NoRightError(""), AWAY_SECONDS + 1)


@pytest.mark.parametrize(
    ("sight", "over"),
    [
        (Sight(Stage.FAILED, "ImagePullBackOff"), True),
        (Sight(Stage.FAILED, "Error", exit_code=1), True),
        (Sight(Stage.FAILED, "Error", exit_code=2), True),
        (Sight(Stage.FAILED, "StartError", exit_code=128), True),
        (Sight(Stage.FAILED, "OOMKilled", exit_code=137), False),
        (Sight(Stage.REPLACED, "Terminated"), False),
        (Sight(Stage.FAILED, "Evicted"), False),
        (Sight(Stage.CREATING, "ErrImagePull"), False),
        (Sight(Stage.PENDING, "Unschedulable"), False),
        (Sight(Stage.RUNNING), False),
    ],
)
def test_only_a_failure_of_its_own_that_lasts_fails_a_start(sight: Sight, over: bool) -> None:
    patience = StartPatience()
    assert not patience.is_over(sight, 0.0)
    assert not patience.is_over(sight, START_SECONDS - 1)
    assert patience.is_over(sight, START_SECONDS) == over


PULLS, CRASHES = Sight(Stage.FAILED, "ImagePullBackOff"), Sight(Stage.FAILED, "Error", exit_code=1)
CREATING, RUNNING = Sight(Stage.CREATING), Sight(Stage.RUNNING)


@pytest.mark.parametrize(
    ("failure", "between", "over"),
    [
        (PULLS, [(10.0, CREATING)], False),
        (PULLS, [(10.0, RUNNING)], False),
        (PULLS, [(10.0, Sight(Stage.CREATING, "ErrImagePull"))], True),
        (PULLS, [(10.0, Sight(Stage.FAILED, "Evicted")), (12.0, Sight(Stage.PENDING))], False),
        (PULLS, [(10.0, CRASHES)], False),
        (CRASHES, [(10.0, CREATING), (12.0, RUNNING), (19.0, RUNNING)], True),
        (CRASHES, [(5.0, RUNNING), (6.0, CREATING), (18.0, RUNNING)], True),
        (CRASHES, [(10.0, RUNNING), (10.0 + SETTLE_SECONDS, RUNNING)], False),
    ],
)
def test_failures_that_were_mended_between_are_not_one_that_lasts(
    failure: Sight, between: list[tuple[float, Sight]], over: bool
) -> None:
    """An image that was pulled, or a container that ran for a while: the next failure is another one."""
    patience = StartPatience()
    assert not patience.is_over(failure, 0.0)
    assert not any(patience.is_over(sight, now) for now, sight in between)
    assert patience.is_over(failure, START_SECONDS) == over
    assert patience.is_over(failure, 2 * START_SECONDS)


def test_an_earlier_job_that_went_does_not_shorten_the_time_of_the_next() -> None:
    patience = ClearPatience()
    assert not patience.is_over(now=0.0, left=True)
    assert not patience.is_over(now=CLEAR_SECONDS - 1, left=True)
    assert not patience.is_over(now=CLEAR_SECONDS, left=False)
    assert not patience.is_over(now=CLEAR_SECONDS + 5, left=True)
    assert patience.is_over(now=2 * CLEAR_SECONDS + 5, left=True)

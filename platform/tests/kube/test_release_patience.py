from __future__ import annotations

import pytest

from edl.core.errors import EdlError
from edl.kube.errors import AwayError, BusyError, NoRightError
from edl.kube.release.patience import AWAY_SECONDS, REFUSED_SECONDS, START_SECONDS, Patience, StartPatience
from edl.kube.submission.starting import Sight, Stage


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
        (Sight(Stage.FAILED, "Error", exit_code=143), False),
        (Sight(Stage.FAILED, "Evicted"), False),
        (Sight(Stage.CREATING, "ErrImagePull"), False),
        (Sight(Stage.PENDING, "Unschedulable"), False),
        (Sight(Stage.RUNNING), False),
    ],
)
def test_only_a_failure_of_its_own_that_lasts_fails_a_start(sight: Sight, over: bool) -> None:
    patience = StartPatience()
    assert not patience.is_over(sight, 0.0)
    assert not patience.is_over(Sight(Stage.CREATING), 10.0)
    assert patience.is_over(sight, START_SECONDS) == over

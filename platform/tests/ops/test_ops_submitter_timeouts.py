from __future__ import annotations

import pytest

from edl.api.errors import EdlError
from edl.cluster.kubernetes.api_errors import NoResponseError, RbacDeniedError, ServerBusyError
from edl.ops.job_submission import SETTLE_SECONDS, MasterPodStatus, MasterStage
from edl.ops.release.submitter_decision import (
    API_AWAY_SECONDS,
    CLEANUP_TIMEOUT_SECONDS,
    FAILED_START_SECONDS,
    REFUSAL_RETRY_SECONDS,
    CleanupTimeout,
    RetryDeadline,
    StartTimeout,
)


@pytest.mark.parametrize(
    ("error", "seconds"),
    [
        (NoResponseError(""), API_AWAY_SECONDS),
        (ServerBusyError(""), API_AWAY_SECONDS),
        (RbacDeniedError(""), REFUSAL_RETRY_SECONDS),
    ],
)
def test_patience_ends(error: EdlError, seconds: float) -> None:
    patience = RetryDeadline()
    assert patience.may_retry(error, 100.0)
    assert patience.may_retry(error, 99.0 + seconds)
    assert not patience.may_retry(error, 100.0 + seconds)


def test_success_begins_a_new_row() -> None:
    patience = RetryDeadline()
    assert patience.may_retry(RbacDeniedError(""), 0.0)
    patience.reset()
    assert patience.may_retry(RbacDeniedError(""), REFUSAL_RETRY_SECONDS)


def test_an_answer_after_an_absence_has_its_own_time() -> None:
    patience = RetryDeadline()
    assert patience.may_retry(NoResponseError(""), 0.0)
    assert patience.may_retry(RbacDeniedError(""), API_AWAY_SECONDS - 1)
    assert patience.may_retry(RbacDeniedError(""), API_AWAY_SECONDS + 1)


@pytest.mark.parametrize(
    ("sight", "over"),
    [
        (MasterPodStatus(MasterStage.FAILED, "ImagePullBackOff"), True),
        (MasterPodStatus(MasterStage.FAILED, "Error", exit_code=1), True),
        (MasterPodStatus(MasterStage.FAILED, "Error", exit_code=2), True),
        (MasterPodStatus(MasterStage.FAILED, "StartError", exit_code=128), True),
        (MasterPodStatus(MasterStage.FAILED, "OOMKilled", exit_code=137), False),
        (MasterPodStatus(MasterStage.REPLACED, "Terminated"), False),
        (MasterPodStatus(MasterStage.FAILED, "Evicted"), False),
        (MasterPodStatus(MasterStage.CREATING, "ErrImagePull"), False),
        (MasterPodStatus(MasterStage.PENDING, "Unschedulable"), False),
        (MasterPodStatus(MasterStage.RUNNING), False),
    ],
)
def test_only_a_failure_of_its_own_that_lasts_fails_a_start(sight: MasterPodStatus, over: bool) -> None:
    patience = StartTimeout()
    assert not patience.has_expired(sight, 0.0)
    assert not patience.has_expired(sight, FAILED_START_SECONDS - 1)
    assert patience.has_expired(sight, FAILED_START_SECONDS) == over


PULLS, CRASHES = (
    MasterPodStatus(MasterStage.FAILED, "ImagePullBackOff"),
    MasterPodStatus(MasterStage.FAILED, "Error", exit_code=1),
)
CREATING, RUNNING = MasterPodStatus(MasterStage.CREATING), MasterPodStatus(MasterStage.RUNNING)


@pytest.mark.parametrize(
    ("failure", "between", "over"),
    [
        (PULLS, [(10.0, CREATING)], False),
        (PULLS, [(10.0, RUNNING)], False),
        (PULLS, [(10.0, MasterPodStatus(MasterStage.CREATING, "ErrImagePull"))], True),
        (
            PULLS,
            [(10.0, MasterPodStatus(MasterStage.FAILED, "Evicted")), (12.0, MasterPodStatus(MasterStage.PENDING))],
            False,
        ),
        (PULLS, [(10.0, CRASHES)], False),
        (CRASHES, [(10.0, CREATING), (12.0, RUNNING), (19.0, RUNNING)], True),
        (CRASHES, [(5.0, RUNNING), (6.0, CREATING), (18.0, RUNNING)], True),
        (CRASHES, [(10.0, RUNNING), (10.0 + SETTLE_SECONDS, RUNNING)], False),
    ],
)
def test_failures_that_were_mended_between_are_not_one_that_lasts(
    failure: MasterPodStatus, between: list[tuple[float, MasterPodStatus]], over: bool
) -> None:
    """An image that was pulled, or a container that ran for a while: the next failure is another one."""
    patience = StartTimeout()
    assert not patience.has_expired(failure, 0.0)
    assert not any(patience.has_expired(sight, now) for now, sight in between)
    assert patience.has_expired(failure, FAILED_START_SECONDS) == over
    assert patience.has_expired(failure, 2 * FAILED_START_SECONDS)


def test_an_earlier_job_that_went_does_not_shorten_the_time_of_the_next() -> None:
    patience = CleanupTimeout()
    assert not patience.has_expired(now=0.0, left=True)
    assert not patience.has_expired(now=CLEANUP_TIMEOUT_SECONDS - 1, left=True)
    assert not patience.has_expired(now=CLEANUP_TIMEOUT_SECONDS, left=False)
    assert not patience.has_expired(now=CLEANUP_TIMEOUT_SECONDS + 5, left=True)
    assert patience.has_expired(now=2 * CLEANUP_TIMEOUT_SECONDS + 5, left=True)

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.api.errors import BadInputError
from edl.ops.release.release_view import SubmitterIdentity, read_identity
from edl.storage.run_directory import NEWEST_RUN

ENV = {"EDL_RELEASE": "train", "EDL_SUBMITTER_JOB": "train-submit-1a2b3c4d", "EDL_SUBMITTER_UID": "u-1"}
SCHEDULED = ENV | {"EDL_SCHEDULED": "true", "EDL_SUBMITTER_JOB": "train-submit-29371680"}


def identity(variables: dict[str, str]) -> SubmitterIdentity:
    submitter = read_identity(variables)
    assert submitter is not None
    return submitter


def test_without_a_release_there_is_no_submitter() -> None:
    assert read_identity({}) is None
    assert read_identity({"EDL_RELEASE": "", "EDL_SUBMITTER_JOB": "x"}) is None


def test_the_environment_names_a_submitter() -> None:
    assert read_identity(ENV) == SubmitterIdentity("train", "train-submit-1a2b3c4d", "u-1")
    assert identity(ENV | {"EDL_RESUME": NEWEST_RUN}).resume_run == NEWEST_RUN
    assert identity(ENV | {"EDL_RESUME": ""}).resume_run is None


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"EDL_RELEASE": "train"}, "EDL_SUBMITTER_JOB.*EDL_SUBMITTER_UID"),
        (ENV | {"EDL_SUBMITTER_UID": ""}, "EDL_SUBMITTER_UID"),
        (ENV | {"EDL_SCHEDULED": "yes"}, "not 'yes'"),
        (SCHEDULED | {"EDL_RESUME": NEWEST_RUN}, "EDL_RESUME"),
    ],
)
def test_what_is_missing_or_contradicts_itself_is_told(variables: dict[str, str], said: str) -> None:
    with pytest.raises(BadInputError, match=said):
        read_identity(variables)


def test_each_date_of_a_schedule_has_a_job_of_its_own() -> None:
    assert identity(ENV).derive_job_name("mnist") == "mnist"
    assert identity(SCHEDULED).derive_job_name("mnist") == "mnist-29371680"


@given(st.from_regex(r"\A[a-z]([-a-z0-9.]{0,50}[a-z0-9])?\Z"))
def test_a_job_made_by_hand_from_a_schedule_has_a_name_that_fits(job: str) -> None:
    tail = identity(SCHEDULED | {"EDL_SUBMITTER_JOB": job}).derive_job_name("m").removeprefix("m-")
    assert 1 <= len(tail) <= 8
    assert tail.isalnum()
    assert tail == tail.lower()

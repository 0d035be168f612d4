"""data.weights, data.repeat and data.split: what is refused before a process starts."""

from __future__ import annotations

import pytest

from edl.api.job_spec import DataSpec, JobSpec, ShuffleSpec, SplitSpec, TrainSpec
from edl.jobfile.source_rules import check_sources

TWO = ("a", "b")


@pytest.mark.parametrize(
    ("data", "field"),
    [
        (DataSpec(training=TWO, weights=(1,)), "data.weights"),
        (DataSpec(training=TWO, repeat=(1, 2, 3)), "data.repeat"),
        (DataSpec(training=TWO, split=SplitSpec("k")), "data.validation"),
        (DataSpec(training=TWO, validation=TWO, split=SplitSpec("k", 1.0)), "data.split.validation"),
    ],
)
def test_numbers_that_do_not_fit_are_refused_by_field(data: DataSpec, field: str) -> None:
    assert [violation.field_path for violation in check_sources(JobSpec(name="a", data=data))] == [field]


def test_what_fits_is_accepted() -> None:
    data = DataSpec(training=TWO, validation=TWO, split=SplitSpec("k", 0.2), weights=(1, 2), repeat=(1, 1))
    assert not list(check_sources(JobSpec(name="a", data=data)))


def test_weights_need_shuffled_records_and_a_program_has_no_validation_set() -> None:
    unshuffled = JobSpec(
        name="a", data=DataSpec(training=TWO, weights=(1, 2)), train=TrainSpec(shuffle=ShuffleSpec(window=0))
    )
    assert [violation.field_path for violation in check_sources(unshuffled)] == ["data.weights"]
    program = JobSpec(name="a", command=("true",), data=DataSpec(training=TWO, split=SplitSpec("k")))
    assert [violation.field_path for violation in check_sources(program)] == ["data.split"]

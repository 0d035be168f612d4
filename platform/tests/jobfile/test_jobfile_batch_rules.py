"""train.batches: what is refused before a process starts."""

from __future__ import annotations

import pytest

from edl.api.job_spec import BatchSpec, JobSpec, ShuffleSpec, TrainSpec
from edl.api.strategy import Strategy
from edl.jobfile.batch_rules import check_batches

BUCKETS = BatchSpec(bucket_by="text")


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        (JobSpec(name="a", command=("true",), train=TrainSpec(batches=BatchSpec(pad=True))), ""),
        (JobSpec(name="a", train=TrainSpec(batches=BUCKETS, shuffle=ShuffleSpec(window=0))), ".bucket_by"),
        (JobSpec(name="a", train=TrainSpec(batches=BUCKETS, on_crashing_range="skip")), ".bucket_by"),
        (
            JobSpec(
                name="a",
                strategy=Strategy(name="AllReduce", global_batch=8),
                train=TrainSpec(batches=BatchSpec(drop_remainder=True)),
            ),
            ".drop_remainder",
        ),
    ],
)
def test_what_has_no_effect_or_contradicts_is_refused(spec: JobSpec, field: str) -> None:
    assert [violation.field_path for violation in check_batches(spec)] == [f"train.batches{field}"]


def test_all_together_are_accepted() -> None:
    train = TrainSpec(batches=BatchSpec(bucket_by="text", pad=True, drop_remainder=True))
    assert not list(check_batches(JobSpec(name="a", train=train)))

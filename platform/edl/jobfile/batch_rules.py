"""``train.batches``: its rules."""

from __future__ import annotations

from collections.abc import Iterator

from edl.api.job_spec import BatchSpec, JobSpec, TrainSpec
from edl.jobfile.document_tree import RuleViolation


def lease_records(train: TrainSpec) -> int:
    """Records of a lease. Buckets are made among them."""
    return train.minibatch_size * train.minibatches_per_task


def check_batches(spec: JobSpec) -> Iterator[RuleViolation]:
    """Buckets need shuffled positions; a batch of all workers together has no minibatches of a fixed size."""
    train, batches = spec.train, spec.train.batches
    if batches == BatchSpec():
        return
    if spec.command:
        yield RuleViolation("train.batches", "has no effect with a command: the program makes batches", "leave it out")
        return
    if spec.strategy.global_batch is not None:
        for name in ("bucket_by", "drop_remainder"):
            if getattr(batches, name):
                yield RuleViolation(
                    f"train.batches.{name}",
                    "needs minibatches of one size, and strategy.global_batch divides them anew for each world",
                    "leave one of the two out",
                    conflicting_field="strategy.global_batch",
                )
    if batches.bucket_by is None:
        return
    if train.shuffle.window == 0:
        yield RuleViolation(
            "train.batches.bucket_by",
            "needs shuffled records, and train.shuffle.window is 0",
            "leave one of the two out",
            conflicting_field="train.shuffle.window",
        )
    if train.on_crashing_range == "skip":
        yield RuleViolation(
            "train.batches.bucket_by",
            "hides from the master which records a minibatch has, and train.on_crashing_range: skip reports them",
            "use on_crashing_range: fail, or leave bucket_by out",
            conflicting_field="train.on_crashing_range",
        )

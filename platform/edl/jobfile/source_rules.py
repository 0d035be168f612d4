"""``data.weights``, ``data.repeat`` and ``data.split``: their rules."""

from __future__ import annotations

from collections.abc import Iterator

from edl.api.job_spec import JobSpec
from edl.jobfile.document_tree import RuleViolation


def check_sources(spec: JobSpec) -> Iterator[RuleViolation]:
    """Weights and repeats are of the paths of ``data.training``; a split divides records that both sets name."""
    data = spec.data
    for name in ("weights", "repeat"):
        numbers = getattr(data, name)
        if numbers and data.training and len(numbers) != len(data.training):
            yield RuleViolation(
                f"data.{name}",
                f"has {len(numbers)} numbers, and data.training {len(data.training)} paths",
                "give one number for each path; a pattern or a directory is one path",
            )
    if data.weights and spec.train.shuffle.window == 0:
        yield RuleViolation(
            "data.weights",
            "needs shuffled records, and train.shuffle.window is 0",
            "leave one of the two out",
            conflicting_field="train.shuffle.window",
        )
    split = data.split
    if split is None:
        return
    if spec.command:
        yield RuleViolation("data.split", "has no effect with a command: the program evaluates itself", "leave it out")
        return
    if not 0 < split.validation < 1:
        yield RuleViolation(
            "data.split.validation",
            f"found {split.validation}, must be above 0 and below 1",
            "give a share, such as 0.1",
        )
    if data.training != data.validation:
        yield RuleViolation(
            "data.validation",
            "differs from data.training, and data.split divides the records of the same files",
            "name the same paths in both, or leave data.split out",
            conflicting_field="data.split",
        )

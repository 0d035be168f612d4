"""What a job under strategy AllReduce cannot do yet, and what to do instead. Every command asks here.

Each limit is a function or a rule of its own, so that it can be removed with the limit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from edl.api.errors import BadInputError
from edl.api.job_spec import JobSpec
from edl.jobfile.document_tree import DocumentNode, RuleViolation


def uses_all_reduce(spec: JobSpec) -> bool:
    """Whether the job trains under strategy AllReduce."""
    return spec.strategy.name == "AllReduce"


def drop_default_checkpoints(spec: JobSpec, root: DocumentNode) -> JobSpec:
    """``spec`` without the checkpoints that are only there by default.

    Args:
        root: the document of the spec. A ``checkpoint`` in it stays, and ``find_limits`` refuses it.
    """
    is_given = isinstance(root.value, dict) and "checkpoint" in root.value
    return replace(spec, checkpoint=None) if uses_all_reduce(spec) and not is_given else spec


def find_limits(spec: JobSpec) -> Iterator[RuleViolation]:
    """The fields of a job under AllReduce that have no effect yet."""
    if spec.checkpoint is not None:
        yield RuleViolation(
            "checkpoint",
            "strategy AllReduce does not write checkpoints yet",
            "leave it out (--set checkpoint=null): the job trains from the start to the end and writes the export; or "
            "set strategy.name: ParameterServer",
        )
    if spec.data.max_corrupt_records:
        yield RuleViolation(
            "data.max_corrupt_records",
            f"found {spec.data.max_corrupt_records}, but strategy AllReduce does not count corrupt records yet",
            "leave it out (--set data.max_corrupt_records=0): a corrupt record ends the job; or set "
            "strategy.name: ParameterServer",
        )


def find_cluster_limits(spec: JobSpec) -> Iterator[RuleViolation]:
    """What keeps a job under AllReduce from a cluster."""
    if uses_all_reduce(spec):
        yield RuleViolation(
            "strategy.name",
            "found 'AllReduce', which does not run on a cluster yet",
            "train it on one machine with edl run, or use ParameterServer",
        )


def refuse_resume(spec: JobSpec) -> None:
    """Refuse to resume a run under AllReduce.

    Raises:
        BadInputError: the job's strategy is AllReduce.
    """
    if uses_all_reduce(spec):
        raise BadInputError(
            "a run under strategy AllReduce cannot be resumed yet, because it writes no checkpoints",
            where="--resume",
            hint="Start a new run without --resume, or use strategy ParameterServer for jobs that may be stopped.",
        )


def describe_limits(spec: JobSpec) -> list[str]:
    """The limits that matter to everyone who starts the job, as lines of its plan."""
    if not uses_all_reduce(spec):
        return []
    return ["writes no checkpoints (not built yet for AllReduce): a run that is stopped cannot be resumed"]

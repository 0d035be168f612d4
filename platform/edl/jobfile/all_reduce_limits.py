"""What a job under strategy AllReduce cannot do yet, and what to do instead. Every command asks here.

Each limit is a function or a rule of its own, so that it can be removed with the limit.
"""

from __future__ import annotations

from collections.abc import Iterator

from edl.api.job_spec import JobSpec
from edl.jobfile.document_tree import RuleViolation


def uses_all_reduce(spec: JobSpec) -> bool:
    """Whether the job trains under strategy AllReduce."""
    return spec.strategy.name == "AllReduce"


def find_limits(spec: JobSpec) -> Iterator[RuleViolation]:
    """The fields of a job under AllReduce that have no effect yet."""
    if spec.data.max_corrupt_records:
        yield RuleViolation(
            "data.max_corrupt_records",
            f"found {spec.data.max_corrupt_records}, but strategy AllReduce does not count corrupt records yet",
            "leave it out (--set data.max_corrupt_records=0): a corrupt record ends the job; or set "
            "strategy.name: ParameterServer",
        )

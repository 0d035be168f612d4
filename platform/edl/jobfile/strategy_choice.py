"""Which strategy a job trains with. Every command asks here."""

from __future__ import annotations

from edl.api.job_spec import JobSpec


def uses_all_reduce(spec: JobSpec) -> bool:
    """Whether the job trains under strategy AllReduce."""
    return spec.strategy.name == "AllReduce"

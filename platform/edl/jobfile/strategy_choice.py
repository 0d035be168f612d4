"""Which strategy a job trains with. Every command asks here."""

from __future__ import annotations

from edl.api.job_spec import JobSpec


def uses_all_reduce(spec: JobSpec) -> bool:
    """Whether the job trains under strategy AllReduce."""
    return spec.strategy.name == "AllReduce" and spec.task == "train" and not spec.command


def count_parameter_servers(spec: JobSpec) -> int:
    """The number of parameter servers: none under AllReduce, with a command, or if the job evaluates or predicts."""
    return 0 if spec.task != "train" or spec.command or uses_all_reduce(spec) else spec.ps.count

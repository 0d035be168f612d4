"""Which strategy a job trains with. Every command asks here."""

from __future__ import annotations

from edl.api.job_spec import JobSpec


def uses_all_reduce(spec: JobSpec) -> bool:
    """Whether the job trains under strategy AllReduce: a Keras model, or a program that takes steps with others."""
    return spec.strategy.name == "AllReduce" and spec.task == "train"


def describe_first_round(spec: JobSpec) -> str:
    """With how many workers a job under AllReduce starts to train, for the plan of a job."""
    return f"training starts with {max(1, spec.workers.min)} of {spec.workers.max} (workers.min)"


def has_own_state(spec: JobSpec) -> bool:
    """Whether the job's state is that of a program, of which EDL knows nothing: no checkpoint has it."""
    return bool(spec.command) and not uses_all_reduce(spec)


def count_parameter_servers(spec: JobSpec) -> int:
    """The number of parameter servers: none under AllReduce, with a command, or if the job evaluates or predicts."""
    return 0 if spec.task != "train" or spec.command or uses_all_reduce(spec) else spec.ps.count

"""What of the JobSpec matters to decisions."""

from __future__ import annotations

from pathlib import Path

from edl.core import worker_priority
from edl.core.state import JobSettings
from edl.jobfile.job_spec import CheckpointSpec, JobSpec
from edl.jobfile.zoo_lookup import find_model_function


def settings_from_spec(spec: JobSpec, *, predict: bool, describe: bool, durable: bool) -> JobSettings:
    """The settings of a job that trains, or of one that predicts and needs no parameter servers.

    Args:
        predict: the run predicts.
        describe: a worker describes the data set, with the user's own reader.
        durable: what is written to the run directory outlives the master's pod.
    """
    train = spec.train
    return JobSettings(
        minibatch=train.minibatch_size,
        task_records=train.minibatch_size * train.minibatches_per_task,
        epochs=train.epochs,
        seed=train.seed,
        max_steps=train.max_steps,
        evaluation_steps=train.evaluation_steps,
        checkpoint_steps=spec.checkpoint.every_steps if spec.checkpoint else None,
        checkpoint_full_timeout=(spec.checkpoint or CheckpointSpec()).full_timeout,
        export=spec.export is not None and not predict,
        predict=predict,
        describe=describe,
        shuffle=train.shuffle.window,
        max_corrupt=spec.data.max_corrupt_records,
        skip_crashing=train.on_crashing_range == "skip",
        ps=0 if predict else spec.ps.count,
        workers=spec.workers.max,
        workers_min=spec.workers.min,
        elevated_share=worker_priority.parse_priority(spec.workers.priority).share,
        oom_memory_factor=spec.workers.oom_memory_factor,
        worker_memory=_format_bytes(spec.workers.resources.memory),
        ps_memory=_format_bytes(spec.ps.resources.memory),
        durable=durable,
    )


def _format_bytes(count: int) -> str:
    """Bytes as a person would write them: ``2Gi``, ``1536Mi``."""
    for shift, unit in ((30, "Gi"), (20, "Mi"), (10, "Ki")):
        if count and count % (1 << shift) == 0:
            return f"{count >> shift}{unit}"
    return str(count)


def may_define_reader(spec: JobSpec) -> bool:
    """Whether the user's module may bring its own reader; found by reading the module, never by running it.

    Then a worker, which runs it, tells which records there are.
    """
    return find_model_function(Path(spec.model.zoo), spec.model.definition).may_define("custom_data_reader")

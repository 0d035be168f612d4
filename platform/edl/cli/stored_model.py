"""What ``edl evaluate`` and ``edl predict`` have in common: a run of this machine, or a job on a cluster."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from edl.api.strategy import Strategy
from edl.cli.options import complete_contexts
from edl.cli.run import read_job_file
from edl.jobfile.loader import DATA_SET_BY_TASK
from edl.ops.job_checks import check_job
from edl.ops.local_run_plan import LocalRunPlan, RunArguments
from edl.ops.local_run_start import create_storage, local_job_directory, run_supervised
from edl.storage.run_directory import JobLock, create_run
from edl.storage.run_weights import RunWeights
from edl.storage.weights_lookup import find_weights

FromOption = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="RUN|PATH",
        help="The trained model: a run (its newest intact checkpoint), the directory of a run, a checkpoint or an "
        "export, or a .keras file; by default model.weights, or the newest trained run.",
    ),
]


ClusterContextOption = Annotated[
    str | None,
    typer.Option(
        "--context",
        metavar="NAME",
        help="Submit the job to the cluster of this context.",
        autocompletion=complete_contexts,
    ),
]
ClusterNamespaceOption = Annotated[
    str | None,
    typer.Option("-n", "--namespace", metavar="NAME", help="Submit the job to this namespace of a cluster."),
]
ClusterYesOption = Annotated[bool, typer.Option("--yes", "-y", help="On a cluster: do not ask for confirmation.")]
WatchOption = Annotated[bool, typer.Option("--watch/--detach", help="On a cluster: wait until the job has ended.")]


@dataclass(frozen=True, slots=True)
class ClusterTarget:
    """The cluster and namespace that the options name, if they do, and how to submit there."""

    context: str | None
    namespace: str | None
    skips_confirmation: bool = False
    watches_job: bool = False

    @property
    def is_named(self) -> bool:
        """Whether the job runs on a cluster."""
        return self.context is not None or self.namespace is not None


def submit_stored_model(
    task: str,
    job: Path,
    settings: list[str],
    target: ClusterTarget,
    *,
    source: str | None,
    workers: int | None,
    as_json: bool,
) -> NoReturn:
    """Submit the job with this task, as ``edl submit`` does; ends with the exit code of the command.

    Raises:
        EdlError: it cannot be submitted.
    """
    from edl.cli.submission_workflow import SubmitOptions
    from edl.cli.submit import submit_job_file

    overrides = [f"task={task}"]
    # In quotes: YAML would read a name such as 7 as a number.
    overrides += [f"model.weights={json.dumps(source)}"] if source is not None else []
    # Any number of workers can do the work, so ``workers.min`` of a training does not matter.
    overrides += ["workers.min=1", f"workers.max={workers}"] if workers is not None else []
    submit_job_file(
        SubmitOptions(
            job,
            (*settings, *overrides),
            context=target.context,
            namespace=target.namespace,
            skips_confirmation=target.skips_confirmation,
            watches_job=target.watches_job,
            as_json=as_json,
        )
    )


def run_stored_model(
    task: str,
    job: Path,
    settings: list[str],
    *,
    source: str | None,
    workers: int | None,
    as_json: bool,
    output: Path | None = None,
) -> int:
    """Evaluate or predict on this machine; returns the exit code of the command.

    Raises:
        BadInputError: the job or its data cannot be used, or there are no such weights.
        StorageError: the run directory cannot be written.
    """
    # Rules about training do not apply: workers.min may exceed the number of workers that this command starts.
    spec = read_job_file(job, settings, workers, None, required=DATA_SET_BY_TASK[task])
    spec = replace(spec, task=task, strategy=Strategy())
    wanted = spec.model.weights if source is None else source
    counts = check_job(spec)
    folder = local_job_directory(spec)
    if not folder.is_dir():
        find_weights(folder, wanted)  # refuses what needs a run, before the lock, for which the folder is made
    create_storage(folder)
    with JobLock(folder) as lock:
        weights = find_weights(folder, wanted)
        for line in weights.skipped_lines():
            print(line, file=sys.stderr)
        directory = create_run(folder)
        lock.describe_run(directory.run_id)
        plan = LocalRunPlan(
            replace(spec, model=replace(spec.model, weights=str(weights.path))),
            RunArguments(job, settings, workers),
            counts,
            directory,
            weights=weights,
            output=None if output is None else str(output.absolute()),
        )
        if as_json and output is not None and plan.has_processor:  # otherwise the plan says so
            print(f"--output {output}: {plan.output_line()}", file=sys.stderr)
        chosen = RunWeights(weights.path, weights.step, None if output is None else output.absolute())
        chosen.hold(directory).write(directory, task)
        return run_supervised(plan, as_json=as_json)

"""What ``edl evaluate`` and ``edl predict`` have in common: a run of this machine that trains nothing."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from edl.api.strategy import Strategy
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
        RunWeights(weights.path, weights.step, None if output is None else output.absolute()).write(directory, task)
        return run_supervised(plan, as_json=as_json)

"""``edl predict``: predict with a model that a run trained, or with any ``.keras`` file."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from edl.api.errors import BadInputError
from edl.api.strategy import Strategy
from edl.cli.run import JobFileArgument, JsonOption, SetOption, WorkersOption, read_job_file
from edl.ops.job_checks import check_job
from edl.ops.local_run_plan import LocalRunPlan, RunArguments
from edl.ops.local_run_resumption import PREDICT_FILE
from edl.ops.local_run_start import create_storage, local_job_directory, run_supervised
from edl.ops.weights_lookup import find_weights
from edl.storage.durable_files import write_json
from edl.storage.run_directory import JobLock, create_run

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def predict(
    job: JobFileArgument,
    output: Annotated[Path, typer.Option(metavar="DIR", help="Directory for the predictions.", show_default=False)],
    source: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="RUN|PATH.keras",
            help="The trained model: a run or a .keras file; by default the newest trained run.",
        ),
    ] = None,
    workers: WorkersOption = None,
    settings: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Predict the records of data.prediction with a trained model.

    Exit codes: 0 done, 1 the job failed, 2 bad input or an error in the model's code, 130 interrupted, 141 closed pipe.
    """
    # Rules about training do not apply to a prediction: workers.min may exceed the number of
    # workers that this command starts.
    spec = replace(read_job_file(job, settings or [], workers, None, required="prediction"), strategy=Strategy())
    if next(output.glob("*.npz"), None) is not None:
        raise BadInputError(
            "already contains predictions", where=str(output), hint="Choose another directory, or empty it."
        )
    counts = check_job(spec, predict=True)
    folder = local_job_directory(spec)
    if not folder.is_dir():
        find_weights(folder, source)  # refuses what needs a run, before the lock, for which the folder is made
    create_storage(folder)
    with JobLock(folder) as lock:
        weights = find_weights(folder, source)
        for line in weights.skipped_lines():
            print(line, file=sys.stderr)
        directory = create_run(folder)
        lock.describe_run(directory.run_id)
        plan = LocalRunPlan(
            spec,
            RunArguments(job, settings or (), workers),
            counts,
            directory,
            weights=weights,
            output=str(output.absolute()),
        )
        write_json(directory.path / PREDICT_FILE, {"from": str(weights.path), "output": plan.output})
        code = run_supervised(plan, as_json=as_json)
    raise typer.Exit(code)

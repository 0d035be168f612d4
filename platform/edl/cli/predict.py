"""``edl predict``: predict with a model that a run trained, or with any ``.keras`` file."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from edl.api.errors import BadInputError
from edl.api.job import Strategy
from edl.cli.run import JobFile, JsonOption, SetOption, WorkersOption, read
from edl.ops.job_checks import check
from edl.ops.local_run_plan import Order, Plan
from edl.ops.local_run_resumption import PREDICT_FILE
from edl.ops.local_run_start import folder_of, require_storage, supervised
from edl.ops.weights_lookup import weights_of
from edl.storage.run_directory import JobLock, create, write_json

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def predict(
    job: JobFile,
    output: Annotated[Path, typer.Option(metavar="DIR", help="Where predictions go.", show_default=False)],
    source: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="RUN|PATH.keras",
            help="The trained model; by default that of the newest run that trained something.",
        ),
    ] = None,
    workers: WorkersOption = None,
    settings: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Predict the records of data.prediction with a trained model.

    Exit codes: 0 done, 1 the job failed, 2 bad input or a fault in the model's code, 130 interrupted, 141 nobody reads.
    """
    # How to train is nothing to those who predict, and may ask for more workers than this command starts
    spec = replace(read(job, settings or [], workers, None, required="prediction"), strategy=Strategy())
    if next(output.glob("*.npz"), None) is not None:
        raise BadInputError("holds predictions already", where=str(output), hint="Name another directory, or empty it.")
    counts = check(spec, predict=True)
    folder = folder_of(spec)
    if not folder.is_dir():
        weights_of(folder, source)  # refuses what needs a run, before the lock, for which the folder is made
    require_storage(folder)
    with JobLock(folder) as lock:
        weights = weights_of(folder, source)
        for line in weights.left_out():
            print(line, file=sys.stderr)
        directory = create(folder)
        lock.describe(directory.run_id)
        plan = Plan(
            spec, Order(job, settings or (), workers), counts, directory, weights=weights, output=str(output.absolute())
        )
        write_json(directory.path / PREDICT_FILE, {"from": str(weights.path), "output": plan.output})
        code = supervised(plan, as_json=as_json)
    raise typer.Exit(code)

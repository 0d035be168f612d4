"""``edl predict``: predict with a model that a run trained, or with any ``.keras`` file."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Annotated

import typer

from edl.cli.local.checks import check
from edl.cli.local.plan import Order, Plan
from edl.cli.local.resumption import PREDICT_FILE, newest_checkpoint, training_runs
from edl.cli.local.start import folder_of, supervised
from edl.cli.run import JobFile, JsonOption, SetOption, WorkersOption, read
from edl.core.errors import BadInputError
from edl.store.rundir import JobLock, RunDir, create, resolve, write_json

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def predict(
    job: JobFile,
    output: Annotated[Path, typer.Option(metavar="DIR", help="Where predictions go.", show_default=False)],
    source: Annotated[
        str | None,
        typer.Option("--from", metavar="RUN|PATH.keras", help="The trained model; the newest run's by default."),
    ] = None,
    workers: WorkersOption = None,
    settings: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Predict the records of data.prediction with a trained model.

    Exit codes: 0 done, 1 the job failed, 2 bad input or a fault in the model's code, 130 interrupted, 141 nobody reads.
    """
    spec = read(job, settings or [], workers, None, required="prediction")
    if next(output.glob("*.npz"), None) is not None:
        raise BadInputError("holds predictions already", where=str(output), hint="Name another directory, or empty it.")
    counts = check(spec, predict=True)
    folder = folder_of(spec)
    with JobLock(folder) as lock:
        weights = weights_of(folder, source)
        directory = create(folder)
        lock.describe(directory.run_id)
        plan = Plan(
            spec, Order(job, settings or (), workers), counts, directory, weights=weights, output=str(output.absolute())
        )
        write_json(directory.path / PREDICT_FILE, {"from": str(weights), "output": plan.output})
        code = supervised(plan, as_json=as_json)
    raise typer.Exit(code)


def weights_of(folder: Path, source: str | None) -> Path:
    """The ``.keras`` file or the checkpoint's directory that ``--from`` means.

    Args:
        folder: of the job's runs.
        source: a run's id or a file; None means the newest run that trained something.

    Raises:
        BadInputError: no such run or file, the file is not what its name says, or the run has nothing to predict with.
    """
    if source is not None and source.endswith(".keras"):
        return _keras_file(source)
    candidates = training_runs(folder) if source is None else [resolve(folder, source)]
    for run in reversed(candidates):
        checkpoint = newest_checkpoint(run)
        found = checkpoint.directory if checkpoint else _exported(run)
        if found is not None:
            return found
    where = f"run {source}" if source else f"the runs of this job, {folder},"
    raise BadInputError(f"{where} left neither a checkpoint nor an export", hint="Train with edl run, or give --from.")


def _keras_file(source: str) -> Path:
    """The file, which is a zip archive; Keras, in a worker, finds out about the rest."""
    file = Path(source).absolute()
    if not file.is_file():
        raise BadInputError("no such file", where=source)
    if not zipfile.is_zipfile(file):
        raise BadInputError("is not a .keras file, or not a complete one", where=source, hint="Export the model again.")
    return file


def _exported(run: RunDir) -> Path | None:
    return next(iter(sorted(run.export.glob("*.keras"))), None) if run.export.is_dir() else None

"""``edl predict``: predict with a model that a run trained, or with any ``.keras`` file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from edl.api.errors import BadInputError
from edl.cli.run import JobFileArgument, JsonOption, SetOption, WorkersOption
from edl.cli.stored_model import FromOption, run_stored_model

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def predict(
    job: JobFileArgument,
    output: Annotated[Path, typer.Option(metavar="DIR", help="Directory for the predictions.", show_default=False)],
    source: FromOption = None,
    workers: WorkersOption = None,
    settings: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Predict the records of data.prediction with a trained model.

    Exit codes: 0 done, 1 the job failed, 2 bad input or an error in the model's code, 130 interrupted, 141 closed pipe.
    """
    if next(output.glob("*.npz"), None) is not None:
        raise BadInputError(
            "already contains predictions", where=str(output), hint="Choose another directory, or empty it."
        )
    code = run_stored_model(
        "predict", job, settings or [], source=source, workers=workers, as_json=as_json, output=output
    )
    raise typer.Exit(code)

"""``edl predict``: predict with a model that a run trained, or with any ``.keras`` file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from edl.api.errors import BadInputError
from edl.cli.run import JobFileArgument, JsonOption, SetOption, WorkersOption
from edl.cli.stored_model import (
    ClusterContextOption,
    ClusterNamespaceOption,
    ClusterTarget,
    ClusterYesOption,
    FromOption,
    WatchOption,
    run_stored_model,
    submit_stored_model,
)

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def predict(
    job: JobFileArgument,
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Directory for the predictions; on a cluster they are in predictions/ of the run directory.",
            show_default=False,
        ),
    ] = None,
    source: FromOption = None,
    workers: WorkersOption = None,
    settings: SetOption = None,
    as_json: JsonOption = False,
    context: ClusterContextOption = None,
    namespace: ClusterNamespaceOption = None,
    yes: ClusterYesOption = False,
    watch: WatchOption = False,
) -> None:
    """Predict the records of data.prediction with a trained model.

    With -n or --context the job is submitted to a cluster, without parameter servers.

    Exit codes: 0 done, 1 the job failed, 2 bad input or an error in the model's code, 130 interrupted, 141 closed pipe.
    """
    target = ClusterTarget(context, namespace, skips_confirmation=yes, watches_job=watch)
    if target.is_named:
        if output is not None:
            raise BadInputError(
                "cannot be chosen on a cluster",
                where=f"--output {output}",
                hint="Leave it out: predictions are in predictions/ of the run directory on the volume.",
            )
        submit_stored_model("predict", job, settings or [], target, source=source, workers=workers, as_json=as_json)
    if output is None:
        raise BadInputError("is missing", where="--output", hint="Give a directory for the predictions.")
    if next(output.glob("*.npz"), None) is not None:
        raise BadInputError(
            "already contains predictions", where=str(output), hint="Choose another directory, or empty it."
        )
    code = run_stored_model(
        "predict", job, settings or [], source=source, workers=workers, as_json=as_json, output=output
    )
    raise typer.Exit(code)

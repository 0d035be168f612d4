"""``edl evaluate``: evaluate a model that a run trained, or any ``.keras`` file."""

from __future__ import annotations

import typer

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
def evaluate(
    job: JobFileArgument,
    source: FromOption = None,
    workers: WorkersOption = None,
    settings: SetOption = None,
    as_json: JsonOption = False,
    context: ClusterContextOption = None,
    namespace: ClusterNamespaceOption = None,
    yes: ClusterYesOption = False,
    watch: WatchOption = False,
) -> None:
    """Evaluate a trained model on the records of data.validation.

    With -n or --context the job is submitted to a cluster, without parameter servers. The values of the metrics are in
    the summary, and in metrics.json in the run directory.

    Exit codes: 0 done, 1 the job failed, 2 bad input or an error in the model's code, 130 interrupted, 141 closed pipe.
    """
    target = ClusterTarget(context, namespace, skips_confirmation=yes, watches_job=watch)
    if target.is_named:
        submit_stored_model("evaluate", job, settings or [], target, source=source, workers=workers, as_json=as_json)
    code = run_stored_model("evaluate", job, settings or [], source=source, workers=workers, as_json=as_json)
    raise typer.Exit(code)

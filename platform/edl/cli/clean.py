"""``edl clean``: remove ended runs from this machine."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from edl.api.errors import BadInputError, StorageError
from edl.api.exit_codes import FAILED_EXIT
from edl.cli.options import YesOption, confirm_action
from edl.ops.local_runs import LocalRun, find_local_run, list_local_runs
from edl.reporting.text_table import align_columns
from edl.reporting.unit_formats import format_age, format_bytes

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def clean(
    jobs: Annotated[
        list[str] | None,
        typer.Argument(metavar="JOB[/RUN]", help="A job or a single run; all jobs by default."),
    ] = None,
    keep: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=0,
            help="Keep the newest N ended runs of each job, and its newest N with a model; ignored if RUN is given.",
        ),
    ] = 1,
    yes: YesOption = False,
) -> None:
    """Remove ended runs from this machine: journal, checkpoints, export, logs. Active runs are never touched.

    Exit codes: 0 removed, or nothing to remove, 1 you declined, 2 no such run.
    """
    surplus_runs = _select_runs(jobs or [], keep)
    if not surplus_runs:
        typer.echo(f"There is nothing to remove: {_explain_nothing_to_remove(jobs or [], keep)}.")
        return
    now = time.time()
    rows = [
        [
            f"{run.name}/{run.uid}",
            run.phase,
            _model_kind(run) or "-",
            format_bytes(_directory_size(run.run_dir.path)),
            format_age(now - run.created_at),
        ]
        for run in surplus_runs
    ]
    typer.echo("\n".join(align_columns([["RUN", "PHASE", "MODEL", "SIZE", "AGE"], *rows], right=(3, 4))))
    if not confirm_action(
        f"Remove {'it' if len(surplus_runs) == 1 else 'them'} permanently?", yes=yes, command="edl clean"
    ):
        typer.echo("Nothing was removed.")
        raise typer.Exit(FAILED_EXIT)
    for run in surplus_runs:
        _remove_run(run)
    typer.echo(f"{len(surplus_runs)} {'run' if len(surplus_runs) == 1 else 'runs'} removed.")


def _select_runs(names: Sequence[str], keep: int) -> list[LocalRun]:
    named_runs = [find_local_run(name) for name in names if "/" in name]
    for run in named_runs:
        if not run.has_ended:
            raise BadInputError(
                f"run {run.uid} of {run.name} is still active", hint="Stop it first: Ctrl-C where it runs."
            )
    jobs = [find_local_run(name).name for name in names if "/" not in name]
    ended_runs = [run for run in list_local_runs() if run.has_ended and (not names or run.name in jobs)]
    surplus_runs = [
        run
        for job in dict.fromkeys(run.name for run in ended_runs)
        for run in _find_surplus_runs(job, ended_runs, keep)
    ]
    return [*named_runs, *(run for run in surplus_runs if run.run_dir not in [each.run_dir for each in named_runs])]


def _explain_nothing_to_remove(names: Sequence[str], keep: int) -> str:
    if not any(run.has_ended and (not names or run.name in names) for run in list_local_runs()):
        return f"no ended runs{' of ' + ' and '.join(names) if names else ''} are below ./.edl"
    many = "ended run" if keep == 1 else f"{keep} ended runs"
    command = " ".join(["edl clean", *names, "--keep 0"])
    return f"the newest {many} of each job and the newest with a model are kept; `{command}` removes them too"


def _find_surplus_runs(job: str, ended_runs: Sequence[LocalRun], keep: int) -> list[LocalRun]:
    """The ended runs of a job beyond the newest ``keep``, and beyond the newest ``keep`` with a model.

    The second rule protects a trained run from runs that failed at once or only predicted.
    """
    runs = [run for run in ended_runs if run.name == job]
    newest = (_newest_runs(runs, keep), _newest_runs([run for run in runs if _model_kind(run)], keep))
    kept = {run.uid for some in newest for run in some}
    return [run for run in runs if run.uid not in kept]


def _newest_runs(runs: Sequence[LocalRun], count: int) -> Sequence[LocalRun]:
    return runs[max(0, len(runs) - count) :]


def _model_kind(run: LocalRun) -> str:
    """The kind of trained model that a run has: ``export``, ``checkpoint`` or empty."""
    if run.run_dir.export.is_dir() and any(run.run_dir.export.iterdir()):
        return "export"
    # A checkpoint at step 0 holds initial values only.
    trained = run.status is not None and run.status.step > 0
    return "checkpoint" if trained and any(run.run_dir.checkpoints.glob("*/manifest.json")) else ""


def _directory_size(folder: Path) -> int:
    return sum(file.lstat().st_size for file in folder.rglob("*") if not file.is_dir())


def _remove_run(run: LocalRun) -> None:
    """Remove a run. It is renamed first, so that nothing resumes a partly deleted run.

    Raises:
        StorageError: the run cannot be removed.
    """
    hidden = run.run_dir.path.with_name(f".removed-{run.uid}")
    try:
        run.run_dir.path.rename(hidden)
        shutil.rmtree(hidden)
    except OSError as error:
        raise StorageError(f"cannot be removed: {error.strerror}", where=str(run.run_dir.path)) from error

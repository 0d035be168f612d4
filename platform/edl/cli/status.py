"""``edl status``: a job as it is now, once or as a live view."""

from __future__ import annotations

import json
import shutil
import sys
import time
from typing import Annotated

import typer

from edl.cli.list import job_json
from edl.cli.local_runs import JobLookup, LocalOption
from edl.cli.options import ContextOption, JobArgument, NamespaceOption
from edl.ops.followup_command import command_arguments

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def status(
    job: JobArgument,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Update until the job has ended.")] = False,
    local: LocalOption = False,
    context: ContextOption = None,
    namespace: NamespaceOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON; with --watch one line per change.")] = False,
) -> None:
    """Show a job on a cluster, or a run of this machine (JOB or JOB/RUN): phase, records, pace, its pods, its workers.

    If both exist, the job on the cluster is shown. --local selects runs of this machine; -n and --context a cluster.
    """
    from edl.cli.local_runs import job_lookup
    from edl.cli.status_view import status_lines, suggest_next_step

    look = job_lookup(job, local=local, context=context, namespace=namespace)
    if watch:
        _watch_job(look, command_arguments(job, context, namespace), as_json=as_json)
        return
    job_view = look()
    if as_json:
        print(json.dumps(job_json(job_view)))
        return
    for line in status_lines(job_view, time.time(), shutil.get_terminal_size().columns):
        print(line)
    print(f"\n{suggest_next_step(job_view, command_arguments(job, context, namespace))}")


def _watch_job(look: JobLookup, name: str, *, as_json: bool) -> None:
    """Until the job has ended or is deleted."""
    if as_json or not sys.stdout.isatty():
        _watch_lines(look, as_json=as_json)
    else:
        _watch_live(look, name)


def _watch_live(look: JobLookup, name: str) -> None:
    from rich.live import Live
    from rich.text import Text

    from edl.cli.status_view import status_lines, suggest_next_step
    from edl.ops.job_following import poll_repeatedly
    from edl.reporting.rich_console import make_console

    on = make_console()
    with Live(console=on, auto_refresh=False, vertical_overflow="crop") as live:
        for seen in poll_repeatedly(look):
            lines = status_lines(seen, time.time(), on.width)
            live.update(Text("\n".join(lines), no_wrap=True, overflow="ellipsis"), refresh=True)
            if seen.has_ended:
                break
    print(suggest_next_step(seen, name))


def _watch_lines(look: JobLookup, *, as_json: bool) -> None:
    from edl.ops.job_following import poll_repeatedly
    from edl.reporting.event_text import format_local_time, status_headline

    last_shown: object = None
    for seen in poll_repeatedly(look):
        known = (seen.phase, seen.status)
        if known != last_shown:
            text = status_headline(seen.status) if seen.status else seen.phase
            print(json.dumps(job_json(seen)) if as_json else f"{format_local_time(time.time())}  {text}", flush=True)
            last_shown = known
        if seen.has_ended:
            return

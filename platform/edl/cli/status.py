"""``edl status``: a job as it is now, once or as a live view."""

from __future__ import annotations

import json
import shutil
import sys
import time
from typing import Annotated

import typer

from edl.cli.list import told
from edl.cli.local_runs import LocalOption, Look
from edl.cli.options import ContextOption, JobArgument, NamespaceOption
from edl.ops.followup_command import called

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def status(
    job: JobArgument,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Go on until the job has ended.")] = False,
    local: LocalOption = False,
    context: ContextOption = None,
    namespace: NamespaceOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON; with --watch a line a change.")] = False,
) -> None:
    """Show a job on a cluster, or a run of this machine (JOB or JOB/RUN): phase, records, pace, its pods, its workers.

    A job of the cluster comes first; --local means runs of this machine, -n and --context a cluster.
    """
    from edl.cli.local_runs import look_of
    from edl.cli.status_view import next_step, view

    look = look_of(job, local=local, context=context, namespace=namespace)
    if watch:
        _follow(look, called(job, context, namespace), as_json=as_json)
        return
    seen = look()
    if as_json:
        print(json.dumps(told(seen)))
        return
    for line in view(seen, time.time(), shutil.get_terminal_size().columns):
        print(line)
    print(f"\n{next_step(seen, called(job, context, namespace))}")


def _follow(look: Look, name: str, *, as_json: bool) -> None:
    """Until the job has ended or is deleted."""
    if as_json or not sys.stdout.isatty():
        _follow_lines(look, as_json=as_json)
    else:
        _follow_live(look, name)


def _follow_live(look: Look, name: str) -> None:
    from rich.live import Live
    from rich.text import Text

    from edl.cli.status_view import next_step, view
    from edl.ops.polling import polled
    from edl.reporting.rich_console import console

    on = console()
    with Live(console=on, auto_refresh=False, vertical_overflow="crop") as live:
        for seen in polled(look):
            lines = view(seen, time.time(), on.width)
            live.update(Text("\n".join(lines), no_wrap=True, overflow="ellipsis"), refresh=True)
            if seen.ended:
                break
    print(next_step(seen, name))


def _follow_lines(look: Look, *, as_json: bool) -> None:
    from edl.ops.polling import polled
    from edl.reporting.event_text import clock, headline

    before: object = None
    for seen in polled(look):
        known = (seen.phase, seen.status)
        if known != before:
            text = headline(seen.status) if seen.status else seen.phase
            print(json.dumps(told(seen)) if as_json else f"{clock(time.time())}  {text}", flush=True)
            before = known
        if seen.ended:
            return

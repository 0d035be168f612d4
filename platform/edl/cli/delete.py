"""``edl delete``: remove a job from a cluster."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from edl.cli.cluster.leftovers import remove
from edl.cli.cluster.options import ContextOption, JobArgument, NamespaceOption, YesOption, agreed, api_of

if TYPE_CHECKING:
    from edl.kube.removal import Remains

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def delete(
    job: JobArgument,
    yes: YesOption = False,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Stay until nothing of the job is left.")] = True,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", min=1, help="How long to stay; the cluster goes on after it.")
    ] = 300.0,
    context: ContextOption = None,
    namespace: NamespaceOption = None,
) -> None:
    """Remove a job from a cluster: its pods and all else with its label. What is on volumes stays.

    Pods that a dead node holds are removed too. Exit codes: 0 gone, 1 something is left or you declined, 2 no such job.
    """
    from edl.kube.inspection import jobs
    from edl.kube.removal import Removal, remains, token_is_left

    api = api_of(context, namespace, job)
    there = remains(api, job)
    if not there and not token_is_left(api, job):
        jobs.find(api, job)  # says which there are
    typer.echo("\n".join(outline(job, there)))
    if not agreed("Delete all of it?", yes=yes, command="edl delete"):
        typer.echo("Nothing was deleted.")
        raise typer.Exit(1)
    if not wait:
        Removal(api, job).round()
        typer.echo("Being deleted. Whether it is gone: edl list")
        return
    began = time.monotonic()
    remove(api, job, timeout)
    typer.echo(f"Job {job} is gone, after {time.monotonic() - began:.0f} s.")


def outline(job: str, there: Remains) -> list[str]:
    """What there is of the job; nothing that can be seen: its token."""
    from edl.kube.removal import counted
    from edl.kube.submission.existing import existing, since

    known = existing(there)
    if known is None:
        head = f"{job}: the Job itself is gone; this is left:"
    else:
        head = f"{job}: {known.phase}, submitted {since(known)}"
    lines = [head, f"  {counted(there.objects) or '1 Secret'}"]
    if known is not None and known.status is not None and not known.ended and known.phase != "Deleting":
        lines.append("  It is at work: what it did since its newest checkpoint is lost. edl stop ends it in order.")
    return lines

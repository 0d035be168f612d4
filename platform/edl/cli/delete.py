"""``edl delete``: remove a job from a cluster."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Annotated

import typer

from edl.cli.cluster_options import ContextOption, JobArgument, NamespaceOption, YesOption, agreed, api_of
from edl.cli.ticker import Ticker
from edl.core.errors import BadInputError

if TYPE_CHECKING:
    from edl.kube.api import Api
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
    from edl.kube.removal import Removal, remains

    api = api_of(context, namespace)
    there = remains(api, job)
    if not there:
        raise _no_such_job(api, job)
    typer.echo("\n".join(outline(job, there)))
    if not agreed("Delete all of it?", yes=yes, command="edl delete"):
        typer.echo("Nothing was deleted.")
        raise typer.Exit(1)
    removal = Removal(api, job)
    if not wait:
        removal.round()
        typer.echo("Being deleted. Whether it is gone: edl list")
        return
    began = time.monotonic()
    with Ticker() as ticker:
        removal.finish(lambda left: ticker.say(progress(left)), time.monotonic, time.sleep, timeout)
    typer.echo(f"Job {job} is gone, after {time.monotonic() - began:.0f} s.")


def outline(job: str, there: Remains) -> list[str]:
    """What there is of the job."""
    from edl.kube.existing import existing

    known = existing(there)
    if known is None:
        head = f"{job}: the Job itself is gone; this is left:"
    else:
        head = f"{job}: {known.phase}, submitted {known.since}" + (", being deleted" if known.leaving else "")
    lines = [head, f"  {counted(there)}"]
    if known is not None and not known.ended and not known.leaving:
        lines.append("  It is at work: what it did since its newest checkpoint is lost. edl stop ends it in order.")
    return lines


def progress(there: Remains) -> str:
    """What is still there; pods by name when they are few."""
    pods = [pod["metadata"]["name"] for pod in there.objects if pod["kind"] == "Pod"]
    named = f": {', '.join(pods)}" if 0 < len(pods) <= 4 else ""
    return f"still there: {counted(there)}{named}"


def counted(there: Remains) -> str:
    """How many objects of each kind."""
    kinds = Counter(thing["kind"] for thing in there.objects)
    return ", ".join(f"{count} {kind}" + ("s" if count > 1 else "") for kind, count in kinds.items())


def _no_such_job(api: Api, job: str) -> BadInputError:
    from edl.kube import names
    from edl.kube.kinds import JOBS

    there = sorted({found["metadata"]["labels"][names.JOB] for found in api.list(JOBS, labels=names.selector()).items})
    known = f"There are: {', '.join(there)}." if there else "There are no jobs in it."
    hint = f"{known} Other namespaces: -n NAME."
    return BadInputError(f"there is no job {job} in namespace {api.namespace}", where="edl delete", hint=hint)

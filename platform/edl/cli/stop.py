"""``edl stop``: end a job now, in a way that can be gone on with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from edl.cli.cluster.next_step import called
from edl.cli.cluster.options import ContextOption, JobArgument, NamespaceOption, api_of

if TYPE_CHECKING:
    from edl.kube.api import Api
    from edl.spec.status import Status

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def stop(job: JobArgument, context: ContextOption = None, namespace: NamespaceOption = None) -> None:
    """End a job now: its pods go, its run stays and can be resumed."""
    from edl.core.board import Desired
    from edl.kube.inspection import jobs, wishes

    api = api_of(context, namespace)
    seen = jobs.find(api, job)
    if seen.ended:
        print(f"{job} is {seen.phase} already.")
        return
    wishes.pin(api, job, Desired(stop=True), wishes.ANY)
    print(f"{job} is asked to stop; its pods go within seconds.")
    if seen.status is None:
        print(
            f"Its master has not said anything yet; remove the job with: edl delete {called(job, context, namespace)}"
        )
        return
    print(_kept(api, job, seen.status))


def _kept(api: Api, job: str, status: Status) -> str:
    """What is there to go on with: stopping takes no checkpoint, since that may take longer than the pods have."""
    from edl.kube.inspection.jobs import spec_of

    spec = spec_of(api, job)
    if not (spec["volumes"] or spec["storage"]["claim"]):
        return "It has no volume, so nothing of it is kept; it cannot be resumed."
    return (
        "No checkpoint is made now: records done since the newest one are trained on again.\n"
        f"Go on with it later: edl submit JOB.yaml --resume {status.run}"
    )

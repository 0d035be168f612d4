"""``edl events``: what happened to a job, told by its master and by Kubernetes, in one row."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edl.cli.local_runs import LocalOption
from edl.cli.options import ContextOption, JobArgument, NamespaceOption, api_of
from edl.jobfile.event_json import line
from edl.jobfile.json_object import to_json
from edl.reporting.event_text import sentence
from edl.reporting.terminal_text import one_line

if TYPE_CHECKING:
    from edl.cluster.kubernetes.api_client import Api
    from edl.ops.job_view import JobSeen
    from edl.ops.kubernetes_events import Happening

app = typer.Typer(rich_markup_mode=None, add_completion=False)
_FOLLOW_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Told:
    """One line.

    Attributes:
        time: unix seconds.
        by: ``job`` or ``cluster``.
        text: for people.
        value: for programs.
        key: of two looks at the same event, the same.
    """

    time: float
    by: str
    text: str
    value: dict[str, Any]
    key: str

    def line(self) -> str:
        """The line, with local date and time."""
        moment = time.strftime("%m-%d %H:%M:%S", time.localtime(self.time))
        return f"{moment}  {self.by:<7}  {one_line(self.text)}"


@app.command()
def events(
    job: JobArgument,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job has ended.")] = False,
    local: LocalOption = False,
    context: ContextOption = None,
    namespace: NamespaceOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")] = False,
) -> None:
    """Show what happened to a job: the newest events of its master, and Kubernetes' events of its objects.

    Of a run of this machine (JOB or JOB/RUN) all events are shown. A job of the cluster comes first; --local means
    runs of this machine, -n and --context a cluster.
    """
    from edl.cli.local_runs import look_of
    from edl.ops.polling import polled

    look, shown = look_of(job, local=local, context=context, namespace=namespace), set[str]()
    for seen in polled(look, _FOLLOW_SECONDS):
        happened = () if seen.here else _happened(api_of(context, namespace, job), job)
        for each in merged(seen, happened):
            if each.key not in shown:
                shown.add(each.key)
                print(json.dumps(each.value) if as_json else each.line(), flush=True)
        if not follow or seen.ended:
            break
    if not shown and not as_json:
        forgotten = "" if seen.here else "; Kubernetes forgets its events after an hour"
        print(f"Nothing is known to have happened yet{forgotten}.")


def merged(seen: JobSeen, happenings: Iterable[Happening]) -> list[Told]:
    """Both in the order of their time."""
    own = [_of_job(event) for event in seen.told.events]
    return sorted([*own, *(_of_cluster(each) for each in happenings)], key=lambda told: told.time)


def _of_job(event: Any) -> Told:
    return Told(event.time, "job", sentence(event), {"by": "job", **to_json(event)}, line(event))


def _of_cluster(each: Happening) -> Told:
    times = f" ({each.count} times)" if each.count > 1 else ""
    value = {
        "by": "cluster",
        "event": each.reason,
        "time": each.time,
        "about": each.about,
        "message": each.text,
        "warning": each.warning,
        "count": each.count,
    }
    text = f"{each.about}: {each.reason}: {each.text}{times}"
    return Told(each.time, "cluster", text, value, f"{each.about} {each.reason} {each.text} {each.count}")


def _happened(api: Api, job: str) -> list[Happening]:
    from edl.ops.kubernetes_events import happened

    return happened(api, job)

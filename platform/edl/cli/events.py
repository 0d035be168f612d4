"""``edl events``: the events of a job from its master and from Kubernetes, in order of time."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edl.cli.job_choice import LocalOption, job_lookup
from edl.cli.options import ContextOption, JobArgument, NamespaceOption, connect_api
from edl.jobfile.event_json import line
from edl.jobfile.section_type import to_json
from edl.ops.job_view import list_job_events
from edl.reporting.event_text import describe_event
from edl.reporting.terminal_text import to_single_line

if TYPE_CHECKING:
    from edl.ops.job_view import JobView, KubernetesEvent

app = typer.Typer(rich_markup_mode=None, add_completion=False)
_FOLLOW_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class EventLine:
    """One line.

    Attributes:
        time: unix seconds.
        event_origin: ``job`` or ``cluster``.
        text: for people.
        json_value: for programs.
        event_key: identifies the event, so that repeated polls show it once.
    """

    time: float
    event_origin: str
    text: str
    json_value: dict[str, Any]
    event_key: str

    def format_line(self) -> str:
        """The line, with local date and time."""
        moment = time.strftime("%m-%d %H:%M:%S", time.localtime(self.time))
        return f"{moment}  {self.event_origin:<7}  {to_single_line(self.text)}"


@app.command()
def events(
    job: JobArgument,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Continue until the job has ended.")] = False,
    local: LocalOption = False,
    context: ContextOption = None,
    namespace: NamespaceOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
) -> None:
    """Show the events of a job: the newest of its master, and those that Kubernetes has for its objects.

    For a run of this machine (JOB or JOB/RUN) all events are shown. If both exist, the job on the cluster is shown.
    --local selects runs of this machine; -n and --context a cluster.
    """
    from edl.ops.job_following import poll_repeatedly

    look, shown_keys = job_lookup(job, local=local, context=context, namespace=namespace), set[str]()
    for job_view in poll_repeatedly(look, _FOLLOW_SECONDS):
        kubernetes_events = () if job_view.is_local else list_job_events(connect_api(context, namespace, job), job)
        for event in merge_events(job_view, kubernetes_events):
            if event.event_key not in shown_keys:
                shown_keys.add(event.event_key)
                print(json.dumps(event.json_value) if as_json else event.format_line(), flush=True)
        if not follow or job_view.has_ended:
            break
    if not shown_keys and not as_json:
        deleted = "" if job_view.is_local else "; Kubernetes deletes its events after an hour"
        print(f"There are no events{deleted}.")


def merge_events(job_view: JobView, kubernetes_events: Iterable[KubernetesEvent]) -> list[EventLine]:
    """The events of the job and of Kubernetes, sorted by time."""
    own = [_job_event_line(event) for event in job_view.published_status.events]
    return sorted(
        [*own, *(_kubernetes_event_line(each) for each in kubernetes_events)], key=lambda event_line: event_line.time
    )


def _job_event_line(event: Any) -> EventLine:
    return EventLine(event.time, "job", describe_event(event), {"by": "job", **to_json(event)}, line(event))


def _kubernetes_event_line(event: KubernetesEvent) -> EventLine:
    times = f" ({event.count} times)" if event.count > 1 else ""
    value = {
        "by": "cluster",
        "event": event.reason,
        "time": event.last_seen,
        "about": event.involved_object,
        "message": event.text,
        "warning": event.is_warning,
        "count": event.count,
    }
    text = f"{event.involved_object}: {event.reason}: {event.text}{times}"
    return EventLine(
        event.last_seen, "cluster", text, value, f"{event.involved_object} {event.reason} {event.text} {event.count}"
    )

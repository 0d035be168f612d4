"""``edl why``: why a job waits, is slow or has failed, in plain words and with what can be done."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from edl.cli.options import ContextOption, JobArgument, NamespaceOption, api_of
from edl.ops.followup_command import called

if TYPE_CHECKING:
    from edl.cluster.kubernetes.api_client import Api
    from edl.cluster.kubernetes.resource_kinds import Manifest
    from edl.ops.diagnosis import Evidence
    from edl.ops.job_findings import Complaint
    from edl.ops.job_view import JobSeen

app = typer.Typer(rich_markup_mode=None, add_completion=False)
_DETAIL_LINES = 30


@app.command()
def why(
    job: JobArgument,
    context: ContextOption = None,
    namespace: NamespaceOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say why a job waits, is slower than it could be, or has failed; and what can be done."""
    from edl.ops.diagnosis import diagnose

    evidence = gather(api_of(context, namespace, job), job, called(job, context, namespace))
    found = diagnose(evidence)
    if as_json:
        keys = ("about", "text", "remedy", "said")
        print(json.dumps([{key: getattr(each, key) for key in keys} for each in found]))
        return
    for line in lines(evidence.job, found):
        print(line)


def gather(api: Api, job: str, called: str) -> Evidence:
    """All that a diagnosis needs; raises UnknownJobError."""
    from edl.ops import job_view
    from edl.ops.diagnosis import Evidence
    from edl.ops.kubernetes_events import happened

    return Evidence(job_view.find(api, job), job_view.pods_of(api, job), happened(api, job), _nodes(api), called)


def lines(seen: JobSeen, found: Sequence[Complaint]) -> Iterator[str]:
    """The findings, for people."""
    if seen.unreadable:
        yield f"What the master says cannot be read: {seen.unreadable}"
    if seen.phase == "Done":
        yield f"{seen.name} is Done{_since(seen)}; {'this cost it time:' if found else 'nothing was the matter.'}"
    elif not found:
        yield f"{seen.name} is {seen.phase}; nothing keeps it from going on."
    for each in found:
        yield f"{each.about}: {each.text}"
        if each.remedy:
            yield textwrap.indent(each.remedy, "  -> ", lambda _: True)
        if each.said:
            yield from (f"     {line}" for line in each.said.strip().splitlines()[-_DETAIL_LINES:])


def _since(seen: JobSeen) -> str:
    at = seen.ended_at
    return "" if at is None else f" since {datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _nodes(api: Api) -> list[Manifest] | None:
    from edl.cluster.kubernetes.api_errors import ForbiddenError
    from edl.cluster.kubernetes.resource_kinds import NODES

    with suppress(ForbiddenError):  # many users may not; then what can never fit is not told apart
        return list(api.list(NODES).items)
    return None

"""``edl top``: the resource usage of a job's pods."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated

import typer

from edl.cli.options import ContextOption, JobArgument, NamespaceOption, connect_api
from edl.reporting.text_table import align_columns

if TYPE_CHECKING:
    from edl.ops.pod_usage import PodUsage
    from edl.ops.resource_quantities import ResourceAmounts

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def top(
    job: JobArgument,
    context: ContextOption = None,
    namespace: NamespaceOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the CPU and memory that each pod of a job uses, beside its requests."""
    from edl.ops import job_view
    from edl.ops.pod_usage import list_pod_usage

    api = connect_api(context, namespace, job)
    job_view.find_job(api, job)  # for a wrong name: its error lists the existing jobs
    usage = list_pod_usage(api, job)
    if as_json:
        print(json.dumps([_usage_json(use) for use in usage]))
        return
    for line in usage_table(usage):
        print(line)


def usage_table(usages: list[PodUsage]) -> list[str]:
    """The pods as lines with a heading."""
    head = ["POD", "NODE", "CPU", "OF", "MEMORY", "OF"]
    return align_columns([head, *(_usage_row(use) for use in usages)], right=(2, 3, 4, 5))


def _usage_row(use: PodUsage) -> list[str]:
    cells = [
        _amount_text(each, name) for name in ("cpu", "memory") for each in (use.used_resources, use.requested_resources)
    ]
    return [use.pod, use.node or use.phase, *cells]


def _amount_text(amounts: ResourceAmounts | None, name: str) -> str:
    from edl.ops.resource_quantities import format_amount

    return "-" if amounts is None or name not in amounts else format_amount(name, amounts[name]).removesuffix(" CPU")


def _usage_json(use: PodUsage) -> dict[str, object]:
    def amounts_json(amounts: ResourceAmounts | None) -> dict[str, float] | None:
        return None if amounts is None else {name: float(Fraction(amount)) for name, amount in amounts.items()}

    return {
        "pod": use.pod,
        "node": use.node,
        "phase": use.phase,
        "used": amounts_json(use.used_resources),
        "asked": amounts_json(use.requested_resources),
    }

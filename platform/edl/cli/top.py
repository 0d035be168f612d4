"""``edl top``: what the pods of a job use."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated

import typer

from edl.cli.options import ContextOption, JobArgument, NamespaceOption, api_of
from edl.reporting.text_table import aligned

if TYPE_CHECKING:
    from edl.ops.pod_usage import Use
    from edl.ops.resource_quantities import Resources

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def top(
    job: JobArgument,
    context: ContextOption = None,
    namespace: NamespaceOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the CPU and memory that each pod of a job uses, beside what it asked for."""
    from edl.ops import job_view
    from edl.ops.pod_usage import uses

    api = api_of(context, namespace, job)
    job_view.find(api, job)  # its error names the jobs that there are
    found = uses(api, job)
    if as_json:
        print(json.dumps([_told(use) for use in found]))
        return
    for line in table(found):
        print(line)


def table(found: list[Use]) -> list[str]:
    """The pods as lines, with a head."""
    head = ["POD", "NODE", "CPU", "OF", "MEMORY", "OF"]
    return aligned([head, *(_row(use) for use in found)], right=(2, 3, 4, 5))


def _row(use: Use) -> list[str]:
    cells = [_amount(each, name) for name in ("cpu", "memory") for each in (use.used, use.asked)]
    return [use.pod, use.node or use.phase, *cells]


def _amount(amounts: Resources | None, name: str) -> str:
    from edl.ops.resource_quantities import said

    return "-" if amounts is None or name not in amounts else said(name, amounts[name]).removesuffix(" CPU")


def _told(use: Use) -> dict[str, object]:
    def plain(amounts: Resources | None) -> dict[str, float] | None:
        return None if amounts is None else {name: float(Fraction(amount)) for name, amount in amounts.items()}

    return {"pod": use.pod, "node": use.node, "phase": use.phase, "used": plain(use.used), "asked": plain(use.asked)}

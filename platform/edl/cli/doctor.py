"""``edl doctor``: whether a cluster and a namespace are fit for jobs, and who can mend what is missing."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Annotated

import typer

from edl.cli.options import ContextOption, NamespaceOption, api_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from edl.cluster.kubernetes.api_client import Api
    from edl.ops.doctor_findings import Checkup

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def doctor(
    images: Annotated[
        list[str] | None,
        typer.Option("--image", metavar="IMAGE", help="Also pull this image, in a short pod; repeatable."),
    ] = None,
    high: Annotated[str, typer.Option("--high", metavar="NAME", help="PriorityClass of services.")] = "high",
    low: Annotated[
        str, typer.Option("--low", metavar="NAME", help="PriorityClass of workers, and of that pod.")
    ] = "low",
    release: Annotated[
        str,
        typer.Option(
            "--before-uninstall",
            metavar="RELEASE",
            help="Only look whether teams that this Helm release has not made need what it has for the whole cluster.",
        ),
    ] = "",
    context: ContextOption = None,
    namespace: NamespaceOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")] = False,
) -> None:
    """Check a cluster and a namespace: rights, accounts, admission, priorities, volumes, Pod Security, images.

    Exit codes: 0 jobs can run (the release can go), 1 something that they need is missing (other teams need the
    release), 2 there is no cluster.
    """
    api = api_of(context, namespace)
    levels: Counter[str] = Counter()
    if not as_json:
        print(f"{api.host}, namespace {api.namespace}", flush=True)
    for found in _before_uninstall(api, release) if release else _examined(api, images or [], high, low):
        levels[found.level.value] += 1
        print(_line(found, as_json=as_json), flush=True)
    if not (as_json or release):
        print(_end(levels))
    raise typer.Exit(1 if levels["FAIL"] else 0)


def _examined(api: Api, images: list[str], high: str, low: str) -> Iterator[Checkup]:
    from edl.ops.doctor_checks import examine, pull
    from edl.ops.doctor_findings import Checkup, Classes, Level
    from edl.ops.volume_session import IMAGE_VARIABLE, named_image
    from edl.reporting.status_line import Ticker

    classes = Classes(high, low)
    yield from examine(api, classes)
    for image in images:
        with Ticker() as ticker:
            found = pull(api, image, classes, ticker.say)
        yield found
    if not images:
        image = named_image() or "IMAGE"
        remedy = f"`edl doctor --image {image}` pulls one, such as that of {IMAGE_VARIABLE}, which `edl data` uses."
        yield Checkup(Level.OK, "images", "none was pulled", remedy)


def _before_uninstall(api: Api, release: str) -> Iterator[Checkup]:
    from edl.ops.doctor_checks import before_uninstall

    yield from before_uninstall(api, release)


def _line(found: Checkup, *, as_json: bool) -> str:
    if as_json:
        told = {"level": found.level.value, "about": found.about, "text": found.text, "remedy": found.remedy}
        return json.dumps(told)
    head = f"{found.level.value:<4}  {found.about:<10}  {found.text}"
    return f"{head}\n{'':18}-> {found.remedy}" if found.remedy else head


def _end(levels: Counter[str]) -> str:
    missing, odd = levels["FAIL"], levels["WARN"]
    look = f"{odd} {'thing is' if odd == 1 else 'things are'} worth a look"
    if missing:
        lacking = f"{missing} {'thing that jobs need is' if missing == 1 else 'things that jobs need are'} missing"
        return f"{lacking}; {look}." if odd else f"{lacking}."
    return f"Nothing that jobs need was found missing; {look}." if odd else "Jobs can run here."

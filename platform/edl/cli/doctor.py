"""``edl doctor``: whether jobs can run in a cluster and a namespace, and who can fix the problems."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Annotated

import typer

from edl.cli.options import ContextOption, NamespaceOption, connect_api
from edl.reporting.text_table import StatusLine

if TYPE_CHECKING:
    from collections.abc import Iterator

    from edl.cluster.kubernetes.api_client import KubeClient
    from edl.ops.doctor_checks import DoctorFinding

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command()
def doctor(
    images: Annotated[
        list[str] | None,
        typer.Option("--image", metavar="IMAGE", help="Also pull this image, in a short-lived pod; repeatable."),
    ] = None,
    high: Annotated[str, typer.Option("--high", metavar="NAME", help="PriorityClass of services.")] = "high",
    low: Annotated[
        str, typer.Option("--low", metavar="NAME", help="PriorityClass of workers, and of the pod of --image.")
    ] = "low",
    release: Annotated[
        str,
        typer.Option(
            "--before-uninstall",
            metavar="RELEASE",
            help="Only check whether teams of other releases need this Helm release's cluster-wide objects.",
        ),
    ] = "",
    context: ContextOption = None,
    namespace: NamespaceOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")] = False,
) -> None:
    """Check a cluster and a namespace: rights, accounts, admission, priorities, volumes, Pod Security, images.

    Exit codes: 0 jobs can run (the release can be removed), 1 something that they need is missing (other teams need
    the release), 2 there is no cluster.
    """
    api = connect_api(context, namespace)
    levels: Counter[str] = Counter()
    if not as_json:
        print(f"{api.host}, namespace {api.namespace}", flush=True)
    for finding in _check_before_uninstall(api, release) if release else _run_checks(api, images or [], high, low):
        levels[finding.level.value] += 1
        print(_finding_line(finding, as_json=as_json), flush=True)
    if not (as_json or release):
        print(_closing_line(levels))
    raise typer.Exit(1 if levels["FAIL"] else 0)


def _run_checks(api: KubeClient, images: list[str], high: str, low: str) -> Iterator[DoctorFinding]:
    from edl.ops.doctor_checks import DoctorFinding, FindingLevel, PriorityClassNames, check_image_pull, examine_cluster
    from edl.ops.file_transfer import IMAGE_VARIABLE, image_from_environment

    classes = PriorityClassNames(high, low)
    yield from examine_cluster(api, classes)
    for image in images:
        with StatusLine() as ticker:
            finding = check_image_pull(api, image, classes, ticker.show_text)
        yield finding
    if not images:
        image = image_from_environment() or "IMAGE"
        remedy = f"`edl doctor --image {image}` tests one, such as that of {IMAGE_VARIABLE}, which `edl data` uses."
        yield DoctorFinding(FindingLevel.OK, "images", "no image was tested", remedy)


def _check_before_uninstall(api: KubeClient, release: str) -> Iterator[DoctorFinding]:
    from edl.ops.doctor_checks import check_uninstall

    yield from check_uninstall(api, release)


def _finding_line(finding: DoctorFinding, *, as_json: bool) -> str:
    if as_json:
        fields = {
            "level": finding.level.value,
            "about": finding.subject,
            "text": finding.text,
            "remedy": finding.remedy,
        }
        return json.dumps(fields)
    head = f"{finding.level.value:<4}  {finding.subject:<10}  {finding.text}"
    return f"{head}\n{'':18}-> {finding.remedy}" if finding.remedy else head


def _closing_line(levels: Counter[str]) -> str:
    missing, odd = levels["FAIL"], levels["WARN"]
    warnings = f"{odd} {'check has a warning' if odd == 1 else 'checks have warnings'}"
    if missing:
        lacking = f"Jobs cannot run here: {missing} {'check' if missing == 1 else 'checks'} failed"
        return f"{lacking}; {warnings}." if odd else f"{lacking}."
    return f"No check failed; {warnings}." if odd else "Jobs can run here."

"""``edl data cp`` and ``edl data ls``: files to and from a volume claim, through a pod that lives for one copy."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from edl.cli.cluster_options import ContextOption, NamespaceOption, api_of
from edl.cli.outcome import TERMINATED
from edl.core.errors import BadInputError, RetryableError

if TYPE_CHECKING:
    from edl.cli.copy_plan import CopyPlan
    from edl.cli.transfer import Files
    from edl.kube.api import Api
    from edl.kube.copying import Place
    from edl.spec.placement import RunAs

IMAGE_VARIABLE = "EDL_SUBMITTER_IMAGE"
ATTEMPTS = 5
"""Connections for one file before it is given up; it is gone on with all the same when the command is called again."""

ImageOption = Annotated[
    str | None,
    typer.Option(
        metavar="IMAGE",
        help="Image with Python and EDL for the pod that copies; the submitter image by default.",
        envvar=IMAGE_VARIABLE,
        show_envvar=True,
        show_default=False,
    ),
]
UserOption = Annotated[int, typer.Option("--uid", help="User that reads and writes there.", min=1)]
GroupOption = Annotated[int, typer.Option("--gid", help="Group that reads and writes there.", min=0)]
MinutesOption = Annotated[int, typer.Option("--minutes", help="The pod ends by itself after so long.", min=1)]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]

Value = TypeVar("Value")


def cp(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="A path here, or CLAIM:/path.", show_default=False)],
    target: Annotated[str, typer.Argument(metavar="TARGET", help="A path here, or CLAIM:/path.", show_default=False)],
    image: ImageOption = None,
    uid: UserOption = 1000,
    gid: GroupOption = 1000,
    minutes: MinutesOption = 60,
    context: ContextOption = None,
    namespace: NamespaceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Copy files between this machine and a volume claim: edl data cp LOCAL CLAIM:/path, or back.

    A file goes to the path that is named, or into it if that is a directory; of a directory, the content goes into the
    directory that is named. What is there already with the same content is not copied again, and a copy that was cut
    off goes on where it was when the same command is called again. Checksums are always compared.
    """
    from edl.kube.copying import place

    outward, inward = place(target), place(source)
    if (outward is None) == (inward is None):
        raise BadInputError(
            "exactly one of the two must be on a claim",
            where=f"edl data cp {source} {target}",
            hint="Such as: edl data cp mnist/ fileserver-claim:/mnist",
        )
    api = api_of(context, namespace)
    there = outward or inward
    assert there is not None
    if outward is not None and not Path(source).exists():
        raise BadInputError("no such file or directory", where=source)
    from edl.spec.placement import RunAs

    with volume(api, there.claim, image, RunAs(uid, gid), minutes, read_only=outward is None) as reached:
        plan = reached.repeatedly(lambda files: _plan(files, source, target, outward, inward))
        travelled = reached.carry(plan, upload=outward is not None)
    _told(plan, travelled, source, target, as_json=as_json)


def ls(
    where: Annotated[str, typer.Argument(metavar="CLAIM:/path", help="A directory of a claim.", show_default=False)],
    recursive: Annotated[bool, typer.Option("--recursive", "-R", help="Also what is below.")] = False,
    image: ImageOption = None,
    uid: UserOption = 1000,
    gid: GroupOption = 1000,
    context: ContextOption = None,
    namespace: NamespaceOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the files of a volume claim: edl data ls CLAIM:/path."""
    from edl.kube.copying import Place, place

    there = place(where) or (Place(where, "/") if where and "/" not in where else None)
    if there is None:
        raise BadInputError("this names no claim", where=where, hint="Such as: edl data ls fileserver-claim:/mnist")
    from edl.spec.placement import RunAs

    with volume(api_of(context, namespace), there.claim, image, RunAs(uid, gid), 10, read_only=True) as reached:
        entries = reached.repeatedly(lambda files: list(files.entries(there.path, recursive=recursive)))
    if as_json:
        keys = ("path", "kind", "size", "modified")
        print(json.dumps([{key: getattr(entry, key) for key in keys} for entry in entries]))
        return
    for entry in entries:
        size = f"{entry.size:,}" if entry.kind == "file" else "-"
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.modified))
        print(f"{size:>16}  {when}  {entry.path}{'/' if entry.kind == 'directory' else ''}")


class Volume:
    """A claim that a running pod has mounted, through connections that may break."""

    def __init__(self, api: Api, pod: str) -> None:
        self._api, self._pod = api, pod

    def repeatedly(self, work: Callable[[Files], Value]) -> Value:
        """The result of ``work`` over a new connection, and over more of them when one breaks.

        Raises:
            RetryableError: ATTEMPTS connections broke.
        """
        from edl.cli.transfer import Files
        from edl.kube import copying

        for attempt in range(ATTEMPTS):
            try:
                with copying.run(self._api, self._pod) as execution:
                    return work(Files(execution))
            except RetryableError as error:
                if attempt == ATTEMPTS - 1:
                    error.hint = "The same command goes on where this one was cut off."
                    raise
                time.sleep(min(2**attempt, 10))
        raise AssertionError("unreachable")

    def carry(self, plan: CopyPlan, *, upload: bool) -> int:
        """Copy all of a plan; returns the bytes that did travel."""
        for folder in plan.here:
            folder.mkdir(parents=True, exist_ok=True)
        left, travelled = list(plan.items), 0
        with _progress(plan.size) as shown:

            def work(files: Files) -> None:
                nonlocal travelled
                for folder in plan.there:
                    files.make(folder)
                while left:
                    item = left[0]
                    shown.begin(item.there)
                    if upload:
                        travelled += files.upload(item.here, item.there, shown.moved)
                    else:
                        travelled += files.download(item.there, item.here, shown.moved)
                    shown.done(item.size)
                    left.pop(0)

            self.repeatedly(work)
        return travelled


@contextmanager
def volume(
    api: Api, claim: str, image: str | None, run_as: RunAs, minutes: int, *, read_only: bool
) -> Iterator[Volume]:
    """A claim for as long as the block takes; the pod that mounts it is deleted then.

    Raises:
        BadInputError: there is no such claim, or the pod cannot start.
    """
    from edl.cli.ticker import Ticker
    from edl.kube.copying import Visit, visited

    visit = Visit(claim, image or submitter_image(), run_as, read_only, minutes * 60)
    with _terminable(), Ticker() as ticker, visited(api, visit, ticker.say) as pod:
        if sys.stderr.isatty():
            ticker.say("")  # its line is the progress bar's now
        yield Volume(api, pod)


@contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM ends the block as Ctrl-C does, so that no pod is left behind."""

    def end(number: int, frame: object) -> None:
        raise SystemExit(TERMINATED)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def submitter_image() -> str:
    """The light image of this version of EDL, unless the environment names another one."""
    from importlib.metadata import version

    return os.environ.get(IMAGE_VARIABLE) or f"edl/submitter:{version('edl-platform')}"


def _plan(files: Files, source: str, target: str, outward: Place | None, inward: Place | None) -> CopyPlan:
    from edl.cli import copy_plan

    if outward is not None:
        return copy_plan.upload(Path(source), outward.path, files.stat(outward.path).kind)
    assert inward is not None
    found = files.stat(inward.path)
    if found.kind == "missing":
        raise BadInputError("no such file or directory", where=source, hint=f"Look with: edl data ls {inward.claim}:/")
    entries = files.entries(inward.path, recursive=True)
    inside = target.endswith("/") or Path(target).is_dir()
    return copy_plan.download(inward.path, entries, Path(target), is_file=found.kind == "file", inside=inside)


class _Shown:
    """How far a copy is; an attempt that is repeated does not count twice."""

    def __init__(self, tell: Callable[[int, str], None]) -> None:
        self._tell, self._before, self._now, self._name = tell, 0, 0, ""

    def begin(self, name: str) -> None:
        self._name, self._now = name, 0
        self.moved(0)

    def moved(self, size: int) -> None:
        self._now += size
        self._tell(self._before + self._now, self._name)

    def done(self, size: int) -> None:
        self._before += size


@contextmanager
def _progress(size: int) -> Iterator[_Shown]:
    if not sys.stderr.isatty():
        yield _Shown(lambda moved, name: None)
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=max(1, size))
        yield _Shown(lambda moved, name: progress.update(task, completed=moved, description=name))


def _told(plan: CopyPlan, travelled: int, source: str, target: str, *, as_json: bool) -> None:
    if as_json:
        told = {
            "source": source,
            "target": target,
            "files": len(plan.items),
            "bytes": plan.size,
            "travelled": travelled,
        }
        print(json.dumps(told | {"left_out": list(plan.left_out)}))
        return
    count = len(plan.items)
    there = f" ({plan.size - travelled:,} were there already)" if travelled < plan.size else ""
    print(f"{count:,} {'file' if count == 1 else 'files'}, {plan.size:,} bytes{there}, checksums right: {target}")
    for name in plan.left_out:
        print(f"left out, since it is neither file nor directory: {name}", file=sys.stderr)

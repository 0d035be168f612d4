"""A claim that the command line reaches: a pod for as long as it takes, connections that may break, progress shown."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from edl.api.errors import RetryableError
from edl.reporting.run_outcome import TERMINATED

if TYPE_CHECKING:
    from edl.cluster.kubernetes.api_client import Api
    from edl.ops.copy_plan import CopyPlan
    from edl.ops.file_transfer import Files
    from edl.ops.helper_pod import Visit

IMAGE_VARIABLE = "EDL_SUBMITTER_IMAGE"
IMAGE_REMEDY = (
    "Name an image that the nodes can pull and that has Python and EDL, such as the submitter image: --image, or the "
    f"variable {IMAGE_VARIABLE}."
)
ATTEMPTS = 5
"""Connections for one piece of work before it is given up."""

Value = TypeVar("Value")


class Volume:
    """A claim that a running pod has mounted, through connections that may break."""

    def __init__(self, api: Api, pod: str) -> None:
        self._api, self._pod = api, pod

    def repeatedly(self, work: Callable[[Files], Value]) -> Value:
        """The result of ``work`` over a new connection, and over more of them when one breaks.

        Raises:
            RetryableError: ATTEMPTS connections broke.
        """
        from edl.ops import helper_pod
        from edl.ops.file_transfer import Files

        for attempt in range(ATTEMPTS):
            try:
                with helper_pod.run(self._api, self._pod) as execution:
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
def volume(api: Api, visit: Visit) -> Iterator[Volume]:
    """A claim for as long as the block takes; the pod that mounts it is deleted then.

    Raises:
        NoRightError: programs may not be run in pods.
        BadInputError: there is no such claim, or the pod cannot start; ImageError, if that is for its image.
    """
    from edl.ops.helper_pod import visited
    from edl.reporting.status_line import Ticker

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


def named_image() -> str | None:
    """The image that the environment names for pods that copy; there is no public one that a default could be."""
    return os.environ.get(IMAGE_VARIABLE) or None


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
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    from edl.reporting.rich_console import console

    columns = (
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=console(sys.stderr), transient=True) as progress:
        task = progress.add_task("", total=max(1, size))
        yield _Shown(lambda moved, name: progress.update(task, completed=moved, description=name))

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
from edl.reporting.run_outcome import SIGTERM_EXIT

if TYPE_CHECKING:
    from edl.cluster.kubernetes.api_client import KubeClient
    from edl.ops.copy_plan import CopyPlan
    from edl.ops.file_transfer import VolumeFiles
    from edl.ops.helper_pod import HelperPodSpec

IMAGE_VARIABLE = "EDL_SUBMITTER_IMAGE"
IMAGE_REMEDY = (
    "Name an image that the nodes can pull and that has Python and EDL, such as the submitter image: --image, or the "
    f"variable {IMAGE_VARIABLE}."
)
MAX_ATTEMPTS = 5
"""Connections for one piece of work before it is given up."""

WorkResult = TypeVar("WorkResult")


class VolumeSession:
    """A claim that a running pod has mounted, through connections that may break."""

    def __init__(self, api: KubeClient, pod: str) -> None:
        self._api, self._pod = api, pod

    def run_with_retries(self, work: Callable[[VolumeFiles], WorkResult]) -> WorkResult:
        """The result of ``work`` over a new connection, and over more of them when one breaks.

        Raises:
            RetryableError: ATTEMPTS connections broke.
        """
        from edl.ops import helper_pod
        from edl.ops.file_transfer import VolumeFiles

        for attempt in range(MAX_ATTEMPTS):
            try:
                with helper_pod.exec_file_server(self._api, self._pod) as execution:
                    return work(VolumeFiles(execution))
            except RetryableError as error:
                if attempt == MAX_ATTEMPTS - 1:
                    error.hint = "The same command goes on where this one was cut off."
                    raise
                time.sleep(min(2**attempt, 10))
        raise AssertionError("unreachable")

    def copy_files(self, plan: CopyPlan, *, upload: bool) -> int:
        """Copy all of a plan; returns the bytes that did travel."""
        for folder in plan.here:
            folder.mkdir(parents=True, exist_ok=True)
        left, travelled = list(plan.items), 0
        with _show_progress(plan.size) as shown:

            def work(files: VolumeFiles) -> None:
                nonlocal travelled
                for folder in plan.there:
                    files.make(folder)
                while left:
                    item = left[0]
                    shown.begin(item.there)
                    if upload:
                        travelled += files.upload(item.here, item.there, shown.add_bytes)
                    else:
                        travelled += files.download(item.there, item.here, shown.add_bytes)
                    shown.done(item.size)
                    left.pop(0)

            self.run_with_retries(work)
        return travelled


@contextmanager
def open_volume(api: KubeClient, visit: HelperPodSpec) -> Iterator[VolumeSession]:
    """A claim for as long as the block takes; the pod that mounts it is deleted then.

    Raises:
        RbacDeniedError: programs may not be run in pods.
        BadInputError: there is no such claim, or the pod cannot start; PodImageError, if that is for its image.
    """
    from edl.ops.helper_pod import run_helper_pod
    from edl.reporting.status_line import StatusLine

    with _exit_on_sigterm(), StatusLine() as ticker, run_helper_pod(api, visit, ticker.say) as pod:
        if sys.stderr.isatty():
            ticker.say("")  # its line is the progress bar's now
        yield VolumeSession(api, pod)


@contextmanager
def _exit_on_sigterm() -> Iterator[None]:
    """SIGTERM ends the block as Ctrl-C does, so that no pod is left behind."""

    def end(number: int, frame: object) -> None:
        raise SystemExit(SIGTERM_EXIT)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def image_from_environment() -> str | None:
    """The image that the environment names for pods that copy; there is no public one that a default could be."""
    return os.environ.get(IMAGE_VARIABLE) or None


class _CopyProgress:
    """How far a copy is; an attempt that is repeated does not count twice."""

    def __init__(self, tell: Callable[[int, str], None]) -> None:
        self._tell, self._before, self._now, self._file_name = tell, 0, 0, ""

    def begin(self, name: str) -> None:
        self._file_name, self._now = name, 0
        self.add_bytes(0)

    def add_bytes(self, size: int) -> None:
        self._now += size
        self._tell(self._before + self._now, self._file_name)

    def done(self, size: int) -> None:
        self._before += size


@contextmanager
def _show_progress(size: int) -> Iterator[_CopyProgress]:
    if not sys.stderr.isatty():
        yield _CopyProgress(lambda moved, name: None)
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    from edl.reporting.rich_console import make_console

    columns = (
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=make_console(sys.stderr), transient=True) as progress:
        task = progress.add_task("", total=max(1, size))
        yield _CopyProgress(lambda moved, name: progress.update(task, completed=moved, description=name))

"""The client of a file transfer: sends requests to ``edl.pod.files`` in a pod and verifies the
checksums.
"""

from __future__ import annotations

import os
import posixpath
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, TypeVar

from edl.api.errors import BadInputError, EdlError, RetryableError, StorageError
from edl.api.exit_codes import SIGTERM_EXIT
from edl.core.backoff import ExponentialBackoff
from edl.retry.attempts import Retry, no_jitter
from edl.storage.copy_protocol import (
    BUSY_FRAME,
    CHUNK_BYTES,
    DATA_FRAME,
    ERROR_FRAME,
    REPLY_FRAME,
    REQUEST_FRAME,
    CopyFrame,
    PartialUpload,
    ProcessPipe,
    encode_frame,
    encode_json_frame,
    file_sha256,
    read_frame,
)
from edl.storage.durable_files import translate_os_errors

if TYPE_CHECKING:
    from edl.cluster.kubernetes.api_client import KubeClient
    from edl.ops.helper_pod import HelperPodSpec

BytesMoved = Callable[[int], None]
"""Called with a number of bytes that were transferred, or were already at the target."""


@dataclass(frozen=True, slots=True)
class VolumeEntry:
    """A file or directory of a volume.

    Attributes:
        path: relative to the listed directory.
        kind: ``file``, ``directory`` or ``other``: links, sockets, devices.
        size: in bytes.
        modified_at: unix seconds.
    """

    path: str
    kind: str
    size: int
    modified_at: float


@dataclass(frozen=True, slots=True)
class PathStat:
    """What is at a path: ``file``, ``directory``, ``other`` or ``missing``; the checksum only on
    request.
    """

    kind: str
    size: int
    sha256: str = ""


class VolumeFiles:
    """The files of a volume, accessed through a pipe.

    Every method raises BadInputError or StorageError for an error that the process in the pod
    reports, and RetryableError if the connection breaks. A partial file is kept, and a new
    connection continues it.
    """

    def __init__(self, pipe: ProcessPipe) -> None:
        self._pipe = pipe

    def list_entries(self, path: str, *, recursive: bool) -> Iterator[VolumeEntry]:
        """The entries below a directory, or the file itself."""
        self._send_request("list", path, recursive=recursive)
        more = True
        while more:
            answer = self._receive_answer()
            more = bool(answer["more"])
            for each in answer["entries"]:
                yield VolumeEntry(each["path"], each["kind"], each["size"], each["modified"])

    def read_bytes(self, path: str, offset: int, size: int) -> Iterator[bytes]:
        """The bytes of a file from ``offset`` to ``size``, the offset of its end."""
        self._send_request("send", path, offset=offset, size=size)
        while offset < size:
            data = self._receive_frame(DATA_FRAME).payload
            offset += len(data)
            yield data

    def stat_path(self, path: str, *, with_digest: bool = False) -> PathStat:
        """What is at a path; with the SHA-256 of a file if requested."""
        self._send_request("stat", path, digest=with_digest)
        answer = self._receive_answer()
        return PathStat(answer["kind"], answer["size"], answer.get("sha256", ""))

    def make_directory(self, path: str) -> None:
        """Make a directory and those above it."""
        self._send_request("make", path)
        self._receive_answer()

    def remove_tree(self, path: str) -> None:
        """Remove a directory and all below it; it may be gone already."""
        self._send_request("remove", path)
        self._receive_answer()

    def upload_file(self, source: Path, path: str, on_moved: BytesMoved) -> int:
        """Copy a local file to the volume, unless an identical one exists; returns the bytes sent."""
        with translate_os_errors(source, "read"):
            size = source.stat().st_size
        sha256 = file_sha256(source)
        target_stat = self.stat_path(path)
        if target_stat.kind == "directory":
            raise BadInputError("a directory with this name exists", where=path)
        if (
            target_stat.kind == "file"
            and target_stat.size == size
            and self.stat_path(path, with_digest=True).sha256 == sha256
        ):
            on_moved(size)
            return 0
        self._send_request("receive", path, size=size, sha256=sha256)
        arrived = int(self._receive_answer()["arrived"])
        on_moved(arrived)
        self._send_file(source, arrived, size, on_moved)
        self._receive_answer()
        return size - arrived

    def download_file(self, path: str, target: Path, on_moved: BytesMoved) -> int:
        """Copy a file of the volume to this machine, unless an identical one exists; returns the
        bytes received.
        """
        source_stat = self.stat_path(path, with_digest=True)
        if source_stat.kind != "file":
            raise BadInputError(f"this is not a file ({source_stat.kind})", where=path)
        if target.is_file() and target.stat().st_size == source_stat.size and file_sha256(target) == source_stat.sha256:
            on_moved(source_stat.size)
            return 0
        with PartialUpload(target, source_stat.size, source_stat.sha256) as partial:
            before = partial.received_bytes
            on_moved(before)
            self._send_request("send", path, offset=partial.received_bytes, size=source_stat.size)
            while partial.missing_bytes:
                data = self._receive_frame(DATA_FRAME).payload
                partial.write(data)
                on_moved(len(data))
            partial.finish()
        return source_stat.size - before

    def _send_file(self, source: Path, offset: int, size: int, on_moved: BytesMoved) -> None:
        with translate_os_errors(source, "read"), source.open("rb") as file:
            file.seek(offset)
            while offset < size:
                data = file.read(min(CHUNK_BYTES, size - offset))
                if not data:
                    raise StorageError(
                        "the file was truncated during the copy", where=str(source), hint="Copy it again."
                    )
                self._pipe.write(encode_frame(DATA_FRAME, data))
                on_moved(len(data))
                offset += len(data)
                # The receiver answers only at the end. An earlier frame is an error (its disk is
                # full), and reading it now saves sending the rest of the file.
                if self._pipe.has_pending_input():
                    self._check_interruption()

    def _check_interruption(self) -> None:
        """Raise the error if the receiver sent one in the middle of a file; a keep-alive frame is
        ignored.
        """
        frame = self._next_frame()
        if frame.kind == ERROR_FRAME:
            raise _error_from_frame(frame)

    def _send_request(self, op: str, path: str, **more: Any) -> None:
        self._pipe.write(encode_json_frame(REQUEST_FRAME, {"op": op, "path": path, **more}))

    def _receive_answer(self) -> dict[str, Any]:
        return self._receive_frame(REPLY_FRAME).json_payload()

    def _receive_frame(self, kind: bytes) -> CopyFrame:
        while (frame := self._next_frame()).kind == BUSY_FRAME:
            continue
        if frame.kind == ERROR_FRAME:
            raise _error_from_frame(frame)
        if frame.kind != kind:
            raise StorageError(f"the process in the pod sent an unexpected frame {frame.kind!r}")
        return frame

    def _next_frame(self) -> CopyFrame:
        frame = read_frame(self._pipe.read)
        if frame is None:
            stderr = self._pipe.stderr_tail
            raise RetryableError(f"The process in the pod has ended{f': {stderr}' if stderr else ''}")
        return frame


def _error_from_frame(frame: CopyFrame) -> EdlError:
    payload = frame.json_payload()
    kind = BadInputError if payload.get("input") else StorageError
    return kind(str(payload.get("message")), where=payload.get("where"), hint=payload.get("hint"))


# --------------------------------------------------------------------------------------------------
# Planning a copy between this machine and a volume: which files, and their names at the target.
#
# A file is copied to the named path, or into it if that is a directory or ends in ``/``. The
# content of a directory is copied into the named directory. This does not depend on whether the
# target exists, so repeating a command means the same files and resumes an interrupted copy.


@dataclass(frozen=True, slots=True)
class CopyItem:
    """One file to copy; ``size`` in bytes."""

    local_path: Path
    volume_path: str
    size: int


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """The files and directories of a copy.

    Attributes:
        pending_items: the files, in order.
        local_directories: directories to create on this machine.
        volume_directories: directories to create on the volume.
        skipped_files: entries that are neither files nor directories, such as links.
    """

    pending_items: tuple[CopyItem, ...]
    local_directories: tuple[Path, ...] = ()
    volume_directories: tuple[str, ...] = ()
    skipped_files: tuple[str, ...] = ()

    @property
    def pending_bytes(self) -> int:
        return sum(item.size for item in self.pending_items)


def plan_upload(source: Path, target: str, target_kind: str) -> CopyPlan:
    """Plan a copy from this machine to the volume.

    Args:
        source: a file or directory.
        target: path on the volume.
        target_kind: what is at ``target`` now: ``file``, ``directory``, ``other`` or ``missing``.

    Raises:
        BadInputError: ``source`` does not exist, or a directory would replace a file.
    """
    if source.is_file():
        inside = target_kind == "directory" or target.endswith("/")
        target_path = posixpath.join(target, source.name) if inside else target
        return CopyPlan((CopyItem(source, target_path, source.stat().st_size),))
    if not source.is_dir():
        raise BadInputError("no such file or directory", where=str(source))
    if target_kind in ("file", "other"):
        raise BadInputError("this is a file; a directory cannot replace it", where=target)
    with translate_os_errors(source, "list"):
        paths = list(_walk_directory(source))
    return _classify_paths(
        (path.relative_to(source).as_posix(), path, posixpath.join(target, path.relative_to(source).as_posix()))
        for path in paths
    )


def plan_download(
    source: str, entries: Iterable[VolumeEntry], target: Path, *, is_file: bool, into_directory: bool
) -> CopyPlan:
    """Plan a copy from the volume to this machine.

    Args:
        source: path on the volume.
        entries: all entries below it, or the file itself.
        target: path on this machine.
        is_file: whether ``source`` is a file.
        into_directory: whether a file is copied into ``target``: it is a directory, or ends in
            ``/``.

    Raises:
        BadInputError: a file would replace a directory, or a name on the volume points outside of
            ``target``.
    """
    listed = list(entries)
    if is_file:
        here = target / PurePosixPath(source).name if into_directory else target
        return CopyPlan((CopyItem(here, source, listed[0].size),))
    if target.is_file():
        raise BadInputError("this is a file; a directory cannot replace it", where=str(target))
    # The names come from the pod, which runs an image of the user's choice: never write outside of
    # the target.
    for entry in listed:
        if entry.path.startswith("/") or ".." in PurePosixPath(entry.path).parts:
            raise BadInputError("this file name of the volume points outside of the target directory", where=entry.path)
    files = [
        CopyItem(target / each.path, posixpath.join(source, each.path), each.size)
        for each in listed
        if each.kind == "file"
    ]
    folders = [target / each.path for each in listed if each.kind == "directory"]
    return CopyPlan(
        tuple(files),
        local_directories=(target, *folders),
        skipped_files=tuple(each.path for each in listed if each.kind == "other"),
    )


def _walk_directory(directory: Path) -> Iterator[Path]:
    for path in sorted(directory.iterdir()):
        yield path
        if path.is_dir() and not path.is_symlink():
            yield from _walk_directory(path)


def _classify_paths(entries: Iterable[tuple[str, Path, str]]) -> CopyPlan:
    """Sort paths into files, directories and others; links are not followed, on either side."""
    items: list[CopyItem] = []
    folders: list[str] = []
    others: list[str] = []
    for name, path, target_path in entries:
        if path.is_symlink():
            others.append(name)
        elif path.is_dir():
            folders.append(target_path)
        elif path.is_file():
            items.append(CopyItem(path, target_path, path.stat().st_size))
        else:
            others.append(name)
    return CopyPlan(tuple(items), volume_directories=tuple(folders), skipped_files=tuple(others))


# --------------------------------------------------------------------------------------------------
# Access to a claim: a helper pod for the duration of the copy, reconnects, and a progress bar.


IMAGE_VARIABLE = "EDL_SUBMITTER_IMAGE"
IMAGE_REMEDY = (
    "Give an image with Python and EDL that the nodes can pull, such as the submitter image: --image, or the variable "
    f"{IMAGE_VARIABLE}."
)
MAX_ATTEMPTS = 5
"""Connections that are tried for one operation."""
_RECONNECT_BACKOFF = ExponentialBackoff(first_seconds=1.0, max_seconds=10.0)

WorkResult = TypeVar("WorkResult")


class VolumeSession:
    """A claim that a running pod has mounted; reconnects when a connection breaks."""

    def __init__(self, api: KubeClient, pod: str) -> None:
        self._api, self._pod = api, pod

    def run_with_retries(self, work: Callable[[VolumeFiles], WorkResult]) -> WorkResult:
        """Run ``work`` over a new connection, and repeat it over another one when that breaks.

        Raises:
            RetryableError: MAX_ATTEMPTS connections broke.
        """
        from edl.ops import helper_pod

        retry = Retry(_RECONNECT_BACKOFF, time.sleep, tries=MAX_ATTEMPTS, jitter=no_jitter)
        while True:
            try:
                with helper_pod.exec_file_server(self._api, self._pod) as execution:
                    return work(VolumeFiles(execution))
            except RetryableError as error:
                if not retry.wait():
                    error.hint = "Run the same command again: it resumes the copy."
                    raise

    def copy_files(self, plan: CopyPlan, *, upload: bool) -> int:
        """Execute a plan; returns the bytes that were transferred."""
        for folder in plan.local_directories:
            folder.mkdir(parents=True, exist_ok=True)
        left, travelled = list(plan.pending_items), 0
        with _show_progress(plan.pending_bytes) as shown:

            def copy_remaining(files: VolumeFiles) -> None:
                nonlocal travelled
                for folder in plan.volume_directories:
                    files.make_directory(folder)
                while left:
                    item = left[0]
                    shown.begin_file(item.volume_path)
                    if upload:
                        travelled += files.upload_file(item.local_path, item.volume_path, shown.add_bytes)
                    else:
                        travelled += files.download_file(item.volume_path, item.local_path, shown.add_bytes)
                    shown.finish_file(item.size)
                    left.pop(0)

            self.run_with_retries(copy_remaining)
        return travelled


@contextmanager
def open_volume(api: KubeClient, visit: HelperPodSpec) -> Iterator[VolumeSession]:
    """Mount a claim in a pod for the duration of the block, then delete the pod.

    Raises:
        RbacDeniedError: the user may not use pods/exec.
        BadInputError: the claim does not exist, or the pod cannot start; PodImageError if its image
            is the cause.
    """
    from edl.ops.helper_pod import run_helper_pod
    from edl.reporting.text_table import StatusLine

    with _exit_on_sigterm(), StatusLine() as ticker, run_helper_pod(api, visit, ticker.show_text) as pod:
        if sys.stderr.isatty():
            ticker.show_text("")  # frees its line for the progress bar
        yield VolumeSession(api, pod)


@contextmanager
def _exit_on_sigterm() -> Iterator[None]:
    """Let SIGTERM end the block as Ctrl-C does, so that the pod is deleted."""

    def raise_exit(number: int, frame: object) -> None:
        raise SystemExit(SIGTERM_EXIT)

    before = signal.signal(signal.SIGTERM, raise_exit)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def image_from_environment() -> str | None:
    """The image of helper pods, from the environment.

    There is no default: EDL publishes no image.
    """
    return os.environ.get(IMAGE_VARIABLE) or None


class _CopyProgress:
    """The progress of a copy; a repeated file does not count twice."""

    def __init__(self, report: Callable[[int, str], None]) -> None:
        self._on_change, self._finished_bytes, self._file_bytes, self._file_name = report, 0, 0, ""

    def begin_file(self, name: str) -> None:
        self._file_name, self._file_bytes = name, 0
        self.add_bytes(0)

    def add_bytes(self, size: int) -> None:
        self._file_bytes += size
        self._on_change(self._finished_bytes + self._file_bytes, self._file_name)

    def finish_file(self, size: int) -> None:
        self._finished_bytes += size


@contextmanager
def _show_progress(size: int) -> Iterator[_CopyProgress]:
    if not sys.stderr.isatty():
        yield _CopyProgress(lambda moved, name: None)
        return
    from edl.reporting.progress_bars import byte_progress
    from edl.reporting.rich_console import make_console

    with byte_progress(make_console(sys.stderr)) as progress:
        task = progress.add_task("", total=max(1, size))
        yield _CopyProgress(lambda moved, name: progress.update(task, completed=moved, description=name))

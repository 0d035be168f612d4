"""``edl logs``: what the pods of a job printed; of pods that are gone, what the run keeps on its volume."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from edl.api.cluster_port import Role
from edl.api.errors import BadInputError, EdlError
from edl.api.pod_spec import RunAsSpec
from edl.cli.job_choice import LocalOption, choose_local_run
from edl.cli.options import ContextOption, JobArgument, NamespaceOption, connect_api
from edl.ops import job_view
from edl.ops.followup_command import command_arguments
from edl.ops.job_view import pod_label
from edl.ops.local_runs import read_run_logs

if TYPE_CHECKING:
    from edl.cluster.kubernetes.api_client import KubeClient
    from edl.cluster.kubernetes.resource_kinds import Manifest
    from edl.ops.helper_pod import ClaimPath, HelperPodSpec
    from edl.ops.job_view import JobView
    from edl.ops.pod_logs import LogSelection

app = typer.Typer(rich_markup_mode=None, add_completion=False)

RoleOption = Annotated[Literal["master", "ps", "worker"], typer.Option("--role", "-r", help="Role of the pods.")]
_TAIL_BYTES = 1 << 20
"""Bytes from the end of a file in which its last lines are looked for."""
READER_POD_SECONDS = 600
"""After so long the pod that reads the volume ends by itself."""


@app.command()
def logs(
    job: JobArgument,
    role: RoleOption = "master",
    index: Annotated[int | None, typer.Option("--index", "-i", min=0, help="Index of the pod; all by default.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Continue with new output.")] = False,
    tail: Annotated[int | None, typer.Option("--tail", metavar="N", min=0, help="Only the last N lines.")] = None,
    stored: Annotated[bool, typer.Option("--stored", help="Read from the volume, also for pods that exist.")] = False,
    local: LocalOption = False,
    context: ContextOption = None,
    namespace: NamespaceOption = None,
) -> None:
    """Show the output of the master or of other pods of a job; with several pods, each line begins with the pod's name.

    The run keeps the logs of pods that are gone on its volume. A short-lived pod reads them. You need the ClusterRole
    edl-data-copy for that. For a run of this machine (JOB or JOB/RUN) they are files. If both exist, the job on the
    cluster is shown; --local selects runs of this machine.
    """
    from edl.ops.pod_logs import LogSelection, select_log_pods

    local_run = choose_local_run(job, local=local, context=context, namespace=namespace)
    if local_run is not None:
        for name, line in read_run_logs(local_run, role, index, follow=follow, tail=tail):
            _print_line(line, name)
        return
    api = connect_api(context, namespace, job)
    current_job, selection = job_view.find_job(api, job), LogSelection(Role(role), index)
    pods = [] if stored else select_log_pods(job_view.list_job_pods(api, job, selection.role), selection)
    if pods:
        _print_pods(api, pods, follow=follow, tail=tail)
    else:
        _print_stored_logs(api, current_job, selection, tail, command_arguments(job, context, namespace))


def _print_pods(api: KubeClient, pods: Sequence[Manifest], *, follow: bool, tail: int | None) -> None:
    from edl.ops.pod_logs import read_log_lines

    if len(pods) == 1:
        for line in read_log_lines(api, pods[0], follow=follow, tail=tail):
            _print_line(line)
    elif follow:
        for name, line in _interleave_lines(api, pods, tail):
            _print_line(line, name)
    else:
        for pod in pods:
            for name, line in _pod_lines(api, pod, follow=False, tail=tail):
                _print_line(line, name)


def _pod_lines(api: KubeClient, pod: Manifest, *, follow: bool, tail: int | None) -> Iterator[tuple[str, bytes]]:
    """A pod's lines; one that has not started, or is gone meanwhile, has one line that says so."""
    from edl.ops.pod_logs import read_log_lines

    name = pod_label(pod)
    try:
        for line in read_log_lines(api, pod, follow=follow, tail=tail):
            yield name, line
    except EdlError as error:
        yield name, f"({error.message})".encode()


def _interleave_lines(api: KubeClient, pods: Sequence[Manifest], tail: int | None) -> Iterator[tuple[str, bytes]]:
    """The lines of several pods as they come, until all have ended."""
    queue: SimpleQueue[tuple[str, bytes] | None] = SimpleQueue()

    def queue_lines(pod: Manifest) -> None:
        try:
            for each in _pod_lines(api, pod, follow=True, tail=tail):
                queue.put(each)
        finally:
            queue.put(None)

    for pod in pods:
        Thread(target=queue_lines, args=(pod,), daemon=True).start()  # ends with the command, whatever it waits for
    left = len(pods)
    while left:
        each = queue.get()
        if each is None:
            left -= 1
        else:
            yield each


def _print_stored_logs(
    api: KubeClient, current_job: JobView, selection: LogSelection, tail: int | None, job_arguments: str
) -> None:
    """Print the logs that the run has on its volume.

    Raises:
        BadInputError: the run keeps no logs, or none of these pods.
    """
    place = _find_log_location(api, current_job, selection, job_arguments)
    for job_arguments, lines in _read_from_volume(
        api, job_view.read_job_spec(api, current_job.name), place, selection, tail
    ):
        for line in lines:
            _print_line(line, job_arguments if selection.index is None and selection.role.value != "master" else "")


def _read_from_volume(
    api: KubeClient, spec: Mapping[str, Any], place: ClaimPath, selection: LogSelection, tail: int | None
) -> list[tuple[str, list[bytes]]]:
    """Read logs in a helper pod.

    Its image is the job's own, because the nodes have pulled it before. If they cannot pull it any more, the image of
    the environment variable is used.
    """
    from edl.ops.file_transfer import image_from_environment, open_volume
    from edl.ops.helper_pod import PodImageError

    def read_log_files(image: str) -> list[tuple[str, list[bytes]]]:
        with open_volume(api, _reader_pod_options(spec, place, image)) as reader:
            return reader.run_with_retries(lambda files: list(_read_stored_logs(files, place, selection, tail)))

    try:
        return read_log_files(spec["image"])
    except PodImageError as error:
        if (named := image_from_environment()) is None:
            raise
        print(f"{error.message}; trying {named}", file=sys.stderr)
        return read_log_files(named)


def _reader_pod_options(spec: Mapping[str, Any], place: ClaimPath, image: str) -> HelperPodSpec:
    from edl.core import priority_rule
    from edl.ops.file_transfer import IMAGE_VARIABLE
    from edl.ops.helper_pod import HelperPodSpec

    user, pod = spec["security"]["run_as"], spec.get("pod") or {}
    workers = spec["workers"].get("priority") or priority_rule.LOW_PRIORITY_CLASS
    return HelperPodSpec(
        place.claim,
        image,
        RunAsSpec(int(user["user"]), int(user["group"])),
        read_only=True,
        lifetime_seconds=READER_POD_SECONDS,
        purpose="reads the logs",
        image_remedy=f"Set {IMAGE_VARIABLE} to another image with Python and EDL that the nodes can pull.",
        pull_secrets=tuple(pod.get("image_pull_secrets") or ()),
        # a class that the cluster has and the namespace allows, since the job's workers have it
        priority_class=priority_rule.parse_priority(workers).priority_class(elevated=False),
    )


def _find_log_location(api: KubeClient, current_job: JobView, selection: LogSelection, job_arguments: str) -> ClaimPath:
    from edl.ops.pod_logs import find_log_directory

    if current_job.status is None:
        raise BadInputError(
            f"{selection} has no pod, and the master has not reported yet",
            hint=f"`edl why {job_arguments}` shows what it waits for.",
        )
    location = find_log_directory(job_view.read_job_spec(api, current_job.name), current_job.status.run_dir)
    if location is None:
        raise BadInputError(
            f"{selection} has no pod, and the job keeps no logs: it has no volume for its runs",
            hint="Give the job a volume (volumes in the job file) to keep the logs of pods that are gone.",
        )
    return location


def _read_stored_logs(
    files: object, place: ClaimPath, selection: LogSelection, tail: int | None
) -> Iterator[tuple[str, list[bytes]]]:
    """The selected logs on the volume, with the names of their pods."""
    from edl.ops.file_transfer import VolumeFiles

    assert isinstance(files, VolumeFiles)
    prefix = f"{selection.role.value}-" if selection.index is None else f"{selection}.log"
    log_files = [file for file in files.list_entries(place.path, recursive=False) if file.path.startswith(prefix)]
    if not log_files:
        raise BadInputError(f"there is no log of {selection}", where=str(place))
    for entry in sorted(log_files, key=lambda file: (len(file.path), file.path)):
        offset = 0 if tail is None else max(0, entry.size - _TAIL_BYTES)
        text = b"".join(files.read_bytes(f"{place.path}/{entry.path}", offset, entry.size))
        yield entry.path.removesuffix(".log"), tail_lines(text.splitlines(), tail)


def tail_lines(lines: Iterable[bytes], tail: int | None) -> list[bytes]:
    """The last ``tail`` lines; all of them for None."""
    return list(lines) if tail is None else list(deque(lines, maxlen=tail))


def _print_line(line: bytes, name: str = "") -> None:
    text = line.decode(errors="replace")
    sys.stdout.write(f"[{name}] {text}\n" if name else f"{text}\n")
    sys.stdout.flush()

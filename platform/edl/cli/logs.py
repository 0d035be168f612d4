"""``edl logs``: what the pods of a job printed; of pods that are gone, what the run keeps on its volume."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from edl.api.errors import BadInputError, EdlError
from edl.cli.local_runs import LocalOption
from edl.cli.options import ContextOption, JobArgument, NamespaceOption, api_of
from edl.ops.followup_command import called

if TYPE_CHECKING:
    from edl.cluster.kubernetes.api_client import Api
    from edl.cluster.kubernetes.resource_kinds import Manifest
    from edl.ops.helper_pod import Place, Visit
    from edl.ops.job_view import JobSeen
    from edl.ops.pod_logs import Chosen

app = typer.Typer(rich_markup_mode=None, add_completion=False)

RoleOption = Annotated[Literal["master", "ps", "worker"], typer.Option("--role", "-r", help="Whose.")]
_CHUNK_OF_TAIL = 1 << 20
"""Bytes from the end of a file in which its last lines are looked for."""
READER_SECONDS = 600
"""After so long the pod that reads the volume ends by itself."""


@app.command()
def logs(
    job: JobArgument,
    role: RoleOption = "master",
    index: Annotated[int | None, typer.Option("--index", "-i", min=0, help="Which one; all by default.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what they print.")] = False,
    tail: Annotated[int | None, typer.Option("--tail", metavar="N", min=0, help="Only the last N lines.")] = None,
    stored: Annotated[bool, typer.Option("--stored", help="From the volume, also of pods that are there.")] = False,
    local: LocalOption = False,
    context: ContextOption = None,
    namespace: NamespaceOption = None,
) -> None:
    """Show what the master or other pods of a job printed; several pods at once with their names in front.

    Of pods that are gone, the run keeps the logs on its volume: they are read through a short-lived pod. Those of a run
    of this machine (JOB or JOB/RUN) are files. A job of the cluster comes first; --local means runs of this machine.
    """
    from edl.api.cluster_port import Role
    from edl.cli.local_runs import chosen_here
    from edl.ops import job_view
    from edl.ops.pod_logs import Chosen, chosen_pods

    here = chosen_here(job, local=local, context=context, namespace=namespace)
    if here is not None:
        from edl.cli.local_run_logs import lines_of_run

        for name, line in lines_of_run(here, role, index, follow=follow, tail=tail):
            _print(line, name)
        return
    api = api_of(context, namespace, job)
    seen, chosen = job_view.find(api, job), Chosen(Role(role), index)
    pods = [] if stored else chosen_pods(job_view.pods_of(api, job, chosen.role), chosen)
    if pods:
        _print_pods(api, pods, follow=follow, tail=tail)
    else:
        _print_stored(api, seen, chosen, tail, called(job, context, namespace))


def _print_pods(api: Api, pods: Sequence[Manifest], *, follow: bool, tail: int | None) -> None:
    from edl.ops.pod_logs import lines_of

    if len(pods) == 1:
        for line in lines_of(api, pods[0], follow=follow, tail=tail):
            _print(line)
    elif follow:
        for name, line in _together(api, pods, tail):
            _print(line, name)
    else:
        for pod in pods:
            for name, line in _one(api, pod, follow=False, tail=tail):
                _print(line, name)


def _one(api: Api, pod: Manifest, *, follow: bool, tail: int | None) -> Iterator[tuple[str, bytes]]:
    """A pod's lines; one that has not started, or is gone meanwhile, has one line that says so."""
    from edl.ops.job_view import label_of
    from edl.ops.pod_logs import lines_of

    name = label_of(pod)
    try:
        for line in lines_of(api, pod, follow=follow, tail=tail):
            yield name, line
    except EdlError as error:
        yield name, f"({error.message})".encode()


def _together(api: Api, pods: Sequence[Manifest], tail: int | None) -> Iterator[tuple[str, bytes]]:
    """The lines of several pods as they come, until all have ended."""
    queue: SimpleQueue[tuple[str, bytes] | None] = SimpleQueue()

    def read(pod: Manifest) -> None:
        try:
            for each in _one(api, pod, follow=True, tail=tail):
                queue.put(each)
        finally:
            queue.put(None)

    for pod in pods:
        Thread(target=read, args=(pod,), daemon=True).start()  # ends with the command, whatever it waits for
    left = len(pods)
    while left:
        each = queue.get()
        if each is None:
            left -= 1
        else:
            yield each


def _print_stored(api: Api, seen: JobSeen, chosen: Chosen, tail: int | None, name: str) -> None:
    """From the volume.

    Raises:
        BadInputError: the run keeps no logs, or none of these pods.
    """
    from edl.ops import job_view

    place = _place(api, seen, chosen, name)
    for name, lines in _from_volume(api, job_view.spec_of(api, seen.name), place, chosen, tail):
        for line in lines:
            _print(line, name if chosen.index is None and chosen.role.value != "master" else "")


def _from_volume(
    api: Api, spec: Mapping[str, Any], place: Place, chosen: Chosen, tail: int | None
) -> list[tuple[str, list[bytes]]]:
    """Read by a pod of the job's own image, which the nodes could pull; else of the one that is named."""
    from edl.ops.helper_pod import ImageError
    from edl.ops.volume_session import named_image, volume

    def read(image: str) -> list[tuple[str, list[bytes]]]:
        with volume(api, _visit(spec, place, image)) as reader:
            return reader.repeatedly(lambda files: list(_read(files, place, chosen, tail)))

    try:
        return read(spec["image"])
    except ImageError as error:
        if (named := named_image()) is None:
            raise
        print(f"{error.message}; trying {named}", file=sys.stderr)
        return read(named)


def _visit(spec: Mapping[str, Any], place: Place, image: str) -> Visit:
    from edl.core import worker_priority
    from edl.jobfile.pod_spec import RunAs
    from edl.ops.helper_pod import Visit
    from edl.ops.volume_session import IMAGE_VARIABLE

    who, pod = spec["security"]["run_as"], spec.get("pod") or {}
    workers = spec["workers"].get("priority") or worker_priority.PLAIN_CLASS
    return Visit(
        place.claim,
        image,
        RunAs(int(who["user"]), int(who["group"])),
        read_only=True,
        seconds=READER_SECONDS,
        task="reads the logs",
        remedy=f"The variable {IMAGE_VARIABLE} names another image with Python and EDL that the nodes can pull.",
        pull_secrets=tuple(pod.get("image_pull_secrets") or ()),
        # a class that the cluster has and the namespace allows, since the job's workers have it
        priority=worker_priority.parse(workers).class_of(elevated=False),
    )


def _place(api: Api, seen: JobSeen, chosen: Chosen, name: str) -> Place:
    from edl.ops import job_view
    from edl.ops.pod_logs import stored

    if seen.status is None:
        raise BadInputError(
            f"{chosen} has no pod, and the master has not said anything yet",
            hint=f"`edl why {name}` says what it waits for.",
        )
    found = stored(job_view.spec_of(api, seen.name), seen.status.run_dir)
    if found is None:
        raise BadInputError(
            f"{chosen} has no pod, and the job keeps no logs: its runs are on no volume claim",
            hint="Give the job a volume (volumes in the job file); logs outlive their pods then.",
        )
    return found


def _read(files: object, place: Place, chosen: Chosen, tail: int | None) -> Iterator[tuple[str, list[bytes]]]:
    """Each log of the volume that is wanted, with the name of its pod."""
    from edl.ops.file_transfer import Files

    assert isinstance(files, Files)
    wanted = f"{chosen.role.value}-" if chosen.index is None else f"{chosen}.log"
    there = [each for each in files.entries(place.path, recursive=False) if each.path.startswith(wanted)]
    if not there:
        raise BadInputError(f"there is no log of {chosen}", where=str(place))
    for entry in sorted(there, key=lambda each: (len(each.path), each.path)):
        offset = 0 if tail is None else max(0, entry.size - _CHUNK_OF_TAIL)
        text = b"".join(files.read(f"{place.path}/{entry.path}", offset, entry.size))
        yield entry.path.removesuffix(".log"), last(text.splitlines(), tail)


def last(lines: Iterable[bytes], tail: int | None) -> list[bytes]:
    """The last ``tail`` lines; all of them for None."""
    return list(lines) if tail is None else list(deque(lines, maxlen=tail))


def _print(line: bytes, name: str = "") -> None:
    text = line.decode(errors="replace")
    sys.stdout.write(f"[{name}] {text}\n" if name else f"{text}\n")
    sys.stdout.flush()

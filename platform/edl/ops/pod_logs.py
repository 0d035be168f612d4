"""Reads the logs of a job's containers, and finds the run's log directory for pods that are gone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from edl.api.cluster_port import Role
from edl.api.errors import BadInputError
from edl.cluster.kubernetes import names
from edl.cluster.kubernetes.api_client import KubeClient
from edl.cluster.kubernetes.api_errors import InvalidObjectError
from edl.cluster.kubernetes.pod_status import role_container
from edl.cluster.kubernetes.resource_kinds import Manifest, is_being_deleted
from edl.ops.helper_pod import ClaimPath
from edl.ops.job_view import pod_index, pod_label, pod_role
from edl.ops.pod_problems import find_pod_problem


@dataclass(frozen=True, slots=True)
class LogSelection:
    """The pods whose logs are requested; ``index`` None: all pods of the role."""

    role: Role
    index: int | None = None

    def __str__(self) -> str:
        return self.role.value if self.index is None else f"{self.role.value}-{self.index}"


def select_log_pods(pods: Sequence[Manifest], selection: LogSelection) -> list[Manifest]:
    """The selected pods; of several with one label, such as masters, the newest that has started."""
    newest: dict[str, Manifest] = {}
    for pod in pods:
        if pod_role(pod) is not selection.role or selection.index not in (None, pod_index(pod)):
            continue
        known = newest.get(pod_label(pod))
        if known is None or _newest_rank(pod) >= _newest_rank(known):
            newest[pod_label(pod)] = pod
    return list(newest.values())


def _newest_rank(pod: Manifest) -> tuple[bool, bool, str]:
    own = role_container(pod)
    has_run = own is not None and own.has_run
    return not is_being_deleted(pod), has_run, str(pod["metadata"].get("creationTimestamp", ""))


def read_log_lines(
    api: KubeClient, pod: Manifest, *, follow: bool, tail: int | None, previous: bool = False
) -> Iterator[bytes]:
    """The lines of one pod's container.

    Raises:
        BadInputError: the container has not started; the message says why.
    """
    name = pod["metadata"]["name"]
    try:
        stream = api.logs(name, container=names.ROLE_CONTAINER, follow=follow, tail=tail, previous=previous)
    except InvalidObjectError as error:
        wait = find_pod_problem(pod)
        if wait is None or previous:
            raise
        raise BadInputError(f"{pod_label(pod)} has printed nothing: {wait.text}", hint=wait.remedy or None) from error
    with stream:
        yield from stream.lines()


def find_log_directory(spec: Mapping[str, Any], run_dir: str) -> ClaimPath | None:
    """The run's log directory on a claim; None if no claim of the job's spec contains ``run_dir``."""
    directory = PurePosixPath(run_dir)
    mounts = [
        (PurePosixPath(each["mount"]), each.get("claim"), each.get("sub_path") or "")
        for each in spec.get("volumes") or ()
    ]
    storage = spec.get("storage") or {}
    if storage.get("claim") and storage["claim"] not in [claim for _, claim, _ in mounts]:
        mounts.append((PurePosixPath(storage.get("path") or "/edl"), storage["claim"], ""))
    for mount, claim, sub_path in sorted(mounts, key=lambda each: -len(each[0].parts)):
        if claim and directory.is_relative_to(mount):
            return ClaimPath(claim, str("/" / PurePosixPath(sub_path) / directory.relative_to(mount) / "logs"))
    return None

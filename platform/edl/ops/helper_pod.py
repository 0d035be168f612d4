"""A pod that lives for one copy: it mounts a claim, and its container's only use is that programs run in it.

Nothing but the claim, the account that has no rights, no token, no more than ``restricted`` allows; it ends by itself
when whoever made it does not come back.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from edl.api.errors import BadInputError
from edl.cluster.kubernetes import names, security_context
from edl.cluster.kubernetes.api_client import Api
from edl.cluster.kubernetes.api_errors import ApiError, AwayError, ForbiddenError, NoRightError, NotFoundError
from edl.cluster.kubernetes.pod_exec import Execution
from edl.cluster.kubernetes.resource_kinds import CLAIMS, PODS, Manifest
from edl.core.worker_priority import PLAIN_CLASS
from edl.jobfile.pod_spec import RunAs
from edl.ops.access_reviews import Right, may
from edl.ops.pod_problems import OF_IMAGES, Wait, scarce, waits_for

MOUNT = "/claim"
ROLE = "edl-data-copy"
"""The ClusterRole that allows pods/exec, and nothing that jobs need."""
READY_SECONDS = 180.0
CPU, MEMORY = "100m", "64Mi"
"""What the pod asks for."""
_POLL_SECONDS = 0.3
_EXEC = Right("get", "pods/exec", "", "edl data", ROLE)


@dataclass(frozen=True, slots=True)
class Place:
    """A path on a claim, as the command line has it: ``CLAIM:/path``."""

    claim: str
    path: str

    def __str__(self) -> str:
        return f"{self.claim}:{self.path}"


def place(text: str) -> Place | None:
    """The place that ``CLAIM:/path`` names; None for a path of this machine."""
    claim, colon, path = text.partition(":")
    if not colon or "/" in claim or not claim:
        return None
    return Place(claim, "/" + path.lstrip("/"))


@dataclass(frozen=True, slots=True)
class Visit:
    """What a pod is asked for.

    Attributes:
        claim: that it mounts; None for a pod that only shows that its image can be pulled.
        image: has Python and EDL.
        run_as: must be allowed to read or write there.
        read_only: whether it mounts the claim so.
        seconds: after which it ends by itself.
        task: what the pod is there for, as in "the pod that copies".
        remedy: what the user can do when there is something wrong with the image.
        pull_secrets: names of Secrets to pull the image with.
        priority: name of its PriorityClass: quotas count pods by it, and policies refuse a pod without one.
    """

    claim: str | None
    image: str
    run_as: RunAs
    read_only: bool = False
    seconds: int = 3600
    task: str = "copies"
    remedy: str = "Check the name of the image, and that the nodes reach its registry."
    pull_secrets: tuple[str, ...] = ()
    priority: str = PLAIN_CLASS


def pod_name() -> str:
    """A new name for a pod; the admission policies know these pods, and no others of EDL, by such names."""
    return f"edl-data-{secrets.token_hex(4)}"


class ImageError(BadInputError):
    """The pod cannot start, and another image may help."""


def pod(visit: Visit, name: str) -> Manifest:
    """The manifest of the pod."""
    labels = {
        "app.kubernetes.io/name": "edl",
        "app.kubernetes.io/component": "data",
        "app.kubernetes.io/part-of": "edl",
        "app.kubernetes.io/managed-by": names.MANAGED_BY,
    }
    container: Manifest = {
        "name": names.CONTAINER,
        "image": visit.image,
        "command": ["sleep", str(visit.seconds)],
        "env": [{"name": "PYTHONDONTWRITEBYTECODE", "value": "1"}],
        "resources": {
            "requests": {"cpu": CPU, "memory": MEMORY, "ephemeral-storage": "16Mi"},
            "limits": {"memory": "256Mi", "ephemeral-storage": "256Mi"},
        },
        "securityContext": security_context.of_container(),
    }
    optional: Manifest = {}
    if visit.claim is not None:
        container["volumeMounts"] = [{"name": "claim", "mountPath": MOUNT, "readOnly": visit.read_only}]
        optional["volumes"] = [{"name": "claim", "persistentVolumeClaim": {"claimName": visit.claim}}]
    spec: Manifest = {
        "restartPolicy": "Never",
        "activeDeadlineSeconds": visit.seconds,
        "terminationGracePeriodSeconds": 1,
        "priorityClassName": visit.priority,
        "serviceAccountName": names.POD_ACCOUNT,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": security_context.of_pod(visit.run_as),
        "containers": [container],
        "imagePullSecrets": [{"name": name} for name in visit.pull_secrets],
        **optional,
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}, "spec": spec}


@contextmanager
def visited(api: Api, visit: Visit, tell: Callable[[str], None]) -> Iterator[str]:
    """A running pod with the claim, by name; it is deleted afterwards, however that comes.

    Args:
        api: the cluster and namespace.
        visit: what is asked for.
        tell: called with what is waited for, for people, when that changes.

    Raises:
        NoRightError: pods/exec is not allowed; nothing was created.
        ImageError: the pod cannot start for its image.
        BadInputError: there is no such claim, the pod is refused, or it cannot start.
        RetryableError: the cluster is away, or has no room for the pod within READY_SECONDS.
    """
    if visit.claim is not None:
        _require_exec(api)
        _require(api, visit.claim)
    name = pod_name()
    try:
        _create(api, visit, name)
        _await(api, name, visit, tell)
        yield name
    finally:
        with suppress(NotFoundError):
            _remove(api, name, tell)


def _create(api: Api, visit: Visit, name: str) -> None:
    try:
        api.create(pod(visit, name))
    except ForbiddenError as error:
        if f"no PriorityClass with name {visit.priority} was found" not in error.message:
            raise
        raise BadInputError(
            f"There is no PriorityClass {visit.priority}, which the pod that {visit.task} would have",
            hint="Name one that there is (kubectl get priorityclasses): edl data takes it by --priority, edl doctor by "
            "--low.",
        ) from error


def run(api: Api, name: str) -> Execution:
    """The program in the pod that serves its files.

    Raises:
        NoRightError: pods/exec is not allowed; the message names the ClusterRole.
        ApiError: the pod is gone; AwayError when there is no answer.
    """
    try:
        return Execution(api.connection, name, ["python", "-m", "edl.pod.files", MOUNT], namespace=api.namespace)
    except NotFoundError as error:
        raise BadInputError(
            "The pod that copies is gone: its time was over, or somebody deleted it",
            where=name,
            hint="The same command goes on where this one was cut off; --minutes gives it more time.",
        ) from error
    except NoRightError as error:
        error.hint = _granted_by(api)
        raise


def _require_exec(api: Api) -> None:
    """Asked first: a pod is not made and waited for only to find that nobody may use it."""
    if not may(api, _EXEC):
        message = f"You may not {_EXEC} in namespace {api.namespace}; nothing was created"
        raise NoRightError(message, hint=_granted_by(api))


def _granted_by(api: Api) -> str:
    return (
        f"Files are copied through pods/exec, which the ClusterRole {ROLE} allows: "
        f"have an admin bind it to you in namespace {api.namespace}."
    )


def _require(api: Api, claim: str) -> None:
    try:
        api.get(CLAIMS, claim)
    except NotFoundError as error:
        with_names = ""
        with suppress(ApiError):  # then the message is shorter
            found = [each["metadata"]["name"] for each in api.list(CLAIMS).items]
            with_names = f"There are: {', '.join(found)}." if found else "There is none at all."
        raise BadInputError(
            f"There is no PersistentVolumeClaim {claim} in namespace {api.namespace}", hint=with_names or None
        ) from error


def _await(api: Api, name: str, visit: Visit, tell: Callable[[str], None]) -> None:
    deadline, told = time.monotonic() + READY_SECONDS, ""
    while True:
        found = api.get(PODS, name)
        if found.get("status", {}).get("phase") == "Running":
            return
        wait = waits_for(found) or Wait("starting", "the pod starts")
        hint = _remedy(wait, visit) or None
        if wait.final:
            kind = ImageError if wait.reason in OF_IMAGES else BadInputError
            raise kind(f"The pod that {visit.task} cannot start: {wait.text}", where=name, hint=hint)
        if time.monotonic() > deadline:
            raise AwayError(f"The pod that {visit.task} has not started: {wait.text}", where=name, hint=hint)
        if wait.text != told:
            told = wait.text
            tell(told)
        time.sleep(_POLL_SECONDS)


def _remedy(wait: Wait, visit: Visit) -> str:
    """What can be done; ``wait`` may speak of a job file, and this pod has none."""
    if wait.reason in OF_IMAGES:
        return visit.remedy
    if scarce(wait.said):
        return f"It asks for {CPU} CPU and {MEMORY} of memory: try again when other pods have gone."
    return "" if wait.reason == "Unschedulable" and not wait.final else wait.remedy


def _remove(api: Api, name: str, tell: Callable[[str], None]) -> None:
    try:
        api.delete(PODS, name)
    except AwayError:
        tell(f"pod {name} could not be deleted: the API server is away; the pod ends by itself")

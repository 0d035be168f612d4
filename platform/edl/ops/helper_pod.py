"""A pod for the duration of one copy.

It mounts a claim, and programs are executed in its container.

The pod has nothing else: its service account has no rights, it gets no token, and it meets the Pod
Security level ``restricted``. It ends by itself, in case the command that created it cannot delete
it.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from edl.api.cluster_port import UNSCHEDULABLE, PodPhase
from edl.api.errors import BadInputError
from edl.api.pod_spec import RunAsSpec
from edl.cluster.kubernetes import names, pod_template
from edl.cluster.kubernetes.api_client import KubeClient
from edl.cluster.kubernetes.api_errors import ApiError, ForbiddenError, NoResponseError, NotFoundError, RbacDeniedError
from edl.cluster.kubernetes.pod_exec import PodExec
from edl.cluster.kubernetes.pod_status import pod_phase
from edl.cluster.kubernetes.resource_kinds import PODS, VOLUME_CLAIMS, Manifest
from edl.core.priority_rule import LOW_PRIORITY_CLASS
from edl.ops.access_reviews import AccessRight, has_right
from edl.ops.pod_problems import IMAGE_REASONS, PodProblem, find_pod_problem, insufficient_resources

CLAIM_MOUNT = "/claim"
DATA_COPY_ROLE = "edl-data-copy"
"""The ClusterRole that allows pods/exec and none of the rights that jobs need."""
READY_TIMEOUT_SECONDS = 180.0
CPU_REQUEST, MEMORY_REQUEST = "100m", "64Mi"
"""Requests of the pod."""
_POLL_SECONDS = 0.3
_EXEC_RIGHT = AccessRight("get", "pods/exec", "", "edl data", DATA_COPY_ROLE)


@dataclass(frozen=True, slots=True)
class ClaimPath:
    """A path on a claim, on the command line: ``CLAIM:/path``."""

    claim: str
    path: str

    def __str__(self) -> str:
        return f"{self.claim}:{self.path}"


def parse_claim_path(text: str) -> ClaimPath | None:
    """Parse ``CLAIM:/path``; None for a path of this machine."""
    claim, colon, path = text.partition(":")
    if not colon or "/" in claim or not claim:
        return None
    return ClaimPath(claim, "/" + path.lstrip("/"))


@dataclass(frozen=True, slots=True)
class HelperPodSpec:
    """The specification of a helper pod.

    Attributes:
        claim: the claim that it mounts; None for a pod that only tests whether its image can be
            pulled.
        image: an image with Python and EDL.
        run_as: user and group, which must have access to the claim's files.
        read_only: whether the claim is mounted read-only.
        lifetime_seconds: seconds after which the pod ends by itself.
        purpose: the pod's purpose for messages, as in "the pod that copies".
        image_remedy: what the user can do if the image is the problem.
        pull_secrets: names of the Secrets for pulling the image.
        priority_class: name of its PriorityClass. Quotas count pods by it, and policies refuse a
            pod without one.
    """

    claim: str | None
    image: str
    run_as: RunAsSpec
    read_only: bool = False
    lifetime_seconds: int = 3600
    purpose: str = "copies"
    image_remedy: str = "Check the name of the image, and that the nodes reach its registry."
    pull_secrets: tuple[str, ...] = ()
    priority_class: str = LOW_PRIORITY_CLASS


def new_pod_name() -> str:
    """A new name for a helper pod. The admission policies recognize helper pods by such names."""
    return f"edl-data-{secrets.token_hex(4)}"


class PodImageError(BadInputError):
    """The pod cannot start. Another image may help."""


def render_helper_pod(helper_spec: HelperPodSpec, name: str) -> Manifest:
    """A pod without rights that sleeps, for commands that ``edl`` runs in it, until its lifetime ends."""
    labels = {
        "app.kubernetes.io/name": "edl",
        "app.kubernetes.io/component": "data",
        "app.kubernetes.io/part-of": "edl",
        "app.kubernetes.io/managed-by": names.MANAGED_BY,
    }
    container: Manifest = {
        "name": names.ROLE_CONTAINER,
        "image": helper_spec.image,
        "command": ["sleep", str(helper_spec.lifetime_seconds)],
        "env": [{"name": "PYTHONDONTWRITEBYTECODE", "value": "1"}],
        "resources": {
            "requests": {"cpu": CPU_REQUEST, "memory": MEMORY_REQUEST, "ephemeral-storage": "16Mi"},
            "limits": {"memory": "256Mi", "ephemeral-storage": "256Mi"},
        },
        "securityContext": pod_template.container_security_context(),
    }
    optional: Manifest = {}
    if helper_spec.claim is not None:
        container["volumeMounts"] = [{"name": "claim", "mountPath": CLAIM_MOUNT, "readOnly": helper_spec.read_only}]
        optional["volumes"] = [{"name": "claim", "persistentVolumeClaim": {"claimName": helper_spec.claim}}]
    spec: Manifest = {
        "restartPolicy": "Never",
        "activeDeadlineSeconds": helper_spec.lifetime_seconds,
        "terminationGracePeriodSeconds": 1,
        "priorityClassName": helper_spec.priority_class,
        "serviceAccountName": names.POD_ACCOUNT,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": pod_template.pod_security_context(helper_spec.run_as),
        "containers": [container],
        "imagePullSecrets": [{"name": name} for name in helper_spec.pull_secrets],
        **optional,
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}, "spec": spec}


@contextmanager
def run_helper_pod(api: KubeClient, helper_spec: HelperPodSpec, on_wait: Callable[[str], None]) -> Iterator[str]:
    """Run a pod that mounts the claim, yield its name, and delete it on every exit from the block.

    Args:
        api: the cluster and namespace.
        helper_spec: the pod to run.
        on_wait: called with the reason why the pod waits, when it changes.

    Raises:
        RbacDeniedError: pods/exec is not allowed; nothing was created.
        PodImageError: the pod cannot start because of its image.
        BadInputError: the claim does not exist, the pod is refused, or it cannot start.
        RetryableError: the API server does not answer, or the pod is not ready within
            READY_TIMEOUT_SECONDS.
    """
    if helper_spec.claim is not None:
        _require_exec(api)
        _require_claim(api, helper_spec.claim)
    name = new_pod_name()
    try:
        _create_pod(api, helper_spec, name)
        _wait_until_running(api, name, helper_spec, on_wait)
        yield name
    finally:
        with suppress(NotFoundError):
            _delete_pod(api, name, on_wait)


def _create_pod(api: KubeClient, helper_spec: HelperPodSpec, name: str) -> None:
    try:
        api.create(render_helper_pod(helper_spec, name))
    except ForbiddenError as error:
        if f"no PriorityClass with name {helper_spec.priority_class} was found" not in error.message:
            raise
        raise BadInputError(
            f"There is no PriorityClass {helper_spec.priority_class} for the pod that {helper_spec.purpose}",
            hint="Choose an existing one (kubectl get priorityclasses) with --priority of edl data, or --low of edl "
            "doctor.",
        ) from error


def exec_file_server(api: KubeClient, name: str) -> PodExec:
    """Start the program in the pod that serves its files.

    Raises:
        RbacDeniedError: pods/exec is not allowed; the message names the ClusterRole.
        ApiError: the pod is gone; NoResponseError if the server does not answer.
    """
    try:
        return PodExec(api.connection, name, ["python", "-m", "edl.pod.files", CLAIM_MOUNT], namespace=api.namespace)
    except NotFoundError as error:
        raise BadInputError(
            "The pod that copies files is gone: it reached its time limit, or was deleted",
            where=name,
            hint="Run the same command again: it resumes the copy. --minutes raises the time limit.",
        ) from error
    except RbacDeniedError as error:
        error.hint = _exec_role_hint(api)
        raise


def _require_exec(api: KubeClient) -> None:
    """Check the right first, so that no pod is created and awaited that the user may not use."""
    if not has_right(api, _EXEC_RIGHT):
        message = f"You may not {_EXEC_RIGHT} in namespace {api.namespace}; nothing was created"
        raise RbacDeniedError(message, hint=_exec_role_hint(api))


def _exec_role_hint(api: KubeClient) -> str:
    return (
        f"Files on a volume are read and written through pods/exec, which the ClusterRole {DATA_COPY_ROLE} allows: "
        f"have an admin bind it to you in namespace {api.namespace}."
    )


def _require_claim(api: KubeClient, claim: str) -> None:
    try:
        api.get(VOLUME_CLAIMS, claim)
    except NotFoundError as error:
        with_names = ""
        with suppress(ApiError):  # the names are only a hint
            claims = [each["metadata"]["name"] for each in api.list(VOLUME_CLAIMS).items]
            with_names = f"The namespace has: {', '.join(claims)}." if claims else "The namespace has no claims."
        raise BadInputError(
            f"There is no PersistentVolumeClaim {claim} in namespace {api.namespace}", hint=with_names or None
        ) from error


def _wait_until_running(api: KubeClient, name: str, helper_spec: HelperPodSpec, on_wait: Callable[[str], None]) -> None:
    deadline, last_text = time.monotonic() + READY_TIMEOUT_SECONDS, ""
    while True:
        pod = api.get(PODS, name)
        if pod_phase(pod) == PodPhase.RUNNING:
            return
        wait = find_pod_problem(pod) or PodProblem("starting", "the pod starts")
        hint = _pod_remedy(wait, helper_spec) or None
        if wait.is_final:
            kind = PodImageError if wait.reason in IMAGE_REASONS else BadInputError
            raise kind(f"The pod that {helper_spec.purpose} cannot start: {wait.text}", where=name, hint=hint)
        if time.monotonic() > deadline:
            raise NoResponseError(
                f"The pod that {helper_spec.purpose} has not started: {wait.text}", where=name, hint=hint
            )
        if wait.text != last_text:
            last_text = wait.text
            on_wait(last_text)
        time.sleep(_POLL_SECONDS)


def _pod_remedy(problem: PodProblem, helper_spec: HelperPodSpec) -> str:
    """The remedy for a helper pod.

    That of ``problem`` may name a job file, and this pod has none.
    """
    if problem.reason in IMAGE_REASONS:
        return helper_spec.image_remedy
    if insufficient_resources(problem.cluster_message):
        return f"It requests {CPU_REQUEST} CPU and {MEMORY_REQUEST} of memory: try again when other pods have ended."
    return "" if problem.reason == UNSCHEDULABLE and not problem.is_final else problem.remedy


def _delete_pod(api: KubeClient, name: str, on_wait: Callable[[str], None]) -> None:
    try:
        api.delete(PODS, name)
    except NoResponseError:
        on_wait(f"pod {name} could not be deleted: the API server does not answer; the pod ends at its time limit")

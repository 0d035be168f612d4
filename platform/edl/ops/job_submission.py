"""Creates the objects of a job so that a failure never leaves a partial job behind.

The Job is created first, suspended. It owns the other objects, which are created next; then it is
unsuspended. If ``submit_job`` fails, it deletes the Job, and Kubernetes deletes the rest with it.
The steps ``create_suspended_job``, ``create_dependents`` and ``unsuspend_job`` are idempotent and
may run concurrently: the submitter of a release repeats them after it was interrupted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from edl.api.cluster_port import PodPhase, Role
from edl.api.errors import EdlError
from edl.api.exit_codes import SIGTERM_EXIT
from edl.cluster.kubernetes import names
from edl.cluster.kubernetes.api_client import KubeClient
from edl.cluster.kubernetes.api_errors import ApiError, ConflictError, NotFoundError, RbacDeniedError
from edl.cluster.kubernetes.job_manifests import owner_reference
from edl.cluster.kubernetes.pod_status import (
    ContainerStatus,
    failed_pod_reason,
    pod_phase,
    read_containers,
    scheduling_refusal,
)
from edl.cluster.kubernetes.resource_kinds import (
    CONFIGMAPS,
    EVENTS,
    JOBS,
    PODS,
    Manifest,
    is_being_deleted,
    manifest_kind,
)

BEGUN_ANNOTATION = "edl.dev/begun"
"""Annotation of a Job that was complete and unsuspended once.

If it is suspended now, a user suspended it.
"""


@dataclass(frozen=True, slots=True)
class SubmittedJob:
    """A job whose Job object exists."""

    name: str
    job_object_name: str
    uid: str
    namespace: str


def submit_job(
    api: KubeClient,
    job: str,
    manifests: Sequence[Manifest],
    submission: str,
    on_created: Callable[[Manifest], Any] = lambda _: None,
) -> SubmittedJob:
    """Create a rendered job and let it start.

    Args:
        job: the job's name.
        manifests: the result of ``edl.cluster.kubernetes.job_manifests.render_job``. The Job is
            last.
        submission: unique to this call.
        on_created: called with each object after its creation.

    Raises:
        ApiError: the server refuses an object; the objects created so far are deleted.
    """
    *parts, rendered = manifests
    try:
        submitted = create_suspended_job(api, job, rendered, submission, on_created)
        create_dependents(api, submitted, parts, on_created)
        unsuspend_job(api, submitted)
    # Also on Ctrl-C: a partial job must not stay behind.
    except BaseException as error:
        _roll_back_on_error(api, rendered["metadata"]["name"], submission, error)
        raise
    return submitted


def create_suspended_job(
    api: KubeClient,
    job: str,
    rendered: Manifest,
    submission: str,
    on_created: Callable[[Manifest], Any] = lambda _: None,
) -> SubmittedJob:
    """Create the Job of a job, suspended.

    Raises:
        ConflictError: a Job of another submission has its name.
    """
    created_job = _create_or_get_job(api, _with_suspend(rendered, submission), submission)
    on_created(created_job)
    meta = created_job["metadata"]
    return SubmittedJob(job, meta["name"], meta["uid"], str(meta.get("namespace") or api.namespace))


def create_dependents(
    api: KubeClient,
    submitted: SubmittedJob,
    parts: Sequence[Manifest],
    on_created: Callable[[Manifest], Any] = lambda _: None,
) -> None:
    """Create the objects that the Job owns, as far as they are missing."""
    for part in parts:
        on_created(
            _create_or_get_part(api, _with_owner(part, owner_reference(submitted.name, submitted.uid)), submitted.uid)
        )


def unsuspend_job(api: KubeClient, submitted: SubmittedJob) -> None:
    """Unsuspend a complete job.

    Raises:
        NotFoundError: the Job was deleted.
        ApiError: another Job has its name by now.
    """
    # A patch that carries a uid is refused for an object with another uid.
    meta = {"uid": submitted.uid, "annotations": {BEGUN_ANNOTATION: "true"}}
    api.patch(JOBS, submitted.job_object_name, {"metadata": meta, "spec": {"suspend": False}})


def roll_back_submission(api: KubeClient, name: str, submission: str) -> None:
    """Delete the Job of a submission, and the objects that it owns, unless it was already
    unsuspended.

    Args:
        name: name of the Job.
    """
    try:
        existing = api.get(JOBS, name)
        if _has_submission(existing, submission) and not is_begun(existing):
            api.delete(JOBS, name, uid=existing["metadata"]["uid"])
    except (NotFoundError, ConflictError):
        return


def is_begun(job: Manifest) -> bool:
    """Whether a Job was ever unsuspended."""
    return not job["spec"].get("suspend") or BEGUN_ANNOTATION in (job["metadata"].get("annotations") or {})


def _with_suspend(job: Manifest, submission: str) -> Manifest:
    meta = job["metadata"]
    marked = {**meta, "annotations": {**(meta.get("annotations") or {}), names.SUBMISSION_ANNOTATION: submission}}
    return {**job, "metadata": marked, "spec": {**job["spec"], "suspend": True}}


def _with_owner(manifest: Manifest, reference: Manifest) -> Manifest:
    return {**manifest, "metadata": {**manifest["metadata"], "ownerReferences": [reference]}}


def _create_or_get_job(api: KubeClient, job: Manifest, submission: str) -> Manifest:
    try:
        return api.create(job)
    except ConflictError:
        existing = api.get(JOBS, job["metadata"]["name"])
        if not _has_submission(existing, submission):
            raise
        return existing


def _create_or_get_part(api: KubeClient, part: Manifest, uid: str) -> Manifest:
    try:
        return api.create(part)
    except ConflictError:
        try:
            existing = api.get(manifest_kind(part), part["metadata"]["name"])
        # Users may create Secrets but not read them. The preflight found the name free, and since
        # then the Job of this name is ours, so the Secret is, too.
        except RbacDeniedError:
            return part
        if not any(reference.get("uid") == uid for reference in existing["metadata"].get("ownerReferences") or ()):
            raise
        return existing


def _roll_back_on_error(api: KubeClient, name: str, submission: str, cause: BaseException) -> None:
    """Delete the Job of this submission, if it was created, and the objects that it owns."""
    try:
        existing = api.get(JOBS, name)
        if _has_submission(existing, submission):
            api.delete(JOBS, name, uid=existing["metadata"]["uid"])
    except NotFoundError:
        return
    except ApiError as error:
        if isinstance(cause, EdlError):
            cause.hint = (
                f"The suspended Job {name} may still exist: {error.message}. Delete it when the cluster answers."
            )


def _has_submission(job: Manifest, submission: str) -> bool:
    return (job["metadata"].get("annotations") or {}).get(names.SUBMISSION_ANNOTATION) == submission


# --------------------------------------------------------------------------------------------------
# Waiting for the master of a submitted job to start, by the status of its pod.


START_TIMEOUT_SECONDS = 60.0
SETTLE_SECONDS = 10.0
"""A container that has run for this long counts as started, even if its master has not published a
status yet.
"""
START_POLL_SECONDS = 0.5
_LOG_TAIL_LINES = 15

PULL_FAILED_REASON = "ErrImagePull"
"""One attempt to pull the image failed, perhaps temporarily.

If it keeps failing, the reason becomes ``ImagePullBackOff``.
"""


class MasterStage(StrEnum):
    """How far the master's start has come."""

    ABSENT = "no pod yet"
    PENDING = "pending"
    CREATING = "creating"
    RUNNING = "running"
    SERVING = "serving"
    REPLACED = "being replaced"
    ENDED = "ended"
    FAILED = "failed"


FINAL_STAGES = (MasterStage.SERVING, MasterStage.ENDED, MasterStage.FAILED)
"""Stages at which waiting for the start ends."""


@dataclass(frozen=True, slots=True)
class MasterPodStatus:
    """The master's pod at one moment.

    Attributes:
        reason: Kubernetes' reason code: ``ImagePullBackOff``, ``Unschedulable``,
            ``ContainerCreating``.
        message: the message of the scheduler, the kubelet or the container.
        exit_code: of a container that ended.
        pod_name: empty while there is no pod.
        container_name: name of the init container that the reason is about; empty for the role's
            own container.
    """

    stage: MasterStage
    reason: str = ""
    message: str = ""
    exit_code: int | None = None
    pod_name: str = ""
    container_name: str = ""

    @property
    def has_started(self) -> bool:
        """Whether the master's container has started and not failed."""
        return self.stage in (MasterStage.RUNNING, MasterStage.SERVING, MasterStage.ENDED)


def classify_master_pod(pod: Manifest | None) -> MasterPodStatus:
    """The stage of a master's pod. Sidecars do not count: one may crash while the master serves."""
    if pod is None:
        return MasterPodStatus(MasterStage.ABSENT)
    name, leaving, containers = pod["metadata"]["name"], is_being_deleted(pod), read_containers(pod)
    own = next((each for each in containers if each.is_role), None)
    if own is None or (own.waiting is not None and own.last_end is None):
        # The role's container has never run. A failing init container explains why.
        for container in containers:
            status = _container_status(name, container, leaving=leaving)
            if container.is_init and (status.stage is MasterStage.FAILED or status.reason == PULL_FAILED_REASON):
                return replace(status, container_name=container.name)
    if own is not None:
        return _container_status(name, own, leaving=leaving)
    if pod_phase(pod) == PodPhase.FAILED:
        return MasterPodStatus(MasterStage.FAILED, *failed_pod_reason(pod), pod_name=name)
    refusal = scheduling_refusal(pod)
    if refusal is not None:
        return MasterPodStatus(MasterStage.PENDING, *refusal, pod_name=name)
    scheduled = bool(pod["spec"].get("nodeName"))
    return MasterPodStatus(MasterStage.CREATING if scheduled else MasterStage.PENDING, pod_name=name)


def _container_status(pod: str, container: ContainerStatus, *, leaving: bool) -> MasterPodStatus:
    end = container.end or container.last_end
    if end is not None and end.exit_code not in (0, SIGTERM_EXIT) and not leaving:
        return MasterPodStatus(MasterStage.FAILED, end.reason or "Error", end.message.strip(), end.exit_code, pod)
    # The pod was deleted or evicted: the Job controller creates another one.
    if container.end is not None and container.end.exit_code != 0:
        return MasterPodStatus(
            MasterStage.REPLACED, "Terminated", "it was stopped; its Job creates a new one", pod_name=pod
        )
    if container.end is not None:
        return MasterPodStatus(MasterStage.ENDED, container.end.reason, exit_code=0, pod_name=pod)
    if container.running:
        return MasterPodStatus(MasterStage.RUNNING, pod_name=pod)
    stage = MasterStage.FAILED if container.waits_in_vain else MasterStage.CREATING
    reason, message = container.waiting or ("", "")
    return MasterPodStatus(stage, reason, message, pod_name=pod)


def wait_for_start(
    read_status: Callable[[], MasterPodStatus],
    on_change: Callable[[MasterPodStatus], None],
    clock: Callable[[], float],
    sleep: Callable[[float], Any],
) -> MasterPodStatus:
    """Poll until the master has started or failed, for START_TIMEOUT_SECONDS at most.

    ``on_change`` is called with the first status and with each different one.
    """
    began = clock()
    last, running_since = read_status(), began
    on_change(last)
    while last.stage not in FINAL_STAGES:
        now = clock()
        if last.stage is not MasterStage.RUNNING:
            running_since = now
        if now - began >= START_TIMEOUT_SECONDS or now - running_since >= SETTLE_SECONDS:
            break
        sleep(START_POLL_SECONDS)
        pod_status = read_status()
        if pod_status != last:
            on_change(pod_status)
        last = pod_status
    return last


class MasterStatusReader:
    """Reads the status of one Job's master.

    While the API server does not answer, the last status stands.
    """

    def __init__(self, api: KubeClient, job: str, uid: str) -> None:
        self._api, self._job, self._uid = api, job, uid
        self._last_status = MasterPodStatus(MasterStage.ABSENT)

    def read_status(self) -> MasterPodStatus:
        """The current status, or the last one if the API server does not answer."""
        with suppress(ApiError):
            self._last_status = self._read_pod_status()
        return self._last_status

    def _read_pod_status(self) -> MasterPodStatus:
        pods = self._api.list(PODS, labels=names.label_selector(self._job, Role.MASTER)).items
        own = [pod for pod in pods if _is_owned_by(pod, self._uid)]
        newest = max(own, key=_pod_age_key, default=None)
        status = classify_master_pod(newest)
        if status.stage is MasterStage.RUNNING and self._has_published():
            return MasterPodStatus(MasterStage.SERVING, pod_name=status.pod_name)
        if status.stage is MasterStage.FAILED and status.exit_code is not None and not status.message:
            return replace(
                status, message=self._read_log_tail(status.pod_name, status.container_name or names.ROLE_CONTAINER)
            )
        if status.stage in (MasterStage.ABSENT, MasterStage.CREATING) and not status.message:
            about = newest["metadata"]["uid"] if newest else self._uid
            return MasterPodStatus(status.stage, status.reason, self._newest_warning(about), pod_name=status.pod_name)
        return status

    def _has_published(self) -> bool:
        try:
            pages = self._api.get(CONFIGMAPS, names.status_configmap(self._job)).get("data") or {}
        except NotFoundError:
            return False
        try:
            return bool(json.loads(pages.get("status.json", "{}")))
        except ValueError:
            return False

    def _newest_warning(self, uid: str) -> str:
        """The newest warning about an object; empty if there is none, or the user may not read
        events.
        """
        try:
            events = self._api.list(EVENTS, fields=f"involvedObject.uid={uid},type=Warning").items
        except ApiError:
            return ""
        newest = max(events, key=lambda event: str(event.get("lastTimestamp") or event.get("eventTime")), default={})
        return str(newest.get("message", ""))

    def _read_log_tail(self, pod: str, container: str) -> str:
        try:
            lines = list(self._api.logs(pod, container=container, tail=_LOG_TAIL_LINES).lines())
        except ApiError:
            return ""
        return b"\n".join(lines).decode(errors="replace").strip()


def _pod_age_key(pod: Manifest) -> tuple[str, bool]:
    """Sort key from oldest to newest.

    Timestamps have whole seconds; of two equal ones a deleted pod is the older.
    """
    return str(pod["metadata"].get("creationTimestamp", "")), not is_being_deleted(pod)


def _is_owned_by(pod: Manifest, uid: str) -> bool:
    return any(owner.get("uid") == uid for owner in pod["metadata"].get("ownerReferences") or ())

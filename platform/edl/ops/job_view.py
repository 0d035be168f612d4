"""Jobs of a cluster: the Kubernetes Job of each, and the status that its master publishes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any

from edl.api.cluster_port import Role
from edl.api.errors import BadInputError
from edl.api.job_spec import JobSpec
from edl.api.status import ENDED, STALLED, Status
from edl.api.status import PHASES as MASTERS_PHASES
from edl.cluster.kubernetes import names, status_publisher
from edl.cluster.kubernetes.api_client import ALL_NAMESPACES, KubeClient
from edl.cluster.kubernetes.api_errors import ApiError, ForbiddenError, NotFoundError
from edl.cluster.kubernetes.pod_status import unreachable_since
from edl.cluster.kubernetes.resource_kinds import (
    CONFIGMAPS,
    EVENTS,
    JOBS,
    PODS,
    Manifest,
    creation_time,
    is_being_deleted,
    parse_timestamp,
)
from edl.cluster.status_port import DesiredState
from edl.core.short_list import format_short_list
from edl.jobfile.document_tree import SpecError
from edl.jobfile.loader import load_job_text
from edl.jobfile.published_status import PublishedStatus
from edl.ops.job_deletion import JobObjects
from edl.ops.pod_problems import find_pod_problem
from edl.reporting.unit_formats import format_duration, format_utc

MASTER_SELECTOR = f"{names.JOB_LABEL},{names.ROLE_LABEL}={Role.MASTER.value}"
JOB_PHASES = ("Pending", "Suspended", *MASTERS_PHASES, "Deleting")
"""All phases of a job: those that its master reports and those that follow from the Kubernetes Job."""
AWAY_STATES = ("pending", "leaving")
"""States of a worker that does not run yet, or is terminating."""
MASTER_SILENT_SECONDS = 30.0
"""A master publishes every second. One whose status is older than this counts as silent."""
_NO_JOBS_HINT = "-n selects another namespace; `edl list -A` lists the jobs of all namespaces."


class UnknownJobError(BadInputError):
    """No job has this name."""


@dataclass(frozen=True, slots=True)
class JobView:
    """One job at one moment.

    Attributes:
        name: of the job.
        namespace: where it is.
        manifest: the Job, as the API server has it.
        published_status: the last publication of its master; empty before the first one, and if it cannot be read.
        unreadable_reason: why the publication cannot be read: the master runs another version of EDL.
        master_silence: why the state of a started job is unknown: its master no longer reports.
    """

    name: str
    namespace: str
    manifest: Manifest
    published_status: PublishedStatus
    unreadable_reason: str = ""
    master_silence: str = field(default="", kw_only=True)

    @property
    def uid(self) -> str:
        return str(self.manifest["metadata"]["uid"])

    @property
    def is_local(self) -> bool:
        """Whether it is a run of `edl run` on this machine."""
        return False

    @property
    def has_logs(self) -> bool:
        """Whether `edl logs` has something to show."""
        return True

    @property
    def task(self) -> str:
        """What it does: train, evaluate or predict."""
        annotations = self.manifest["metadata"].get("annotations") or {}
        task = str(annotations.get(names.TASK_ANNOTATION))
        return task if task in ("evaluate", "predict") else "train"

    @property
    def location_text(self) -> str:
        """Where it is, and the event from which its age counts; for messages."""
        return f"namespace {self.namespace}, submitted"

    @property
    def created_at(self) -> float:
        """When it was submitted, in unix seconds."""
        return creation_time(self.manifest)

    @property
    def desired_state(self) -> DesiredState:
        """The desired state that users have set with `edl scale` and `edl stop`."""
        return status_publisher.read_desired_state(self.manifest)

    @property
    def status(self) -> Status | None:
        """The status that the master published; None before the first one."""
        return self.published_status.status

    @property
    def phase(self) -> str:
        """The job's phase: as its master reports it, unless the Kubernetes Job says otherwise.

        Kubernetes comes first because a master that has ended, or was deleted, cannot correct its last status.
        """
        published_phase = self.status.phase if self.status else ""
        ended = job_conditions(self.manifest)
        if is_being_deleted(self.manifest):
            return "Deleting"
        if "Complete" in ended:
            return "Done"
        if "Failed" in ended:
            return published_phase if published_phase in ENDED else "Failed"
        if self.manifest.get("spec", {}).get("suspend"):
            return "Suspended"
        if self.master_silence:
            return STALLED
        return published_phase or ("Starting" if self.manifest.get("status", {}).get("ready") else "Pending")

    @property
    def running_workers(self) -> int:
        """Workers that run: neither pending nor terminating."""
        return sum(worker.state not in AWAY_STATES for worker in self.status.workers) if self.status else 0

    @property
    def starting_workers(self) -> int:
        """Running workers that do not train yet: they import TensorFlow, build the model, or follow the round."""
        return sum(worker.state in ("starting", "joining") for worker in self.status.workers) if self.status else 0

    @property
    def ready_workers(self) -> int:
        """Workers that run and have finished starting; they train, or wait for a lease."""
        return self.running_workers - self.starting_workers

    @property
    def stall_reason(self) -> str:
        """What a stalled job waits for; empty for any other job."""
        if self.phase != STALLED:
            return ""
        return self.master_silence or (self.status.reason if self.status else "")

    @property
    def has_ended(self) -> bool:
        """Whether the job is over."""
        return self.phase in ENDED

    @property
    def ended_at(self) -> float | None:
        """When it ended, in unix seconds; None while it has not."""
        status = self.manifest.get("status", {})
        failed = job_conditions(self.manifest).get("Failed", {})
        return parse_timestamp(status.get("completionTime") or failed.get("lastTransitionTime"))


def job_conditions(job: Manifest) -> dict[str, Manifest]:
    """The conditions of a Job that hold, by type."""
    conditions = job.get("status", {}).get("conditions") or ()
    return {each["type"]: each for each in conditions if each.get("status") == "True"}


def list_jobs(api: KubeClient, *, all_namespaces: bool = False) -> list[JobView]:
    """All jobs of the namespace, or of all namespaces, by namespace and name."""
    where = ALL_NAMESPACES if all_namespaces else None
    pages = _published_pages(api.list(CONFIGMAPS, namespace=where, labels=names.label_selector()).items)
    jobs = api.list(JOBS, namespace=where, labels=MASTER_SELECTOR)
    views = [_make_job_view(job, pages.get((job["metadata"]["namespace"], _job_name(job)), {})) for job in jobs.items]
    views = [_check_master_silence(api, job, jobs.server_time) for job in views]
    return sorted(views, key=lambda each: (each.namespace, each.name))


def find_job(api: KubeClient, job: str) -> JobView:
    """A job of the namespace.

    Raises:
        UnknownJobError: no job has this name; the hint lists the jobs.
    """
    try:
        answer = api.request("GET", JOBS.path(api.namespace, names.master_name(job)))
    except NotFoundError as error:
        raise _unknown_job_error(api, job) from error
    try:
        status = api.get(CONFIGMAPS, names.status_configmap(job))
    except NotFoundError:  # somebody deleted it; the master will create it again
        status = {}
    return _check_master_silence(api, _make_job_view(answer.body, status.get("data") or {}), answer.server_time)


def list_job_names(api: KubeClient) -> list[str]:
    """The names of the namespace's jobs."""
    return sorted(_job_name(job) for job in api.list(JOBS, labels=MASTER_SELECTOR).items)


def list_job_pods(api: KubeClient, job: str, role: Role | None = None) -> list[Manifest]:
    """The pods of a job: master, parameter servers, workers, each by index."""
    # One without a role is the pod of master.log_pod.
    pods = api.list(PODS, labels=names.label_selector(job, role)).items
    role_pods = [pod for pod in pods if names.ROLE_LABEL in pod["metadata"].get("labels", {})]
    return sorted(role_pods, key=_pod_order)


def pod_role(pod: Manifest) -> Role:
    """Which role a pod of a job has."""
    return Role(pod["metadata"]["labels"][names.ROLE_LABEL])


def pod_index(pod: Manifest) -> int:
    """The index of a pod within its role; 0 for the master."""
    return int(pod["metadata"]["labels"].get(names.INDEX_LABEL, "0"))


def pod_label(pod: Manifest) -> str:
    """The short name of a pod for messages: ``master``, ``worker-3``."""
    role = pod_role(pod)
    return role.value if role is Role.MASTER else f"{role}-{pod_index(pod)}"


def read_job_spec(api: KubeClient, job: str) -> dict[str, Any]:
    """The JobSpec of a job as JSON, with all defaults; raises NotFoundError when its ConfigMap is gone."""
    spec = json.loads(api.get(CONFIGMAPS, names.spec_configmap(job))["data"][names.SPEC_KEY])
    assert isinstance(spec, dict)
    return spec


def worker_bounds(spec: Mapping[str, Any]) -> tuple[int, int]:
    """``workers.min`` and ``workers.max`` of a job's spec."""
    return int(spec["workers"]["min"]), int(spec["workers"]["max"])


def global_batch(spec: Mapping[str, Any]) -> int | None:
    """``strategy.global_batch`` of a job's spec; None also for a job of a version that does not have it."""
    size = spec.get("strategy", {}).get("global_batch")
    return None if size is None else int(size)


def _make_job_view(job: Manifest, pages: dict[str, str]) -> JobView:
    name, namespace = _job_name(job), job["metadata"]["namespace"]
    try:
        return JobView(name, namespace, job, PublishedStatus.from_configmap_data(pages))
    except SpecError as error:  # a job whose master runs another version must not hide the other jobs
        return JobView(name, namespace, job, PublishedStatus(), str(error))


def _check_master_silence(api: KubeClient, job: JobView, now: float | None) -> JobView:
    """The job; with the reason in ``master_silence`` if its master has not reported for too long.

    Args:
        now: the API server's clock; None if the answer has no date. The user's own clock may be wrong by more than
            MASTER_SILENT_SECONDS, while nodes and API server are usually synchronized.
    """
    status = job.status
    if status is None or now is None or job.phase in (*ENDED, "Deleting", "Suspended"):
        return job
    silent = now - status.updated
    if silent < MASTER_SILENT_SECONDS:
        return job
    try:
        masters = api.list(PODS, namespace=job.namespace, labels=names.label_selector(job.name, Role.MASTER)).items
    except ForbiddenError:
        return replace(job, master_silence=f"its master has not reported for {format_duration(silent)}")
    return replace(
        job, master_silence=f"{_describe_master(masters)}; it has not reported for {format_duration(silent)}"
    )


def _describe_master(masters: Iterable[Manifest]) -> str:
    """The state of the newest master pod."""
    newest = max(masters, key=creation_time, default=None)
    if newest is None:
        return "its master's pod is gone, and the Job controller has not created another one yet"
    lost = unreachable_since(newest)
    if lost:
        return f"its master's node {newest['spec'].get('nodeName')} has been unreachable since {format_utc(lost)}"
    wait = find_pod_problem(newest)
    if wait is not None:
        return f"its master waits: {wait.text}"
    return "its master is shutting down" if is_being_deleted(newest) else "its master runs"


def _job_name(manifest: Manifest) -> str:
    return str(manifest["metadata"]["labels"][names.JOB_LABEL])


def _published_pages(configmaps: Iterable[Manifest]) -> dict[tuple[str, str], dict[str, str]]:
    """The published pages by namespace and job."""
    pages_by_job = {}
    for each in configmaps:
        meta = each["metadata"]
        if meta["name"] == names.status_configmap(_job_name(each)):
            pages_by_job[meta["namespace"], _job_name(each)] = each.get("data") or {}
    return pages_by_job


def _pod_order(pod: Manifest) -> tuple[int, int, float]:
    return list(Role).index(pod_role(pod)), pod_index(pod), creation_time(pod)


def _unknown_job_error(api: KubeClient, job: str) -> UnknownJobError:
    message = f"There is no job {job} in namespace {api.namespace}"
    try:
        job_names = list_job_names(api)
    except ApiError:  # the names are only a hint
        return UnknownJobError(message, hint=_NO_JOBS_HINT)
    if near := get_close_matches(job, job_names, n=3):
        return UnknownJobError(message, hint=f"Did you mean {' or '.join(near)}?")
    if not job_names:
        return UnknownJobError(message, hint=f"The namespace has no jobs. {_NO_JOBS_HINT}")
    return UnknownJobError(message, hint=f"Its jobs are: {format_short_list(job_names, 10)}.")


# --------------------------------------------------------------------------------------------------
# The existing job of a name, when another one is submitted.


def find_existing_job(job_objects: JobObjects) -> JobView | None:
    """The Job among the objects of a job; None if it is gone, although other objects may be left."""
    for job in job_objects.select_kind(JOBS):
        meta = job["metadata"]
        name = meta["labels"][names.JOB_LABEL]
        return JobView(name, meta.get("namespace", ""), job, *_read_publication(job_objects, name))
    return None


def read_submitted_spec(job_objects: JobObjects, name: str) -> JobSpec | None:
    """The spec that the job was submitted with; None when its ConfigMap is gone or of another version of EDL."""
    for page in job_objects.select_kind(CONFIGMAPS):
        if page["metadata"]["name"] == names.spec_configmap(name):
            try:
                return load_job_text((page.get("data") or {}).get(names.SPEC_KEY, ""), names.spec_configmap(name))
            except SpecError:  # no early check then: the new master compares with the spec on the volume
                return None
    return None


def format_submit_time(job: JobView) -> str:
    """When a job was submitted, for messages."""
    return str(job.manifest["metadata"].get("creationTimestamp", "")).replace("T", " ").replace("Z", " UTC")


def _read_publication(job_objects: JobObjects, name: str) -> tuple[PublishedStatus, str]:
    pages: Manifest = {}
    for page in job_objects.select_kind(CONFIGMAPS):
        if page["metadata"]["name"] == names.status_configmap(name):
            pages = page.get("data") or {}
    try:
        return PublishedStatus.from_configmap_data(pages), ""
    except SpecError as error:
        return PublishedStatus(), str(error)


# --------------------------------------------------------------------------------------------------
# Kubernetes events about the objects of a job.


@dataclass(frozen=True, slots=True)
class KubernetesEvent:
    """One event of an object; repetitions are counted in it.

    Attributes:
        last_seen: when it happened last, in unix seconds.
        involved_object: kind and name of the object: ``Pod edl-mnist-worker-3``.
        reason: the event's reason code, such as ``FailedScheduling``.
        text: the event's message.
        is_warning: whether its type is Warning.
        count: how often it happened.
    """

    last_seen: float
    involved_object: str
    reason: str
    text: str
    is_warning: bool
    count: int = 1


def list_job_events(api: KubeClient, job: str) -> list[KubernetesEvent]:
    """The events of a job's objects, oldest first; Kubernetes keeps them for an hour by default."""
    return select_job_events(api.list(EVENTS).items, job)


def select_job_events(events: Iterable[Manifest], job: str) -> list[KubernetesEvent]:
    """The events that are about objects of the job, oldest first."""
    return sorted((parse_event(event) for event in events if is_about_job(event, job)), key=lambda each: each.last_seen)


def is_about_job(event: Manifest, job: str) -> bool:
    """Whether an event is about an object of the job; ``edl-a-worker-1`` is not one of the job ``a-worker``."""
    name = str(event.get("involvedObject", {}).get("name", ""))
    own = (names.master_name(job), names.spec_configmap(job), names.status_configmap(job), names.token_secret(job))
    if name in own or name.startswith(f"{names.master_name(job)}-"):
        return True
    role, dash, index = name.removeprefix(f"edl-{job}-").partition("-")
    return name.startswith(f"edl-{job}-") and role in ("ps", "worker") and bool(dash) and index.isdigit()


def parse_event(event: Manifest) -> KubernetesEvent:
    """Parse an event of either API: core/v1 has a count, events.k8s.io/v1 a series."""
    about, series = event.get("involvedObject", {}), event.get("series") or {}
    when = series.get("lastObservedTime") or event.get("lastTimestamp") or event.get("eventTime")
    return KubernetesEvent(
        parse_timestamp(when) or creation_time(event),
        f"{about.get('kind', '')} {about.get('name', '')}".strip(),
        str(event.get("reason") or ""),
        " ".join(str(event.get("message") or "").split()),
        event.get("type") == "Warning",
        int(series.get("count") or event.get("count") or 1),
    )

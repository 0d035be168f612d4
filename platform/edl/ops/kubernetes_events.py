"""What Kubernetes says happened to the objects of a job: its events, read and ordered."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from edl.cluster.kubernetes import names
from edl.cluster.kubernetes.api_client import KubeClient
from edl.cluster.kubernetes.resource_kinds import EVENTS, Manifest
from edl.cluster.kubernetes.timestamps import creation_time, parse_timestamp


@dataclass(frozen=True, slots=True)
class KubernetesEvent:
    """One event of an object; repetitions of it are one.

    Attributes:
        time: when it happened last, in unix seconds.
        about: kind and name of the object: ``Pod edl-mnist-worker-3``.
        reason: the cluster's own word, such as ``FailedScheduling``.
        text: the cluster's own sentence.
        warning: whether something is wrong.
        count: how often it happened.
    """

    time: float
    about: str
    reason: str
    text: str
    warning: bool
    count: int = 1


def list_job_events(api: KubeClient, job: str) -> list[KubernetesEvent]:
    """What happened to the objects of a job, the oldest first; the cluster forgets after an hour."""
    return select_job_events(api.list(EVENTS).items, job)


def select_job_events(events: Iterable[Manifest], job: str) -> list[KubernetesEvent]:
    """Those events that are about objects of the job, the oldest first."""
    return sorted((parse_event(event) for event in events if is_about_job(event, job)), key=lambda each: each.time)


def is_about_job(event: Manifest, job: str) -> bool:
    """Whether an event is about an object of the job; ``edl-a-worker-1`` is not one of the job ``a-worker``."""
    name = str(event.get("involvedObject", {}).get("name", ""))
    own = (names.master_name(job), names.spec_configmap(job), names.status_configmap(job), names.token_secret(job))
    if name in own or name.startswith(f"{names.master_name(job)}-"):
        return True
    role, dash, index = name.removeprefix(f"edl-{job}-").partition("-")
    return name.startswith(f"edl-{job}-") and role in ("ps", "worker") and bool(dash) and index.isdigit()


def parse_event(event: Manifest) -> KubernetesEvent:
    """An event of either API: older components count, newer ones keep a series."""
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

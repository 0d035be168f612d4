"""What a pod's object means to its job: the only module that reads ``status`` of a pod.

``read_pod_status`` is a pure function from the API server's words to the ``PodStatus`` of the core. Commands, which
tell people of pods, ask the functions below it. The rules that are easy to get wrong:

- Pods never restart their containers, so that the end of the role's container is the end of the pod, whatever a sidecar
  still does and however long the object stays.
- A sidecar's end says nothing of the role, and neither does a sidecar that runs while the role's container waits.
- ``ContainerStatusUnknown`` comes with an exit code (137) that the kubelet made up: it lost the container.
- A deletion is seen twice: ``deletionTimestamp`` when it is asked for, the end of the container when it is done. It
  does not say when it was asked for: the kubelet moves it when it is done.
- Exit code 137 says SIGKILL. Who sent it is told by the reason ``OOMKilled``, the condition ``DisruptionTarget``, the
  pod's own ``reason`` or the deletion; without any of them it was somebody on the node.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from edl.api.cluster_port import PodPhase, PodStatus, Role, TerminationCause
from edl.api.errors import SIGKILL_EXIT, SIGTERM_EXIT
from edl.cluster.kubernetes import names
from edl.cluster.kubernetes.resource_kinds import Manifest, parse_timestamp

# --------------------------------------------------------------------------------------------------
# Of what a container wrote last, the line that says why it ended.
#
# Kubernetes passes on the end of a failed container's log, and that of a process that uses TensorFlow is mostly noise.


_LOG_NOISE = re.compile(
    r"WARNING: All log messages before absl::InitializeLog"
    r"|[IWE]\d{4} \d\d:\d\d:"  # absl: I0000 00:00:1763...
    r"|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: [IWE] "  # TensorFlow
    r"|To enable the following instructions: "
)
_INDENTED = re.compile(r"\s")


def last_error_line(text: str) -> str:
    """The last line that begins a statement, such as an exception's; empty when there is nothing but noise.

    Indented lines go on with one before them: a traceback, or the hint of an error of EDL's.
    """
    lines = [line.rstrip() for line in text.splitlines()]
    told = (line for line in reversed(lines) if line and not _INDENTED.match(line) and not _LOG_NOISE.match(line))
    return next(told, "")


DELETED_REASON = "Deleted"
_OOM_KILLED = "OOMKilled"
_UNKNOWN_STATUS = "ContainerStatusUnknown"
"""What the kubelet writes, with a made-up exit code, for a container that it cannot find any more."""
_SIGNAL_REASONS = {SIGKILL_EXIT: "Killed (SIGKILL)", SIGTERM_EXIT: "Terminated (SIGTERM)"}
_STARTING_REASONS = {"ContainerCreating", "PodInitializing"}
PERMANENT_WAIT_REASONS = frozenset(
    {
        "CreateContainerConfigError",
        "CreateContainerError",
        "ErrImageNeverPull",
        "ImageInspectError",
        "ImagePullBackOff",
        "InvalidImageName",
        "RunContainerError",
    }
)
"""Reasons of a waiting container that waiting does not mend."""
_DISRUPTION_CAUSES: Mapping[str, TerminationCause] = {
    "PreemptionByScheduler": TerminationCause.PREEMPTED,
    "EvictionByEvictionAPI": TerminationCause.EVICTED,
    "TerminationByKubelet": TerminationCause.EVICTED,
    "DeletionByTaintManager": TerminationCause.NODE_LOST,
    "DeletionByPodGC": TerminationCause.NODE_LOST,
}
_REASON_CAUSES: Mapping[str, TerminationCause] = {
    "Preempting": TerminationCause.PREEMPTED,
    "Evicted": TerminationCause.EVICTED,
    "NodeShutdown": TerminationCause.EVICTED,
    "Terminated": TerminationCause.EVICTED,
    "NodeAffinity": TerminationCause.EVICTED,
    "UnexpectedAdmissionError": TerminationCause.EVICTED,
    "NodeLost": TerminationCause.NODE_LOST,
}
"""``status.reason`` of a pod that the kubelet ended or would not take."""
_DISK_LIMIT_EXCEEDED = re.compile(
    r"ephemeral local storage usage exceeds|exceeded its local ephemeral storage limit|Usage of EmptyDir .* exceeds"
)
"""What the kubelet says when a pod has written more on its node's disk than its own limit."""
_OUT_OF_PREFIX = "OutOf"
"""Begins the kubelet's reasons (``OutOfcpu``...) for a pod that has no room on the node it was bound to."""


@dataclass(frozen=True, slots=True)
class ContainerEnd:
    """How a container ended; nothing is known of one that never ran or was lost.

    Attributes:
        exit_code: None if nobody knows it.
        message: what it wrote last, or what its runtime says.
    """

    exit_code: int | None = None
    reason: str = ""
    message: str = ""

    @property
    def error_line(self) -> str:
        """The line of the message that says why it ended."""
        return last_error_line(self.message)


@dataclass(frozen=True, slots=True)
class ContainerStatus:
    """One container of a pod.

    Attributes:
        is_init: it has to end before the others begin.
        waiting: why it waits, in the kubelet's word and sentence, either of them perhaps empty; None: it does not.
        end: how it ended; None while it has not.
        last_end: how it ended before it was started again.
    """

    name: str
    image: str
    is_init: bool
    running: bool
    waiting: tuple[str, str] | None
    end: ContainerEnd | None
    last_end: ContainerEnd | None

    @property
    def is_role(self) -> bool:
        """Whether the role runs in it; the others are init containers and sidecars."""
        return self.name == names.ROLE_CONTAINER and not self.is_init

    @property
    def has_run(self) -> bool:
        """Whether it has come so far as to print something."""
        return self.running or self.end is not None or self.last_end is not None

    @property
    def waits_in_vain(self) -> bool:
        """Whether only a change by somebody ends its waiting."""
        reason, message = self.waiting or ("", "")
        # The kubelet may not have seen a ConfigMap or Secret yet that was made a moment ago: it looks again.
        return reason in PERMANENT_WAIT_REASONS and "failed to sync" not in message


def read_containers(pod: Manifest) -> list[ContainerStatus]:
    """The containers of a pod that a kubelet tells of: init containers first, in their order."""
    status = pod.get("status") or {}
    return [
        _read_container(each, is_init=key == "initContainerStatuses")
        for key in ("initContainerStatuses", "containerStatuses")
        for each in status.get(key) or ()
    ]


def role_container(pod: Manifest) -> ContainerStatus | None:
    """The container in which the role runs; None while no kubelet tells of it."""
    return next((each for each in read_containers(pod) if each.is_role), None)


def pod_phase(pod: Manifest) -> str:
    """The cluster's own word for the phase of a pod."""
    return str((pod.get("status") or {}).get("phase") or PodPhase.PENDING.value)


def is_pod_over(pod: Manifest) -> bool:
    """Whether the cluster says that a pod has ended; a controller may say so of one that it cannot see."""
    return pod_phase(pod) in (PodPhase.SUCCEEDED, PodPhase.FAILED)


def is_pod_leaving(pod: Manifest) -> bool:
    """Whether somebody deleted a pod that is still there."""
    return bool(pod["metadata"].get("deletionTimestamp"))


def scheduling_refusal(pod: Manifest) -> tuple[str, str] | None:
    """Why the scheduler found no node, in its word and sentence; None: it did, or has not looked yet."""
    scheduled = _pod_condition(pod, "PodScheduled")
    if scheduled.get("status") != "False":
        return None
    return scheduled.get("reason") or "Unschedulable", scheduled.get("message") or ""


def _read_container(container: Mapping[str, Any], *, is_init: bool) -> ContainerStatus:
    state: Mapping[str, Any] = container.get("state") or {}
    waiting = state.get("waiting")
    return ContainerStatus(
        name=container.get("name") or "",
        image=container.get("image") or "",
        is_init=is_init,
        running="running" in state,
        waiting=None if waiting is None else (waiting.get("reason") or "", waiting.get("message") or ""),
        end=_read_end(state),
        last_end=_read_end(container.get("lastState") or {}),
    )


def _read_end(state: Mapping[str, Any]) -> ContainerEnd | None:
    ended = state.get("terminated")
    if ended is None:
        return None
    code = None if ended.get("reason") == _UNKNOWN_STATUS else ended.get("exitCode")
    return ContainerEnd(code, ended.get("reason") or "", ended.get("message") or "")


def read_pod_status(pod: Manifest, *, deletion_requested: bool = False) -> PodStatus:
    """What the object says now.

    Args:
        pod: of a job, with EDL's labels.
        deletion_requested: the master has asked for the deletion of the pod.

    Raises:
        ValueError: the labels do not say what it is in its job.
    """
    meta = pod["metadata"]
    labels = meta.get("labels") or {}
    container_end = _container_end(pod)
    deleting = "deletionTimestamp" in meta
    leaving = container_end is None and (deleting or _disruption_condition(pod).get("reason") == "TerminationByKubelet")
    reason, message = _reason_and_message(pod, container_end, deleting)
    return PodStatus(
        uid=meta["uid"],
        role=Role(labels.get(names.ROLE_LABEL, "")),
        index=int(labels.get(names.INDEX_LABEL, "none")),
        phase=_pod_phase(pod, container_end, deleting),
        exit_code=container_end.exit_code if container_end else None,
        reason=reason,
        leaving=leaving,
        cause=_end_cause(pod, container_end, deleting, deletion_requested)
        if leaving or container_end
        else TerminationCause.NONE,
        message=message,
        node=pod.get("spec", {}).get("nodeName") or "",
        elevated=labels.get(names.ELEVATED_LABEL) == "true",
        unreachable_since=unreachable_since(pod) if container_end is None else 0.0,
    )


def removed_pod_status(last: PodStatus, *, deletion_requested: bool = False) -> PodStatus:
    """The end of a pod whose object is gone, from what it was last like; an end that it has had stays its end."""
    if last.has_ended:
        return last
    cause = last.cause if last.leaving else TerminationCause.NONE if deletion_requested else TerminationCause.DELETED
    return replace(last, phase=PodPhase.GONE, reason=DELETED_REASON, leaving=False, cause=cause)


def unreachable_since(pod: Manifest) -> float:
    """Since when the control plane has not heard of the pod's node, in unix seconds; 0: it does.

    A master may not look at nodes. But the node controller sets the condition Ready of their pods to False, and nothing
    else: the kubelet, which has the last word of it otherwise, gives a reason and says the same of ContainersReady.
    """
    ready, containers = _pod_condition(pod, "Ready"), _pod_condition(pod, "ContainersReady")
    if ready.get("status") != "False" or ready.get("reason") or containers.get("status") == "False":
        return 0.0
    return parse_timestamp(ready.get("lastTransitionTime")) or 1.0


# ---------------------------------------------------------------------- phase


def _container_end(pod: Manifest) -> ContainerEnd | None:
    """How the pod ended; None while its role runs or waits."""
    containers = read_containers(pod)
    own = next((each for each in containers if each.is_role), None)
    if own is not None and own.end is not None:
        return own.end
    if not is_pod_over(pod):
        return None
    if own is not None and own.last_end is not None:
        return own.last_end
    # An init container that failed: for want of it the role's container never ran.
    failed = (each.end for each in containers if each.is_init and each.end is not None and each.end.exit_code != 0)
    return next(failed, ContainerEnd())


def _pod_phase(pod: Manifest, container_end: ContainerEnd | None, deleting: bool) -> PodPhase:
    phase = pod_phase(pod)
    if container_end is None:
        return PodPhase.PENDING if phase == PodPhase.PENDING else PodPhase.RUNNING
    if deleting:
        return PodPhase.GONE
    if phase in (PodPhase.SUCCEEDED, PodPhase.FAILED):
        return PodPhase(phase)
    return PodPhase.SUCCEEDED if container_end.exit_code == 0 else PodPhase.FAILED


# ---------------------------------------------------------------------- words


def _reason_and_message(pod: Manifest, container_end: ContainerEnd | None, deleting: bool) -> tuple[str, str]:
    """Reason and message."""
    if container_end is None:
        reason, message = _waiting_reason(pod)
    else:
        reason = DELETED_REASON if deleting else _end_reason(pod, container_end)
        message = pod["status"].get("message") or _end_message(container_end)
    return reason, message or str(_disruption_condition(pod).get("message") or "")


def _end_message(container_end: ContainerEnd) -> str:
    """What the container or its runtime says of the end; a process that was killed did not know of it."""
    killed = container_end.exit_code in _SIGNAL_REASONS or container_end.reason == _OOM_KILLED
    return "" if killed else container_end.error_line


def _end_reason(pod: Manifest, container_end: ContainerEnd) -> str:
    """The most telling of what the kubelet and the container's runtime say."""
    if container_end.reason == _OOM_KILLED:
        return container_end.reason
    status = pod["status"]
    said = status.get("reason") or _SIGNAL_REASONS.get(container_end.exit_code or 0) or container_end.reason
    return said or ("Completed" if status.get("phase") == PodPhase.SUCCEEDED else "Error")


def _waiting_reason(pod: Manifest) -> tuple[str, str]:
    """What a pod that has not ended waits for, in the words of the scheduler or of the kubelet."""
    if pod_phase(pod) == PodPhase.RUNNING:
        return "Started", ""
    refusal = scheduling_refusal(pod)
    if refusal is not None:
        return refusal
    waiting = [each.waiting for each in read_containers(pod) if each.waiting is not None and each.waiting[0]]
    # A container that only waits for its turn says less than one that cannot be started.
    trouble = next((each for each in waiting if each[0] not in _STARTING_REASONS), None)
    if trouble is not None:
        return trouble
    if waiting:
        return waiting[-1][0], ""
    return ("Scheduled" if pod.get("spec", {}).get("nodeName") else ""), ""


def _pod_condition(pod: Manifest, kind: str) -> Mapping[str, Any]:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return next((each for each in conditions if each.get("type") == kind), {})


# ---------------------------------------------------------------------- cause


def _end_cause(
    pod: Manifest, container_end: ContainerEnd | None, deleting: bool, deletion_requested: bool
) -> TerminationCause:
    """Who wanted it to go; a deletion that its master asked for before anybody else did has no cause to tell."""
    if deleting and deletion_requested:
        return TerminationCause.NONE
    disruption = _disruption_condition(pod).get("reason")
    if disruption:
        return _DISRUPTION_CAUSES.get(disruption, TerminationCause.EVICTED)
    status = pod.get("status") or {}
    reason = status.get("reason") or ""
    if reason == "Evicted" and _DISK_LIMIT_EXCEEDED.search(status.get("message") or ""):
        return TerminationCause.NONE  # nobody wanted its place: it wrote more than it may, and its successor would, too
    if reason in _REASON_CAUSES or reason.startswith(_OUT_OF_PREFIX):
        return _REASON_CAUSES.get(reason, TerminationCause.EVICTED)
    if deleting:
        return TerminationCause.DELETED
    out_of_memory = container_end is not None and container_end.reason == _OOM_KILLED and container_end.exit_code != 0
    return TerminationCause.OUT_OF_MEMORY if out_of_memory else TerminationCause.NONE


def _disruption_condition(pod: Manifest) -> Mapping[str, Any]:
    """The condition that says that the pod is about to be disrupted; it is taken back when that comes to nothing."""
    condition = _pod_condition(pod, "DisruptionTarget")
    return condition if condition.get("status") == "True" else {}

"""Interprets the object of a pod. No other module reads a pod's ``status``.

``read_pod_status`` is a pure function from a pod object to the ``PodStatus`` of the core. Commands that describe pods
use the functions below it. Rules that are easy to get wrong:

- Pods never restart their containers. So a pod has ended when its role's container has, whatever a sidecar still does
  and however long the object exists.
- The state of a sidecar says nothing about the role, whether it has ended or runs while the role's container waits.
- ``ContainerStatusUnknown`` has an exit code (137) that the kubelet invented because it lost the container.
- A deletion is visible twice: as ``deletionTimestamp`` when it is requested, and as the end of the container. The
  timestamp does not tell when it was requested, because the kubelet changes it when the pod has ended.
- Exit code 137 means SIGKILL. The reason ``OOMKilled``, the condition ``DisruptionTarget``, the pod's own ``reason`` or
  a deletion tells who sent it. Without any of these, it was sent on the node.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from edl.api.cluster_port import UNSCHEDULABLE, PodPhase, PodStatus, Role, TerminationCause
from edl.api.exit_codes import SIGKILL_EXIT, SIGTERM_EXIT
from edl.cluster.kubernetes import names
from edl.cluster.kubernetes.resource_kinds import Manifest, is_being_deleted, parse_timestamp

# --------------------------------------------------------------------------------------------------
# Finds the line in a container's last output that says why it ended.
#
# Kubernetes reports the end of a failed container's log, which is mostly noise for a process that uses TensorFlow.


_LOG_NOISE = re.compile(
    r"WARNING: All log messages before absl::InitializeLog"
    r"|[IWE]\d{4} \d\d:\d\d:"  # absl: I0000 00:00:1763...
    r"|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: [IWE] "  # TensorFlow
    r"|To enable the following instructions: "
)
_INDENTED = re.compile(r"\s")


def last_error_line(text: str) -> str:
    """The last line that begins a message, such as that of an exception; empty if there is only noise.

    Indented lines belong to a line before them, in a traceback or as the hint of an error of EDL.
    """
    lines = [line.rstrip() for line in text.splitlines()]
    told = (line for line in reversed(lines) if line and not _INDENTED.match(line) and not _LOG_NOISE.match(line))
    return next(told, "")


DELETED_REASON = "Deleted"
_OOM_KILLED = "OOMKilled"
_UNKNOWN_STATUS = "ContainerStatusUnknown"
"""Written by the kubelet, with an invented exit code, for a container that it cannot find any more."""
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
"""Reasons of a waiting container that do not go away by waiting."""
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
"""``status.reason`` of pods that the kubelet ended or rejected."""
_DISK_LIMIT_EXCEEDED = re.compile(
    r"ephemeral local storage usage exceeds|exceeded its local ephemeral storage limit|Usage of EmptyDir .* exceeds"
)
"""The kubelet's messages for a pod that has exceeded its own limit on its node's disk."""
_OUT_OF_PREFIX = "OutOf"
"""Prefix of the kubelet's reasons (``OutOfcpu``...) for a pod that does not fit on the node it was bound to."""


@dataclass(frozen=True, slots=True)
class ContainerEnd:
    """How a container ended. Fields are empty for a container that never ran or was lost.

    Attributes:
        exit_code: None if it is unknown.
        reason: the runtime's word for the end.
        message: the end of its output, or a message of the runtime.
    """

    exit_code: int | None = None
    reason: str = ""
    message: str = ""

    @property
    def error_line(self) -> str:
        """The line of the message that says why the container ended."""
        return last_error_line(self.message)


@dataclass(frozen=True, slots=True)
class ContainerStatus:
    """One container of a pod.

    Attributes:
        is_init: it must end before the other containers start.
        waiting: the kubelet's reason and message for its waiting, each perhaps empty; None: it does not wait.
        end: how it ended; None if it has not.
        last_end: how it ended before it was restarted.
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
        """Whether the role runs in it. The others are init containers and sidecars."""
        return self.name == names.ROLE_CONTAINER and not self.is_init

    @property
    def has_run(self) -> bool:
        """Whether it has run, so that it may have a log."""
        return self.running or self.end is not None or self.last_end is not None

    @property
    def waits_in_vain(self) -> bool:
        """Whether it waits for something that only somebody's action changes."""
        reason, message = self.waiting or ("", "")
        # A ConfigMap or Secret that was created a moment ago may be missing in the kubelet's cache. It tries again.
        return reason in PERMANENT_WAIT_REASONS and "failed to sync" not in message


def read_containers(pod: Manifest) -> list[ContainerStatus]:
    """The containers of a pod that its kubelet has reported, init containers first."""
    status = pod.get("status") or {}
    return [
        _read_container(each, is_init=key == "initContainerStatuses")
        for key in ("initContainerStatuses", "containerStatuses")
        for each in status.get(key) or ()
    ]


def role_container(pod: Manifest) -> ContainerStatus | None:
    """The container of the role; None if no kubelet has reported it."""
    return next((each for each in read_containers(pod) if each.is_role), None)


def pod_phase(pod: Manifest) -> str:
    """The phase of a pod, as the cluster reports it."""
    return str((pod.get("status") or {}).get("phase") or PodPhase.PENDING.value)


def is_pod_over(pod: Manifest) -> bool:
    """Whether the phase says that the pod has ended. A controller may set it for a pod that it cannot observe."""
    return pod_phase(pod) in (PodPhase.SUCCEEDED, PodPhase.FAILED)


def failed_pod_reason(pod: Manifest) -> tuple[str, str]:
    """Reason and message of a pod whose phase is Failed, without looking at its containers."""
    status = pod.get("status") or {}
    return str(status.get("reason") or "Failed"), str(status.get("message") or "")


def scheduling_refusal(pod: Manifest) -> tuple[str, str] | None:
    """The scheduler's reason and message if it found no node; None if it did, or has not tried yet."""
    scheduled = _pod_condition(pod, "PodScheduled")
    if scheduled.get("status") != "False":
        return None
    return scheduled.get("reason") or UNSCHEDULABLE, scheduled.get("message") or ""


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
    # the kubelet invents 137 here, which would count as a kill
    code = None if ended.get("reason") == _UNKNOWN_STATUS else ended.get("exitCode")
    return ContainerEnd(code, ended.get("reason") or "", ended.get("message") or "")


def read_pod_status(pod: Manifest, *, deletion_requested: bool = False) -> PodStatus:
    """The status of a pod.

    Args:
        pod: object of a job's pod, with EDL's labels.
        deletion_requested: the master has requested the deletion of the pod.

    Raises:
        ValueError: the labels do not give role and index.
    """
    meta = pod["metadata"]
    labels = meta.get("labels") or {}
    container_end = _container_end(pod)
    deleting = is_being_deleted(pod)
    # with TerminationByKubelet (eviction, node shutdown) the kubelet stops a pod that is not being deleted
    leaving = container_end is None and (deleting or disruption_condition(pod).get("reason") == "TerminationByKubelet")
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
    """The final status of a pod whose object is gone, from its last status; a status that was final already is kept."""
    if last.has_ended:
        return last
    cause = last.cause if last.leaving else TerminationCause.NONE if deletion_requested else TerminationCause.DELETED
    return replace(last, phase=PodPhase.GONE, reason=DELETED_REASON, leaving=False, cause=cause)


def unreachable_since(pod: Manifest) -> float:
    """When the control plane lost contact with the pod's node, in unix seconds; 0: it has contact.

    A master may not read nodes. But the node controller sets the pods' condition Ready to False, without a reason and
    without a change of ContainersReady. The kubelet, which usually sets Ready, gives a reason and changes both.
    """
    ready, containers = _pod_condition(pod, "Ready"), _pod_condition(pod, "ContainersReady")
    if ready.get("status") != "False" or ready.get("reason") or containers.get("status") == "False":
        return 0.0
    return parse_timestamp(ready.get("lastTransitionTime")) or 1.0


# ---------------------------------------------------------------------- phase


def _container_end(pod: Manifest) -> ContainerEnd | None:
    """How the pod ended; None if its role runs or waits."""
    containers = read_containers(pod)
    own = next((each for each in containers if each.is_role), None)
    if own is not None and own.end is not None:
        return own.end
    if not is_pod_over(pod):
        return None
    # the container was restarted and then lost: its last known end is the best answer
    if own is not None and own.last_end is not None:
        return own.last_end
    # An init container failed, so the role's container never ran.
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
    # the role has ended, but a sidecar keeps the pod's phase at Running
    return PodPhase.SUCCEEDED if container_end.exit_code == 0 else PodPhase.FAILED


# ---------------------------------------------------------------------- reason and message


def _reason_and_message(pod: Manifest, container_end: ContainerEnd | None, deleting: bool) -> tuple[str, str]:
    """Reason and message of a pod's status, as users see them."""
    if container_end is None:
        reason, message = _waiting_reason(pod)
    else:
        reason = DELETED_REASON if deleting else _end_reason(pod, container_end)
        message = pod["status"].get("message") or _end_message(container_end)
    return reason, message or str(disruption_condition(pod).get("message") or "")


def _end_message(container_end: ContainerEnd) -> str:
    """What the container or its runtime reports about the end; empty for a process that was killed without warning."""
    killed = container_end.exit_code in _SIGNAL_REASONS or container_end.reason == _OOM_KILLED
    return "" if killed else container_end.error_line


def _end_reason(pod: Manifest, container_end: ContainerEnd) -> str:
    """The most specific reason that the kubelet and the container runtime give."""
    if container_end.reason == _OOM_KILLED:
        return container_end.reason
    status = pod["status"]
    message = status.get("reason") or _SIGNAL_REASONS.get(container_end.exit_code or 0) or container_end.reason
    return message or ("Completed" if status.get("phase") == PodPhase.SUCCEEDED else "Error")


def _waiting_reason(pod: Manifest) -> tuple[str, str]:
    """What a pod that has not ended waits for, as the scheduler or the kubelet reports it."""
    if pod_phase(pod) == PodPhase.RUNNING:
        return "Started", ""
    refusal = scheduling_refusal(pod)
    if refusal is not None:
        return refusal
    waiting = [each.waiting for each in read_containers(pod) if each.waiting is not None and each.waiting[0]]
    # A container that cannot be started says more than one that waits for it.
    problem = next((each for each in waiting if each[0] not in _STARTING_REASONS), None)
    if problem is not None:
        return problem
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
    """Who caused the end. A deletion that the master requested first has no external cause."""
    # a preemption that follows the master's own request changes nothing
    if deleting and deletion_requested:
        return TerminationCause.NONE
    disruption = disruption_condition(pod).get("reason")
    if disruption:
        return _DISRUPTION_CAUSES.get(disruption, TerminationCause.EVICTED)
    status = pod.get("status") or {}
    reason = status.get("reason") or ""
    if reason == "Evicted" and _DISK_LIMIT_EXCEEDED.search(status.get("message") or ""):
        return TerminationCause.NONE  # a crash: it exceeded its own limit, and so would its successor
    if reason in _REASON_CAUSES or reason.startswith(_OUT_OF_PREFIX):
        return _REASON_CAUSES.get(reason, TerminationCause.EVICTED)
    if deleting:
        return TerminationCause.DELETED
    out_of_memory = container_end is not None and container_end.reason == _OOM_KILLED and container_end.exit_code != 0
    return TerminationCause.OUT_OF_MEMORY if out_of_memory else TerminationCause.NONE


def disruption_condition(pod: Manifest) -> Mapping[str, Any]:
    """The condition of a pod that is about to be disrupted. Kubernetes resets it if the disruption does not happen."""
    condition = _pod_condition(pod, "DisruptionTarget")
    return condition if condition.get("status") == "True" else {}

"""What a pod's object means to its job: a pure function from the API server's words to a ``PodSeen``.

The rules that are easy to get wrong:

- Pods never restart their containers, so that the end of the role's container is the end of the pod, whatever a sidecar
  still does and however long the object stays.
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

from edl.api.cluster_port import Cause, Phase, PodSeen, Role
from edl.cluster.kubernetes import names
from edl.cluster.kubernetes.resource_kinds import Manifest
from edl.cluster.kubernetes.termination_message import last_line
from edl.cluster.kubernetes.timestamps import moment

DELETED = "Deleted"
_OUT_OF_MEMORY = "OOMKilled"
_LOST_STATUS = "ContainerStatusUnknown"
"""What the kubelet writes, with a made-up exit code, for a container that it cannot find any more."""
_SIGNALLED = {137: "Killed (SIGKILL)", 143: "Terminated (SIGTERM)"}
_STARTING = {"ContainerCreating", "PodInitializing"}
_DISRUPTIONS: Mapping[str, Cause] = {
    "PreemptionByScheduler": Cause.PREEMPTED,
    "EvictionByEvictionAPI": Cause.EVICTED,
    "TerminationByKubelet": Cause.EVICTED,
    "DeletionByTaintManager": Cause.NODE_LOST,
    "DeletionByPodGC": Cause.NODE_LOST,
}
_POD_REASONS: Mapping[str, Cause] = {
    "Preempting": Cause.PREEMPTED,
    "Evicted": Cause.EVICTED,
    "NodeShutdown": Cause.EVICTED,
    "Terminated": Cause.EVICTED,
    "NodeAffinity": Cause.EVICTED,
    "UnexpectedAdmissionError": Cause.EVICTED,
    "NodeLost": Cause.NODE_LOST,
}
"""``status.reason`` of a pod that the kubelet ended or would not take."""
_OVER_ITS_LIMIT = re.compile(
    r"ephemeral local storage usage exceeds|exceeded its local ephemeral storage limit|Usage of EmptyDir .* exceeds"
)
"""What the kubelet says when a pod has written more on its node's disk than its own limit."""
_NO_ROOM = "OutOf"
"""Begins the kubelet's reasons (``OutOfcpu``...) for a pod that has no room on the node it was bound to."""


@dataclass(frozen=True, slots=True)
class _Ending:
    """How the role's container ended; nothing is known of one that never ran or was lost."""

    exit_code: int | None = None
    reason: str = ""
    message: str = ""


def read(pod: Manifest, *, asked: bool = False) -> PodSeen:
    """What the object says now.

    Args:
        pod: of a job, with EDL's labels.
        asked: its master asked for its deletion.

    Raises:
        ValueError: the labels do not say what it is in its job.
    """
    meta = pod["metadata"]
    labels = meta.get("labels") or {}
    ending = _ending(pod)
    told_to_go = "deletionTimestamp" in meta
    leaving = ending is None and (told_to_go or _disruption(pod).get("reason") == "TerminationByKubelet")
    reason, message = _words(pod, ending, told_to_go)
    return PodSeen(
        uid=meta["uid"],
        role=Role(labels.get(names.ROLE, "")),
        index=int(labels.get(names.INDEX, "none")),
        phase=_phase(pod, ending, told_to_go),
        exit_code=ending.exit_code if ending else None,
        reason=reason,
        leaving=leaving,
        cause=_cause(pod, ending, told_to_go, asked) if leaving or ending else Cause.NONE,
        message=message,
        node=pod.get("spec", {}).get("nodeName") or "",
        elevated=labels.get(names.ELEVATED) == "true",
        unreachable=unreachable_since(pod) if ending is None else 0.0,
    )


def gone(last: PodSeen, *, asked: bool = False) -> PodSeen:
    """The end of a pod whose object is gone, from what it was last like; an end that it has had stays its end."""
    if last.ended:
        return last
    cause = last.cause if last.leaving else Cause.NONE if asked else Cause.DELETED
    return replace(last, phase=Phase.GONE, reason=DELETED, leaving=False, cause=cause)


def unreachable_since(pod: Manifest) -> float:
    """Since when the control plane has not heard of the pod's node, in unix seconds; 0: it does.

    A master may not look at nodes. But the node controller sets the condition Ready of their pods to False, and nothing
    else: the kubelet, which has the last word of it otherwise, gives a reason and says the same of ContainersReady.
    """
    ready, containers = _condition(pod, "Ready"), _condition(pod, "ContainersReady")
    if ready.get("status") != "False" or ready.get("reason") or containers.get("status") == "False":
        return 0.0
    return moment(ready.get("lastTransitionTime")) or 1.0


# ---------------------------------------------------------------------- phase


def _ending(pod: Manifest) -> _Ending | None:
    """How the pod ended; None while its role runs or waits."""
    status = pod.get("status") or {}
    over = status.get("phase") in (Phase.SUCCEEDED, Phase.FAILED)
    own = _own(status.get("containerStatuses") or ())
    ended = _state(own, "terminated")
    if not ended and over:
        ended = (own.get("lastState") or {}).get("terminated") or _failed_before(status)
    if not ended:
        return _Ending() if over else None
    code = None if ended.get("reason") == _LOST_STATUS else ended.get("exitCode")
    return _Ending(code, ended.get("reason") or "", ended.get("message") or "")


def _failed_before(status: Mapping[str, Any]) -> Mapping[str, Any]:
    """How an init container failed, for want of which the role's container never ran."""
    endings = (_state(container, "terminated") for container in status.get("initContainerStatuses") or ())
    return next((ended for ended in endings if ended.get("exitCode")), {})


def _own(containers: Any) -> Mapping[str, Any]:
    """The role's container among those of the pod."""
    return next((each for each in containers if each["name"] == names.CONTAINER), {})


def _state(container: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    return (container.get("state") or {}).get(name) or {}


def _phase(pod: Manifest, ending: _Ending | None, told_to_go: bool) -> Phase:
    phase = (pod.get("status") or {}).get("phase") or Phase.PENDING
    if ending is None:
        return Phase.PENDING if phase == Phase.PENDING else Phase.RUNNING
    if told_to_go:
        return Phase.GONE
    if phase in (Phase.SUCCEEDED, Phase.FAILED):
        return Phase(phase)
    return Phase.SUCCEEDED if ending.exit_code == 0 else Phase.FAILED


# ---------------------------------------------------------------------- words


def _words(pod: Manifest, ending: _Ending | None, told_to_go: bool) -> tuple[str, str]:
    """Reason and message."""
    if ending is None:
        reason, message = _waiting(pod)
    else:
        reason = DELETED if told_to_go else _why_ended(pod, ending)
        message = pod["status"].get("message") or _said_last(ending)
    return reason, message or str(_disruption(pod).get("message") or "")


def _said_last(ending: _Ending) -> str:
    """What the container or its runtime says of the end; a process that was killed did not know of it."""
    killed = ending.exit_code in _SIGNALLED or ending.reason == _OUT_OF_MEMORY
    return "" if killed else last_line(ending.message)


def _why_ended(pod: Manifest, ending: _Ending) -> str:
    """The most telling of what the kubelet and the container's runtime say."""
    if ending.reason == _OUT_OF_MEMORY:
        return ending.reason
    status = pod["status"]
    said = status.get("reason") or _SIGNALLED.get(ending.exit_code or 0) or ending.reason
    return said or ("Completed" if status.get("phase") == Phase.SUCCEEDED else "Error")


def _waiting(pod: Manifest) -> tuple[str, str]:
    """What a pod that has not ended waits for, in the words of the scheduler or of the kubelet."""
    status = pod.get("status") or {}
    if status.get("phase") == Phase.RUNNING:
        return "Started", ""
    scheduled = _condition(pod, "PodScheduled")
    if scheduled.get("status") == "False":
        return scheduled.get("reason") or "Unschedulable", scheduled.get("message") or ""
    containers = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    waiting = [state for state in (_state(each, "waiting") for each in containers) if state.get("reason")]
    trouble = next((state for state in waiting if state["reason"] not in _STARTING), None)
    if trouble is not None:
        return trouble["reason"], trouble.get("message") or ""
    if waiting:
        return waiting[-1]["reason"], ""
    return ("Scheduled" if pod.get("spec", {}).get("nodeName") else ""), ""


def _condition(pod: Manifest, kind: str) -> Mapping[str, Any]:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return next((each for each in conditions if each.get("type") == kind), {})


# ---------------------------------------------------------------------- cause


def _cause(pod: Manifest, ending: _Ending | None, told_to_go: bool, asked: bool) -> Cause:
    """Who wanted it to go; a deletion that its master asked for before anybody else did has no cause to tell."""
    if told_to_go and asked:
        return Cause.NONE
    disruption = _disruption(pod).get("reason")
    if disruption:
        return _DISRUPTIONS.get(disruption, Cause.EVICTED)
    status = pod.get("status") or {}
    reason = status.get("reason") or ""
    if reason == "Evicted" and _OVER_ITS_LIMIT.search(status.get("message") or ""):
        return Cause.NONE  # nobody wanted its place: it wrote more than it may, and its successor would, too
    if reason in _POD_REASONS or reason.startswith(_NO_ROOM):
        return _POD_REASONS.get(reason, Cause.EVICTED)
    if told_to_go:
        return Cause.DELETED
    out_of_memory = ending is not None and ending.reason == _OUT_OF_MEMORY and ending.exit_code != 0
    return Cause.OUT_OF_MEMORY if out_of_memory else Cause.NONE


def _disruption(pod: Manifest) -> Mapping[str, Any]:
    """The condition that says that the pod is about to be disrupted; it is taken back when that comes to nothing."""
    condition = _condition(pod, "DisruptionTarget")
    return condition if condition.get("status") == "True" else {}

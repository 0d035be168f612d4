"""What a pod waits for or ended of, in plain words and with what can be done: the API server's, the scheduler's and the
kubelet's own words, translated. Every remedy for a pod stands in a table here.

A text that no pattern knows is passed on as it is: better the scheduler's words than none.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from edl.api.cluster_port import PodPhase
from edl.cluster.kubernetes import names
from edl.cluster.kubernetes.pod_status import (
    ContainerEnd,
    ContainerStatus,
    pod_phase,
    read_containers,
    scheduling_refusal,
)
from edl.cluster.kubernetes.resource_kinds import Manifest


@dataclass(frozen=True, slots=True)
class PodProblem:
    """Why a pod does not run.

    Attributes:
        reason: the cluster's own word, such as ``Unschedulable`` or ``ImagePullBackOff``.
        text: what that means here, in a sentence without a full stop.
        remedy: what the user can do; empty when waiting is all there is to do.
        is_final: nothing but a change by somebody ends it.
        cluster_message: the cluster's own sentence.
    """

    reason: str
    text: str
    remedy: str = ""
    is_final: bool = False
    cluster_message: str = ""


@dataclass(frozen=True, slots=True)
class _MessageRule:
    """How one of the scheduler's reasons is said; ``{0}`` is what the pattern's group matched."""

    pattern: re.Pattern[str]
    text: str
    remedy: str
    is_final: bool


def _make_rule(pattern: str, text: str, remedy: str = "", *, is_final: bool = False) -> _MessageRule:
    return _MessageRule(re.compile(pattern), text, remedy, is_final)


_SCHEDULER_RULES = (
    _make_rule(
        r"Insufficient (\S+)",
        "too little {0} is free",
        "It starts by itself when room is free; or ask for less (resources.{0} of the role), "
        "or give the role a higher priority.",
    ),
    _make_rule(
        r"Too many pods", "the node has as many pods as it takes", "It starts by itself when other pods have gone."
    ),
    _make_rule(
        r"had untolerated taint[s()]*\s*\{([^\s:}]+)",
        "the node keeps pods away that do not tolerate {0}",
        "If the job may run there, add the toleration to pod.tolerations.",
    ),
    _make_rule(  # newer schedulers do not say which
        r"had untolerated taint",
        "the node keeps pods away that do not tolerate its taint",
        "If the job may run there, add the toleration to pod.tolerations; kubectl describe node shows taints.",
    ),
    _make_rule(
        r"didn't match Pod's node affinity",
        "the node is not one that the job may use",
        "Look at pod.node_selector and pod.affinity: no node with room has these labels.",
    ),
    _make_rule(r"(?:were|was) unschedulable", "the node takes no new pods (cordoned)", "`kubectl uncordon` ends that."),
    _make_rule(
        r"volume node affinity conflict",
        "the volume can only be used on another node",
        "The claim needs a volume that all nodes reach (ReadWriteMany).",
    ),
    _make_rule(
        r"didn't (?:match|satisfy).*anti-affinity",
        "a rule of pod.affinity keeps it from where another pod is",
        "Look at pod.affinity.",
    ),
    _make_rule(r"didn't match pod topology spread", "it would be spread unevenly", "Look at pod.overrides."),
)
_CLAIM_RULES = (
    _make_rule(
        r'persistentvolumeclaim "([^"]+)" not found',
        "there is no PersistentVolumeClaim {0}",
        "Create the claim; the pod starts then.",
        is_final=True,
    ),
    _make_rule(
        r"unbound immediate PersistentVolumeClaims",
        "its PersistentVolumeClaim has no volume yet",
        "`edl doctor` looks at the claims; `kubectl describe pvc` says why one is not bound.",
    ),
    _make_rule(r'persistentvolumeclaim "([^"]+)" is being deleted', "the PersistentVolumeClaim {0} is being deleted"),
)
_PULL_HINT = "Check the name of the image, that the nodes reach its registry, and pod.image_pull_secrets."
_CONTAINER_PROBLEMS = {
    "ErrImagePull": ("its image cannot be pulled", _PULL_HINT),
    "ImagePullBackOff": ("its image cannot be pulled", _PULL_HINT),
    "ImageInspectError": ("its image cannot be read", _PULL_HINT),
    "ErrImageNeverPull": ("its image is not on the node, and is never pulled there", _PULL_HINT),
    "InvalidImageName": ("the name of its image is none", "Correct `image` in the job file."),
    "CreateContainerConfigError": (
        "its container cannot be made",
        "Something that it mounts or reads is missing, or security.run_as does not fit.",
    ),
    "CreateContainerError": ("its container cannot be made", "Build the image with `edl zoo build`."),
    "RunContainerError": (
        "its container cannot be started",
        "The image needs the program `edl-role`: build it with `edl zoo build`.",
    ),
    "CrashLoopBackOff": ("its container ends again and again", "`edl logs` shows what it printed."),
}
IMAGE_REASONS = _CONTAINER_PROBLEMS.keys() - {"CreateContainerConfigError", "CrashLoopBackOff"}
"""Reasons of a Wait for which another image may help."""
_REFUSAL_REMEDIES = (
    (  # first: its sentences speak of accounts and PriorityClasses, too
        "ValidatingAdmissionPolicy",
        "Look at pod.overrides, the priorities and security in the job file, or have the cluster's admin allow it.",
    ),
    ("exceeded quota", "Wait until other jobs of the namespace have ended, ask for less, or have the quota raised."),
    ("violates PodSecurity", "Look at pod.overrides, host_path volumes and security.run_as in the job file."),
    (
        "serviceaccount",
        f"Have an admin create the accounts {names.MASTER_ACCOUNT} and {names.POD_ACCOUNT}; see edl doctor.",
    ),
    (
        "service account",
        f"Have an admin create the accounts {names.MASTER_ACCOUNT} and {names.POD_ACCOUNT}; see edl doctor.",
    ),
    (
        "PriorityClass",
        "Have an admin create the PriorityClass, or name another one; `edl doctor` lists what is missing.",
    ),
    (" cannot ", "Have an admin bind the master's account to its Role; `edl doctor` lists what is missing."),
)
"""By what the API server says of a pod that it refuses."""
_NODE_REASONS = re.compile(r"(?P<count>\d+) (?P<what>.+?)(?=, \d+ |$)")


def find_pod_problem(pod: Manifest) -> PodProblem | None:
    """Why a pod is not running, or has failed; None when it runs or has done its work."""
    # The container's own words come first: the phase of a pod whose container failed says less, or nothing yet.
    for container in read_containers(pod):
        problem = _container_problem(container)
        if problem is not None:
            return problem
    phase, status = pod_phase(pod), pod.get("status") or {}
    if phase == PodPhase.FAILED:
        reason, said = str(status.get("reason") or "Failed"), str(status.get("message") or "")
        return PodProblem(reason, f"it failed{f': {said}' if said else ''}", is_final=True, cluster_message=said)
    if phase != PodPhase.PENDING:
        return None
    refusal = scheduling_refusal(pod)
    if refusal is not None:
        reason, message = refusal
        return parse_scheduler_message(message, reason)
    if pod.get("spec", {}).get("nodeName"):
        return PodProblem("Starting", f"node {pod['spec']['nodeName']} makes its container: image and volumes first")
    return PodProblem("Pending", "the scheduler has not looked at it yet")


def parse_scheduler_message(message: str, reason: str = "Unschedulable") -> PodProblem:
    """What the scheduler's message means.

    ``0/3 nodes are available: 1 node(s) had untolerated taint {a: }, 2 Insufficient cpu. preemption: ...``
    """
    if reason == "SchedulingGated":
        return PodProblem(
            reason,
            "something holds it back from the scheduler",
            "Another controller of the cluster must let it go.",
            cluster_message=message,
        )
    for rule in _CLAIM_RULES:
        if match := rule.pattern.search(message):
            return PodProblem(reason, rule.text.format(*match.groups()), rule.remedy, rule.is_final, message)
    head, _, told = message.partition("nodes are available: ")
    reasons = told.partition(". ")[0].rstrip(".")  # what follows is about preemption and devices
    total = head.strip().rpartition("/")[2].strip()
    found = [_translate_reason(match["what"], match["count"], total) for match in _NODE_REASONS.finditer(reasons)]
    if not found:
        return PodProblem(reason, message or "the scheduler finds no place for it", cluster_message=message)
    remedies = list(dict.fromkeys(remedy for _, remedy in found if remedy))
    return PodProblem(reason, "; ".join(text for text, _ in found), " ".join(remedies[:2]), cluster_message=message)


def insufficient_resources(message: str) -> list[str]:
    """The resources that the scheduler's message says are insufficient somewhere: ``["cpu"]``."""
    return list(dict.fromkeys(name.rstrip(".,") for name in re.findall(r"\d+ Insufficient (\S+)", message)))


def _translate_reason(what: str, count: str, total: str) -> tuple[str, str]:
    where = f"on {count} of {total} nodes"
    for rule in _SCHEDULER_RULES:
        if match := rule.pattern.search(what):
            return f"{where} {rule.text.format(*match.groups())}", rule.remedy.format(*match.groups())
    return f"{where}: {what}", ""


def _container_problem(container: ContainerStatus) -> PodProblem | None:
    """What a container waits for, or how it ended; None when it runs, or its end says nothing of the pod's."""
    if container.waiting is not None and container.waiting[0] in _CONTAINER_PROBLEMS:
        reason, said = container.waiting
        text, remedy = _CONTAINER_PROBLEMS[reason]
        final = container.waits_in_vain
        if reason == "CrashLoopBackOff":
            said, final = _last_exit_text(container.last_end), True
        image = f" ({container.image or None})" if "image" in text else ""
        return PodProblem(reason, f"{text}{image}{f': {said}' if said else ''}", remedy, final, said)
    end = container.end
    # A sidecar may end as it likes: the role's container and those before it decide.
    if end is None or end.exit_code == 0 or not (container.is_role or container.is_init):
        return None
    reason, said = end.reason or "Error", end.error_line
    if reason == "OOMKilled":
        return PodProblem(
            reason,
            "it needed more memory than it asked for and was killed",
            "Raise resources.memory of the role, or set workers.oom_memory_factor.",
            is_final=True,
            cluster_message=said,
        )
    how = "its node lost its container" if end.exit_code is None else f"it ended with exit code {end.exit_code}"
    return PodProblem(reason, f"{how}{f': {said}' if said else ''}", is_final=True, cluster_message=said)


def _last_exit_text(end: ContainerEnd | None) -> str:
    if end is None:
        return ""
    return f"exit code {end.exit_code}{f': {end.error_line}' if end.error_line else ''}"


def waiting_remedy(reason: str) -> str:
    """What can be done about a container that waits for this reason; empty when waiting is all there is to do."""
    return _CONTAINER_PROBLEMS.get(reason, ("", ""))[1]


def refusal_remedy(text: str) -> str:
    """What can be done about a pod that the API server refuses; empty when only its admin knows."""
    return next((remedy for part, remedy in _REFUSAL_REMEDIES if part in text), "")

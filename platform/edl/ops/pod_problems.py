"""Explains why a pod waits or has ended, with a remedy: translates the messages of the API server,
the scheduler and the kubelet. Every remedy for a pod is in a table here.

A message that matches no pattern is passed on unchanged.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from edl.api.cluster_port import UNSCHEDULABLE, PodPhase
from edl.cluster.kubernetes import names
from edl.cluster.kubernetes.pod_status import (
    ContainerEnd,
    ContainerStatus,
    failed_pod_reason,
    pod_phase,
    read_containers,
    scheduling_refusal,
)
from edl.cluster.kubernetes.resource_kinds import Manifest


@dataclass(frozen=True, slots=True)
class PodProblem:
    """Why a pod does not run.

    Attributes:
        reason: Kubernetes' reason code, such as ``Unschedulable`` or ``ImagePullBackOff``.
        text: its meaning, as a sentence without a full stop.
        remedy: what the user can do; empty if waiting is the only option.
        is_final: waiting does not help; somebody has to change something.
        cluster_message: the original message.
    """

    reason: str
    text: str
    remedy: str = ""
    is_final: bool = False
    cluster_message: str = ""


@dataclass(frozen=True, slots=True)
class _MessageRule:
    """The translation of one of the scheduler's reasons; ``{0}`` is the pattern's group."""

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
        "It starts by itself when capacity is free; or request less (resources.{0} of the role), "
        "or give the role a higher priority.",
    ),
    _make_rule(
        r"Too many pods", "the node has its maximum number of pods", "It starts by itself when other pods have ended."
    ),
    _make_rule(
        r"had untolerated taint[s()]*\s*\{([^\s:}]+)",
        "the node repels pods that do not tolerate {0}",
        "If the job may run there, add the toleration to pod.tolerations.",
    ),
    _make_rule(  # newer schedulers do not name the taint
        r"had untolerated taint",
        "the node repels pods that do not tolerate its taint",
        "If the job may run there, add the toleration to pod.tolerations; kubectl describe node shows taints.",
    ),
    _make_rule(
        r"didn't match Pod's node affinity",
        "the node does not match the job's node selector or affinity",
        "Check pod.node_selector and pod.affinity: no node with free capacity has these labels.",
    ),
    _make_rule(
        r"(?:were|was) unschedulable",
        "the node takes no new pods (cordoned)",
        "`kubectl uncordon` makes it schedulable again.",
    ),
    _make_rule(
        r"volume node affinity conflict",
        "the volume can only be used on another node",
        "The claim needs a volume that all nodes reach (ReadWriteMany).",
    ),
    _make_rule(
        r"didn't (?:match|satisfy).*anti-affinity",
        "a rule of pod.affinity excludes the node because of another pod",
        "Check pod.affinity.",
    ),
    _make_rule(
        r"didn't match pod topology spread", "a topology spread constraint excludes the node", "Check pod.overrides."
    ),
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
        "`edl doctor` checks the claims; `kubectl describe pvc` shows why one is not bound.",
    ),
    _make_rule(r'persistentvolumeclaim "([^"]+)" is being deleted', "the PersistentVolumeClaim {0} is being deleted"),
)
_PULL_HINT = "Check the name of the image, that the nodes reach its registry, and pod.image_pull_secrets."
_CONTAINER_PROBLEMS = {
    "ErrImagePull": ("its image cannot be pulled", _PULL_HINT),
    "ImagePullBackOff": ("its image cannot be pulled", _PULL_HINT),
    "ImageInspectError": ("its image cannot be read", _PULL_HINT),
    "ErrImageNeverPull": ("its image is not on the node, and is never pulled there", _PULL_HINT),
    "InvalidImageName": ("the image name is invalid", "Correct `image` in the job file."),
    "CreateContainerConfigError": (
        "its container cannot be created",
        "A Secret, ConfigMap or volume that it uses is missing, or security.run_as does not fit.",
    ),
    "CreateContainerError": ("its container cannot be created", "Build the image with `edl zoo build`."),
    "RunContainerError": (
        "its container cannot be started",
        "The image needs the program `edl-role`: build it with `edl zoo build`.",
    ),
    "CrashLoopBackOff": ("its container crashes repeatedly", "`edl logs` shows what it printed."),
}
IMAGE_REASONS = _CONTAINER_PROBLEMS.keys() - {"CreateContainerConfigError", "CrashLoopBackOff"}
"""Reasons for which another image may help."""
_REFUSAL_REMEDIES = (
    (  # first, because messages of policies mention service accounts and PriorityClasses, too
        "ValidatingAdmissionPolicy",
        "Check pod.overrides, the priorities and security in the job file, or have the cluster's admin allow it.",
    ),
    ("exceeded quota", "Wait until other jobs of the namespace have ended, request less, or have the quota raised."),
    ("violates PodSecurity", "Check pod.overrides, host_path volumes and security.run_as in the job file."),
    # before accounts, because the message names a user such as system:serviceaccount:team-a:edl-job-master
    (" cannot ", "Have an admin bind the master's account to its Role; `edl doctor` lists what is missing."),
    (
        "error looking up service account",
        f"Have an admin create the accounts {names.MASTER_ACCOUNT} and {names.POD_ACCOUNT}; see edl doctor.",
    ),
    (
        "no PriorityClass with name",
        "Have an admin create the PriorityClass, or name another one; `edl doctor` lists what is missing.",
    ),
)
"""Remedies by a part of the API server's message; the first match counts."""
_NODE_REASONS = re.compile(r"(?P<count>\d+) (?P<what>.+?)(?=, \d+ |$)")


def find_pod_problem(pod: Manifest) -> PodProblem | None:
    """Why a pod is not running, or has failed; None when it runs or has done its work."""
    # Containers come first: the phase of a pod whose container failed says less, or has not changed
    # yet.
    for container in read_containers(pod):
        problem = _container_problem(container)
        if problem is not None:
            return problem
    phase = pod_phase(pod)
    if phase == PodPhase.FAILED:
        reason, status_message = failed_pod_reason(pod)
        return PodProblem(
            reason,
            f"it failed{f': {status_message}' if status_message else ''}",
            is_final=True,
            cluster_message=status_message,
        )
    if phase != PodPhase.PENDING:
        return None
    refusal = scheduling_refusal(pod)
    if refusal is not None:
        reason, message = refusal
        return parse_scheduler_message(message, reason)
    if pod.get("spec", {}).get("nodeName"):
        return PodProblem(
            "Starting",
            f"node {pod['spec']['nodeName']} is creating its container: it first pulls the image and mounts volumes",
        )
    return PodProblem("Pending", "the scheduler has not processed it yet")


def parse_scheduler_message(message: str, reason: str = UNSCHEDULABLE) -> PodProblem:
    """What the scheduler's message means.

    ``0/3 nodes are available: 1 node(s) had untolerated taint {a: }, 2 Insufficient cpu. preemption: ...``
    """
    if reason == "SchedulingGated":
        return PodProblem(
            reason,
            "a scheduling gate keeps the scheduler from placing it",
            "Another controller of the cluster must remove the gate.",
            cluster_message=message,
        )
    for rule in _CLAIM_RULES:
        if match := rule.pattern.search(message):
            return PodProblem(reason, rule.text.format(*match.groups()), rule.remedy, rule.is_final, message)
    head, _, node_reasons = message.partition("nodes are available: ")
    reasons = node_reasons.partition(". ")[0].rstrip(".")  # what follows is about preemption and devices
    total = head.strip().rpartition("/")[2].strip()
    problems = [_translate_reason(match["what"], match["count"], total) for match in _NODE_REASONS.finditer(reasons)]
    if not problems:
        return PodProblem(reason, message or "the scheduler finds no node for it", cluster_message=message)
    remedies = list(dict.fromkeys(remedy for _, remedy in problems if remedy))
    return PodProblem(reason, "; ".join(text for text, _ in problems), " ".join(remedies[:2]), cluster_message=message)


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
    """Why a container waits or has failed; None if it runs, or if its end does not matter to the
    pod.
    """
    if container.waiting is not None and container.waiting[0] in _CONTAINER_PROBLEMS:
        reason, message = container.waiting
        text, remedy = _CONTAINER_PROBLEMS[reason]
        final = container.waits_in_vain
        if reason == "CrashLoopBackOff":
            message, final = _last_exit_text(container.last_end), True
        image = f" ({container.image or None})" if "image" in text else ""
        return PodProblem(reason, f"{text}{image}{f': {message}' if message else ''}", remedy, final, message)
    end = container.end
    # The end of a sidecar does not matter: the role's container and the init containers decide.
    if end is None or end.exit_code == 0 or not (container.is_role or container.is_init):
        return None
    reason, message = end.reason or "Error", end.error_line
    if reason == "OOMKilled":
        return PodProblem(
            reason,
            "it exceeded its memory limit and was killed",
            "Raise resources.memory of the role, or set workers.oom_memory_factor.",
            is_final=True,
            cluster_message=message,
        )
    how = "its node lost its container" if end.exit_code is None else f"it ended with exit code {end.exit_code}"
    return PodProblem(reason, f"{how}{f': {message}' if message else ''}", is_final=True, cluster_message=message)


def _last_exit_text(end: ContainerEnd | None) -> str:
    if end is None:
        return ""
    return f"exit code {end.exit_code}{f': {end.error_line}' if end.error_line else ''}"


def waiting_remedy(reason: str) -> str:
    """The remedy for a container that waits for this reason; empty if waiting is the only option."""
    return _CONTAINER_PROBLEMS.get(reason, ("", ""))[1]


def refusal_remedy(text: str) -> str:
    """The remedy for a pod that the API server refuses; empty if no rule matches."""
    return next((remedy for part, remedy in _REFUSAL_REMEDIES if part in text), "")

"""Why a job waits, is slow or has failed: findings from what the cluster and the master say; nothing is asked here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from edl.api.cluster_port import Role
from edl.cluster.kubernetes.pod_status import is_pod_leaving, is_pod_over
from edl.cluster.kubernetes.resource_kinds import Manifest
from edl.core.stall import UNSAVED_REASON
from edl.ops.cluster_capacity import ClusterCapacity, pod_requests
from edl.ops.job_findings import JobFinding, format_short_list
from edl.ops.job_view import JobView, KubernetesEvent, job_conditions, pod_label, pod_role
from edl.ops.pod_problems import PodProblem, find_pod_problem, insufficient_resources, refusal_remedy
from edl.ops.push_diagnosis import diagnose_pushes, diagnose_slowdown
from edl.ops.resource_quantities import format_amounts

_ENDING_PHRASES = {"Failed": "failed", "Interrupted": "was interrupted"}
_ASK_LESS_HINT = "Request less: see the role's resources in the job file."
_UNKNOWN_CAPACITY_HINT = (
    "If one has, the pod starts by itself when capacity is free. Otherwise request less: see the role's resources in "
    "the job file. Ask an admin, or have an admin bind the ClusterRole edl-cluster-viewer to you."
)


@dataclass(frozen=True, slots=True)
class JobEvidence:
    """All that a diagnosis is made from.

    Attributes:
        job: the job.
        pods: its pods.
        events: what Kubernetes says about its objects, by time.
        nodes: all nodes; None where they may not be listed.
        command_target: the job as the next command names it: ``mnist -n team``.
    """

    job: JobView
    pods: Sequence[Manifest]
    events: Sequence[KubernetesEvent]
    nodes: Sequence[Manifest] | None
    command_target: str


def diagnose_job(evidence: JobEvidence) -> list[JobFinding]:
    """What is the matter, the most important first; empty when nothing is."""
    if evidence.job.has_ended:
        return [*_find_failure(evidence), *_find_slowdowns(evidence)]
    found = [
        *_find_missing_master(evidence),
        *_find_stall(evidence),
        *_find_pending_pods(evidence),
        *_find_refused_pods(evidence.job),
        *_find_starvation(evidence),
        *_find_slowdowns(evidence),
    ]
    return [each for index, each in enumerate(found) if each not in found[:index]]


def _find_slowdowns(evidence: JobEvidence) -> Iterator[JobFinding]:
    """What holds it up, and what has cost it time."""
    yield from diagnose_pushes(evidence.job, evidence.command_target)
    yield from diagnose_slowdown(evidence.job, evidence.command_target)


def _find_failure(evidence: JobEvidence) -> Iterator[JobFinding]:
    """How it ended, if not well."""
    job = evidence.job
    if job.phase == "Done":
        return
    status, ended = job.status, job_conditions(job.manifest).get("Failed", {})
    reason = (status.reason if status else "") or str(ended.get("message") or "the reason is unknown")
    remedy = (
        f"Continue with: edl submit JOB.yaml --resume {status.run}"
        if status
        else f"`edl logs {evidence.command_target}` says more."
    )
    yield JobFinding(
        job.name, f"it {_ENDING_PHRASES.get(job.phase, job.phase)}: {reason}", remedy, job.publication.failure_detail
    )


def _find_missing_master(evidence: JobEvidence) -> Iterator[JobFinding]:
    """Why there is no master, if there is none."""
    if any(pod_role(pod) is Role.MASTER for pod in evidence.pods):
        return
    if evidence.job.phase == "Suspended":
        yield JobFinding(
            evidence.job.name,
            "the Job is suspended: its submission was interrupted",
            f"Delete it and submit again: edl delete {evidence.command_target}",
        )
        return
    refused = [each for each in evidence.events if each.reason == "FailedCreate"]
    if refused:
        yield JobFinding("master", f"its pod is refused: {refused[-1].text}", refusal_remedy(refused[-1].text))
    else:
        yield JobFinding(
            "master", "the Job controller has not created its pod yet; after a deletion it waits 10 s or longer"
        )


def _find_stall(evidence: JobEvidence) -> Iterator[JobFinding]:
    """That training stands, and for want of what."""
    job = evidence.job
    if job.stall_reason:
        remedy = "It continues by itself when that is available; the master replaces processes that do not answer."
        if UNSAVED_REASON in job.stall_reason:
            remedy = (
                "Free space on the job's volume: the master retries every 30 s, and training then continues by itself."
            )
        yield JobFinding(job.name, f"it is stalled: {job.stall_reason}", remedy)


def _find_pending_pods(evidence: JobEvidence) -> Iterator[JobFinding]:
    """Pods that wait, those with the same reason together."""
    together: dict[PodProblem, list[Manifest]] = {}
    for pod in evidence.pods:
        wait = find_pod_problem(pod)
        if wait is not None and not is_pod_leaving(pod) and not is_pod_over(pod):
            together.setdefault(wait, []).append(pod)
    for wait, pods in together.items():
        about = format_short_list([pod_label(pod) for pod in pods])
        text, remedy = _capacity_problem(pods[0], wait, evidence.nodes) or (wait.text, wait.remedy)
        yield JobFinding(about, text, remedy, wait.cluster_message if wait.cluster_message not in text else "")


def _capacity_problem(pod: Manifest, problem: PodProblem, nodes: Sequence[Manifest] | None) -> tuple[str, str] | None:
    """Text and remedy, if the pod is not known to fit on an empty node."""
    if problem.reason != "Unschedulable":
        return None
    return _unknown_capacity(pod, problem) if nodes is None else _exceeds_every_node(pod, nodes)


def _unknown_capacity(pod: Manifest, problem: PodProblem) -> tuple[str, str] | None:
    """That nobody here can tell whether room would be enough, if it is room that it waits for."""
    wanted = pod_requests(pod)
    lacking = {name: wanted[name] for name in insufficient_resources(problem.cluster_message) if name in wanted}
    if not lacking:
        return None
    doubt = "it is unknown whether any node has that much: you may not list nodes"
    return f"{problem.text}; it requests {format_amounts(lacking)}, and {doubt}", _UNKNOWN_CAPACITY_HINT


def _exceeds_every_node(pod: Manifest, nodes: Sequence[Manifest]) -> tuple[str, str] | None:
    """That even the cluster without any other pod has no room, if that is so."""
    if not nodes:
        return None
    room = ClusterCapacity(nodes, [])
    place = room.place_pod(pod)
    # Cordoned and unready nodes take no pods now, but come back: `edl submit` counts them, too.
    if place.node is not None or not place.lacking or not room.never_fits_reason(pod):
        return None
    wanted = pod_requests(pod)
    asked = format_amounts({name: wanted[name] for name in place.lacking if name in wanted})
    return f"it can never start: it requests {asked}, more than any node that it may use has", _ASK_LESS_HINT


def _find_refused_pods(job: JobView) -> Iterator[JobFinding]:
    """Pods that the cluster would not even take."""
    texts: dict[str, list[str]] = {}
    for name, text in (job.status.refusals if job.status else {}).items():
        texts.setdefault(text, []).append(name)
    for text, refused in texts.items():
        yield JobFinding(format_short_list(refused), f"the cluster refuses it: {text}", refusal_remedy(text))


def _find_starvation(evidence: JobEvidence) -> Iterator[JobFinding]:
    status, running = evidence.job.status, evidence.job.running_workers
    if status is not None and status.starved:
        left = "the job continues with them" if running > 1 else "the job continues with that one"
        yield JobFinding(
            evidence.job.name,
            f"starved: {'1 worker runs' if running == 1 else f'{running} workers run'}, workers.min is "
            f"{status.workers_min}; {left if running else 'training waits until one starts'}",
            f"`edl scale {evidence.command_target} --min N` changes the bound.",
        )

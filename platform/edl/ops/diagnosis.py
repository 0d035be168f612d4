"""Finds why a job waits, is slow or has failed, from the reports of the cluster and the master.

This module makes no requests.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import dropwhile, pairwise

from edl.api.cluster_port import UNSCHEDULABLE, Role
from edl.api.run_events import RoleEnded, RoleStarted, WarningRaised
from edl.api.status import DisruptionReport, ParametersStatus, RoundStatus, TimelinePoint
from edl.cluster.kubernetes.pod_status import is_pod_over
from edl.cluster.kubernetes.resource_kinds import Manifest, is_being_deleted
from edl.core.short_list import format_short_list
from edl.core.stall import UNSAVED_REASON
from edl.jobfile.disruptions import DisruptionCounter
from edl.ops.cluster_capacity import ClusterCapacity, pod_requests
from edl.ops.job_findings import JobFinding
from edl.ops.job_view import JobView, KubernetesEvent, job_conditions, pod_label, pod_role
from edl.ops.pod_problems import PodProblem, find_pod_problem, insufficient_resources, refusal_remedy
from edl.ops.resource_quantities import format_amounts
from edl.reporting.unit_formats import format_bytes, format_duration, format_percent

LONG_UPDATE_SECONDS = 5.0
"""An update that waits for less is not reported: its workers are still computing."""
FULL_TABLE_SHARE = 0.9
"""Share of ps.max_rows from which a table is reported."""
HIGH_REFUSED_SHARE, MIN_PUSHES = 0.05, 20
"""Share of refused pushes that is reported, and the pushes below which a share means nothing."""
_MAX_NAMED_WORKERS = 4
_FULL_TABLE_HINT = (
    "Raise ps.max_rows, or evict unused rows: set or lower ps.evict_after_steps. `{command} JOB.yaml --resume` then "
    "continues the run."
)


def diagnose_pushes(job: JobView, command_target: str) -> Iterator[JobFinding]:
    """What delays or will stop updates; ``command_target`` is the job's name in commands."""
    parameters_status = job.status.parameters if job.status else None
    if parameters_status is None:
        return
    if not job.has_ended:
        yield from list(_find_waiting_update(job, parameters_status, command_target)) or _find_small_updates(
            job, parameters_status
        )
        yield from _find_full_tables(job, parameters_status)
    yield from _find_refused_pushes(job, parameters_status)


def _find_waiting_update(
    job: JobView, parameters_status: ParametersStatus, command_target: str
) -> Iterator[JobFinding]:
    """An update that has waited long for its gradients."""
    current_round = parameters_status.round
    if current_round is None or current_round.seconds < LONG_UPDATE_SECONDS or not current_round.awaited:
        return
    missing = max(
        1, min(current_round.wanted - current_round.arrived, current_round.awaited_total)
    )  # a refused worker is still awaited
    gradients = "1 gradient" if missing == 1 else f"{missing} gradients"
    text = (
        f"an update has been waiting for {gradients} for {format_duration(current_round.seconds)} (sync, "
        f"{current_round.arrived} of {current_round.wanted}"
        f" arrived); expected workers: {_awaited_workers(current_round)}{_missing_workers_text(job, current_round)}"
    )
    remedy = (
        f"`edl logs {command_target} -r worker` shows what these workers do. Lower strategy.grads_to_wait to update "
        "without slow workers."
    )
    yield JobFinding(job.name, text, remedy)


def _find_small_updates(job: JobView, parameters_status: ParametersStatus) -> Iterator[JobFinding]:
    """Updates from fewer gradients than the job wants, because workers are missing."""
    wanted, running = parameters_status.strategy.grads_to_wait, job.running_workers
    if parameters_status.strategy.mode == "sync" and 0 < running < wanted:
        text = (
            f"updates combine {running} of {wanted} gradients (sync): fewer workers run than strategy.grads_to_wait"
            f"{_missing_workers_text(job, None)}"
        )
        yield JobFinding(job.name, text, "No action is needed: a new worker counts from its first push.")


def _find_full_tables(job: JobView, parameters_status: ParametersStatus) -> Iterator[JobFinding]:
    """Tables that are close to their bound."""
    for table in parameters_status.tables:
        if table.full is not None and table.full >= FULL_TABLE_SHARE and table.max_rows:
            text = (
                f"table {table.name} has {format_percent(table.full)} of ps.max_rows ({table.rows:,} rows of "
                f"{table.max_rows:,}, {format_bytes(table.bytes)}); the job fails if a push exceeds it"
            )
            command = "edl run" if job.is_local else "edl submit"
            yield JobFinding(job.name, text, _FULL_TABLE_HINT.format(command=command))


def _find_refused_pushes(job: JobView, parameters_status: ParametersStatus) -> Iterator[JobFinding]:
    """Pushes that were refused because their gradients were computed at outdated values."""
    refused_share = parameters_status.refused_share
    if refused_share < HIGH_REFUSED_SHARE or parameters_status.pushes + parameters_status.refused < MIN_PUSHES:
        return
    strategy = parameters_status.strategy
    text = (
        f"{format_percent(refused_share)} of pushes were rejected as too old and computed again "
        f"(sync, {strategy.grads_to_wait} gradients per update, tolerance {strategy.version_tolerance})"
    )
    remedy = (
        "Lower workers.max or raise strategy.version_tolerance. Or raise strategy.grads_to_wait, so that updates "
        "include the gradients of slow workers."
    )
    yield JobFinding(job.name, text, remedy)


def _awaited_workers(current_round: RoundStatus) -> str:
    hidden = current_round.awaited_total - len(current_round.awaited)
    return format_short_list(_worker_labels(current_round.awaited), _MAX_NAMED_WORKERS, hidden=hidden)


def _missing_workers_text(job: JobView, current_round: RoundStatus | None) -> str:
    """``; worker-1 is gone, not expected``; empty if no worker is missing."""
    awaited = set(current_round.awaited) if current_round else set()
    lost, pending = _gone_workers(job) - awaited, _workers_in_state(job, "pending") - awaited
    if not lost | pending:
        return ""
    parts = [_workers_text(lost, "is gone", "are gone"), _workers_text(pending, "is pending", "are pending")]
    return f"; {' and '.join(part for part in parts if part)}, not expected"


def _workers_text(workers: set[int], singular: str, plural: str) -> str:
    if not workers:
        return ""
    return (
        f"{format_short_list(_worker_labels(sorted(workers)), _MAX_NAMED_WORKERS)}"
        f" {singular if len(workers) == 1 else plural}"
    )


def _gone_workers(job: JobView) -> set[int]:
    """Workers that are terminating, or ended without a restart, as far as events are kept."""
    ended: set[int] = set()
    for event in job.published_status.events:
        if isinstance(event, RoleEnded) and event.role == "worker":
            ended.add(event.index)
        elif isinstance(event, RoleStarted) and event.role == "worker":
            ended.discard(event.index)
    return (ended - _workers_in_state(job)) | _workers_in_state(job, "leaving")


def _workers_in_state(job: JobView, state: str | None = None) -> set[int]:
    """The workers of the status that are in a state, or all."""
    workers = job.status.workers if job.status else ()
    return {worker.index for worker in workers if state in (None, worker.state)}


def _worker_labels(workers: Sequence[int]) -> list[str]:
    return [f"worker-{index}" for index in workers]


# --------------------------------------------------------------------------------------------------
# Why a job was slower than possible: missing workers over time, and lost work.


ENOUGH_WORKERS_SHARE = 0.9
"""Share of the wanted workers below which their average number is reported."""
MIN_TIMELINE_SECONDS = 60.0
"""Workers that have been missing for a shorter time are not reported."""


def diagnose_slowdown(job: JobView, command_target: str) -> Iterator[JobFinding]:
    """What cost time so far; ``command_target`` is the job's name in commands."""
    yield from _find_missing_workers(job, command_target)
    yield from _find_unapplied_steps(job, command_target)
    yield from _find_skipped_updates(job, command_target)
    publication = job.published_status
    yield from _find_losses(
        job.name, publication.losses or DisruptionCounter.from_events(publication.events).report, command_target
    )
    for message in dict.fromkeys(
        event.message for event in job.published_status.events if isinstance(event, WarningRaised)
    ):
        yield JobFinding(job.name, message)


def _find_unapplied_steps(job: JobView, command_target: str) -> Iterator[JobFinding]:
    """A difference between finished steps and applied pushes.

    The parameters are then not the result of the records that count as trained.
    """
    steps = job.status.steps_not_applied if job.status is not None else 0
    if steps:
        text = f"{steps:,} steps differ between what workers reported as done and what parameter servers applied"
        remedy = (
            "A client other than EDL's workers uses the job's token to call the parameter servers; `edl logs "
            f"{command_target}` shows when."
        )
        yield JobFinding(job.name, text, remedy)


def _find_skipped_updates(job: JobView, command_target: str) -> Iterator[JobFinding]:
    """Steps that ``train.on_nan: skip`` left out."""
    skipped = job.status.updates_skipped if job.status is not None else 0
    if skipped:
        count = "1 update was" if skipped == 1 else f"{skipped:,} updates were"
        text = f"{count} skipped: the loss or a gradient was not finite (train.on_nan: skip)"
        yield JobFinding(
            job.name,
            text,
            f"`edl logs {command_target} -r worker` names the records of each. Check them and the learning rate.",
        )


def _find_missing_workers(job: JobView, command_target: str) -> Iterator[JobFinding]:
    """Fewer workers than were wanted, on average."""
    status, timeline = job.status, list(dropwhile(lambda moment: not moment.workers, job.published_status.timeline))
    if status is None or len(timeline) < 2 or timeline[-1].time - timeline[0].time < MIN_TIMELINE_SECONDS:
        return
    wanted, had = status.workers_wanted, average_workers(timeline)
    if wanted and had < ENOUGH_WORKERS_SHARE * wanted:
        waiting = sum(moment.pending > 0 for moment in timeline) / len(timeline)
        text = f"{had:.1f} of {wanted} wanted workers ran on average"
        more = f"; {waiting:.0%} of the time, workers waited for free capacity" if waiting >= 0.05 else ""
        yield JobFinding(job.name, text + more, f"`edl status {command_target}` plots the workers over time.")


def average_workers(timeline: Sequence[TimelinePoint]) -> float:
    """The average number of running workers, weighted by time."""
    spans = [(after.time - before.time, before.workers) for before, after in pairwise(timeline)]
    whole = sum(span for span, _ in spans)
    return sum(span * workers for span, workers in spans) / whole if whole > 0 else float(timeline[-1].workers)


def _find_losses(job: str, losses: DisruptionReport, command_target: str) -> Iterator[JobFinding]:
    """Work that was lost over the job's whole life."""
    for what, by_reason in (
        ("workers", losses.workers),
        ("parameter servers", losses.ps),
        ("the master", losses.master),
    ):
        if by_reason:
            counts = ", ".join(f"{count} x {reason}" for reason, count in sorted(by_reason.items()))
            yield JobFinding(job, f"{what} lost: {counts}", f"`edl events {command_target}` shows when.")
    if losses.rollbacks:
        text = (
            f"rolled back to a checkpoint {losses.rollbacks} times, {losses.records_rolled_back:,} records are trained "
            f"again: {losses.rollback_reason}"
        )
        yield JobFinding(
            job, text, "Lower checkpoint.every_steps: with more frequent checkpoints, fewer records are trained again."
        )
    if losses.records_returned:
        yield JobFinding(
            job,
            f"{losses.records_returned:,} records were returned to the queue; {losses.records_leased_again:,} of them "
            "were leased again",
        )


_ENDING_PHRASES = {"Failed": "failed", "Interrupted": "was interrupted"}
_ASK_LESS_HINT = "Lower the role's resources in the job file."
_UNKNOWN_CAPACITY_HINT = (
    "If a node has that much, the pod starts by itself when capacity is free; otherwise lower the role's resources in "
    "the job file. To find out, ask an admin, or have the ClusterRole edl-cluster-viewer bound to you."
)


@dataclass(frozen=True, slots=True)
class JobEvidence:
    """The input of a diagnosis.

    Attributes:
        job: the job.
        pods: its pods.
        events: Kubernetes events about its objects, by time.
        nodes: all nodes; None if the user may not list them.
        command_target: the job's name in commands: ``mnist -n team``.
    """

    job: JobView
    pods: Sequence[Manifest]
    events: Sequence[KubernetesEvent]
    nodes: Sequence[Manifest] | None
    command_target: str


def diagnose_job(evidence: JobEvidence) -> list[JobFinding]:
    """The problems of a job, the most important first."""
    if evidence.job.has_ended:
        return [*_find_failure(evidence), *_find_slowdowns(evidence)]
    findings = [
        *_find_missing_master(evidence),
        *find_stall(evidence.job),
        *find_stragglers(evidence.job),
        *_find_pending_pods(evidence),
        *_find_refused_pods(evidence.job),
        *find_starvation(evidence.job, f"`edl scale {evidence.command_target} --min N` changes workers.min."),
        *_find_slowdowns(evidence),
    ]
    return [each for index, each in enumerate(findings) if each not in findings[:index]]


def _find_slowdowns(evidence: JobEvidence) -> Iterator[JobFinding]:
    """What delays the job now, and what has cost it time."""
    yield from diagnose_pushes(evidence.job, evidence.command_target)
    yield from diagnose_slowdown(evidence.job, evidence.command_target)


def _find_failure(evidence: JobEvidence) -> Iterator[JobFinding]:
    """Why the job failed, if it did."""
    job = evidence.job
    if job.phase == "Done":
        return
    status, ended = job.status, job_conditions(job.manifest).get("Failed", {})
    reason = (status.reason if status else "") or str(ended.get("message") or "the reason is unknown")
    remedy = (
        f"Continue with: edl submit JOB.yaml --resume {status.run}"
        if status and status.step  # otherwise nothing was trained that a resumed run would keep
        else f"`edl logs {evidence.command_target}` shows the master's output."
    )
    yield JobFinding(
        job.name,
        f"it {_ENDING_PHRASES.get(job.phase, job.phase)}: {reason}",
        remedy,
        job.published_status.failure_detail,
    )


def _find_missing_master(evidence: JobEvidence) -> Iterator[JobFinding]:
    """Why the job has no master, if it has none."""
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
        yield JobFinding("master", f"the cluster refuses its pod: {refused[-1].text}", refusal_remedy(refused[-1].text))
    else:
        yield JobFinding(
            "master", "the Job controller has not created its pod yet; after a deletion it waits 10 s or longer"
        )


def find_stall(job: JobView) -> Iterator[JobFinding]:
    """A stalled training, and what it waits for."""
    if job.stall_reason:
        remedy = "Training continues by itself afterwards; the master replaces processes that do not answer."
        if UNSAVED_REASON in job.stall_reason:
            remedy = (
                "Free space on the job's volume. The master retries every 30 s, and training then continues by itself."
            )
        yield JobFinding(job.name, f"it is stalled: {job.stall_reason}", remedy)


def _find_pending_pods(evidence: JobEvidence) -> Iterator[JobFinding]:
    """Pending pods, grouped by reason."""
    pods_by_problem: dict[PodProblem, list[Manifest]] = {}
    for pod in evidence.pods:
        wait = find_pod_problem(pod)
        if wait is not None and not is_being_deleted(pod) and not is_pod_over(pod):
            pods_by_problem.setdefault(wait, []).append(pod)
    for wait, pods in pods_by_problem.items():
        about = format_short_list([pod_label(pod) for pod in pods])
        text, remedy = _capacity_problem(pods[0], wait, evidence.nodes) or (wait.text, wait.remedy)
        yield JobFinding(about, text, remedy, wait.cluster_message if wait.cluster_message not in text else "")


def _capacity_problem(pod: Manifest, problem: PodProblem, nodes: Sequence[Manifest] | None) -> tuple[str, str] | None:
    """Text and remedy if the pod may not fit even on an empty node."""
    if problem.reason != UNSCHEDULABLE:
        return None
    return _unknown_capacity(pod, problem) if nodes is None else _exceeds_every_node(pod, nodes)


def _unknown_capacity(pod: Manifest, problem: PodProblem) -> tuple[str, str] | None:
    """Text and remedy for a user who may not list nodes, if the pod waits for resources."""
    wanted = pod_requests(pod)
    lacking = {name: wanted[name] for name in insufficient_resources(problem.cluster_message) if name in wanted}
    if not lacking:
        return None
    doubt = "it is unknown whether any node has that much: you may not list nodes"
    return f"{problem.text}; it requests {format_amounts(lacking)}, and {doubt}", _UNKNOWN_CAPACITY_HINT


def _exceeds_every_node(pod: Manifest, nodes: Sequence[Manifest]) -> tuple[str, str] | None:
    """Text and remedy if the pod does not fit on today's nodes, even if they were empty."""
    if not nodes:
        return None
    room = ClusterCapacity(nodes, [])
    place = room.place_pod(pod)
    # Cordoned and unready nodes take no pods now, but come back: `edl submit` counts them, too.
    if place.node is not None or not place.lacking_resources or not room.never_fits_reason(pod):
        return None
    wanted = pod_requests(pod)
    asked = format_amounts({name: wanted[name] for name in place.lacking_resources if name in wanted})
    return f"it can never start: it requests {asked}, more than any node that admits it has", _ASK_LESS_HINT


def _find_refused_pods(job: JobView) -> Iterator[JobFinding]:
    """Pods that the API server refuses to create."""
    texts: dict[str, list[str]] = {}
    for name, text in (job.status.refusals if job.status else {}).items():
        texts.setdefault(text, []).append(name)
    for text, refused in texts.items():
        yield JobFinding(format_short_list(refused), f"the cluster refuses it: {text}", refusal_remedy(text))


_STRAGGLER_REMEDY = (
    "A long step ends by itself. The log of the worker that is named may say what it waits for: a file system that "
    "does not answer, or an endless loop in the model's own code. A worker that hangs for an hour while the others "
    "wait is replaced, but not in a job with a `command`."
)


def find_stragglers(job: JobView) -> Iterator[JobFinding]:
    """Workers of AllReduce for which the others wait."""
    world = job.status.world if job.status else None
    if world is not None and world.awaited:
        yield JobFinding(job.name, f"no step is made: {world.awaited}", _STRAGGLER_REMEDY)


_TRAINING_PHASES = ("Starting", "Training")
_WAITING_WORLD_REMEDY = (
    "This usually ends within seconds, or when a new worker has built its model. Otherwise look at that worker's log."
)


def find_starvation(job: JobView, remedy: str) -> Iterator[JobFinding]:
    """Fewer running workers than ``workers.min``, or none that trains together with others."""
    status, running = job.status, job.running_workers
    if status is None:
        return
    awaited = status.world.reason if status.world is not None and not status.world.running else ""
    if status.starved:
        left = "the job continues with them" if running > 1 else "the job continues with that one"
        if awaited:
            left = f"no worker trains: {awaited}"
        yield JobFinding(
            job.name,
            f"starved: {'1 worker runs' if running == 1 else f'{running} workers run'}, workers.min is "
            f"{status.workers_min}; {left if running else 'training waits until one starts'}",
            remedy,
        )
    elif awaited and status.phase in _TRAINING_PHASES:
        yield JobFinding(job.name, f"no worker trains: {awaited}", _WAITING_WORLD_REMEDY)

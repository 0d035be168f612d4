"""The plan of ``edl submit`` as text and as JSON, made from values before anything is created."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from edl.api.cluster_port import Role
from edl.api.errors import BadInputError, EdlError
from edl.api.job_spec import JobSpec
from edl.cluster.kubernetes.pod_template import GPU_RESOURCE
from edl.cluster.kubernetes.resource_kinds import Manifest
from edl.jobfile.command_rules import describe_program
from edl.jobfile.path_resolution import has_shared_storage, pod_storage_path, pod_zoo_path
from edl.jobfile.strategy_choice import describe_first_round, has_own_state, uses_all_reduce
from edl.jobfile.strategy_rules import find_unused_fields
from edl.ops.job_forecast import GroupPlacement, JobForecast
from edl.ops.resource_quantities import ResourceAmounts, base_resource, format_amount, format_amounts
from edl.reporting.text_table import align_columns, wrap_labelled, wrap_text
from edl.reporting.unit_formats import join_words
from edl.storage.run_directory import FROM_CHECKPOINT_SUFFIX, NEWEST_RUN

if TYPE_CHECKING:
    from edl.ops.job_view import JobView

_QUOTA_RESOURCES = ("cpu", "memory", "pods", GPU_RESOURCE)
"""The resources of a quota that the plan shows."""


@dataclass(frozen=True, slots=True)
class SubmissionPlan:
    """The plan of one submission.

    Attributes:
        job_file: the path as the user wrote it.
        namespace: the namespace; None if it is the context's and no cluster was asked.
        context: the context of the kubeconfig; None in a pod, or if no cluster was asked.
        manifests: the objects to create.
        forecast: how many pods fit; with ``edl submit --dry-run=client`` only the requests.
        quotas: name, remaining amounts and limits of each quota; None if the user may not list
            them.
        replaced_job: the ended job with this name, which is removed first.
        resumed_run: the run to resume.
        resume_changes: differences to the job file of the resumed run, as text.
        resume_warnings: warnings, one sentence each.
        cluster_asked: whether a cluster was asked.
    """

    spec: JobSpec
    job_file: Path
    namespace: str | None
    context: str | None
    manifests: Sequence[Manifest]
    forecast: JobForecast
    quotas: Sequence[tuple[str, ResourceAmounts, ResourceAmounts]] | None = None
    replaced_job: JobView | None = None
    resumed_run: str | None = None
    resume_changes: Sequence[str] = ()
    resume_warnings: Sequence[str] = ()
    cluster_asked: bool = True

    @property
    def job(self) -> str:
        return self.spec.name

    def plan_lines(self, width: int = 80) -> list[str]:
        """The plan as text for people."""
        lines = [f"{self.job}: {describe_program(self.spec, pod_zoo_path(self.spec))}, {self._location_text()}"]
        for label, text in self._plan_rows():
            lines += wrap_labelled(label, text, width)
        lines += ["", *forecast_table(self.forecast, self.spec.workers.min), ""]
        for label, text in self._capacity_rows():
            lines += wrap_labelled(label, text, width)
        for warning in [*forecast_warnings(self.forecast), *self.resume_warnings]:
            lines += wrap_text(f"warning: {warning}", width, first_indent="  ", next_indent="    ")
        return lines

    def to_json(self) -> dict[str, Any]:
        """The plan as JSON for programs."""
        return {
            "job": self.job,
            "namespace": self.namespace,
            "context": self.context,
            "image": self.spec.image,
            "creates": [{"kind": one["kind"], "name": one["metadata"]["name"]} for one in self.manifests],
            "unused": find_unused_fields(self.spec),
            "resumes": self.resumed_run,
            "changes": [*self.resume_changes],
            "replaces": self.replaced_job.uid if self.replaced_job else None,
            "pods": [forecast_json(fit) for fit in self.forecast.placements],
            "requested": amounts_json(self.forecast.requested_resources),
            "free": None if self.forecast.free_resources is None else amounts_json(self.forecast.free_resources),
            "quotas": [
                {"name": name, "left": amounts_json(left), "hard": amounts_json(hard)}
                for name, left, hard in self.quotas or ()
            ],
            "warnings": [*forecast_warnings(self.forecast), *self.resume_warnings],
        }

    def _location_text(self) -> str:
        place = f"namespace {self.namespace}" if self.namespace else "the context's namespace"
        return place + (f" of context {self.context}" if self.context else "")

    def _plan_rows(self) -> Iterator[tuple[str, str]]:
        yield "image", str(self.spec.image)
        if self.replaced_job:
            from edl.ops.job_view import format_submit_time

            yield (
                "removes",
                f"the job with this name of {format_submit_time(self.replaced_job)}, "
                f"which has ended ({self.replaced_job.phase})",
            )
        yield "creates", _created_text(self.manifests)
        if self.spec.task != "train":
            weights = self.spec.model.weights or "the newest trained run of this job"
            verb = "evaluates" if self.spec.task == "evaluate" else "predicts"
            yield "task", f"{verb} with {weights}, without parameter servers"
        elif self.spec.model.init_from and not self.resumed_run:
            yield "begins with", f"the weights of {self.spec.model.init_from} (model.init_from)"
        if has_own_state(self.spec):
            yield "task", "the program takes its records with edl.sharding, without parameter servers"
        if self.spec.command and not has_own_state(self.spec):
            yield "task", "the program takes its records and steps with edl.sharding, without parameter servers"
        elif uses_all_reduce(self.spec):
            yield "strategy", "AllReduce: workers sum their gradients among themselves, without parameter servers"
        if uses_all_reduce(self.spec):
            yield "workers", describe_first_round(self.spec)
        if unused := find_unused_fields(self.spec):
            yield "unused", f"{', '.join(unused)}: no parameter servers"
        if self.resumed_run:
            run = self.resumed_run.removesuffix(FROM_CHECKPOINT_SUFFIX)
            yield "resumes", "the newest run" if run == NEWEST_RUN else f"run {run}"
            if run != self.resumed_run:
                yield (
                    "from",
                    "its newest intact checkpoint, without its journal; later work is repeated",
                )
        yield from (("changed", change) for change in self.resume_changes)
        claims = [volume.claim for volume in self.spec.volumes if volume.claim]
        on = f" on claim {self.spec.storage.claim or claims[0]}" if self.spec.storage.claim or claims else ""
        yield (
            "storage",
            pod_storage_path(self.spec) + on if has_shared_storage(self.spec) else "none: lost with the master's pod",
        )

    def _capacity_rows(self) -> Iterator[tuple[str, str]]:
        yield "requests", format_amounts(self.forecast.requested_resources)
        if not self.cluster_asked:
            return
        if self.forecast.free_resources is None or self.forecast.node_counts is None:
            yield "free now", "unknown: you may not list nodes and all pods; only quotas were checked"
        else:
            usable, nodes = self.forecast.node_counts
            on = f"{usable} nodes" if usable == nodes else f"{usable} of {nodes} nodes"
            yield "free now", f"{format_amounts(self.forecast.free_resources)} on {on}"
        if self.quotas is None:
            yield "quota", "unknown: you may not list resourcequotas"
        for name, left, hard in self.quotas or ():
            shown = [
                f"{format_amount(each, max(left[each], Fraction()))} of {format_amount(each, hard[each])} ({each})"
                for each in hard
                if base_resource(each) in _QUOTA_RESOURCES
            ]
            if shown:
                yield "quota", f"{name} has {', '.join(shown)} left"


def _created_text(manifests: Sequence[Manifest]) -> str:
    """Kinds and names of the created objects, the Job first.

    Kinds with the same name are grouped, and so are names of the same kind.
    """
    # Reversed, because the Job is the last manifest.
    by_name: dict[str, list[str]] = {}
    for manifest in reversed(manifests):
        by_name.setdefault(manifest["metadata"]["name"], []).append(manifest["kind"])
    by_kinds: dict[str, list[str]] = {}
    for name, kinds in by_name.items():
        by_kinds.setdefault(" and ".join(kinds), []).append(name)
    return ", ".join(
        kinds + ("s " if len(object_names) > 1 else " ") + " and ".join(object_names)
        for kinds, object_names in by_kinds.items()
    )


# --------------------------------------------------------------------------------------------------
# The forecast as text: a table of the job's pods, and which pods wait for what.


_COLUMNS = ("role", "pods", "priority", "each")
_ROLE_WORDS = {Role.MASTER: "master", Role.PS: "parameter server", Role.WORKER: "worker"}


def forecast_table(forecast: JobForecast, least_workers: int) -> list[str]:
    """The job's pods, one line per kind. Shows how many start at once if the capacity is known."""
    rows = [
        [
            placement.group.role.value,
            _count_text(placement, forecast, least_workers),
            rendered_priority_class(placement),
            _requests_text(placement),
        ]
        for placement in forecast.placements
    ]
    head = [*_COLUMNS]
    if forecast.free_resources is not None:
        head = [*head, "at once"]
        rows = [[*row, str(placement.immediate_pods)] for row, placement in zip(rows, forecast.placements, strict=True)]
    return [f"  {line}" for line in align_columns([head, *rows])]


def forecast_warnings(forecast: JobForecast) -> Iterator[str]:
    """A sentence for each reason why pods can never start on the current nodes, or have to wait."""
    yield from _unschedulable_warnings(forecast)
    by_reason: dict[str, list[tuple[str, int]]] = {}
    for role, placements in groupby(
        (placement for placement in forecast.placements if not placement.never_fits_reason),
        key=lambda placement: placement.group.role,
    ):
        fits = list(placements)
        count = sum(placement.group.count for placement in fits)
        if late := count - sum(placement.immediate_pods for placement in fits):
            by_reason.setdefault(_wait_reason(fits), []).append((_pods_text(role, late, count), late))
    for reason, waiting in by_reason.items():
        alone = sum(late for _, late in waiting) == 1
        yield f"{join_words([who for who, _ in waiting])} {'waits' if alone else 'wait'} {reason}"


def _unschedulable_warnings(forecast: JobForecast) -> Iterator[str]:
    by_reason: dict[str, list[GroupPlacement]] = {}
    for placement in forecast.placements:
        if placement.never_fits_reason:
            by_reason.setdefault(placement.never_fits_reason, []).append(placement)
    for reason, fits in by_reason.items():
        pods_text = join_words(
            [_pods_text(placement.group.role, placement.group.count, placement.group.count) for placement in fits]
        )
        yield f"{pods_text} can never start on today's nodes: {reason}"


def forecast_json(placement: GroupPlacement) -> dict[str, Any]:
    """One kind of pods as JSON."""
    return {
        "role": placement.group.role.value,
        "count": placement.group.count,
        "priority": rendered_priority_class(placement),
        "requests": amounts_json(placement.requests_per_pod),
        "allowed_by_quota": placement.allowed_pods,
        "at_once": placement.placed_pods,
        "may_preempt": placement.may_preempt,
        "can_never_start": placement.never_fits_reason,
    }


def amounts_json(amounts: ResourceAmounts) -> dict[str, float]:
    """Amounts as JSON numbers: whole amounts as integers."""
    return {name: int(amount) if amount.denominator == 1 else float(amount) for name, amount in amounts.items()}


def rendered_priority_class(placement: GroupPlacement) -> str:
    """The name of the PriorityClass; empty if the pods have none."""
    return str(placement.group.pod["spec"].get("priorityClassName", ""))


def _count_text(placement: GroupPlacement, forecast: JobForecast, least_workers: int) -> str:
    """The number of pods, or the range from the least to the most workers."""
    # The range counts all workers, so it is shown only if they form a single group.
    count = placement.group.count
    elastic = (
        len(forecast.placements_for_role(Role.WORKER)) == 1
        and placement.group.role is Role.WORKER
        and least_workers < count
    )
    return f"{least_workers}-{count}" if elastic else str(count)


def _requests_text(placement: GroupPlacement) -> str:
    return format_amounts({name: amount for name, amount in placement.requests_per_pod.items() if name != "pods"})


def _wait_reason(placements: Sequence[GroupPlacement]) -> str:
    """The reason why the first group with waiting pods has to wait."""
    placement = next(placement for placement in placements if placement.immediate_pods < placement.group.count)
    if placement.immediate_pods == placement.allowed_pods and placement.quota_refusal is not None:
        return f"until quota {placement.quota_refusal.quota} has enough {placement.quota_refusal.resource} left"
    if placement.lacking_resources:
        preemption = ", or until Kubernetes preempts pods of lower priority" if placement.may_preempt else ""
        return f"for capacity ({', '.join(placement.lacking_resources)}){preemption}"
    return "for a node that admits such pods (taints, node selector, affinity)"


def _pods_text(role: Role, late: int, count: int) -> str:
    word = _ROLE_WORDS[role]
    if late == count:
        return f"the {word}" if count == 1 else f"all {count} {word}s"
    return f"{late} of {count} {word}s"


# --------------------------------------------------------------------------------------------------
# The output of ``edl submit``: lines for people, or one JSON object per line for programs.


MAX_WIDTH = 120


class SubmissionReporter(Protocol):
    """Receives the output of a submission."""

    def report_plan(self, plan: SubmissionPlan) -> None:
        """Report the plan, before anything is done."""

    def report_event(self, event: str, facts: Mapping[str, Any], text: str) -> None:
        """Report a completed action or a new fact: ``facts`` for programs, ``text`` for people."""

    def report_note(self, text: str) -> None:
        """Report a text that is for people only."""

    def report_failure(self, error: EdlError) -> None:
        """Report a failure. The command also prints the error on standard error."""


class TextReporter:
    """Prints lines on standard output."""

    def report_plan(self, plan: SubmissionPlan) -> None:
        """Print the plan in the width of the terminal."""
        width = min(MAX_WIDTH, shutil.get_terminal_size().columns)
        print("\n".join(plan.plan_lines(width)), flush=True)

    def report_event(self, event: str, facts: Mapping[str, Any], text: str) -> None:
        print(text, flush=True)

    def report_note(self, text: str) -> None:
        print(text, flush=True)

    def report_failure(self, error: EdlError) -> None:
        """Print nothing: the error on standard error is for people."""


class JsonReporter:
    """Prints JSON on standard output. Notes for people go to standard error."""

    def report_plan(self, plan: SubmissionPlan) -> None:
        self._write_object({"event": "plan", **plan.to_json()})

    def report_event(self, event: str, facts: Mapping[str, Any], text: str) -> None:
        self._write_object({"event": event, **facts})

    def report_note(self, text: str) -> None:
        """Print the text on standard error."""
        print(text, file=sys.stderr, flush=True)

    def report_failure(self, error: EdlError) -> None:
        """Print the last object: ``refused`` if the exit code is that of bad input, else ``failed``."""
        fields = {"message": error.message, "where": error.where, "hint": error.hint, "exit_code": error.exit_code}
        self._write_object({"event": "refused" if error.exit_code == BadInputError.exit_code else "failed", **fields})

    def _write_object(self, value: Mapping[str, Any]) -> None:
        print(json.dumps(value, allow_nan=False), flush=True)


def make_reporter(*, as_json: bool) -> SubmissionReporter:
    """The reporter that the option ``--json`` selects."""
    return JsonReporter() if as_json else TextReporter()

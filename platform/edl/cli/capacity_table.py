"""How much of a job would run at once, in words: a table of its pods, who waits for what."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from edl.api.cluster_port import Role
from edl.ops.job_forecast import GroupPlacement, JobForecast
from edl.ops.resource_quantities import ResourceAmounts, format_amounts
from edl.reporting.text_table import align_columns

_COLUMNS = ("role", "pods", "priority", "each")
_ROLE_WORDS = {Role.MASTER: "master", Role.PS: "parameter server", Role.WORKER: "worker"}


def forecast_table(forecast: JobForecast, least_workers: int) -> list[str]:
    """The job's pods, a line for each kind; how many start at once only where that is known."""
    rows = [
        [fit.group.role.value, _count_text(fit, forecast, least_workers), priority_class(fit), _requests_text(fit)]
        for fit in forecast.placements
    ]
    head = [*_COLUMNS]
    if forecast.free is not None:
        head = [*head, "at once"]
        rows = [[*row, str(fit.at_once)] for row, fit in zip(rows, forecast.placements, strict=True)]
    return [f"  {line}" for line in align_columns([head, *rows])]


def forecast_warnings(forecast: JobForecast) -> Iterator[str]:
    """What can never start on today's nodes, and what will not start at once, by reason; a sentence each."""
    yield from _unschedulable_warnings(forecast)
    by_reason: dict[str, list[tuple[str, int]]] = {}
    for role, found in groupby((fit for fit in forecast.placements if not fit.never), key=lambda fit: fit.group.role):
        fits = list(found)
        count = sum(fit.group.count for fit in fits)
        if late := count - sum(fit.at_once for fit in fits):
            by_reason.setdefault(_wait_reason(fits), []).append((_pods_text(role, late, count), late))
    for reason, waiting in by_reason.items():
        alone = sum(late for _, late in waiting) == 1
        yield f"{_join_words([who for who, _ in waiting])} {'waits' if alone else 'wait'} {reason}"


def _unschedulable_warnings(forecast: JobForecast) -> Iterator[str]:
    by_reason: dict[str, list[GroupPlacement]] = {}
    for fit in forecast.placements:
        if fit.never:
            by_reason.setdefault(fit.never, []).append(fit)
    for reason, fits in by_reason.items():
        who = _join_words([_pods_text(fit.group.role, fit.group.count, fit.group.count) for fit in fits])
        yield f"{who} can never start on today's nodes: {reason}"


def forecast_json(fit: GroupPlacement) -> dict[str, Any]:
    """One kind of pods, for programs."""
    return {
        "role": fit.group.role.value,
        "count": fit.group.count,
        "priority": priority_class(fit),
        "requests": amounts_json(fit.requests_per_pod),
        "allowed_by_quota": fit.allowed,
        "at_once": fit.placed,
        "may_preempt": fit.may_preempt,
        "can_never_start": fit.never,
    }


def amounts_json(amounts: ResourceAmounts) -> dict[str, float]:
    """Amounts as JSON has them."""
    return {name: int(amount) if amount.denominator == 1 else float(amount) for name, amount in amounts.items()}


def priority_class(fit: GroupPlacement) -> str:
    """The PriorityClass; empty for none."""
    return str(fit.group.pod["spec"].get("priorityClassName", ""))


def _count_text(fit: GroupPlacement, forecast: JobForecast, least_workers: int) -> str:
    """So many pods, or from so many to so many, where that is about all workers."""
    count = fit.group.count
    elastic = len(forecast.of(Role.WORKER)) == 1 and fit.group.role is Role.WORKER and least_workers < count
    return f"{least_workers}-{count}" if elastic else str(count)


def _requests_text(fit: GroupPlacement) -> str:
    return format_amounts({name: amount for name, amount in fit.requests_per_pod.items() if name != "pods"})


def _wait_reason(fits: Sequence[GroupPlacement]) -> str:
    """What the first pod that waits is waiting for."""
    fit = next(fit for fit in fits if fit.at_once < fit.group.count)
    if fit.at_once == fit.allowed and fit.refusal is not None:
        return f"until quota {fit.refusal.quota} has room ({fit.refusal.resource})"
    if fit.lacking:
        preemption = ", or until Kubernetes preempts pods of lower priority" if fit.may_preempt else ""
        return f"for room ({', '.join(fit.lacking)}){preemption}"
    return "for a node that takes such pods (taints, node selector, affinity)"


def _pods_text(role: Role, late: int, count: int) -> str:
    word = _ROLE_WORDS[role]
    if late == count:
        return f"the {word}" if count == 1 else f"all {count} {word}s"
    return f"{late} of {count} {word}s"


def _join_words(words: Sequence[str]) -> str:
    return " and ".join(part for part in (", ".join(words[:-1]), words[-1]) if part)

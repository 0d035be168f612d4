"""What ``edl submit`` is about to do, in words and as JSON: decided from values, before anything is created."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import groupby
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from edl.core.cluster import Role
from edl.kube.forecast import Fit, Forecast
from edl.kube.kinds import Manifest
from edl.kube.quantity import Resources, all_said, plain, said
from edl.spec.job import JobSpec
from edl.spec.paths import is_shared, pod_storage

if TYPE_CHECKING:
    from edl.kube.jobs import JobSeen

_LABEL = 10
_SHOWN = ("cpu", "memory", "pods", "nvidia.com/gpu")
"""Resources of a quota that are worth a word."""
_COLUMNS = ("role", "pods", "priority", "each")


@dataclass(frozen=True, slots=True)
class KubePlan:
    """One submission.

    Attributes:
        job_file: as the user named it.
        namespace: None: the context's, and nobody has looked.
        context: of the kubeconfig; None in a pod, and when nobody has looked.
        manifests: what will be created.
        forecast: how much of it finds room; of ``edl submit --dry-run=client`` only what is asked for.
        quotas: name, what is left and what is allowed, of each; None when they may not be listed.
        replaced: the ended job of that name, which is removed first.
        run: the run that is gone on with.
        warnings: sentences.
        asked: whether a cluster was asked at all.
    """

    spec: JobSpec
    job_file: Path
    namespace: str | None
    context: str | None
    manifests: Sequence[Manifest]
    forecast: Forecast
    quotas: Sequence[tuple[str, Resources, Resources]] | None = None
    replaced: JobSeen | None = None
    run: str | None = None
    warnings: Sequence[str] = ()
    asked: bool = True

    @property
    def job(self) -> str:
        """The job's name."""
        return self.spec.name

    def lines(self, width: int = 80) -> list[str]:
        """The plan, for people."""
        found = [f"{self.job}: {self.spec.model.definition}, {self._where()}"]
        for label, text in self._rows():
            found += _row(label, text, width)
        found += ["", *self._table(), ""]
        for label, text in self._room():
            found += _row(label, text, width)
        for warning in [*self._waits(), *self.warnings]:
            found += wrap(f"warning: {warning}", width, initial_indent="  ", subsequent_indent="    ", **_WHOLE)
        return found

    def to_json(self) -> dict[str, Any]:
        """The plan, for programs."""
        return {
            "job": self.job,
            "namespace": self.namespace,
            "context": self.context,
            "image": self.spec.image,
            "creates": [{"kind": one["kind"], "name": one["metadata"]["name"]} for one in self.manifests],
            "resumes": self.run,
            "replaces": self.replaced.uid if self.replaced else None,
            "pods": [_json_of(fit) for fit in self.forecast.fits],
            "requested": _numbers(self.forecast.requested),
            "free": None if self.forecast.free is None else _numbers(self.forecast.free),
            "quotas": [
                {"name": name, "left": _numbers(left), "hard": _numbers(hard)} for name, left, hard in self.quotas or ()
            ],
            "warnings": [*self._waits(), *self.warnings],
        }

    def _where(self) -> str:
        place = f"namespace {self.namespace}" if self.namespace else "the context's namespace"
        return place + (f" of context {self.context}" if self.context else "")

    def _rows(self) -> Iterator[tuple[str, str]]:
        yield "image", str(self.spec.image)
        if self.replaced:
            yield "removes", f"the job of that name of {_since(self.replaced)}, which has ended ({self.replaced.phase})"
        yield "creates", _created(self.manifests)
        if self.run:
            yield "goes on", "with the newest run" if self.run == "latest" else f"with run {self.run}"
        claims = [volume.claim for volume in self.spec.volumes if volume.claim]
        on = f" on claim {self.spec.storage.claim or claims[0]}" if self.spec.storage.claim or claims else ""
        yield "storage", pod_storage(self.spec) + on if is_shared(self.spec) else "none: gone with the master's pod"

    def _table(self) -> Iterator[str]:
        rows = [(fit.crowd.role.value, str(fit.crowd.count), _priority(fit), _each(fit)) for fit in self.forecast.fits]
        if self.spec.workers.min < self.spec.workers.max:
            rows[-1] = (
                (rows[-1][0], f"{self.spec.workers.min}-{rows[-1][1]}", *rows[-1][2:])
                if len(self.forecast.of(Role.WORKER)) == 1
                else rows[-1]
            )
        fits = ["" if fit.placed is None else str(fit.placed) for fit in self.forecast.fits]
        columns = [*_COLUMNS, "at once"] if any(fits) else [*_COLUMNS]
        cells = [columns, *([*row, fate][: len(columns)] for row, fate in zip(rows, fits, strict=True))]
        widths = [max(len(row[column]) for row in cells) for column in range(len(columns))]
        for row in cells:
            yield "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()

    def _room(self) -> Iterator[tuple[str, str]]:
        yield "asks for", all_said(self.forecast.requested)
        if not self.asked:
            return
        if self.forecast.free is None or self.forecast.nodes is None:
            yield "free now", "not known: you may not list nodes and all pods; compared with the quota only"
        else:
            usable, nodes = self.forecast.nodes
            on = f"{usable} nodes" if usable == nodes else f"{usable} of {nodes} nodes"
            yield "free now", f"{all_said(self.forecast.free)} on {on}"
        if self.quotas is None:
            yield "quota", "not known: you may not list resourcequotas"
        for name, left, hard in self.quotas or ():
            shown = [
                f"{said(each, max(left[each], Fraction()))} of {said(each, hard[each])} ({each})"
                for each in hard
                if plain(each) in _SHOWN
            ]
            if shown:
                yield "quota", f"{name} leaves {', '.join(shown)}"

    def _waits(self) -> Iterator[str]:
        """What will not start at once, by reason, and who gives way."""
        by_reason: dict[str, list[tuple[str, int]]] = {}
        for role, found in groupby(self.forecast.fits, key=lambda fit: fit.crowd.role):
            fits = list(found)
            count = sum(fit.crowd.count for fit in fits)
            late = count - sum(fit.at_once for fit in fits)
            if late:
                by_reason.setdefault(_for_what(fits), []).append((_so_many(role, late, count), late))
        for reason, waiting in by_reason.items():
            alone = sum(late for _, late in waiting) == 1
            yield f"{_listed([who for who, _ in waiting])} {'waits' if alone else 'wait'} {reason}"
        victims = [name for fit in self.forecast.fits for name in fit.victims]
        if victims:
            pods = "1 pod" if len(victims) == 1 else f"{len(victims)} pods"
            shown = ", ".join(victims[:3]) + (" …" if len(victims) > 3 else "")
            yield f"{pods} of lower priority would give way: {shown}"


_WHOLE: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False}


def _row(label: str, text: str, width: int) -> list[str]:
    head = f"  {label:<{_LABEL}}"
    return wrap(text, width, initial_indent=head, subsequent_indent=" " * len(head), **_WHOLE)


def _created(manifests: Sequence[Manifest]) -> str:
    """Kinds and names, the Job first; kinds of one name and names of one kind together."""
    by_name: dict[str, list[str]] = {}
    for manifest in reversed(manifests):
        by_name.setdefault(manifest["metadata"]["name"], []).append(manifest["kind"])
    by_kinds: dict[str, list[str]] = {}
    for name, kinds in by_name.items():
        by_kinds.setdefault(" and ".join(kinds), []).append(name)
    return ", ".join(
        kinds + ("s " if len(found) > 1 else " ") + " and ".join(found) for kinds, found in by_kinds.items()
    )


def _since(job: JobSeen) -> str:
    from edl.kube.existing import since

    return since(job)


def _priority(fit: Fit) -> str:
    return str(fit.crowd.pod["spec"].get("priorityClassName", ""))


def _each(fit: Fit) -> str:
    return all_said({name: amount for name, amount in fit.each.items() if name != "pods"})


def _for_what(fits: Sequence[Fit]) -> str:
    """What the first pod that waits is waiting for."""
    fit = next(fit for fit in fits if fit.at_once < fit.crowd.count)
    if fit.at_once == fit.allowed and fit.refusal is not None:
        return f"until quota {fit.refusal.quota} has room ({fit.refusal.resource})"
    if fit.lacking:
        return f"for room ({', '.join(fit.lacking)})"
    return "for a node that takes such pods (taints, node selector, affinity)"


def _so_many(role: Role, late: int, count: int) -> str:
    word = {Role.MASTER: "master", Role.PS: "parameter server", Role.WORKER: "worker"}[role]
    if late == count:
        return f"the {word}" if count == 1 else f"all {count} {word}s"
    return f"{late} of {count} {word}s"


def _listed(words: Sequence[str]) -> str:
    return " and ".join(part for part in (", ".join(words[:-1]), words[-1]) if part)


def _json_of(fit: Fit) -> dict[str, Any]:
    return {
        "role": fit.crowd.role.value,
        "count": fit.crowd.count,
        "priority": _priority(fit),
        "requests": _numbers(fit.each),
        "allowed_by_quota": fit.allowed,
        "at_once": fit.placed,
        "gives_way": list(fit.victims),
    }


def _numbers(amounts: Resources) -> dict[str, float]:
    return {name: int(amount) if amount.denominator == 1 else float(amount) for name, amount in amounts.items()}

"""What ``edl submit`` is about to do, in words and as JSON: decided from values, before anything is created."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edl.api.job_spec import JobSpec
from edl.cli.capacity_table import amounts_json, forecast_json, forecast_table, forecast_warnings
from edl.cluster.kubernetes.names import CHECKPOINT_SUFFIX, LATEST_RUN
from edl.cluster.kubernetes.resource_kinds import Manifest
from edl.jobfile.path_resolution import has_shared_storage, pod_storage_path
from edl.ops.job_forecast import JobForecast
from edl.ops.resource_quantities import ResourceAmounts, base_resource, format_amount, format_amounts
from edl.reporting.text_table import wrap_labelled, wrap_text

if TYPE_CHECKING:
    from edl.ops.job_view import JobView

_QUOTA_RESOURCES = ("cpu", "memory", "pods", "nvidia.com/gpu")
"""Resources of a quota that are worth a word."""


@dataclass(frozen=True, slots=True)
class SubmissionPlan:
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
        changes: what differs from the job file that it had, in words.
        warnings: sentences.
        asked: whether a cluster was asked at all.
    """

    spec: JobSpec
    job_file: Path
    namespace: str | None
    context: str | None
    manifests: Sequence[Manifest]
    forecast: JobForecast
    quotas: Sequence[tuple[str, ResourceAmounts, ResourceAmounts]] | None = None
    replaced: JobView | None = None
    run: str | None = None
    changes: Sequence[str] = ()
    warnings: Sequence[str] = ()
    asked: bool = True

    @property
    def job(self) -> str:
        """The job's name."""
        return self.spec.name

    def lines(self, width: int = 80) -> list[str]:
        """The plan, for people."""
        lines = [f"{self.job}: {self.spec.model.definition}, {self._location_text()}"]
        for label, text in self._rows():
            lines += wrap_labelled(label, text, width)
        lines += ["", *forecast_table(self.forecast, self.spec.workers.min), ""]
        for label, text in self._room():
            lines += wrap_labelled(label, text, width)
        for warning in [*forecast_warnings(self.forecast), *self.warnings]:
            lines += wrap_text(f"warning: {warning}", width, first_indent="  ", next_indent="    ")
        return lines

    def to_json(self) -> dict[str, Any]:
        """The plan, for programs."""
        return {
            "job": self.job,
            "namespace": self.namespace,
            "context": self.context,
            "image": self.spec.image,
            "creates": [{"kind": one["kind"], "name": one["metadata"]["name"]} for one in self.manifests],
            "resumes": self.run,
            "changes": [*self.changes],
            "replaces": self.replaced.uid if self.replaced else None,
            "pods": [forecast_json(fit) for fit in self.forecast.placements],
            "requested": amounts_json(self.forecast.requested),
            "free": None if self.forecast.free is None else amounts_json(self.forecast.free),
            "quotas": [
                {"name": name, "left": amounts_json(left), "hard": amounts_json(hard)}
                for name, left, hard in self.quotas or ()
            ],
            "warnings": [*forecast_warnings(self.forecast), *self.warnings],
        }

    def _location_text(self) -> str:
        place = f"namespace {self.namespace}" if self.namespace else "the context's namespace"
        return place + (f" of context {self.context}" if self.context else "")

    def _rows(self) -> Iterator[tuple[str, str]]:
        yield "image", str(self.spec.image)
        if self.replaced:
            yield (
                "removes",
                f"the job of that name of {_submitted_at(self.replaced)}, which has ended ({self.replaced.phase})",
            )
        yield "creates", _created_text(self.manifests)
        if self.run:
            run = self.run.removesuffix(CHECKPOINT_SUFFIX)
            yield "goes on", "with the newest run" if run == LATEST_RUN else f"with run {run}"
            if run != self.run:
                yield (
                    "goes back",
                    "to its newest intact checkpoint, without its journal; what was done since is repeated",
                )
        yield from (("changed", change) for change in self.changes)
        claims = [volume.claim for volume in self.spec.volumes if volume.claim]
        on = f" on claim {self.spec.storage.claim or claims[0]}" if self.spec.storage.claim or claims else ""
        yield (
            "storage",
            pod_storage_path(self.spec) + on if has_shared_storage(self.spec) else "none: gone with the master's pod",
        )

    def _room(self) -> Iterator[tuple[str, str]]:
        yield "asks for", format_amounts(self.forecast.requested)
        if not self.asked:
            return
        if self.forecast.free is None or self.forecast.nodes is None:
            yield "free now", "not known: you may not list nodes and all pods; compared with the quota only"
        else:
            usable, nodes = self.forecast.nodes
            on = f"{usable} nodes" if usable == nodes else f"{usable} of {nodes} nodes"
            yield "free now", f"{format_amounts(self.forecast.free)} on {on}"
        if self.quotas is None:
            yield "quota", "not known: you may not list resourcequotas"
        for name, left, hard in self.quotas or ():
            shown = [
                f"{format_amount(each, max(left[each], Fraction()))} of {format_amount(each, hard[each])} ({each})"
                for each in hard
                if base_resource(each) in _QUOTA_RESOURCES
            ]
            if shown:
                yield "quota", f"{name} leaves {', '.join(shown)}"


def _created_text(manifests: Sequence[Manifest]) -> str:
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


def _submitted_at(job: JobView) -> str:
    from edl.ops.job_view import format_submit_time

    return format_submit_time(job)

"""What ``edl submit`` is about to do, in words and as JSON: decided from values, before anything is created."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edl.cli.capacity_table import fit_json, numbers, table, waits
from edl.cluster.kubernetes.names import AT_CHECKPOINT, LATEST
from edl.cluster.kubernetes.resource_kinds import Manifest
from edl.jobfile.job_spec import JobSpec
from edl.jobfile.path_resolution import is_shared, pod_storage
from edl.ops.job_forecast import Forecast
from edl.ops.resource_quantities import Resources, all_said, plain, said
from edl.reporting.text_table import labelled, wrapped

if TYPE_CHECKING:
    from edl.ops.job_view import JobSeen

_SHOWN = ("cpu", "memory", "pods", "nvidia.com/gpu")
"""Resources of a quota that are worth a word."""


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
        changes: what differs from the job file that it had, in words.
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
    changes: Sequence[str] = ()
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
            found += labelled(label, text, width)
        found += ["", *table(self.forecast, self.spec.workers.min), ""]
        for label, text in self._room():
            found += labelled(label, text, width)
        for warning in [*waits(self.forecast), *self.warnings]:
            found += wrapped(f"warning: {warning}", width, first="  ", then="    ")
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
            "changes": [*self.changes],
            "replaces": self.replaced.uid if self.replaced else None,
            "pods": [fit_json(fit) for fit in self.forecast.fits],
            "requested": numbers(self.forecast.requested),
            "free": None if self.forecast.free is None else numbers(self.forecast.free),
            "quotas": [
                {"name": name, "left": numbers(left), "hard": numbers(hard)} for name, left, hard in self.quotas or ()
            ],
            "warnings": [*waits(self.forecast), *self.warnings],
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
            run = self.run.removesuffix(AT_CHECKPOINT)
            yield "goes on", "with the newest run" if run == LATEST else f"with run {run}"
            if run != self.run:
                yield (
                    "goes back",
                    "to its newest intact checkpoint, without its journal; what was done since is repeated",
                )
        yield from (("changed", change) for change in self.changes)
        claims = [volume.claim for volume in self.spec.volumes if volume.claim]
        on = f" on claim {self.spec.storage.claim or claims[0]}" if self.spec.storage.claim or claims else ""
        yield "storage", pod_storage(self.spec) + on if is_shared(self.spec) else "none: gone with the master's pod"

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
    from edl.ops.existing_job import since

    return since(job)

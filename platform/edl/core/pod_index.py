"""The pods of one role, kept by what they are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from edl.core.job_pod import JobPod


@dataclass(slots=True)
class PodIndex:
    """The pods of one role by what they are, by uid; entered at every change.

    Every event asks how many there are, and there may be thousands: nobody walks over all of them for that.

    Attributes:
        live: they have not ended.
        staying: of them, those that nobody told to go.
        waiting: of these, those that have found no place to run yet.
        elevated: of those that stay, those with the higher class of a divided priority.
        built: of the live ones, those that run and are not building their model.
        told: of the live ones, those that this master told to go, in the order in which they last were.
    """

    live: dict[str, JobPod] = field(default_factory=dict)
    staying: dict[str, JobPod] = field(default_factory=dict)
    waiting: dict[str, JobPod] = field(default_factory=dict)
    elevated: dict[str, JobPod] = field(default_factory=dict)
    built: dict[str, JobPod] = field(default_factory=dict)
    told: dict[str, JobPod] = field(default_factory=dict)

    def enter(self, pod: JobPod) -> None:
        """A pod is new, or has changed."""
        live, staying = pod.live, pod.staying
        for file, belongs in (
            (self.live, live),
            (self.staying, staying),
            (self.waiting, staying and not pod.has_run),
            (self.elevated, staying and pod.elevated),
            (self.built, live and pod.has_run and not pod.building),
            (self.told, live and pod.leaving_since is not None),
        ):
            if belongs:
                file[pod.uid] = pod
            else:
                file.pop(pod.uid, None)

    def mark_leaving(self, pod: JobPod, why: str, now: float) -> None:
        """A pod is told to go, because it is not wanted any more."""
        pod.leaving_since, pod.leaving_reason = now, why
        self.told.pop(pod.uid, None)
        self.enter(pod)

    def told_to_leave_before(self, time: float) -> Iterator[JobPod]:
        """Those that were last told to go at or before a time and have not gone."""
        for pod in self.told.values():
            if pod.leaving_since is None or pod.leaving_since > time:
                return
            yield pod

    @property
    def running(self) -> int:
        """How many stay and have found a place to run."""
        return len(self.staying) - len(self.waiting)

"""What a master publishes about its job for people without a route to it: the pages of the status ConfigMap.

One page a file of the run directory, under the file's name, and the timeline. Reading is strict, as everywhere: a page
that this version did not write raises SpecError. Sizes are bounded, since a ConfigMap holds 1 MiB: the newest events,
a timeline that thins out as it grows, texts that are cut.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

from edl.api.events import JobEvent
from edl.api.status import DisruptionReport, JobFailure, Status, Summary, TimelinePoint
from edl.core.strict_json import decode_json_file
from edl.jobfile import event_json
from edl.jobfile.document_tree import SpecError, SpecProblem
from edl.jobfile.section_type import from_json, to_json

STATUS_KEY, EVENTS_KEY, TIMELINE_KEY = "status.json", "events.jsonl", "timeline.json"
SUMMARY_KEY, FAILURE_KEY, LOSSES_KEY = "summary.json", "failure.json", "losses.json"

MAX_EVENTS, MAX_EVENTS_BYTES = 100, 64 << 10
MAX_TIMELINE_POINTS = 240
_TEXT_BYTES = 16 << 10
_STATUS_BYTES = 512 << 10
_TRUNCATION_MARK = " […]"


@dataclass(frozen=True, slots=True)
class PublishedStatus:
    """All that a master has told so far; empty before it told anything.

    Attributes:
        events: the newest, oldest first.
        timeline: moments of the job's whole life, oldest first.
        summary: once the job has ended, or its master has left.
        failure: why it failed, if it did.
        losses: of the job's whole life; None from a master that does not count them.
    """

    status: Status | None = None
    events: Sequence[JobEvent] = ()
    timeline: Sequence[TimelinePoint] = ()
    summary: Summary | None = None
    failure: JobFailure | None = None
    losses: DisruptionReport | None = None

    @property
    def failure_detail(self) -> str:
        """More about a failure: a traceback, a log."""
        return self.failure.detail if self.failure else ""

    def to_configmap_data(self) -> dict[str, str]:
        """The pages by name, no larger than a ConfigMap takes; those of which nothing is known are left out."""
        pages = {
            EVENTS_KEY: _newest_event_lines(self.events),
            TIMELINE_KEY: _to_compact_json([to_json(moment) for moment in self.timeline]),
        }
        if self.status is not None:
            pages[STATUS_KEY] = _bounded_status_json(self.status)
        if self.losses is not None:
            pages[LOSSES_KEY] = _to_compact_json(to_json(self.losses))
        if self.summary is not None:
            pages[SUMMARY_KEY] = _to_compact_json(to_json(self.summary))
        if self.failure is not None:
            kind, reason, detail = (
                self.failure.kind,
                _truncate_text(self.failure.reason),
                _truncate_text(self.failure.detail),
            )
            pages[FAILURE_KEY] = _to_compact_json(to_json(JobFailure(kind, reason, detail)))
        return pages

    @classmethod
    def from_configmap_data(cls, pages: Mapping[str, str]) -> Self:
        """Read what ``to_configmap_data`` wrote; raises SpecError that names the page for anything else."""
        moments = _read_page(pages, TIMELINE_KEY)
        if not isinstance(moments, list | None):
            raise SpecError([SpecProblem(TIMELINE_KEY, "", "must be a list of moments")])
        status, summary, failure, losses = (
            _read_page(pages, name) for name in (STATUS_KEY, SUMMARY_KEY, FAILURE_KEY, LOSSES_KEY)
        )
        return cls(
            status=None if status is None else from_json(Status, status, STATUS_KEY),
            events=tuple(
                event_json.parse_event_line(line, EVENTS_KEY) for line in pages.get(EVENTS_KEY, "").splitlines()
            ),
            timeline=tuple(from_json(TimelinePoint, moment, TIMELINE_KEY) for moment in moments or ()),
            summary=None if summary is None else from_json(Summary, summary, SUMMARY_KEY),
            failure=None if failure is None else from_json(JobFailure, failure, FAILURE_KEY),
            losses=None if losses is None else from_json(DisruptionReport, losses, LOSSES_KEY),
        )


def extend_timeline(timeline: Sequence[TimelinePoint], moment: TimelinePoint) -> tuple[TimelinePoint, ...]:
    """A timeline with one more moment; when it is full, every second one goes, so that it covers the whole life.

    The newest moment is replaced while it is nearer to the one before than those are to each other on average: after
    many thinnings, a moment stands for a long time.
    """
    if len(timeline) >= 3 and moment.time - timeline[-2].time < _mean_interval(timeline[:-1]) / 2:
        timeline = timeline[:-1]
    longer = (*timeline, moment)
    return longer if len(longer) <= MAX_TIMELINE_POINTS else (*longer[:-1:2], moment)


def _mean_interval(timeline: Sequence[TimelinePoint]) -> float:
    return (timeline[-1].time - timeline[0].time) / (len(timeline) - 1)


def _newest_event_lines(events: Sequence[JobEvent]) -> str:
    """The newest events, as many as there is room for, one a line."""
    lines: list[str] = []
    room = MAX_EVENTS_BYTES
    for each in reversed(events[-MAX_EVENTS:]):
        line = event_json.line(each)
        room -= len(line) + 1  # ASCII
        if room < 0:
            break
        lines.append(line + "\n")
    return "".join(reversed(lines))


def _bounded_status_json(status: Status) -> str:
    """A status of thousands of workers goes without most of them."""
    text = _to_compact_json(to_json(replace(status, reason=_truncate_text(status.reason))))
    while len(text) > _STATUS_BYTES and status.workers:
        status = replace(status, workers=status.workers[: len(status.workers) // 2])
        text = _to_compact_json(to_json(replace(status, reason=_truncate_text(status.reason))))
    return text


def _truncate_text(text: str) -> str:
    data = text.encode()
    return text if len(data) <= _TEXT_BYTES else data[:_TEXT_BYTES].decode(errors="ignore") + _TRUNCATION_MARK


def _to_compact_json(value: object) -> str:
    return json.dumps(value, allow_nan=False, separators=(",", ":"))


def _read_page(pages: Mapping[str, str], name: str) -> object:
    if name not in pages:
        return None
    try:
        value: object = decode_json_file(pages[name])
    except ValueError as error:
        raise SpecError([SpecProblem(name, "", f"not JSON: {error}")]) from error
    return value

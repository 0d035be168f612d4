"""The content of the status ConfigMap: what a master publishes about its job for users without a route to it.

The data has one key for each file of the run directory, named after the file, and one for the timeline. Reading is
strict: data that this version did not write raises SpecError. A ConfigMap holds at most 1 MiB, so sizes are bounded:
only the newest events are kept, the timeline is thinned out as it grows, and long texts are truncated.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

from edl.api.run_events import JobEvent
from edl.api.status import DisruptionReport, JobFailure, Status, Summary, TimelinePoint
from edl.core.strict_json import decode_json_file
from edl.jobfile import event_json
from edl.jobfile.document_tree import SpecError, SpecProblem
from edl.jobfile.section_type import from_json, to_json

STATUS_KEY, EVENTS_KEY, TIMELINE_KEY = "status.json", "events.jsonl", "timeline.json"
SUMMARY_KEY, FAILURE_KEY, LOSSES_KEY = "summary.json", "failure.json", "losses.json"

# Status, events, timeline and a few long texts stay together below the 1 MiB that a ConfigMap holds.
MAX_EVENTS, MAX_EVENTS_BYTES = 100, 64 << 10
MAX_TIMELINE_POINTS = 240
_TEXT_BYTES = 16 << 10
_STATUS_BYTES = 512 << 10
_TRUNCATION_MARK = " […]"


@dataclass(frozen=True, slots=True)
class PublishedStatus:
    """Everything that a master has published; empty before its first publication.

    Attributes:
        events: the newest events, oldest first.
        timeline: points of the job's whole life, oldest first.
        summary: None until the job has ended or its master has left.
        failure: why the job failed, if it did.
        losses: losses of the job's whole life; None if the master does not count them.
    """

    status: Status | None = None
    events: Sequence[JobEvent] = ()
    timeline: Sequence[TimelinePoint] = ()
    summary: Summary | None = None
    failure: JobFailure | None = None
    losses: DisruptionReport | None = None

    @property
    def failure_detail(self) -> str:
        """Details of the failure, such as a traceback or a log."""
        return self.failure.detail if self.failure else ""

    def to_configmap_data(self) -> dict[str, str]:
        """The ConfigMap's data, within its size limit. Keys without content are left out."""
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
        """Parse the result of ``to_configmap_data``; raises SpecError, which names the key, for anything else."""
        timeline = _read_page(pages, TIMELINE_KEY)
        if not isinstance(timeline, list | None):
            raise SpecError([SpecProblem(TIMELINE_KEY, "", "must be a list of moments")])
        status, summary, failure, losses = (
            _read_page(pages, name) for name in (STATUS_KEY, SUMMARY_KEY, FAILURE_KEY, LOSSES_KEY)
        )
        return cls(
            status=None if status is None else from_json(Status, status, STATUS_KEY),
            events=tuple(
                event_json.parse_event_line(line, EVENTS_KEY) for line in pages.get(EVENTS_KEY, "").splitlines()
            ),
            timeline=tuple(from_json(TimelinePoint, moment, TIMELINE_KEY) for moment in timeline or ()),
            summary=None if summary is None else from_json(Summary, summary, SUMMARY_KEY),
            failure=None if failure is None else from_json(JobFailure, failure, FAILURE_KEY),
            losses=None if losses is None else from_json(DisruptionReport, losses, LOSSES_KEY),
        )


def extend_timeline(timeline: Sequence[TimelinePoint], moment: TimelinePoint) -> tuple[TimelinePoint, ...]:
    """A timeline with one more point. When it is full, every second point is removed, so it covers the whole life.

    The newest point is replaced while it is closer to the one before it than half the mean interval. So after many
    thinnings, the points stay evenly spaced.
    """
    # the newest point stays replaceable, so that the timeline always ends at the current status
    if len(timeline) >= 3 and moment.time - timeline[-2].time < _mean_interval(timeline[:-1]) / 2:
        timeline = timeline[:-1]
    longer = (*timeline, moment)
    return longer if len(longer) <= MAX_TIMELINE_POINTS else (*longer[:-1:2], moment)


def _mean_interval(timeline: Sequence[TimelinePoint]) -> float:
    return (timeline[-1].time - timeline[0].time) / (len(timeline) - 1)


def _newest_event_lines(events: Sequence[JobEvent]) -> str:
    """The newest events that fit into the limit, one per line, oldest first."""
    lines: list[str] = []
    room = MAX_EVENTS_BYTES
    # newest first, so that the oldest events are those that do not fit
    for each in reversed(events[-MAX_EVENTS:]):
        line = event_json.line(each)
        room -= len(line) + 1  # characters are bytes: json.dumps writes ASCII
        if room < 0:
            break
        lines.append(line + "\n")
    return "".join(reversed(lines))


def _bounded_status_json(status: Status) -> str:
    """The status within its limit: workers are left out, half of them at a time, until it fits."""
    text = _to_compact_json(to_json(replace(status, reason=_truncate_text(status.reason))))
    while len(text) > _STATUS_BYTES and status.workers:
        status = replace(status, workers=status.workers[: len(status.workers) // 2])
        text = _to_compact_json(to_json(replace(status, reason=_truncate_text(status.reason))))
    return text


def _truncate_text(text: str) -> str:
    # errors="ignore" drops a character that the limit cuts in two
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

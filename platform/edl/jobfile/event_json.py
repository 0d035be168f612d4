"""Lines of ``events.jsonl`` and of ``--json``: reads and writes the events of edl.api.run_events."""

from __future__ import annotations

import json

from edl.api.fields import JsonValue
from edl.api.run_events import EVENTS, JobEvent
from edl.core.strict_json import decode_json_file
from edl.jobfile import section_type
from edl.jobfile.document_tree import SpecError, SpecProblem


def line(event: JobEvent) -> str:
    """The event as one line, without the line feed."""
    return json.dumps(section_type.to_json(event), allow_nan=False)


def parse_event_line(line: str, where: str = "event") -> JobEvent:
    """Parse a line; raises SpecError if ``line`` did not write it."""
    try:
        value = decode_json_file(line)
    except ValueError as error:
        raise SpecError([SpecProblem(where, "", f"not JSON: {error}")]) from error
    return event_from_json(value, where)


def event_from_json(value: object, where: str = "event") -> JobEvent:
    """Parse a JSON object; raises SpecError, which names ``where`` and every wrong field."""
    kind = value.get("event") if isinstance(value, dict) else None
    if not isinstance(kind, str) or kind not in EVENTS:
        raise SpecError([SpecProblem(where, "event", f"found {kind!r}, must be one of {', '.join(EVENTS)}")])
    return section_type.from_json(EVENTS[kind], value, where)


def build_event_schema() -> dict[str, JsonValue]:
    """JSON Schema that accepts an event of any type."""
    return {"oneOf": [_event_type_schema(event) for event in EVENTS.values()]}


def _event_type_schema(event: type[JobEvent]) -> dict[str, JsonValue]:
    section = section_type.section_of(event)
    return {"title": event.kind, "description": event.__doc__} | section.schema(required=("event",))

"""JSON Schemas of job files, statuses and events, generated from the dataclasses and published beside this module.

``python -m edl.jobfile.json_schema`` regenerates the files; a test fails if they are stale.
"""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

from edl.api.fields import JsonValue
from edl.api.job_spec import API_VERSION
from edl.api.status import Status, Summary
from edl.jobfile import event_json
from edl.jobfile.job_section import JOB_SECTION
from edl.jobfile.section_type import section_of

JOB_SCHEMA = f"{API_VERSION.replace('/', '_')}.schema.json"
STATUS_SCHEMA = "status.schema.json"
_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def build_job_schema() -> dict[str, JsonValue]:
    """JSON Schema of a job file."""
    head = {"$schema": _DIALECT, "$id": f"https://edl.dev/schemas/{JOB_SCHEMA}", "title": f"JobSpec {API_VERSION}"}
    return {**head, "description": "A job of EDL.", **JOB_SECTION.schema()}


def build_status_schema() -> dict[str, JsonValue]:
    """JSON Schema of ``status.json``; ``$defs`` has the schemas of the summary and of an event."""
    head = {"$schema": _DIALECT, "$id": f"https://edl.dev/schemas/{STATUS_SCHEMA}", "title": "Status of a job"}
    inner = {"summary": section_of(Summary).schema(), "event": event_json.build_event_schema()}
    return {**head, "description": "The current state of a job.", **section_of(Status).schema(), "$defs": inner}


def generate_schema_files() -> dict[str, str]:
    """The text of every published schema, by file name."""
    schemas = {JOB_SCHEMA: build_job_schema(), STATUS_SCHEMA: build_status_schema()}
    return {name: json.dumps(schema, indent=2) + "\n" for name, schema in schemas.items()}


def read_published_schema(name: str) -> str:
    """The text of a published schema."""
    return files("edl.jobfile").joinpath(name).read_text(encoding="utf-8")


if __name__ == "__main__":
    for name, text in generate_schema_files().items():
        Path(__file__).with_name(name).write_text(text, encoding="utf-8")

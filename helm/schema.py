"""``values.schema.json`` of the chart ``edl-job``: the JobSpec's JSON Schema, and beside its fields the chart's own.

``python helm/schema.py`` writes the file anew (``make chart-schema``); a test fails when it is stale. Helm then checks
a job file by the very schema by which ``edl validate`` does.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from edl.api.job_spec import API_VERSION
from edl.jobfile.json_schema import build_job_schema

OWN = Path(__file__).with_name("edl-job") / "values.own.schema.json"
"""What the chart takes besides a job; kept by hand."""
TARGET = OWN.with_name("values.schema.json")


def values_schema() -> dict[str, Any]:
    """The schema of the chart's values.

    No field of the job is required here: a template says that there is no job in one sentence, and `name` may be the
    release's. The chart's own are: they have defaults in values.yaml, and who takes one away with null is told.
    """
    job, own = build_job_schema(), json.loads(OWN.read_text(encoding="utf-8"))
    clash = job["properties"].keys() & own["properties"].keys()
    assert not clash, f"fields of a job, and values of the chart: {', '.join(sorted(clash))}"
    return {
        "$schema": job["$schema"],
        "title": f"Values of the chart edl-job: a JobSpec {API_VERSION}, and how it is submitted",
        "type": "object",
        "additionalProperties": False,
        "required": own["required"],
        "properties": {**job["properties"], **own["properties"]},
        "$defs": own["$defs"],
    }


def generated() -> str:
    """The text of the file."""
    return json.dumps(values_schema(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    TARGET.write_text(generated(), encoding="utf-8")

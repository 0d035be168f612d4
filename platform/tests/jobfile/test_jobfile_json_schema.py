"""The published schemas: fresh, valid, and complete."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from edl.api.run_events import RoleStarted
from edl.api.status import Summary
from edl.jobfile import event_json
from edl.jobfile.json_schema import JOB_SCHEMA, generate_schema_files, read_published_schema
from edl.jobfile.section_type import section_of, to_json


@pytest.mark.parametrize("name", sorted(generate_schema_files()))
def test_published_is_what_is_generated(name: str) -> None:
    assert read_published_schema(name) == generate_schema_files()[name], "run: python -m edl.jobfile.json_schema"


@pytest.mark.parametrize("name", sorted(generate_schema_files()))
def test_published_is_a_schema(name: str) -> None:
    schema = json.loads(read_published_schema(name))
    Draft202012Validator.check_schema(schema)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"


def test_every_job_field_is_described_and_has_a_default() -> None:
    required = {"name", "model", "definition", "mount", "secret", "key"}
    for name, field in _properties(json.loads(read_published_schema(JOB_SCHEMA))):
        if name != "apiVersion":
            assert field["description"].endswith("."), name
            assert "default" in field or name in required, name


def test_units_are_named() -> None:
    fields = dict(_properties(json.loads(read_published_schema(JOB_SCHEMA))))
    assert fields["lost_timeout"]["description"].endswith("Unit: seconds.")
    assert fields["embedding_threshold"]["description"].endswith("Unit: bytes.")
    assert fields["minibatch_size"]["description"].endswith("Unit: records.")


def test_values_that_are_not_built_are_not_in_the_schema() -> None:
    sections = json.loads(read_published_schema(JOB_SCHEMA))["properties"]
    strategy, ps = (dict(_properties(sections[name])) for name in ("strategy", "ps"))
    assert strategy["name"]["enum"] == ["ParameterServer", "AllReduce", "Local"]
    assert strategy["mode"]["enum"] == ["async", "sync"]
    assert ps["replicas"]["enum"] == [0]


def test_event_schema_tells_events_apart() -> None:
    validator = Draft202012Validator(event_json.build_event_schema())
    line = to_json(RoleStarted(time=1.0, role="ps", index=0, pid=7))
    assert validator.is_valid(line)
    assert not validator.is_valid({**line, "event": "role_ended"})
    assert not validator.is_valid({name: value for name, value in line.items() if name != "event"})


def test_summary_schema() -> None:
    validator = Draft202012Validator(section_of(Summary).schema())
    assert validator.is_valid(to_json(Summary(records_total=1, records_done=1)))
    assert not validator.is_valid({"records_total": 1})


def _properties(schema: Any) -> list[tuple[str, dict[str, Any]]]:
    """Every property at any depth, by its name."""
    if isinstance(schema, list):
        return [pair for member in schema for pair in _properties(member)]
    if not isinstance(schema, dict):
        return []
    own = list(schema.get("properties", {}).items())
    inner = [value for name, value in schema.items() if name not in ("properties", "default")]
    return [*own, *_properties([field for _, field in own]), *_properties(inner)]


def test_patterns_are_those_of_every_regular_expression_engine() -> None:
    """Helm checks values with Go's, which knows neither lookahead nor lookbehind nor references."""
    patterns = re.findall(r'"pattern": "(.*)"', read_published_schema(JOB_SCHEMA))
    assert len(patterns) > 10
    assert [each for each in patterns if re.search(r"\(\?[^:]|\\\\[1-9]", each)] == []


@pytest.mark.parametrize("path", ["a", "a/b.c", ".a/..b/..."])
def test_a_folder_of_a_claim(path: str) -> None:
    validator = Draft202012Validator(json.loads(read_published_schema(JOB_SCHEMA)))
    assert not list(validator.iter_errors(job_with_sub_path(path)))


@pytest.mark.parametrize("path", ["..", "a/..", "/a", "a/../b", ".", ""])
def test_a_folder_outside_of_a_claim(path: str) -> None:
    validator = Draft202012Validator(json.loads(read_published_schema(JOB_SCHEMA)))
    assert [list(error.path)[-1] for error in validator.iter_errors(job_with_sub_path(path))] == ["sub_path"]


def job_with_sub_path(path: str) -> dict[str, Any]:
    return {
        "apiVersion": "edl.dev/v1",
        "name": "a",
        "model": {"definition": "m.f"},
        "volumes": [{"mount": "/data", "claim": "c", "sub_path": path}],
    }

"""data.schema of a job file: what is refused before a process starts, and the columns that it selects."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edl.api.job_spec import DataSpec, JobSpec, SchemaSpec
from edl.jobfile.schema_rules import check_schema, find_schema, selected_columns

FEATURES = {"km": "float32"}


@pytest.mark.parametrize(
    ("schema", "field"),
    [
        (SchemaSpec(label="tip", features={"tip": "float32"}), "features"),
        (SchemaSpec(features=FEATURES), "label"),
        (SchemaSpec(label="tip", classes=("a", "a")), "classes"),
        (SchemaSpec(classes=("a",)), "classes"),
        (SchemaSpec(label="tip", label_mode="categorical"), "label_mode"),
        (SchemaSpec(label="tip", label_mode="binary", classes=("a", "b", "c")), "label_mode"),
        (SchemaSpec(image_size=(3,)), "image_size"),
        (SchemaSpec(image_size=(3, 3), label="tip"), "label"),
        (SchemaSpec(color_mode="rgb", features=FEATURES), "features"),
    ],
)
def test_a_contradiction_is_refused_by_field(schema: SchemaSpec, field: str) -> None:
    spec = JobSpec(name="a", data=DataSpec(schema=schema))
    assert f"data.schema.{field}" in [violation.field_path for violation in check_schema(spec)]


def test_a_schema_without_contradictions_is_accepted() -> None:
    for schema in (SchemaSpec(), SchemaSpec(label="tip", features=FEATURES), SchemaSpec(image_size=(8, 8))):
        assert not list(check_schema(JobSpec(name="a", data=DataSpec(schema=schema))))
    prediction = JobSpec(name="a", task="predict", data=DataSpec(schema=SchemaSpec(features=FEATURES)))
    assert not list(check_schema(prediction))


def test_the_label_is_named_once() -> None:
    data = DataSpec(reader={"label": "tip"}, schema=SchemaSpec(label="tip"))
    assert [violation.field_path for violation in check_schema(JobSpec(name="a", data=data))] == ["data.reader.label"]
    assert find_schema(replace(data, schema=None)) == SchemaSpec(label="tip")


def test_a_command_has_no_use_for_a_schema() -> None:
    spec = JobSpec(name="a", command=("python",), data=DataSpec(schema=SchemaSpec(label="tip")))
    assert [violation.field_path for violation in check_schema(spec)] == ["data.schema"]


def test_features_and_label_are_the_columns_and_predictions_need_no_label() -> None:
    data = DataSpec(schema=SchemaSpec(label="tip", features=FEATURES))
    assert selected_columns(data, "training") == ("km", "tip")
    assert selected_columns(data, "prediction") == ("km",)
    assert selected_columns(DataSpec(), "training") == ()

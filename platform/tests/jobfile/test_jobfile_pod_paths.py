"""Paths of a spec, as a pod means them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edl.api.errors import BadInputError
from edl.api.job_spec import DataSpec, ExportSpec, JobSpec, ModelSpec
from edl.api.pod_spec import StorageSpec, VolumeSpec
from edl.jobfile.path_resolution import POD_ZOO_DIR, resolve_pod_paths

SPEC = JobSpec(
    name="digits", model=ModelSpec("m.custom_model"), data=DataSpec(training=("/data/train", "odps://table"))
)


@pytest.mark.parametrize(("zoo", "means"), [("model_zoo", POD_ZOO_DIR), ("../mine", POD_ZOO_DIR), ("/own", "/own")])
def test_a_relative_zoo_is_the_images(zoo: str, means: str) -> None:
    assert resolve_pod_paths(replace(SPEC, model=replace(SPEC.model, zoo=zoo))).model.zoo == means


def test_where_runs_go() -> None:
    shared = replace(SPEC, volumes=(VolumeSpec("/data", claim="files"),))
    assert resolve_pod_paths(SPEC).storage.path == "/edl"
    assert resolve_pod_paths(shared).storage.path == "/data/edl"
    assert resolve_pod_paths(replace(shared, storage=StorageSpec(path="/data/runs"))).storage.path == "/data/runs"
    assert resolve_pod_paths(shared, "/elsewhere").storage.path == "/elsewhere"


def test_relative_paths_of_data_are_refused_all_at_once() -> None:
    data = DataSpec(training=("train", "/data/train"), validation=("../test",))
    with pytest.raises(BadInputError) as refused:
        resolve_pod_paths(replace(SPEC, data=data, export=ExportSpec("models")))
    assert [line.strip() for line in refused.value.message.splitlines()[1:]] == [
        "data.training: train",
        "data.validation: ../test",
        "export.path: models",
    ]


def test_resolving_twice_changes_nothing() -> None:
    once = resolve_pod_paths(SPEC)
    assert resolve_pod_paths(once) == once

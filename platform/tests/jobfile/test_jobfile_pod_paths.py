"""Paths of a spec, as a pod means them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edl.api.errors import BadInputError
from edl.jobfile.job_spec import Data, Export, JobSpec, Model
from edl.jobfile.pod_paths import MODEL_ZOO, resolve_pod
from edl.jobfile.pod_spec import Storage, Volume

SPEC = JobSpec(name="digits", model=Model("m.custom_model"), data=Data(training=("/data/train", "odps://table")))


@pytest.mark.parametrize(("zoo", "means"), [("model_zoo", MODEL_ZOO), ("../mine", MODEL_ZOO), ("/own", "/own")])
def test_a_relative_zoo_is_the_images(zoo: str, means: str) -> None:
    assert resolve_pod(replace(SPEC, model=replace(SPEC.model, zoo=zoo))).model.zoo == means


def test_where_runs_go() -> None:
    shared = replace(SPEC, volumes=(Volume("/data", claim="files"),))
    assert resolve_pod(SPEC).storage.path == "/edl"
    assert resolve_pod(shared).storage.path == "/data/edl"
    assert resolve_pod(replace(shared, storage=Storage(path="/data/runs"))).storage.path == "/data/runs"
    assert resolve_pod(shared, "/elsewhere").storage.path == "/elsewhere"


def test_relative_paths_of_data_are_refused_all_at_once() -> None:
    data = Data(training=("train", "/data/train"), validation=("../test",))
    with pytest.raises(BadInputError) as told:
        resolve_pod(replace(SPEC, data=data, export=Export("models")))
    assert [line.strip() for line in told.value.message.splitlines()[1:]] == [
        "data.training: train",
        "data.validation: ../test",
        "export.path: models",
    ]


def test_resolving_twice_changes_nothing() -> None:
    once = resolve_pod(SPEC)
    assert resolve_pod(once) == once

"""``ps.store: native`` where EDL was installed without native code: said before anything is started."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support.text_keys import missing_keys

from edl.api.errors import BadInputError
from edl.api.job_spec import JobSpec
from edl.jobfile.loader import load_job_file
from edl.ops import job_checks

JOB = "name: mnist\nmodel: {definition: mnist.model.custom_model}\ndata: {training: train}\nps: {store: native}\n"


@pytest.fixture
def spec(tmp_path: Path) -> JobSpec:
    (tmp_path / "job.yaml").write_text(JOB, encoding="utf-8")
    return load_job_file(tmp_path / "job.yaml")


def about_the_store(spec: JobSpec) -> list[BadInputError]:
    return [problem for field, problem in job_checks.missing_inputs(spec) if field == "ps.store"]


def test_it_is_refused_by_run_and_a_warning_of_validate(spec: JobSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_checks, "find_spec", lambda name: None if name == "edl.numerics._native" else name)
    with pytest.raises(BadInputError, match="without its native extension") as refused:
        job_checks.check_job(spec)
    assert refused.value.where == "ps.store"
    assert "NumPy" in (refused.value.hint or "")
    assert [str(problem) for problem in about_the_store(spec)] == [str(refused.value)]


@pytest.mark.parametrize("wanted", ["auto", "numpy"])
def test_other_stores_need_nothing(spec: JobSpec, monkeypatch: pytest.MonkeyPatch, wanted: str) -> None:
    monkeypatch.setattr(job_checks, "find_spec", lambda name: None if name == "edl.numerics._native" else name)
    assert not about_the_store(replace(spec, ps=replace(spec.ps, store=wanted)))


def test_neither_does_a_job_without_parameter_servers(spec: JobSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_checks, "find_spec", lambda name: None if name == "edl.numerics._native" else name)
    assert not about_the_store(replace(spec, strategy=replace(spec.strategy, name="Local")))


def test_where_it_is_built_nothing_is_said(spec: JobSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_checks, "find_spec", lambda name: object())
    assert not about_the_store(spec)


@pytest.mark.parametrize("without", ["", "feed"])
def test_a_module_that_compiles_its_model_needs_feed_alone(tmp_path: Path, without: str) -> None:
    (tmp_path / "records.csv").write_text("x,y\n" + "1,2\n" * 100)
    (tmp_path / "m.py").write_text(
        "def custom_model():\n    model = make()\n    model.compile('sgd', 'mse')\n    return model\n"
        + ("" if without else "def feed(dataset, mode, metadata): ...\n")
    )
    (tmp_path / "job.yaml").write_text(
        f"name: m\nmodel: {{zoo: {tmp_path}, definition: m.custom_model}}\n"
        f"data: {{training: {tmp_path}/records.csv, validation: {tmp_path}/records.csv}}\n"
    )
    spec = load_job_file(tmp_path / "job.yaml")
    if without:
        with pytest.raises(BadInputError, match="does not define 'feed'") as raised:
            job_checks.check_job(spec)
        assert not missing_keys(raised.value.hint, "need no feed with data.schema", "data.reader: {label: COLUMN}")
    else:
        assert job_checks.check_job(spec).training == (100,)


def test_what_stands_beside_compile_is_named(tmp_path: Path) -> None:
    (tmp_path / "records.csv").write_text("x,y\n1,2\n")
    (tmp_path / "m.py").write_text(
        "def custom_model():\n    model = make()\n    model.compile('sgd', 'mse')\n    return model\n"
        "def feed(dataset, mode, metadata): ...\ndef eval_metrics_fn(): ...\n"
    )
    (tmp_path / "job.yaml").write_text(
        f"name: m\nmodel: {{zoo: {tmp_path}, definition: m.custom_model}}\ndata: {{training: {tmp_path}/records.csv}}\n"
    )
    with pytest.raises(BadInputError, match="does not define 'loss', 'optimizer'") as raised:
        job_checks.check_job(load_job_file(tmp_path / "job.yaml"))
    assert "compile() replaces them only in a module without eval_metrics_fn" in (raised.value.hint or "")


def test_the_old_name_of_feed_is_told(tmp_path: Path) -> None:
    (tmp_path / "records.csv").write_text("x,y\n1,2\n")
    (tmp_path / "m.py").write_text(
        "def custom_model(): ...\ndef dataset_fn(dataset, mode, metadata): ...\nloss = optimizer = 'sgd'\n"
    )
    (tmp_path / "job.yaml").write_text(
        f"name: m\nmodel: {{zoo: {tmp_path}, definition: m.custom_model}}\ndata: {{training: {tmp_path}/records.csv}}\n"
    )
    with pytest.raises(BadInputError, match="does not define 'feed'") as raised:
        job_checks.check_job(load_job_file(tmp_path / "job.yaml"))
    assert "model.functions: {feed: dataset_fn}" in (raised.value.hint or "")


def test_a_schema_beside_a_feed_is_refused(tmp_path: Path) -> None:
    (tmp_path / "records.csv").write_text("x,y\n" + "1,2\n" * 100)
    text = "def custom_model(): ...\nloss = optimizer = 'x'\n"
    (tmp_path / "job.yaml").write_text(
        f"name: m\nmodel: {{zoo: {tmp_path}, definition: m.custom_model}}\n"
        f"data: {{training: {tmp_path}/records.csv, schema: {{label: y}}}}\n"
    )
    (tmp_path / "m.py").write_text(text)
    job_checks.check_job(load_job_file(tmp_path / "job.yaml"))
    (tmp_path / "m.py").write_text(text + "def feed(dataset, mode, metadata): ...\n")
    with pytest.raises(BadInputError, match="the model module defines feed"):
        job_checks.check_job(load_job_file(tmp_path / "job.yaml"))

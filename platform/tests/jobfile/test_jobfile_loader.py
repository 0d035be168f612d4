"""Overrides, needs of a command, and what changed between two specs."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from support.text_keys import missing_keys

from edl.api.job_spec import CheckpointSpec, DataSpec, JobSpec, ModelSpec, TrainSpec
from edl.api.pod_spec import WorkerResourceSpec
from edl.api.strategy import Strategy
from edl.jobfile.document_tree import SpecError
from edl.jobfile.loader import NumberOption, diff_job_specs, dump_job_spec, load_job_file
from edl.jobfile.strategy_rules import describe_unused_fields

SMALLEST = "name: iris\nmodel: {definition: iris.model.custom_model}\ndata: {training: train.csv}\n"


@pytest.fixture
def job(tmp_path: Path) -> Path:
    file = tmp_path / "job.yaml"
    file.write_text(SMALLEST + "volumes: [{mount: /data}]\nexport: null\n", encoding="utf-8")
    return file


def test_the_smallest_file_has_defaults_for_everything_else(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(SMALLEST, encoding="utf-8")
    model = ModelSpec(definition="iris.model.custom_model")
    assert load_job_file(file) == JobSpec(name="iris", model=model, data=DataSpec(training=("train.csv",)))


def test_specs_are_values() -> None:
    spec = JobSpec(name="a", model=ModelSpec(definition="a.b"))
    with pytest.raises(AttributeError):
        spec.name = "b"  # type: ignore[misc]
    with pytest.raises((AttributeError, TypeError)):
        spec.nmae = "b"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("setting", "read", "value"),
    [
        ("train.epochs=3", lambda spec: spec.train.epochs, 3),
        ("train.epochs=1e1", lambda spec: spec.train.epochs, 10),
        ("name=other", lambda spec: spec.name, "other"),
        ("data.training=[a, b]", lambda spec: spec.data.training, ("a", "b")),
        ("data.validation=s3://x/y?a=b", lambda spec: spec.data.validation, ("s3://x/y?a=b",)),
        ("model.params.units=16", lambda spec: spec.model.params, {"units": 16}),
        ("model.params={units: [1, 2.5]}", lambda spec: spec.model.params, {"units": [1, 2.5]}),
        ("ps.embedding_threshold=1.5Ki", lambda spec: spec.ps.embedding_threshold, 1536),
        ("workers.resources.cpu=250m", lambda spec: spec.workers.resources, WorkerResourceSpec(cpu=0.25)),
        ("volumes[0].local=./here", lambda spec: spec.volumes[0].local, "./here"),
        ("volumes.0.local=./here", lambda spec: spec.volumes[0].local, "./here"),
        ("export.path=out", lambda spec: spec.export.path, "out"),
        ("checkpoint=null", lambda spec: spec.checkpoint, None),
        ("checkpoint=", lambda spec: spec.checkpoint, None),
        ("strategy={name: Local}", lambda spec: spec.strategy, Strategy(name="Local")),
        ("strategy.name=AllReduce", lambda spec: spec.strategy, Strategy(name="AllReduce")),
    ],
)
def test_override(job: Path, setting: str, read, value: object) -> None:
    assert read(load_job_file(job, [setting])) == value


def test_later_overrides_win(job: Path) -> None:
    assert load_job_file(job, ["train.epochs=2", "train.epochs=3"]).train.epochs == 3


@pytest.mark.parametrize(
    ("setting", "field", "keys"),
    [
        ("train.epoch=3", "train.epoch", ("unknown", "'epochs'")),
        ("train.epochs=-1", "train.epochs", ("found -1", "at least 1")),
        ("epochs=3", "epochs", ("unknown", "'train.epochs'")),
        ("train.epochs", "", ("FIELD=VALUE", "train.epochs=3")),
        ("=3", "", ("FIELD=VALUE",)),
        ("train.epochs=[1", "train.epochs", ("parsed", "']'")),
        ("volumes[1].local=a", "volumes", ("'1'", "has 1")),
        ("volumes.first.local=a", "volumes", ("'first'", "has 1")),
        ("name.first=a", "name", ("mapping",)),
        ("workers.max=10001", "workers.max", ("found 10001", "at least 1", "at most 10000")),
        ("workers.max=0", "workers.max", ("found 0", "at least 1", "at most 10000")),
    ],
)
def test_wrong_override(job: Path, setting: str, field: str, keys: tuple[str, ...]) -> None:
    with pytest.raises(SpecError) as caught:
        load_job_file(job, [setting])
    (problem,) = caught.value.problems
    assert str(problem).startswith(f"--set {setting}: {field}: " if field else f"--set {setting}: ")
    assert not missing_keys(str(problem), *keys)


def test_what_a_command_needs(job: Path) -> None:
    assert load_job_file(job, required_datasets=["training"])
    with pytest.raises(SpecError, match=r"job.yaml:3: data.prediction: is missing"):
        load_job_file(job, required_datasets=["prediction"])
    assert load_job_file(job, ["data={prediction: a}"], required_datasets=["prediction"]).data.training == ()
    assert load_job_file(job, ["data={prediction: a}"]).data.training == ()


def test_what_only_training_demands_is_not_asked_of_a_job_that_predicts(job: Path) -> None:
    settings = ["data.prediction=a", "strategy={mode: sync, grads_to_wait: 2}", "workers.max=1"]
    assert load_job_file(job, settings, required_datasets=["prediction"])
    for required in ([], ["training"], ["training", "prediction"]):
        with pytest.raises(SpecError, match="grads_to_wait"):
            load_job_file(job, settings, required_datasets=required)


def counted(workers: int) -> NumberOption:
    return NumberOption(f"--workers {workers}", "workers.max", workers, limited_field="workers.min")


def test_a_count_takes_the_place_of_what_file_and_settings_say(job: Path) -> None:
    spec = load_job_file(job, ["workers={min: 3, max: 9}"], number_options=[counted(4)])
    assert (spec.workers.min, spec.workers.max) == (3, 4)
    spec = load_job_file(
        job, ["workers={min: 3, max: 9}"], number_options=[counted(2), NumberOption("--ps 5", "ps.count", 5)]
    )
    assert (spec.workers.min, spec.workers.max, spec.ps.count) == (2, 2, 5)
    assert load_job_file(job, number_options=[counted(1)]).workers.min == 1


def test_fields_are_held_to_each_other_with_the_counts_of_the_command_line(job: Path) -> None:
    sync = "strategy={mode: sync, grads_to_wait: 3}"
    assert load_job_file(job, [sync], number_options=[counted(3)]).strategy.grads_to_wait == 3
    assert load_job_file(job, ["workers.min=3"], number_options=[counted(4)]).workers.min == 3
    with pytest.raises(SpecError) as caught:
        load_job_file(job, [sync], number_options=[counted(2)])
    assert str(caught.value).startswith(f"--set {sync}: strategy.grads_to_wait: ")
    assert not missing_keys(str(caught.value), "found 3", "workers.max is 2", "at most 2", "--workers 2")


def test_a_count_out_of_bounds_is_blamed_on_its_option(job: Path) -> None:
    with pytest.raises(SpecError, match=r"^--workers 0: workers\.max: found 0"):
        load_job_file(job, number_options=[counted(0)])
    with pytest.raises(SpecError, match=r"^--ps 0: ps\.count: found 0"):
        load_job_file(job, number_options=[NumberOption("--ps 0", "ps.count", 0)])


def test_a_minimum_that_is_no_number_is_a_mistake_of_its_own(job: Path) -> None:
    with pytest.raises(SpecError, match=r"^--set workers\.min=many: workers\.min: found 'many'"):
        load_job_file(job, ["workers.min=many"], number_options=[counted(3)])


@pytest.mark.parametrize("source", ["file", "--set workers.max=2"])
def test_the_source_of_the_other_field_is_told_where_it_is_an_option(job: Path, source: str) -> None:
    text = job.read_text(encoding="utf-8")
    job.write_text(text + "strategy: {mode: sync, grads_to_wait: 3}\n", encoding="utf-8")
    with pytest.raises(SpecError) as caught:  # a neighbour's option gave it nothing
        load_job_file(job, ["workers.resources.cpu=1"] if source == "file" else ["workers.max=2"])
    message = str(caught.value)
    assert not missing_keys(message, "strategy.grads_to_wait", "found 3", "workers.max is 2")
    assert (source in message) == (source != "file")
    assert "--set workers.resources.cpu" not in message


def test_a_spec_that_was_dumped_loads(job: Path, tmp_path: Path) -> None:
    spec = load_job_file(job, ["master.lost_timeout=1h30m"])
    file = tmp_path / "spec.json"
    file.write_text(json.dumps(dump_job_spec(spec)), encoding="utf-8")
    assert load_job_file(file) == spec
    assert spec.master.lost_timeout == 5400.0


@pytest.mark.parametrize(
    ("setting", "field"),
    [
        ("strategy.mode=sync", "strategy.mode"),
        ("strategy.reference_world=2", "strategy.reference_world"),
        ("ps.max_rows=5", "ps.max_rows"),
    ],
)
def test_what_all_reduce_does_not_have_is_refused_where_it_is_set(job: Path, setting: str, field: str) -> None:
    settings = ["data.validation=b", "strategy.name=AllReduce", setting]
    with pytest.raises(SpecError) as caught:
        load_job_file(job, settings)
    (problem,) = caught.value.problems
    assert (problem.field_path, problem.source_location) == (field, f"--set {setting}")
    assert problem.hint is not None


@pytest.mark.parametrize("scaling", ["linear", "sqrt"])
def test_a_learning_rate_is_scaled_to_a_world(job: Path, scaling: str) -> None:
    settings = ["strategy.name=AllReduce", f"strategy.learning_rate_scaling={scaling}"]
    with pytest.raises(SpecError) as caught:
        load_job_file(job, settings)
    assert not missing_keys(str(caught.value), "strategy.learning_rate_scaling", "strategy.reference_world")
    strategy = load_job_file(job, [*settings, "strategy.reference_world=4"]).strategy
    assert (strategy.learning_rate_scaling, strategy.reference_world) == (scaling, 4)


@pytest.mark.parametrize(
    ("strategy", "named"),
    [("AllReduce", ("ps.count", "ps.store")), ("Local", ("ps.count", "ps.store")), ("ParameterServer", ())],
)
def test_fields_that_change_nothing_are_named(job: Path, strategy: str, named: tuple[str, ...]) -> None:
    settings = [f"strategy.name={strategy}", "ps.count=3", "ps.store=numpy", "ps.priority=low"]
    lines = describe_unused_fields(load_job_file(job, settings))
    assert [[word.strip(",:") for word in line.split() if word.startswith("ps.")] for line in lines] == (
        [list(named)] if named else []
    )
    assert describe_unused_fields(load_job_file(job, settings[:1])) == []


def test_fields_about_pushes_are_named_where_one_process_trains(job: Path) -> None:
    settings = ["strategy.name=Local", "strategy.mode=sync", "strategy.grads_to_wait=2"]
    assert describe_unused_fields(load_job_file(job, settings)) == [
        "does not use strategy.mode, strategy.grads_to_wait: strategy Local is one process"
    ]


def test_changes() -> None:
    old = JobSpec(name="a", model=ModelSpec(definition="a.b", params={"units": 1}), data=DataSpec(training=("x",)))
    new = replace(
        old,
        model=ModelSpec(definition="a.b", params={"units": 2, "depth": 3}),
        train=TrainSpec(epochs=7),
        data=DataSpec(training=("x", "y")),
        checkpoint=None,
    )
    assert diff_job_specs(old, new) == [
        ("model.params.units", 1, 2),
        ("model.params.depth", None, 3),
        ("data.training", ["x"], ["x", "y"]),
        ("train.epochs", 1, 7),
        ("checkpoint", dump_job_spec(old)["checkpoint"], None),
    ]
    assert diff_job_specs(new, replace(new, checkpoint=CheckpointSpec())) == [
        ("checkpoint", None, {"every_steps": 1000, "keep": 3, "full_timeout": 1800.0}),
    ]


def test_reading_a_dumped_spec_needs_no_yaml(job: Path, tmp_path: Path) -> None:
    # every role does it when it starts, and a parser for YAML costs 40 ms of that
    file = tmp_path / "spec.json"
    file.write_text(json.dumps(dump_job_spec(load_job_file(job))), encoding="utf-8")
    code = (
        f"import sys; from edl.jobfile.loader import load_job_file; load_job_file({str(file)!r}); print('ruamel.yaml'"
        " in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"

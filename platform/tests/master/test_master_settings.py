"""From the JobSpec to what decisions are made of, and from files to record counts."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edl.api.cluster_port import POD_GRACE_SECONDS
from edl.api.errors import BadInputError
from edl.api.job_spec import JobSpec
from edl.core.events import DatasetDescribed
from edl.jobfile.loader import load_job_file
from edl.master.master_process import describe_dataset, may_define_reader, settings_from_spec


def spec_of(folder: Path, **sections: Any) -> JobSpec:
    document: dict[str, Any] = {"apiVersion": "edl.dev/v1", "name": "played", "model": {"definition": "m.f"}}
    document |= {"data": {"training": "a.csv", "prediction": "a.csv"}, **sections}
    (folder / "job.json").write_text(json.dumps(document))
    return load_job_file(folder / "job.json")


def test_settings_are_the_spec_in_records_and_steps(tmp_path: Path) -> None:
    spec = spec_of(
        tmp_path,
        train={"minibatch_size": 8, "minibatches_per_task": 4, "epochs": 3, "seed": 5, "max_steps": 100},
        checkpoint={"every_steps": 7},
        export={},
        ps={"count": 2, "resources": {"memory": "1.5Gi"}},
        workers={"min": 1, "max": 3},
    )
    settings = settings_from_spec(spec, describe=True, durable=True)
    assert (settings.minibatch, settings.task_records, settings.epochs) == (8, 32, 3)
    assert (settings.seed, settings.max_steps, settings.checkpoint_steps) == (5, 100, 7)
    assert (settings.ps, settings.workers, settings.export, settings.describe) == (2, 3, True, True)
    assert (settings.workers_min, settings.elevated_share, settings.oom_memory_factor) == (1, 0.0, 1.0)
    assert (settings.worker_memory, settings.ps_memory, settings.durable) == ("2Gi", "1536Mi", True)
    assert not settings_from_spec(spec, describe=True, durable=False).durable


def test_predicting_needs_no_parameter_servers_and_exports_nothing(tmp_path: Path) -> None:
    settings = settings_from_spec(
        spec_of(tmp_path, task="predict", export={}, ps={"count": 2}), describe=False, durable=True
    )
    assert (settings.ps, settings.export, settings.predict, settings.evaluate) == (0, False, True, False)


def test_evaluating_needs_no_parameter_servers_and_knows_the_step_of_its_weights(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, task="evaluate", data={"validation": "a.csv"}, ps={"count": 2}, train={"max_steps": 5})
    settings = settings_from_spec(spec, describe=False, durable=True, weights_step=300)
    assert (settings.ps, settings.export, settings.predict, settings.evaluate) == (0, False, False, True)
    assert settings.weights_step == 300


def test_under_all_reduce_there_are_workers_alone(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, strategy={"name": "AllReduce"}, ps={"count": 2}, workers={"min": 2, "max": 3})
    settings = settings_from_spec(spec, describe=False, durable=True)
    assert (settings.all_reduce, settings.ps, settings.workers, settings.workers_min) == (True, 0, 3, 2)
    assert (settings.checkpoint_steps, settings.evaluation_steps, settings.export) == (1000, None, True)
    assert settings.grace == POD_GRACE_SECONDS, "the last worker may have to write the state"


@pytest.mark.parametrize(("strategy", "task"), [("ParameterServer", "train"), ("AllReduce", "predict")])
def test_parameter_servers_and_predictions_reduce_nothing(tmp_path: Path, strategy: str, task: str) -> None:
    spec = spec_of(tmp_path, strategy={"name": strategy}, task=task)
    settings = settings_from_spec(spec, describe=False, durable=True)
    assert not settings.all_reduce
    assert settings.grace < POD_GRACE_SECONDS


@pytest.mark.parametrize(("code", "found"), [("def custom_data_reader(): ...", True), ("", False)])
def test_a_reader_of_the_users_own_is_found_without_running_the_module(
    tmp_path: Path, code: str, *, found: bool
) -> None:
    (tmp_path / "m.py").write_text(f"def f(): ...\n{code}\nraise SystemExit\n")
    assert may_define_reader(spec_of(tmp_path, model={"definition": "m.f", "zoo": str(tmp_path)})) is found


def test_each_part_of_the_data_is_counted_by_source(tmp_path: Path) -> None:
    for name, rows in (("a", 3), ("b", 2)):
        (tmp_path / f"{name}.csv").write_text("x,y\n" + "1,2\n" * rows)
    a, b = str(tmp_path / "a.csv"), str(tmp_path / "b.csv")
    spec = spec_of(tmp_path, data={"training": [a, b], "validation": b, "prediction": a})
    trained, predicted = describe_dataset(spec), describe_dataset(replace(spec, task="predict"))
    digests = {"validation": trained.digests["validation"]}
    assert describe_dataset(replace(spec, task="evaluate")) == DatasetDescribed(
        validation=trained.validation, digests=digests
    )
    assert [records for _, records in trained.training] == [3, 2]
    assert [records for _, records in trained.validation] == [2]
    assert (trained.prediction, [records for _, records in predicted.prediction]) == ((), [3])
    assert predicted.training == ()


def test_data_that_is_not_there_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="nowhere"):
        describe_dataset(spec_of(tmp_path, data={"training": str(tmp_path / "nowhere")}))


def test_a_master_starts_without_tensorflow_numpy_and_what_only_the_command_line_needs() -> None:
    heavy = ("tensorflow", "keras", "numpy", "safetensors", "rich", "typer", "kubernetes", "jsonschema", "yaml")
    code = f"import sys, edl.master.master_process; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

"""The modules of `compat/test_compat_modules` as jobs of several processes."""

from __future__ import annotations

from operator import attrgetter
from pathlib import Path

import pytest
from support.elasticdl.deepctr_package import deepctr_environment, install_deepctr
from support.elasticdl.modules import MODULES, ZOO, Module
from support.elasticdl.run_modules import RECORDS, make_data
from support.job_folder import JobFolder
from support.repetition import in_thirds

pytestmark = [pytest.mark.jobs, pytest.mark.timeout(400), pytest.mark.tensorflow]

COMPAT = Path(__file__).resolve().parents[3] / "elasticdl-compat"


def check_training(module: Module, strategy: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(COMPAT))
    monkeypatch.setenv("PYTHONPATH", str(COMPAT), prepend=":")
    data = str(make_data(module.data, folder))
    reader = {"label": "label"} if module.data == "census_table" else {}
    job = JobFolder.make(
        folder,
        "module",
        module.definition,
        zoo=ZOO,
        data={"training": data, "validation": data, "reader": reader},
        train={"minibatch_size": 4, "epochs": 2},
        strategy={"name": strategy},
    )
    with job.run("--set", f"model.keras={module.keras}", "--set", "export={}") as run:
        summary = run.summary()
    assert summary["records_done"] == 2 * RECORDS
    assert set(summary["metrics"]) > {"loss"}
    assert summary["export"]


@pytest.mark.repetition
@pytest.mark.parametrize("module", [pytest.param(each, id=each.path) for each in MODULES if each.refused_locally])
def test_what_needs_parameter_servers_trains_with_them(
    module: Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_training(module, "ParameterServer", tmp_path, monkeypatch)


@pytest.mark.repetition
@pytest.mark.parametrize("strategy", ["ParameterServer", "AllReduce"])
@pytest.mark.parametrize(
    "module", in_thirds((each for each in MODULES if not each.refused_locally), attrgetter("path"))
)
def test_a_module_trains_over_processes(
    module: Module, strategy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if module.needs:
        for name, value in deepctr_environment(install_deepctr(tmp_path / "deepctr")).items():
            monkeypatch.setenv(name, value)
    check_training(module, strategy, tmp_path, monkeypatch)

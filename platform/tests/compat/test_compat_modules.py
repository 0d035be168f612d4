"""Modules with the imports and definitions of ElasticDL's model zoo: what the migration page says becomes of each.

Those of one version of Keras are trained in one process: TensorFlow chooses the version when it is imported.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from support.elasticdl.deepctr_package import deepctr_environment, install_deepctr
from support.elasticdl.modules import DEEPCTR, MODULES, ZOO, Module

from edl.jobfile.keras_version import LEGACY_VARIABLE

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(480)]

ROOT = Path(__file__).resolve().parents[3]
REPEATED = (
    "census_dnn_model/census_functional_api.py",
    "census_dnn_model/census_sequential.py",
    "census_dnn_model/census_subclass.py",
    "census_model_sqlflow/dnn/census_functional.py",
    "census_model_sqlflow/wide_and_deep/wide_deep_functional_fc.py",
    "census_model_sqlflow/wide_and_deep/wide_deep_functional_keras.py",
    "census_model_sqlflow/wide_and_deep/wide_deep_functional_tensor_interface_fc.py",
    "census_model_sqlflow/wide_and_deep/wide_deep_functional_tensor_interface_keras.py",
    "census_wide_deep_model/wide_deep_functional_api.py",
    "cifar10/cifar10_functional_api.py",
    "cifar10/cifar10_subclass.py",
    "deepfm_functional_api/deepfm_functional_api.py",
    "mnist/mnist_subclass.py",
    "resnet50_subclass/resnet50_subclass.py",
)
"""What these have, another module has as well."""


def find_marks(module: Module) -> list[Any]:
    marks = [pytest.mark.repetition] if module.is_large or module.path in REPEATED else []
    package = module.needs.split(" ")[0]
    if package and importlib.util.find_spec(package) is None:
        marks.append(pytest.mark.skip(reason=f"{module.needs} is not installed"))
    return marks


@pytest.fixture(scope="module")
def results(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Any]:
    """Returns how the chosen modules of a version of Keras ended, by path; they are trained once."""
    folder = tmp_path_factory.mktemp("modules")
    items = [item for item in request.session.items if item.fspath == request.node.fspath]
    chosen = {item.callspec.params["module"] for item in items if hasattr(item, "callspec")}

    @cache
    def train(keras: int) -> dict[str, Any]:
        return train_modules([each for each in MODULES if each in chosen and each.keras == keras], keras, folder)

    return train


def train_modules(modules: list[Module], keras: int, folder: Path) -> dict[str, Any]:
    folders = [ROOT / "platform" / "tests", ROOT / "elasticdl-compat"]
    environment = {
        **os.environ,
        LEGACY_VARIABLE: "1" if keras == 2 else "0",
        "PYTHONPATH": os.pathsep.join([*map(str, folders), os.environ.get("PYTHONPATH", "")]),
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }
    ended = subprocess.run(
        [sys.executable, "-m", "support.elasticdl.run_modules", str(folder), *(module.path for module in modules)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=450,
    )
    assert ended.returncode == 0, ended.stderr
    return {line["path"]: line for line in map(json.loads, ended.stdout.splitlines())}


def check_ended(ended: dict[str, Any]) -> None:
    assert ended["code"] == 0, ended["error"]
    assert ended["summary"]["records_done"] == ended["records"]
    assert set(ended["summary"]["metrics"]) > {"loss"}
    assert ended["summary"]["export"]


@pytest.mark.first_cases(2)
@pytest.mark.parametrize(
    "module", [pytest.param(each, id=each.path, marks=find_marks(each)) for each in MODULES if not each.refused_locally]
)
def test_a_module_trains_evaluates_and_exports(module: Module, results: Callable[[int], Any]) -> None:
    check_ended(results(module.keras)[module.path])


@pytest.mark.repetition
def test_modules_that_need_deepctr_train_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in deepctr_environment(install_deepctr(tmp_path / "deepctr")).items():
        monkeypatch.setenv(name, value)
    modules = [module for module in MODULES if module.needs == DEEPCTR]
    ended = train_modules(modules, 2, tmp_path)
    assert len(modules) == 2
    for module in modules:
        check_ended(ended[module.path])


@pytest.mark.parametrize(
    "module", [pytest.param(each, id=each.path, marks=find_marks(each)) for each in MODULES if each.refused_locally]
)
def test_what_needs_parameter_servers_says_so_under_strategy_local(
    module: Module, results: Callable[[int], Any]
) -> None:
    ended = results(module.keras)[module.path]
    assert ended["code"] == 2
    assert module.refused_locally in ended["error"]


def test_no_module_is_missing() -> None:
    assert len(MODULES) == len({module.path for module in MODULES}) == 23
    assert [module.path for module in MODULES if not (ZOO / module.path).is_file()] == []


def test_the_migration_page_says_what_becomes_of_each() -> None:
    text = (ROOT / "docs" / "migrating-from-elasticdl.md").read_text(encoding="utf-8")
    assert [module.row for module in MODULES if f"\n{module.row}\n" not in text] == []
    assert text.count(f"{len(MODULES)} of {len(MODULES)}") == 1

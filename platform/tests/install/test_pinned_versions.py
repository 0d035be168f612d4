"""The pinned versions install on every Python that EDL says it runs on, and work together."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions
from pathlib import Path

import pytest
from install.source_modules import SourceModule, modules
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[3]

GROUPED = """
import os, pathlib, pytest

@pytest.mark.xdist_group("together")
@pytest.mark.parametrize("number", range(6))
def test_one(number, worker_id):
    with open(pathlib.Path(__file__).with_name("workers"), "a") as said:
        said.write(worker_id + " ")
"""


def test_each_pinned_version_runs_on_the_oldest_python() -> None:
    """``pip freeze`` on a newer one may choose versions that Debian's first 3.11 cannot have."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (oldest,) = (part.version for part in SpecifierSet(project["requires-python"]) if part.operator == ">=")
    pinned = [line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line]
    wanted = {name: python for name, version in pinned if (python := _requires(name, version)) is not None}
    assert len(wanted) > 50
    assert {name: spec for name, spec in wanted.items() if not SpecifierSet(spec).contains(f"{oldest}.0")} == {}


def _requires(name: str, version: str) -> str | None:
    """What Python a distribution asks for; None if it does not say, or is not here in that version."""
    try:
        installed = distribution(name)
    except PackageNotFoundError:
        return None
    return installed.metadata.get("Requires-Python") if installed.version == version else None


def test_the_package_declares_what_it_imports() -> None:
    """What only tests install is missing for users: ``pip install edl-platform[train]`` is all that they have."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [Requirement(text) for text in (*project["dependencies"], *project["optional-dependencies"]["train"])]
    declared = {canonicalize_name(each.name) for each in wanted}
    # Without the extra of its protocol, an address of remote data is refused with the extra's name.
    for extra in ("http", "s3", "gcs", "sql", "duckdb", "pandas", "prompt"):
        declared |= {canonicalize_name(Requirement(text).name) for text in project["optional-dependencies"][extra]}
    # What a program of the user's brings: edl.sharding.torch_data and torch_steps are imported by nothing else.
    declared.add("torch")
    # What a notebook has: IPython imports edl.cli.sql_notebook, and nothing else does.
    declared.add("ipython")
    # The client of Kubernetes' API is made for its own transport, and that of Docker for its own.
    for name in ("kubernetes", "docker"):
        declared |= {canonicalize_name(Requirement(text).name) for text in distribution(name).requires or ()}
    distributions = packages_distributions()
    imported = {name: module.name for module in modules() for name in _imported_packages(module)}
    assert len(imported) > 15
    missing = {
        name: file
        for name, file in imported.items()
        if not declared.intersection(canonicalize_name(each) for each in distributions.get(name, [name]))
    }
    assert missing == {}


def test_the_extra_for_keras_2_is_that_for_training_with_another_tensorflow() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    train, keras2 = (
        {Requirement(text).name: Requirement(text) for text in extras[name]} for name in ("train", "keras2")
    )
    assert keras2.keys() ^ train.keys() == {"tensorflow-cpu", "tf_keras"}
    assert str(keras2["tensorflow"].specifier) == str(train["tensorflow-cpu"].specifier)
    assert keras2["tensorflow"].marker is None, "on every machine: tf_keras requires this distribution"
    assert all(str(keras2[name]) == str(train[name]) for name in keras2.keys() & train.keys() - {"tensorflow"})


def _imported_packages(module: SourceModule) -> set[str]:
    """The packages that a module imports when it runs, but for the standard library and EDL itself."""
    guarded = {
        id(node)
        for block in (module.nodes if "TYPE_CHECKING" in module.text else ())
        if isinstance(block, ast.If) and "TYPE_CHECKING" in ast.unparse(block.test)
        for node in ast.walk(block)
    }
    names = set()
    for node in module.nodes:
        if id(node) in guarded:
            continue
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return {name for name in names if name != "edl" and name not in sys.stdlib_module_names}


@pytest.mark.repetition
def test_scenarios_of_a_group_run_in_one_process(tmp_path: Path) -> None:
    """Those of e2e share what is slow to set up, or would be in each other's way; pytest and xdist agree on how.

    They did not in pytest 9.2 with xdist 3.8, which hand the tests of a group to any process without a word.
    """
    (tmp_path / "test_grouped.py").write_text(GROUPED)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "2", "--dist", "loadgroup"]
    ended = subprocess.run([*command, "--no-loadscope-reorder"], cwd=tmp_path, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    ran = (tmp_path / "workers").read_text().split()
    assert len(ran) == 6
    assert len(set(ran)) == 1

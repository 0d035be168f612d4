"""The distribution elasticdl-compat: it has all of its packages, declares what it needs and uses EDL's public parts."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[3] / "elasticdl-compat"
PROJECT = tomllib.loads((FOLDER / "pyproject.toml").read_text(encoding="utf-8"))
OWN = {"elasticdl", "elasticdl_compat", "elasticdl_preprocessing", "recordio"}
USED_OF_EDL = {
    "edl.api.errors",
    "edl.data",
    "edl.data.recordio.reader",
    "edl.data.shard_reader",
    "edl.layers",
    "edl.layers.keras2_embedding",
}
"""The charter of ``elasticdl_compat`` names these rooms."""


def imports(path: Path) -> set[str]:
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    plain = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return plain | {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)}


def test_the_wheel_has_every_package() -> None:
    folders = {path.parent.relative_to(FOLDER).parts[0] for path in FOLDER.rglob("__init__.py")}
    assert set(PROJECT["tool"]["scikit-build"]["wheel"]["packages"]) == folders == OWN
    assert {path.parent.name for path in FOLDER.rglob("py.typed")} == OWN


def test_it_has_the_version_and_the_license_of_edl() -> None:
    root = tomllib.loads((FOLDER.parent / "pyproject.toml").read_text(encoding="utf-8"))
    assert PROJECT["project"]["version"] == root["project"]["version"]
    assert PROJECT["project"]["requires-python"] == root["project"]["requires-python"]
    assert (FOLDER / "LICENSE").read_text() == (FOLDER.parent / "LICENSE").read_text()


def test_it_imports_what_it_declares_and_the_parts_of_edl_that_its_charter_names() -> None:
    imported = {name for path in FOLDER.rglob("*.py") for name in imports(path)}
    others = {name for name in imported if name.partition(".")[0] not in OWN}
    assert {name for name in others if name.partition(".")[0] == "edl"} == USED_OF_EDL
    foreign = {name.partition(".")[0] for name in others} - {"edl", "tensorflow"}
    standard = (
        "__future__ abc collections dataclasses importlib inspect itertools logging math os sys threading types typing"
    )
    assert foreign <= set(standard.split())

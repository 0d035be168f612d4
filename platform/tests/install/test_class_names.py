"""A class is found by its name: no two of the package have the same one."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import pytest

pytestmark = pytest.mark.install

PACKAGE = Path(__file__).resolve().parents[2] / "edl"


def test_no_two_classes_of_the_package_have_one_name() -> None:
    files = defaultdict(list)
    for path in PACKAGE.rglob("*.py"):
        if not path.stem.endswith(("_pb2", "_pb2_grpc")):
            names = [node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)]
            for name in names:
                files[name].append(path.relative_to(PACKAGE).as_posix())
    assert len(files) > 500
    assert {name: where for name, where in files.items() if len(where) > 1} == {}

"""A class is found by its name: no two of the package have the same one."""

from __future__ import annotations

import ast
from collections import defaultdict

import pytest
from install.source_modules import modules

pytestmark = pytest.mark.install


def test_no_two_classes_of_the_package_have_one_name() -> None:
    files = defaultdict(list)
    for module in modules():
        if not module.name.endswith(("_pb2.py", "_pb2_grpc.py")):
            for node in module.nodes:
                if isinstance(node, ast.ClassDef):
                    files[node.name].append(module.name)
    assert len(files) > 500
    assert {name: where for name, where in files.items() if len(where) > 1} == {}

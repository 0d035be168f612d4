"""What a worker tells the master about the data of a job with its own reader."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from edl.core.shards import Source
from edl.spec.job import Data
from edl.worker.readers import describe

DATA = Data(training=("a",), validation=("b",), prediction=("c",))


def opened(name: str) -> Any:
    return SimpleNamespace(sources=lambda: [Source(f"{name}-0", 5), Source(f"{name}-1", 7)])


@pytest.mark.parametrize(("predict", "used"), [(False, ["training", "validation"]), (True, ["prediction"])])
def test_only_the_sets_that_a_run_uses_are_opened_and_described(predict: bool, used: list[str]) -> None:
    names: list[str] = []

    def open_named(name: str) -> Any:
        names.append(name)
        return opened(name)

    found = json.loads(describe(DATA, open_named, predict=predict))
    assert found == {name: [[f"{name}-0", 5], [f"{name}-1", 7]] for name in used}
    assert names == used

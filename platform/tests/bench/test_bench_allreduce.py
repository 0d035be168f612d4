"""The peer of the all-reduce benchmark gets what makes it fast, for each buffer."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def allreduce() -> Iterator[ModuleType]:
    sys.path.insert(0, str(ROOT / "bench"))
    import allreduce

    yield allreduce
    sys.path.remove(str(ROOT / "bench"))


def test_each_buffer_is_cut_into_as_many_pieces_as_make_it_fastest(allreduce, monkeypatch):
    questions = []

    def ask_all(scripts, **question):
        questions.append((question["bytes"], question["pieces"]))
        return [{"seconds": question["bytes"] / question["pieces"] + 1e6 * question["pieces"]}]

    monkeypatch.setattr(allreduce, "ask_all", ask_all)
    tuned = allreduce.tune_pieces(allreduce.Contestant("gloo", (), pieces=dict.fromkeys(allreduce.MEASURES, 1)))
    for measure in ("25 MB", "4 kB"):
        tuned.reduction_seconds(measure)
    assert questions[-2:] == [(25_000_000, 4), (4_096, 1)]

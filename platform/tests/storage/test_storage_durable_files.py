"""Files are replaced as a whole, by each of several writers: process ids of two pods on one volume may be equal."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edl.data.statistics_files import WorkerStatistics, read_worker_files, write_worker_file
from edl.sharding import table_statistics
from edl.storage.durable_files import read_json, replace_file, write_json
from edl.storage.safetensors_writer import write_array_file


@pytest.fixture
def before_rename(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Any]], None]:
    """Do something just before a file that is written gets its name."""

    def interpose(action: Callable[[], Any]) -> None:
        renames = {name: getattr(os, name) for name in ("rename", "replace")}

        def rename(name: str, *paths: Any) -> None:
            for each, original in renames.items():
                monkeypatch.setattr(os, each, original)
            action()
            renames[name](*paths)

        for name in renames:
            monkeypatch.setattr(os, name, lambda *paths, name=name: rename(name, *paths))

    return interpose


def test_of_two_writers_with_one_process_id_the_last_one_stays(tmp_path: Path, before_rename: Any) -> None:
    before_rename(lambda: write_json(tmp_path / "a.json", {"by": "another"}))
    write_json(tmp_path / "a.json", {"by": "this"})
    assert read_json(tmp_path / "a.json") == {"by": "this"}
    assert os.listdir(tmp_path) == ["a.json"]


def test_two_writers_of_a_workers_statistics(tmp_path: Path, before_rename: Any) -> None:
    before_rename(lambda: write_worker_file(tmp_path / "worker-0.npz", WorkerStatistics({"a": 1})))
    write_worker_file(tmp_path / "worker-0.npz", WorkerStatistics({"a": 2}))
    assert [worker.sources for worker in read_worker_files(tmp_path)] == [{"a": 2}]
    assert os.listdir(tmp_path) == ["worker-0.npz"]


def test_two_writers_of_the_result_of_statistics(
    tmp_path: Path, before_rename: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Merged:
        def to_json(self, top: int) -> dict[str, int]:
            return {"records": top}

    monkeypatch.setattr(table_statistics, "read_worker_files", lambda folder: [])
    monkeypatch.setattr(table_statistics, "merge_workers", lambda workers: Merged())
    before_rename(lambda: table_statistics.write_result(tmp_path, 1))
    table_statistics.write_result(tmp_path, 2)
    assert read_json(tmp_path / table_statistics.RESULT) == {"records": 2}
    assert os.listdir(tmp_path) == [table_statistics.RESULT]


def test_arrays_whose_names_differ_after_the_last_dot(tmp_path: Path, before_rename: Any) -> None:
    before_rename(lambda: write_array_file(tmp_path / "w.worker-0", {"x": np.zeros(3)}, {}))
    write_array_file(tmp_path / "w.worker-1", {"x": np.zeros(3)}, {})
    assert sorted(os.listdir(tmp_path)) == ["w.worker-0", "w.worker-1"]


def test_a_file_that_is_not_finished_is_removed_and_the_earlier_one_stays(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("earlier")
    with pytest.raises(UnicodeEncodeError), replace_file(tmp_path / "a") as temporary:
        temporary.write_text("half \udc80", encoding="utf-8")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("a", "earlier")]
    with replace_file(tmp_path / "a") as temporary:
        temporary.write_text("whole")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("a", "whole")]

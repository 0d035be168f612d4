"""The rows that tables of parameter servers begin with: those of another job, each on the server that owns it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edl.api.job_spec import JobSpec, ModelSpec, ParameterServerSpec
from edl.api.tables import TableSpec
from edl.numerics.model_declaration import ModelDeclaration
from edl.numerics.optimizer_spec import OptimizerSpec
from edl.ps.init_from_rows import make_initial_rows_reader
from edl.storage.initial_weights import CONVERTED_FILE
from edl.storage.run_directory import RunDirectory, make_run_directory
from edl.storage.run_weights import HELD_DIRECTORY, RunWeights
from edl.storage.safetensors_writer import write_array_file
from edl.transport.peer_errors import PeerRefusedError

TABLE = TableSpec("items", 9, 2, {"name": "zeros"}, 1)


def test_each_server_begins_with_its_own_rows_and_a_new_optimizer(tmp_path: Path) -> None:
    run, spec = RunDirectory(tmp_path / "run"), JobSpec("b", ModelSpec("m.f", init_from="a.keras"))
    make_run_directory(run)
    (run.path / HELD_DIRECTORY).mkdir()
    rows = np.repeat(np.arange(9, dtype=np.float32)[:, None], 2, 1)
    write_array_file(run.path / HELD_DIRECTORY / CONVERTED_FILE, {"dense/items": rows}, {})
    RunWeights(Path("/a.keras")).write(run, "train")
    declaration = ModelDeclaration((), (TABLE,), OptimizerSpec("adagrad"), "model")
    two = JobSpec("b", spec.model, ps=ParameterServerSpec(count=2))
    parts = [make_initial_rows_reader(run, two, index)(declaration)["items"] for index in range(2)]
    assert sorted([*parts[0].ids, *parts[1].ids]) == list(range(9))
    for part in parts:
        assert part.values[:, 0].tolist() == part.ids.tolist()
        for slot, start in declaration.optimizer.slot_starts.items():
            assert (part.slots[slot] == start).all()
    assert make_initial_rows_reader(run, JobSpec("b", ModelSpec("m.f")), 0)(declaration) == {}


def test_a_server_says_why_it_cannot_read_them(tmp_path: Path) -> None:
    run, spec = RunDirectory(tmp_path / "run"), JobSpec("b", ModelSpec("m.f", init_from="a"))
    make_run_directory(run)
    RunWeights(tmp_path / "gone.keras").write(run, "train")
    with pytest.raises(PeerRefusedError) as caught:
        make_initial_rows_reader(run, spec, 0)(ModelDeclaration((), (TABLE,), OptimizerSpec("sgd"), "model"))
    assert caught.value.kind in ("model", "storage")

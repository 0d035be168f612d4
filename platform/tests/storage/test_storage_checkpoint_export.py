"""A checkpoint as one file: the same arrays whatever number of shards it came from."""

from __future__ import annotations

import json
import os
import resource
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples

from edl.api.errors import StorageError
from edl.api.tables import TableSpec
from edl.core.partition import initial_placement, owner_of_name, slot_of_row
from edl.storage import checkpoint_export
from edl.storage.checkpoint_contents import read_checkpoint_contents
from edl.storage.checkpoint_shards import write_shard

OPTIMIZER = {"name": "adam", "hyperparameters": {"beta_1": 0.9}}
INITIALIZER = {"name": "uniform", "minval": -1, "maxval": 1}
SLOTS = ("m", "v")
KERNELS = {
    name: np.arange(6, dtype=np.float32).reshape(2, 3) + n for n, name in enumerate(["a/kernel", "b/kernel", "c"])
}
IDS = np.array([4_000_000_000, 3, 77, 12, 5], np.int64)
ROWS = np.arange(20, dtype=np.float32).reshape(5, 4)


def spread(folder: Path, count: int, rows: np.ndarray = IDS) -> list[Path]:
    """Shards of ``count`` parameter servers that hold the same state."""
    folder.mkdir(exist_ok=True)
    owners = np.array(initial_placement(count))
    paths = []
    for index in range(count):
        own = {name: value for name, value in KERNELS.items() if owner_of_name(name, initial_placement(count)) == index}
        mine = owners[slot_of_row(rows.astype(np.uint64))] == index
        arrays = {f"dense/{name}": value for name, value in own.items()}
        arrays |= {f"slot/{slot}/{name}": value + n for name, value in own.items() for n, slot in enumerate(SLOTS, 1)}
        arrays |= {"rows/items/ids": rows[mine], "rows/items/values": ROWS[mine]}
        arrays |= {f"rows/items/slot/{slot}": ROWS[mine] * (n + 2) for n, slot in enumerate(SLOTS)}
        shard = write_shard(folder, index, arrays, {"declaration": declaration(own)})
        paths.append(folder / shard.file)
    return paths


def declaration(own: Mapping[str, Any], fingerprint: str = "model") -> str:
    dense = [[name, list(value.shape), False] for name, value in own.items()]
    tables = [["items", 5_000_000_000, 4, INITIALIZER, 3]]
    return json.dumps({"dense": dense, "tables": tables, "optimizer": OPTIMIZER, "fingerprint": fingerprint})


def exported(paths: list[Path], file: Path, *, slots: bool = True) -> dict[str, np.ndarray]:
    contents = read_checkpoint_contents(paths)
    checkpoint_export.write_export(
        file,
        checkpoint_export.export_columns(contents, include_slots=slots),
        checkpoint_export.export_metadata(contents),
        lambda _: None,
    )
    if file.suffix == ".npz":
        with np.load(file, allow_pickle=False) as archive:
            return dict(archive)
    return safetensors.numpy.load_file(file)


@pytest.mark.parametrize("suffix", ["npz", "safetensors"])
def test_every_array_has_its_name_and_rows_ascend(tmp_path: Path, suffix: str) -> None:
    arrays = exported(spread(tmp_path / "cut", 3), tmp_path / f"out.{suffix}")
    order = np.argsort(IDS)
    wanted = {**KERNELS, "items/ids": IDS[order], "items/rows": ROWS[order]}
    for n, slot in enumerate(SLOTS):
        wanted |= {f"{name}/slot/{slot}": value + n + 1 for name, value in KERNELS.items()}
        wanted[f"items/slot/{slot}"] = ROWS[order] * (n + 2)
    assert arrays.keys() == wanted.keys()
    for name, value in wanted.items():
        np.testing.assert_array_equal(arrays[name], value)
        assert arrays[name].dtype == value.dtype
    plain = exported(spread(tmp_path / "cut", 3), tmp_path / f"plain.{suffix}", slots=False)
    assert plain.keys() == {*KERNELS, "items/ids", "items/rows"}


@pytest.mark.parametrize("suffix", ["npz", "safetensors"])
def test_bfloat16_is_exported_as_float32(tmp_path: Path, suffix: str) -> None:
    """NumPy does not have the type; the wider one has the same values."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    values = np.array([[1.5, -2.25], [1e30, -0.0]], ml_dtypes.bfloat16)
    shard = tmp_path / "cut" / write_shard(tmp_path / "cut", 0, {"dense/a": values}).file
    arrays = exported([shard], tmp_path / f"out.{suffix}")
    assert arrays["a"].dtype == np.float32
    np.testing.assert_array_equal(arrays["a"], values.astype(np.float32))
    (variable,) = read_checkpoint_contents([shard]).variables
    assert checkpoint_export.compute_statistics([variable.values]).minimum == -2.25


@settings(max_examples=examples(12), deadline=None)
@given(count=st.integers(1, 6), piece=st.integers(1, 9), suffix=st.sampled_from(["npz", "safetensors"]))
def test_the_same_state_is_the_same_file_however_it_was_spread(
    tmp_path_factory: pytest.TempPathFactory, count: int, piece: int, suffix: str
) -> None:
    folder = tmp_path_factory.mktemp("spread")
    exported(spread(folder / "one", 1), folder / f"one.{suffix}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint_export, "PIECE_ELEMENTS", piece)
        exported(spread(folder / "many", count), folder / f"many.{suffix}")
    assert (folder / f"one.{suffix}").read_bytes() == (folder / f"many.{suffix}").read_bytes()


def test_what_shards_hold_together_is_told(tmp_path: Path) -> None:
    contents = read_checkpoint_contents(spread(tmp_path, 2))
    assert [variable.spec.name for variable in contents.variables] == sorted(KERNELS)
    assert contents.optimizer == OPTIMIZER
    (table,) = contents.tables
    assert table.spec == TableSpec("items", 5_000_000_000, 4, INITIALIZER, 3)
    assert (table.name, table.row_count, table.width, table.slots) == ("items", 5, 4, SLOTS)
    assert table.described_initializer == {**INITIALIZER, "seed": 3}


def test_a_table_without_rows_and_a_model_without_tables(tmp_path: Path) -> None:
    empty = np.empty((0, 4), np.float32)
    write_shard(tmp_path, 0, {"rows/t/ids": np.empty(0, np.int64), "rows/t/values": empty})
    arrays = exported([tmp_path / "ps-0.safetensors"], tmp_path / "out.npz")
    assert {name: value.shape for name, value in arrays.items()} == {"t/ids": (0,), "t/rows": (0, 4)}
    write_shard(tmp_path, 1, {"dense/w": np.float32(3) * np.ones(()), "state/0": np.ones(2, np.uint32)})
    arrays = exported([tmp_path / "ps-1.safetensors"], tmp_path / "out.safetensors")
    assert arrays["w"] == 3
    assert "state/0" in arrays


W = np.ones((2, 2), np.float32)
TABLE = {"rows/t/ids": np.arange(2), "rows/t/values": W}


@pytest.mark.parametrize(
    ("shards", "message"),
    [
        ([{"dense/w": W}, {"dense/w": W}], "'w'.*ps-0.safetensors"),
        ([TABLE, TABLE], "row 0 of table 't'.*twice"),
        ([TABLE, {"rows/t/ids": np.arange(2), "rows/t/values": W[:, :1]}], "ps-0"),
        ([{"rows/t/ids": np.arange(2)}], "rows of table 't'"),
        ([{"rows/t/ids": np.arange(3), "rows/t/values": W}], "rows of table 't'"),
        ([{"rows/t/ids": np.arange(2.0), "rows/t/values": W}], "rows of table 't'"),
        ([{"slot/m/w": W}], "variable 'w'"),
        ([{"dense/w": W, "slot/m/w": W[0]}], "shape.*'w'"),
        ([{"dense/t/ids": W, **TABLE}], "'t/ids'"),
    ],
)
def test_shards_that_do_not_fit_together_are_refused(
    tmp_path: Path, shards: list[dict[str, np.ndarray]], message: str
) -> None:
    paths = [tmp_path / write_shard(tmp_path, index, arrays).file for index, arrays in enumerate(shards)]
    with pytest.raises(StorageError, match=message):
        checkpoint_export.export_columns(read_checkpoint_contents(paths), include_slots=True)


def test_shards_of_two_models_are_refused(tmp_path: Path) -> None:
    write_shard(tmp_path, 0, {"dense/v": W}, {"declaration": declaration({"v": W})})
    write_shard(tmp_path, 1, {"dense/w": W}, {"declaration": declaration({"w": W}, "another")})
    with pytest.raises(StorageError, match=r"another model than ps-0\.safetensors"):
        read_checkpoint_contents([tmp_path / "ps-0.safetensors", tmp_path / "ps-1.safetensors"])


def test_rows_of_another_length_than_declared_are_refused(tmp_path: Path) -> None:
    wide = {"rows/items/ids": np.arange(2), "rows/items/values": W}
    write_shard(tmp_path, 0, wide, {"declaration": declaration({})})
    with pytest.raises(StorageError, match="rows of table 'items'"):
        read_checkpoint_contents([tmp_path / "ps-0.safetensors"])


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"dense": 3}',
        '{"dense": [["w"]]}',
        '{"dense": [["w", [Infinity], false]]}',
        '{"tables": [["t", "x", 1, {}, 0]]}',
    ],
)
def test_a_declaration_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    write_shard(tmp_path, 0, {"dense/w": W}, {"declaration": text})
    with pytest.raises(StorageError, match=r"ps-0\.safetensors"):
        read_checkpoint_contents([tmp_path / "ps-0.safetensors"])


@pytest.mark.parametrize("suffix", ["npz", "safetensors"])
def test_a_full_disk_leaves_nothing_and_what_was_there_stays(tmp_path: Path, suffix: str) -> None:
    write_shard(tmp_path, 0, {"dense/w": np.zeros(100_000, np.float32)})
    out = tmp_path / "out" / f"w.{suffix}"
    out.parent.mkdir()
    out.write_text("before")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        with pytest.raises(StorageError, match="File too large"):
            exported([tmp_path / "ps-0.safetensors"], out)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(out.parent.iterdir()) == [out]
    assert out.read_text() == "before"


def test_unfinished_exports_of_killed_processes_go_after_a_day(tmp_path: Path) -> None:
    killed, writing = (tmp_path / f".m[1].npz.{digit * 12}.tmp" for digit in "0f")
    other, hidden = tmp_path / f".m1.npz.{'0' * 12}.tmp", tmp_path / ".m[1].npz.notes.tmp"
    for path in (killed, writing, other, hidden):
        path.write_bytes(b"half")
    for path in (killed, other, hidden):
        os.utime(path, (time.time() - 2 * 24 * 3600,) * 2)
    file = tmp_path / "m[1].npz"
    checkpoint_export.write_export(file, [], {}, lambda count: None)
    assert sorted(tmp_path.iterdir()) == sorted([file, writing, other, hidden])

"""Shards that are damaged, or not what they say: refused with a reason, or held as they are; never half of either."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ps.shard_arrays import shard_arrays
from support.examples import examples

from edl.api.errors import StorageError
from edl.api.tables import TableSpec
from edl.api.variables import VariableSpec
from edl.core.partition import initial_placement
from edl.numerics.model_declaration import ModelDeclaration
from edl.numerics.optimizer_spec import OptimizerSpec
from edl.numerics.parameter_store import NumpyParameterStore, PushGradients, RowBatch
from edl.ps.shard_restore import CutSnapshot, cut_from_shard, load_owned_part
from edl.storage.checkpoint_manifest import (
    CheckpointManifest,
    SkippedCheckpoint,
    commit_checkpoint,
    cut_directory,
    newest_intact_checkpoint,
)
from edl.storage.checkpoint_shards import write_shard

TABLE = TableSpec("emb", 50, 3, {"name": "zeros"}, seed=3)
MODEL = ModelDeclaration(
    (VariableSpec("w", (2, 3)), VariableSpec("mean", (3,), True)), (TABLE,), OptimizerSpec("adam"), "m"
)
MANY = settings(
    deadline=None,
    max_examples=examples(150),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
SLOTS = initial_placement(1)


def cut_of(number: int) -> CutSnapshot:
    store = NumpyParameterStore(MODEL, np.arange(9, dtype=np.float32))
    rows = RowBatch(np.arange(0, 40, 3), np.full((14, 3), number, np.float32))
    store.apply_gradients(PushGradients(np.ones(9, np.float32), {"emb": rows}, 0.1, 1.0), 1)
    return CutSnapshot(number, store.take_snapshot(), 1, {11: 2})


def write(checkpoints: Path, number: int) -> Path:
    directory = cut_directory(checkpoints, number)
    shard = write_shard(directory, 0, *shard_arrays(cut_of(number)))
    commit_checkpoint(directory, CheckpointManifest(number, 1, "2026-01-01T00:00:00+00:00", (shard,), {"done": number}))
    return directory


def contents(cut: CutSnapshot) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in shard_arrays(cut)[0].items()}


def damaged(data: bytes, draw: st.DataObject) -> bytes:
    """Another content: bits flipped, an end cut off, something appended, or a part written twice."""
    at = draw.draw(st.integers(0, len(data) - 1))
    end = draw.draw(st.integers(at, min(len(data), at + 64)))
    changed = {
        "flip": data[:at] + bytes([data[at] ^ draw.draw(st.integers(1, 255))]) + data[at + 1 :],
        "cut": data[:at],
        "zeros": data[:at] + bytes(len(data) - at),
        "longer": data + draw.draw(st.binary(min_size=1, max_size=9)),
        "twice": data[:end] + data[at:],
        "lost": data[:at] + data[end:],
    }
    return changed[draw.draw(st.sampled_from(sorted(changed)))]


@MANY
@given(st.sampled_from(["ps-0.safetensors", "manifest.json"]), st.data())
def test_any_damage_to_any_file_is_noticed_and_the_previous_checkpoint_is_found(
    tmp_path_factory: pytest.TempPathFactory, file: str, draw: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("run")
    previous, directory = write(folder, 1), write(folder, 2)
    path = directory / file
    intact = path.read_bytes()
    changed = damaged(intact, draw)
    path.write_bytes(changed)
    skipped: list[SkippedCheckpoint] = []
    checkpoint = newest_intact_checkpoint(folder, skipped.append)
    assert checkpoint is not None
    if checkpoint.cut == 2:  # nothing that counts: white space around the manifest
        assert contents(load_owned_part(directory, 0, SLOTS)) == contents(cut_of(2))
        assert file == "manifest.json" or changed == intact
        return
    assert [(each.cut, bool(each.reason)) for each in skipped] == [(2, True)]
    with pytest.raises(StorageError) as caught:
        load_owned_part(directory, 0, SLOTS)
    assert str(caught.value)
    assert contents(load_owned_part(previous, 0, SLOTS)) == contents(cut_of(1))


# ------------------------------------------------------------------ intact files of something else

Change = dict[str, Any]


@st.composite
def changes(draw: st.DrawFn, names: list[str]) -> Change:
    """Some arrays replaced by others, or gone."""
    change: Change = {}
    for name in draw(st.lists(st.sampled_from(names), min_size=1, max_size=2, unique=True)):
        shape = draw(st.lists(st.sampled_from([0, 1, 2, 3, 14]), max_size=3))
        dtype = draw(st.sampled_from(["float32", "float64", "int64", "int8", "uint64", "bool"]))
        value = draw(st.sampled_from([0, 1, 49, 50, -1, 2**40]))
        with np.errstate(all="ignore"):
            change[name] = draw(st.sampled_from([None, np.full(shape, value, "int64").astype(dtype)]))
    return change


@MANY
@given(st.data())
def test_arrays_that_do_not_fit_are_refused_and_others_can_be_held(draw: st.DataObject) -> None:
    arrays, meta = shard_arrays(cut_of(3))
    changed = {**arrays, **draw.draw(changes(sorted(arrays)))}
    try:
        cut = cut_from_shard({name: array for name, array in changed.items() if array is not None}, meta)
    except StorageError:
        return
    store = NumpyParameterStore.from_snapshot(cut.snapshot)
    store.apply_gradients(
        PushGradients(np.zeros(9, np.float32), {"emb": RowBatch(np.arange(50), ones(50))}, 0.1, 1.0), 2
    )
    assert len(store.read_rows("emb", np.arange(50))) == 50


def ones(count: int) -> np.ndarray:
    return np.ones((count, 3), np.float32)


@pytest.mark.parametrize(
    ("array", "said"),
    [
        ({"rows/emb/ids": np.arange(37, 51)}, "table 'emb' has ids 37 to 50.* 50 rows"),
        ({"rows/emb/ids": np.arange(-1, 13)}, "table 'emb' has ids -1 to 12.* 50 rows"),
        ({"rows/emb/ids": np.arange(14).astype(np.float32)}, "float32, not int64"),
        ({"rows/emb/ids": np.arange(14).reshape(14, 1)}, r"ids of table 'emb' .*\[14, 1\], not \[n\]"),
        ({"rows/emb/values": np.zeros((14, 3))}, "float64, not float32"),
        ({"rows/emb/slot/velocity": np.zeros((14, 3), np.int32)}, "int32, not float32"),
        ({"rows/emb/values": np.zeros((14, 2), np.float32)}, r"rows of table 'emb' .*\[14, 3\]"),
        ({"dense/w": np.zeros((3, 2), np.float32)}, r"variable 'w' .*\[3, 2\].*\[2, 3\]"),
    ],
)
def test_what_does_not_fit_is_named(array: Mapping[str, np.ndarray], said: str) -> None:
    arrays, meta = shard_arrays(cut_of(3))
    with pytest.raises(StorageError, match=said):
        cut_from_shard({**arrays, **array}, meta)

"""The head of an array file is believed only as far as it fits the file."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples

from edl.api.errors import StorageError
from edl.storage.checkpoint_export import compute_statistics, map_stored_array
from edl.storage.safetensors_header import StoredArray, read_safetensors_header
from edl.storage.safetensors_writer import write_array_file

ARRAYS = {
    "scalar": np.array(7, np.int64),
    "flags": np.array([True, False, True]),
    "empty": np.empty((0, 4), np.float32),
    "kernel": np.arange(12, dtype=np.float64).reshape(3, 4),
}


def framed(header: Any, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def entry(shape: Any = (2,), offsets: Any = (0, 8), dtype: Any = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def test_arrays_are_found_where_they_are(tmp_path: Path) -> None:
    write_array_file(tmp_path / "a.safetensors", ARRAYS, {"cut": "7"})
    header = read_safetensors_header(tmp_path / "a.safetensors")
    assert header.metadata == {"cut": "7"}
    assert header.arrays.keys() == ARRAYS.keys()
    for name, array in header.arrays.items():
        assert (array.dtype, array.shape, array.nbytes) == (ARRAYS[name].dtype, ARRAYS[name].shape, ARRAYS[name].nbytes)
        np.testing.assert_array_equal(map_stored_array(array), ARRAYS[name])


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"PK\x03\x04 a zip archive",
        b"\xff" * 64,
        (1 << 40).to_bytes(8, "little"),
        framed(b"[" * 100_000),
        framed(b"\xff\xfe"),
        framed([]),
        framed({"w": 3}),
        framed({"__metadata__": {"cut": 7}}),
        framed({"w": entry(offsets=(0, 4))}, b"1234"),
        framed({"w": entry(offsets=(8, 0))}, b"12345678"),
        framed({"w": entry(offsets=(4, 12))}, b"123456789012"),
        framed({"w": entry(shape=[-2], offsets=(0, -8))}),
        framed({"w": entry(shape=[True, 2])}, b"12345678"),
        framed({"w": entry(shape=[1 << 62, 0], offsets=(0, 0))}),
        framed({"w": entry(shape=[1] * 33, offsets=(0, 4))}, b"1234"),
        framed({"w": entry(dtype="F8_E4M3", offsets=(0, 4))}, b"1234"),
        framed({"w": entry(dtype=[])}, b"12345678"),
        framed({"v": entry(), "w": entry()}, b"12345678"),
        framed({"w": entry()}, b"1234567"),
        framed({"w": entry()}, b"123456789"),
    ],
)
def test_what_does_not_fit_the_file_is_refused_by_name(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "ps-0.safetensors"
    path.write_bytes(data)
    with pytest.raises(StorageError) as caught:
        read_safetensors_header(path)
    assert caught.value.where == str(path)


@settings(max_examples=examples(300), deadline=None)
@given(st.data())
def test_any_damage_is_an_error_or_describes_no_more_than_the_file_has(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "ps-0.safetensors")
        write_array_file(path, ARRAYS, {"cut": "7"})
        raw = bytearray(path.read_bytes())
        for _ in range(data.draw(st.integers(1, 4))):
            raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
        path.write_bytes(raw[: data.draw(st.integers(0, len(raw)))] if data.draw(st.booleans()) else raw)
        try:
            header = read_safetensors_header(path)
        except StorageError:
            return
        assert sum(array.nbytes for array in header.arrays.values()) <= len(raw)
        assert all(map_stored_array(array).shape == array.shape for array in header.arrays.values())


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot read a checkpoint"):
        read_safetensors_header(tmp_path / "ps-0.safetensors")
    gone = StoredArray("w", "float32", (2,), tmp_path / "ps-0.safetensors", 0)
    with pytest.raises(StorageError, match="cannot read a checkpoint"):
        map_stored_array(gone)


def test_statistics_are_of_finite_values_and_count_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edl.storage.checkpoint_export.PIECE_ELEMENTS", 3)
    values = np.array([[1, np.nan, -4], [np.inf, 9, -np.inf], [0, np.nan, 2]], np.float32)
    write_array_file(tmp_path / "a.safetensors", {"a": values, "none": np.array([np.nan]), "empty": np.empty(0)}, {})
    arrays = read_safetensors_header(tmp_path / "a.safetensors").arrays
    read: list[int] = []
    statistics = compute_statistics([arrays["a"], arrays["empty"]], read.append)
    assert (statistics.count, statistics.minimum, statistics.mean, statistics.maximum) == (9, -4, 1.6, 9)
    assert (statistics.nan_count, statistics.infinite_count) == (2, 2)
    assert sum(read) == values.nbytes
    assert compute_statistics([arrays["none"]]).mean is None
    assert compute_statistics([]).count == 0

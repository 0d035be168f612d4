"""Checkpoints: what was committed comes back byte for byte; what was not, never happened."""

from __future__ import annotations

import json
import resource
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples

from edl.api.errors import StorageError
from edl.storage.checkpoint_manifest import (
    CheckpointManifest,
    SkippedCheckpoint,
    commit_checkpoint,
    cut_directory,
    load_manifest,
    newest_intact_checkpoint,
    prune_checkpoints,
    prune_for_full_disk,
    verify_checkpoint,
)
from edl.storage.checkpoint_shards import read_shard, shard_path, write_shard

DTYPES = ["f8", "f4", "f2", "i8", "i4", "i2", "i1", "u8", "u4", "u2", "u1", "?", ">f4", ">i8"]

arrays = st.builds(
    lambda shape, dtype, seed: np.random.default_rng(seed).integers(0, 100, shape).astype(dtype),
    st.lists(st.integers(0, 4), max_size=3),
    st.sampled_from(DTYPES),
    st.integers(0, 2**32),
)


def make_cut(checkpoints: Path, cut: int, *, commits: bool = True, ledger: Any = None) -> Path:
    directory = cut_directory(checkpoints, cut)
    shards = tuple(
        write_shard(directory, ps, {"w": np.full(8, cut + ps, np.float32)}, {"ps": str(ps)}) for ps in range(2)
    )
    if commits:
        commit_checkpoint(directory, CheckpointManifest(cut, cut * 10, "2026-01-01T00:00:00+00:00", shards, ledger))
    return directory


@settings(max_examples=examples(40), deadline=None)
@given(st.dictionaries(st.text(max_size=6).filter(lambda name: name != "__metadata__"), arrays, max_size=4))
def test_arrays_come_back_as_they_were(stored: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = cut_directory(Path(name), 1)
        shard = write_shard(directory, 0, stored, {"optimizer": "adam", "größe": "ü"})
        commit_checkpoint(directory, CheckpointManifest(1, 1, "now", (shard,), None))
        loaded_arrays, meta = read_shard(shard_path(directory, 0))

        assert meta == {"optimizer": "adam", "größe": "ü"}
        assert loaded_arrays.keys() == stored.keys()
        for key, array in stored.items():
            assert loaded_arrays[key].dtype == array.dtype.newbyteorder("=")
            assert loaded_arrays[key].shape == array.shape
            np.testing.assert_array_equal(loaded_arrays[key], array)


def test_other_tools_read_the_file(tmp_path: Path) -> None:
    transposed = np.arange(6, dtype=np.float32).reshape(2, 3).T
    write_shard(tmp_path, 3, {"flags": np.ones(3, bool), "t": transposed})

    loaded_arrays = safetensors.numpy.load_file(tmp_path / "ps-3.safetensors")
    np.testing.assert_array_equal(loaded_arrays["t"], transposed)
    np.testing.assert_array_equal(loaded_arrays["flags"], [True] * 3)


def test_a_dtype_that_cannot_be_stored_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'names' has dtype object"):
        write_shard(tmp_path, 0, {"names": np.array(["a", None], dtype=object)})
    assert list(tmp_path.iterdir()) == []


def test_the_newest_committed_cut_is_found_with_its_ledger(tmp_path: Path) -> None:
    assert newest_intact_checkpoint(tmp_path / "missing") is None
    make_cut(tmp_path, 1)
    make_cut(tmp_path, 12, ledger={"done": {3: [1, 2.5]}, "epoch": (1, 2)})
    manifest = newest_intact_checkpoint(tmp_path)

    assert manifest is not None
    assert (manifest.cut, manifest.version) == (12, 120)
    assert manifest.ledger == {"done": {"3": [1, 2.5]}, "epoch": [1, 2]}
    assert manifest.directory == tmp_path / "cut-00000012"
    path = manifest.shard_path(1)
    assert path is not None
    assert read_shard(path)[0]["w"][0] == 13
    assert manifest.shard_path(2) is None


def test_a_cut_without_a_manifest_never_happened(tmp_path: Path) -> None:
    make_cut(tmp_path, 1)
    unfinished = make_cut(tmp_path, 2, commits=False)
    skipped: list[SkippedCheckpoint] = []

    manifest = newest_intact_checkpoint(tmp_path, skipped.append)

    assert manifest is not None
    assert manifest.cut == 1
    assert [(skip.cut, skip.directory) for skip in skipped] == [(2, unfinished)]
    assert "never completed" in skipped[0].reason
    with pytest.raises(StorageError, match="never completed"):
        read_shard(shard_path(unfinished, 0))


@pytest.mark.parametrize("file", ["ps-0.safetensors", "ps-1.safetensors", "manifest.json"])
@pytest.mark.parametrize("damage", ["flip", "cut", "empty"])
def test_a_damaged_file_makes_newest_fall_back_and_say_why(tmp_path: Path, file: str, damage: str) -> None:
    make_cut(tmp_path, 1)
    path = make_cut(tmp_path, 2, ledger={"position": 1000}) / file
    data = path.read_bytes()
    middle = len(data) // 2
    flipped = data[:middle] + bytes([data[middle] ^ 4]) + data[middle + 1 :]
    path.write_bytes({"flip": flipped, "cut": data[:-1], "empty": b""}[damage])
    if (file, damage) == ("manifest.json", "cut"):
        path.write_bytes(data[:-3])  # its last byte is a newline, which is no loss
    skipped: list[SkippedCheckpoint] = []

    manifest = newest_intact_checkpoint(tmp_path, skipped.append)

    assert manifest is not None
    assert manifest.cut == 1
    assert [skip.cut for skip in skipped] == [2]
    assert file in skipped[0].reason or "manifest is damaged" in skipped[0].reason


def test_a_missing_shard_makes_newest_fall_back(tmp_path: Path) -> None:
    (make_cut(tmp_path, 2) / "ps-1.safetensors").unlink()
    skipped: list[SkippedCheckpoint] = []

    assert newest_intact_checkpoint(tmp_path, skipped.append) is None
    assert "ps-1.safetensors" in skipped[0].reason


def test_every_changed_byte_of_a_manifest_is_noticed(tmp_path: Path) -> None:
    directory = make_cut(tmp_path, 1, ledger={"a": 1, "b": "text"})
    path = directory / "manifest.json"
    data = path.read_bytes()
    intact = load_manifest(directory)
    for offset in range(len(data)):
        path.write_bytes(data[:offset] + bytes([data[offset] ^ 1]) + data[offset + 1 :])
        assert isinstance(load_manifest(directory), SkippedCheckpoint) or load_manifest(directory) == intact


def test_a_damaged_shard_is_not_read(tmp_path: Path) -> None:
    path = shard_path(make_cut(tmp_path, 1), 0)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)

    with pytest.raises(StorageError, match="checksum"):
        read_shard(path)
    with pytest.raises(StorageError, match=r"ps-7\.safetensors"):
        read_shard(path.with_name("ps-7.safetensors"))


def test_another_format_version_is_refused_with_both_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("edl.storage.checkpoint_manifest.FORMAT_VERSION", 9)
        make_cut(tmp_path, 1)

    with pytest.raises(StorageError, match=r"version 9\b.*version 1\b"):
        newest_intact_checkpoint(tmp_path)


def test_a_cut_with_a_part_missing_cannot_be_committed(tmp_path: Path) -> None:
    directory = make_cut(tmp_path, 1, commits=False)
    shard = write_shard(directory, 0, {"w": np.zeros(4)})
    shard_path(directory, 0).unlink()

    with pytest.raises(StorageError, match=r"ps-0\.safetensors"):
        commit_checkpoint(directory, CheckpointManifest(1, 1, "now", (shard,), None))
    assert newest_intact_checkpoint(tmp_path) is None


def test_a_full_disk_leaves_no_half_file_and_the_previous_cut_valid(tmp_path: Path) -> None:
    previous = make_cut(tmp_path, 1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        with pytest.raises(StorageError, match="File too large"):
            write_shard(cut_directory(tmp_path, 2), 0, {"w": np.zeros(100_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    assert list(cut_directory(tmp_path, 2).iterdir()) == []
    manifest = newest_intact_checkpoint(tmp_path)
    assert manifest is not None
    assert manifest.directory == previous
    assert verify_checkpoint(previous, manifest) is None


def test_a_shard_that_is_written_again_replaces_the_first(tmp_path: Path) -> None:
    directory = make_cut(tmp_path, 1, commits=False)
    shard = write_shard(directory, 0, {"w": np.ones(3)})
    commit_checkpoint(directory, CheckpointManifest(1, 1, "now", (shard,), None))

    assert read_shard(shard_path(directory, 0))[0]["w"].tolist() == [1, 1, 1]


class TestPrune:
    def left(self, checkpoints: Path) -> list[str]:
        return sorted(path.name for path in checkpoints.iterdir())

    def test_the_newest_and_the_protected_stay(self, tmp_path: Path) -> None:
        for cut in range(1, 7):
            make_cut(tmp_path, cut)

        assert prune_checkpoints(tmp_path, keep_count=2, protected_cuts={2}) == [1, 3, 4]
        assert self.left(tmp_path) == ["cut-00000002", "cut-00000005", "cut-00000006"]

    def test_unfinished_cuts_do_not_count_and_go_when_they_are_old(self, tmp_path: Path) -> None:
        for cut in range(1, 6):
            make_cut(tmp_path, cut, commits=cut in (1, 3))

        assert prune_checkpoints(tmp_path, keep_count=2) == [2]
        assert self.left(tmp_path) == ["cut-00000001", "cut-00000003", "cut-00000004", "cut-00000005"]

    def test_without_a_committed_cut_nothing_goes(self, tmp_path: Path) -> None:
        make_cut(tmp_path, 1, commits=False)

        assert prune_checkpoints(tmp_path, keep_count=1) == []

    def test_keeping_none_is_a_mistake(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="at least 1"):
            prune_checkpoints(tmp_path, keep_count=0)


class TestMakeRoom:
    """A checkpoint could not be written, because the disk is full."""

    def left(self, checkpoints: Path) -> list[str]:
        return sorted(path.name for path in checkpoints.iterdir())

    def test_what_failed_attempts_left_goes_and_the_only_checkpoint_stays(self, tmp_path: Path) -> None:
        for cut in range(1, 5):
            make_cut(tmp_path, cut, commits=cut == 1)

        assert prune_for_full_disk(tmp_path, 1, set(), failed_cut=4) == [2, 3, 4]
        assert self.left(tmp_path) == ["cut-00000001"]

    def test_one_less_is_kept_than_when_there_is_room(self, tmp_path: Path) -> None:
        for cut in range(1, 5):
            make_cut(tmp_path, cut, commits=cut < 4)

        assert prune_for_full_disk(tmp_path, 3, set(), failed_cut=4) == [1, 4]
        assert prune_for_full_disk(tmp_path, 3, set(), failed_cut=4) == []

    def test_the_newest_that_is_intact_stays_even_if_newer_ones_are_there(self, tmp_path: Path) -> None:
        for cut in range(1, 4):
            make_cut(tmp_path, cut)
        damaged = shard_path(cut_directory(tmp_path, 3), 0)
        data = bytearray(damaged.read_bytes())
        data[-1] ^= 1
        damaged.write_bytes(data)

        assert prune_for_full_disk(tmp_path, 1, set(), failed_cut=4) == [1]
        assert self.left(tmp_path) == ["cut-00000002", "cut-00000003"]


def test_the_manifest_is_plain_json(tmp_path: Path) -> None:
    value = json.loads((make_cut(tmp_path, 4) / "manifest.json").read_text())

    assert value["cut"] == 4
    assert [shard["file"] for shard in value["shards"]] == ["ps-0.safetensors", "ps-1.safetensors"]

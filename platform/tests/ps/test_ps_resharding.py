"""A checkpoint of some parameter servers, restored to another number of them: the same state, and it trains on alike.

What is compared is what ``edl checkpoint export --slots`` writes: every value and every slot variable by name, rows by
id, whoever holds them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from edl.core.partition import initial_placement, owner_of_name, slot_of_row
from edl.storage import checkpoint_export
from edl.storage.checkpoint_contents import read_checkpoint_contents
from edl.storage.checkpoint_manifest import CheckpointManifest, load_manifest

VALUES = {name: np.arange(6, dtype=np.float32).reshape(2, 3) + n for n, name in enumerate("abcdefgh")}
VALUES |= {f"stat{n}": np.full(4, n, np.float32) for n in range(3)}
LEASE = (1 << 32) + 1
STEPS = 5
START = Callable[..., object]


class PsFleet:
    """Parameter servers and one worker that talks to all of them, as a job's does."""

    def __init__(self, start: START, count: int, optimizer: str, *, restore: Path | None = None) -> None:
        self._slots = initial_placement(count)
        self.servers = [start(index) for index in range(count)]
        live = {"restore": str(restore), "slots": self._slots, "live": [LEASE], "cut": 1} if restore else {}
        self.attached = [ps.attach(**live) for ps in self.servers]
        self.workers = [ps.worker() for ps in self.servers]
        for index, worker in enumerate(self.workers):
            worker.declare({name: VALUES[name] for name in self._owned(index)}, optimizer=optimizer)

    def step(self, number: int) -> None:
        """One step of training: gradients of all variables and of some rows, some ids twice."""
        rng = np.random.default_rng(number)
        gradients = {name: rng.normal(size=value.size).astype(np.float32) for name, value in VALUES.items()}
        ids = rng.integers(0, 1000, 80)
        rows = rng.normal(size=(80, 4)).astype(np.float32)
        owners = np.array(self._slots)[slot_of_row(ids.astype(np.uint64))]
        for index, worker in enumerate(self.workers):
            slab = np.concatenate([np.empty(0, np.float32), *(gradients[name] for name in self._owned(index))])
            mine = owners == index
            worker.push(LEASE, number, slab, rows=(ids[mine], rows[mine]), rate=0.1, weight=0.5)

    def exported(self, cut: int, folder: Path) -> dict[str, bytes]:
        """Everything by name, of a checkpoint that is taken now."""
        directory = self.servers[0].checkpoint(self.servers, cut, folder)
        manifest = load_manifest(directory)
        assert isinstance(manifest, CheckpointManifest)
        assert len(manifest.shards) == len(self.servers)
        contents = read_checkpoint_contents(directory / shard.file for shard in manifest.shards)
        columns = checkpoint_export.export_columns(contents, include_slots=True)
        return {column.name: b"".join(piece.tobytes() for piece in column.iter_pieces()) for column in columns}

    def _owned(self, index: int) -> Sequence[str]:
        return [name for name in VALUES if owner_of_name(name, self._slots) == index]


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adagrad", "adam"])
@pytest.mark.parametrize(("before", "after"), [(1, 3), (2, 1), (3, 2)])
def test_values_slots_step_and_leases_are_the_same(
    start: START, tmp_path: Path, optimizer: str, before: int, after: int
) -> None:
    old = PsFleet(start, before, optimizer)
    for step in range(STEPS):
        old.step(step)
    saved = old.exported(1, tmp_path / "old")
    assert any("/slot/" in name for name in saved) == (optimizer != "sgd")

    new = PsFleet(start, after, optimizer, restore=tmp_path / "old/cut-00000001")
    for reply in new.attached:
        assert (reply.initialized, reply.version) == (True, STEPS)
        assert [(each.lease, each.through) for each in reply.applied] == [(LEASE, STEPS)]
    assert new.exported(2, tmp_path / "new") == saved

    for ps_fleet in (old, new):  # a step that is retried enters neither; Adam's correction goes on from the same step
        ps_fleet.step(STEPS - 1)
        for step in range(STEPS, 2 * STEPS):
            ps_fleet.step(step)
    assert new.exported(3, tmp_path / "new") == old.exported(3, tmp_path / "old") != saved

"""The description of a variable or a table is the same in the worker, on the wire, in the PS and in a checkpoint."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from edl.api.tables import TableSpec
from edl.api.variables import VariableSpec
from edl.core.partition import initial_placement
from edl.ps.shard_restore import load_owned_part
from edl.storage.checkpoint_contents import read_checkpoint_contents
from edl.storage.checkpoint_manifest import CheckpointManifest, load_manifest
from edl.storage.checkpoint_shards import read_shard
from edl.transport import edl_pb2 as pb
from edl.transport.bulk_connection import FrameKind
from edl.worker.flat_buffer import FlatLayout
from edl.worker.stored_weights import StoredWeights

VARIABLES = (
    VariableSpec("dense/kernel", (2, 3)),
    VariableSpec("gain", ()),
    VariableSpec("norm/mean", (3,), statistic=True),
)
OWNED = (VARIABLES[:1], VARIABLES[1:])
"""By parameter server."""
TABLES = (
    TableSpec("emb", 0, 2, {"name": "uniform", "minval": -1, "maxval": 0.5}, 2**63 - 1),
    TableSpec("other/embeddings", 2**31 - 1, 4, {"name": "zeros"}, 0),
)
LEASE = (1 << 32) + 1
OPTIMIZER = json.dumps({"name": "adagrad", "hyperparameters": {}})


def layout() -> FlatLayout:
    return FlatLayout(
        VARIABLES, [slice(0, 6), slice(6, 10)], TABLES, "model", np.arange(10, dtype=np.float32), OPTIMIZER
    )


def test_a_spec_survives_from_the_worker_to_the_checkpoint(start: Callable[..., Any], tmp_path: Path) -> None:
    servers = [start(index) for index in range(2)]
    for ps in servers:
        ps.attach()
        head, values = layout().encode_declaration(ps.index)
        worker = ps.worker()
        worker.client.request(FrameKind.DECLARE, head.SerializeToString(), [values.data])
        assert ps.server.require_declaration().variables == OWNED[ps.index]
        assert ps.server.require_declaration().tables == TABLES
        worker.push(LEASE, 0, np.ones(len(values)), rows=([7 + ps.index], np.ones((1, 2))))
    directory = servers[0].checkpoint(servers, 1, tmp_path)
    manifest = load_manifest(directory)
    assert isinstance(manifest, CheckpointManifest)
    contents = read_checkpoint_contents(directory / shard.file for shard in manifest.shards)
    assert {stored.spec for stored in contents.variables} == set(VARIABLES)
    assert tuple(stored.spec for stored in contents.tables) == TABLES
    restored = load_owned_part(directory, 0, initial_placement(1)).snapshot.declaration
    assert (set(restored.variables), restored.tables) == (set(VARIABLES), TABLES)
    weights = StoredWeights.from_checkpoint(directory, TABLES)
    assert weights.flat_values(VARIABLES).shape == (10,)


def test_what_is_on_the_wire_and_on_disk_has_its_form(start: Callable[..., Any], tmp_path: Path) -> None:
    """Workers and parameter servers of two versions talk to each other, and old checkpoints are read."""
    message, values = layout().encode_declaration(1)
    head = message.SerializeToString()
    uniform = '{"name": "uniform", "minval": -1, "maxval": 0.5}'
    assert (
        head
        == pb.Declare(
            dense=[pb.Variable(name="gain"), pb.Variable(name="norm/mean", shape=[3], statistic=True)],
            tables=[
                pb.Table(name="emb", dim=2, initializer=uniform, seed=2**63 - 1),
                pb.Table(name="other/embeddings", rows=2**31 - 1, dim=4, initializer='{"name": "zeros"}'),
            ],
            optimizer=OPTIMIZER,
            fingerprint="model",
        ).SerializeToString()
    )
    ps = start(0)
    ps.attach()
    ps.worker().client.request(FrameKind.DECLARE, head, [values.data])
    directory = ps.checkpoint([ps], 1, tmp_path)
    declaration = read_shard(directory / "ps-0.safetensors")[1]["declaration"]
    assert declaration.startswith(
        '{"dense": [["gain", [], false], ["norm/mean", [3], true]], '
        f'"tables": [["emb", 0, 2, {uniform}, 9223372036854775807], '
        '["other/embeddings", 2147483647, 4, {"name": "zeros"}, 0]], "optimizer": '
    )

"""A run continues under another strategy: the same updates as plain Keras that trains through."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),  # Keras with NumPy 2
]

import keras  # noqa: E402
import tensorflow as tf  # noqa: E402

from edl.api.errors import BadInputError, StorageError  # noqa: E402
from edl.core.partition import initial_placement, owner_of_name, slot_of_row  # noqa: E402
from edl.keras.group_ftrl import GroupFtrl  # noqa: E402
from edl.keras.model_contract import ModelModule  # noqa: E402
from edl.keras.network import KerasNetwork  # noqa: E402
from edl.keras.optimizer_state import describe_keras_state  # noqa: E402
from edl.keras.replica import ModelReplica  # noqa: E402
from edl.numerics.keras_state import KERAS_STATE_KEY, KerasState  # noqa: E402
from edl.numerics.model_declaration import ModelDeclaration  # noqa: E402
from edl.numerics.parameter_store import PushGradients, RowBatch  # noqa: E402
from edl.ps.keras_checkpoint import KerasCheckpoint, load_checkpoint  # noqa: E402
from edl.ps.model_state import ModelState  # noqa: E402
from edl.ps.shard_restore import CutSnapshot  # noqa: E402
from edl.ps.shard_writer import write_cut_shard  # noqa: E402
from edl.storage.checkpoint_manifest import CheckpointManifest, ShardInfo, commit_checkpoint  # noqa: E402
from edl.storage.checkpoint_shards import write_shard  # noqa: E402
from edl.transport.peer_errors import PeerRefusedError  # noqa: E402
from edl.worker.allreduce.server_checkpoint import ServerCheckpointConverter  # noqa: E402

optimizers = keras.optimizers
OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "SGD": lambda: optimizers.SGD(0.05),
    "Momentum": lambda: optimizers.SGD(0.02, momentum=0.9),
    "Nesterov": lambda: optimizers.SGD(0.02, momentum=0.9, nesterov=True),
    "Adam": lambda: optimizers.Adam(0.01),
    "AMSGrad": lambda: optimizers.Adam(0.01, amsgrad=True),
    "AdamW": lambda: optimizers.AdamW(0.01, weight_decay=0.01),
    "Adagrad": lambda: optimizers.Adagrad(0.05),
    "RMSprop": lambda: optimizers.RMSprop(0.01, momentum=0.5, centered=True),
    "Adadelta": lambda: optimizers.Adadelta(0.5),
    "Adamax": lambda: optimizers.Adamax(0.01),
    "Nadam": lambda: optimizers.Nadam(0.01),
    "Lion": lambda: optimizers.Lion(0.005),
    "Ftrl": lambda: optimizers.Ftrl(0.05, l1_regularization_strength=0.001),
    "GroupFtrl": lambda: GroupFtrl(0.05, group_lasso_regularization_strength=0.001),
    "Lamb": lambda: optimizers.Lamb(0.01),
    "schedule": lambda: optimizers.Adam(optimizers.schedules.ExponentialDecay(0.02, 3, 0.7)),
}
IDS, BATCH, BEFORE, STEPS = 6, 12, 5, 10
Arrays = dict[str, np.ndarray[Any, Any]]


def make_model() -> Any:
    ids, x = keras.Input((2,), dtype="int32"), keras.Input((3,))
    embedded = keras.layers.Flatten()(keras.layers.Embedding(IDS, 4, name="items")(ids))
    hidden = keras.layers.Concatenate()([embedded, keras.layers.Dense(5, activation="tanh")(x)])
    return keras.Model([ids, x], keras.layers.Dense(1)(keras.layers.BatchNormalization()(hidden)))


def squared_error(labels: Any, predictions: Any) -> Any:
    return tf.square(labels - predictions)


def make_module(optimizer: Callable[[], Any]) -> ModelModule:
    return ModelModule(
        zoo=Path(__file__).parent,
        make_model=make_model,
        loss=squared_error,
        optimizer=optimizer,
        eval_metrics_fn=dict,
        feed=squared_error,
    )


def minibatch(step: int) -> tuple[Any, Any]:
    """Features and labels. Every id is in it, because parameter servers update no other rows."""
    random = np.random.default_rng(step)
    ids = np.array([random.permutation(IDS) for _ in range(BATCH // 3)], np.int32).reshape(BATCH, 2)
    x = random.normal(size=(BATCH, 3)).astype(np.float32)
    return [tf.constant(ids), tf.constant(x)], tf.constant(x[:, :1] + ids[:, :1].astype(np.float32) / IDS)


class Servers:
    """Parameter servers and the one worker that pushes to them, without processes."""

    def __init__(self, module: ModelModule, count: int, threshold: int) -> None:
        self.slots = initial_placement(count)
        self.network = KerasNetwork.build(
            module,
            seed=3,
            embedding_threshold=threshold,
            ps_of_variable=lambda name: owner_of_name(name, self.slots),
            ps_count=count,
            sample=minibatch(0)[0],
            worker_index=0,
        )
        network, initial = self.network, self.network.initial_values()
        self.states = [ModelState() for _ in range(count)]
        self.parts, self.initial = network.ps_slices, initial
        self.declarations = [
            ModelDeclaration(
                tuple(each for each in network.variables if owner_of_name(each.name, self.slots) == index),
                network.tables,
                network.optimizer.spec,
                network.fingerprint,
            )
            for index in range(count)
        ]

    def declare(self) -> None:
        for state, declaration, part in zip(self.states, self.declarations, self.parts, strict=True):
            state.declare_model(declaration, self.initial[part])

    def restore(self, directory: Path) -> None:
        for index, state in enumerate(self.states):
            state.restore_cut(load_checkpoint(directory, index, self.slots))
            assert state.initialized

    def train(self, first: int, end: int) -> None:
        for step in range(first, end):
            features, labels = minibatch(step)
            stores = [state.require_store() for state in self.states]
            flat = np.empty(self.parts[-1].stop, np.float32)
            for store, part in zip(stores, self.parts, strict=True):
                store.read_flat(flat[part])
            ids = self.network.unique_ids(features)
            owners = {name: np.array(self.slots)[slot_of_row(each.astype(np.uint64))] for name, each in ids.items()}
            rows = {name: np.empty((len(each), 4), np.float32) for name, each in ids.items()}
            for name, each in ids.items():
                for index, store in enumerate(stores):
                    rows[name][owners[name] == index] = store.read_rows(name, each[owners[name] == index])
            batches = {name: RowBatch(ids[name], rows[name]) for name in ids}
            result = self.network.train(flat, batches, features, labels)
            for index, (state, part) in enumerate(zip(self.states, self.parts, strict=True)):
                mine = {
                    name: RowBatch(each[owners[name] == index], result.row_gradients[name][owners[name] == index])
                    for name, each in ids.items()
                }
                rate = self.network.optimizer.learning_rate(state.version)
                state.apply_push(PushGradients(result.flat_gradients[part], mine, rate, 1.0))

    def save(self, directory: Path) -> Path:
        shards = []
        for index, state in enumerate(self.states):
            cut = CutSnapshot(1, state.require_store().take_snapshot(), state.version, {})
            saved = write_cut_shard(directory, index, cut)
            shards.append(ShardInfo(saved.file, saved.size, int(saved.checksum, 16)))
        commit_checkpoint(directory, CheckpointManifest(1, self.states[0].version, "now", tuple(shards), {}))
        return directory

    def values(self) -> Arrays:
        """Values of variables and tables by name."""
        arrays = {}
        for state, declaration in zip(self.states, self.declarations, strict=True):
            flat = np.empty(declaration.flat_size, np.float32)
            state.require_store().read_flat(flat)
            arrays |= {v.name: flat[place].reshape(v.shape) for v, place in declaration.variable_slices()}
        for table in self.network.tables:
            owners = np.array(self.slots)[slot_of_row(np.arange(table.rows, dtype=np.uint64))]
            arrays[table.name] = np.empty((table.rows, table.dim), np.float32)
            for index, state in enumerate(self.states):
                ids = np.flatnonzero(owners == index)
                arrays[table.name][ids] = state.require_store().read_rows(table.name, ids)
        return arrays


def train_replica(replica: ModelReplica, first: int, end: int) -> None:
    for step in range(first, end):
        result = replica.compute(*minibatch(step))
        replica.apply(result.weight)


def save_replica(replica: ModelReplica, directory: Path, state: KerasState | None = None) -> Path:
    described = state or describe_keras_state(replica)
    shard = write_shard(directory, 0, replica.state_arrays(), {KERAS_STATE_KEY: described.to_json()})
    commit_checkpoint(directory, CheckpointManifest(1, BEFORE, "now", (shard,), {}))
    return directory


def make_replica(module: ModelModule) -> ModelReplica:
    return ModelReplica(module, seed=3, rank_seed=0, sample=minibatch(0)[0])


def convert(replica: ModelReplica, directory: Path) -> None:
    replica.load_state(
        ServerCheckpointConverter(describe_keras_state(replica), replica.state_arrays()).convert(directory)
    )


def dense_values(arrays: Arrays) -> Arrays:
    return {name.removeprefix("dense/"): array for name, array in arrays.items() if name.startswith("dense/")}


def train_keras(module: ModelModule, initial: Arrays, *steps: int) -> list[Arrays]:
    """The variables of plain Keras on the same minibatches, after each of these numbers of steps."""
    model, optimizer = make_model(), module.optimizer()
    for weight, value in zip(model.weights, initial.values(), strict=True):
        weight.assign(value)
    snapshots = []
    for step in range(steps[-1]):
        features, labels = minibatch(step)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(labels - model(features, training=True)))
        variables = model.trainable_variables
        gradients = tape.gradient(loss, [variable.value for variable in variables])
        # Of rows that occur several times, Keras would square each gradient instead of the sum.
        optimizer.apply([tf.convert_to_tensor(gradient) for gradient in gradients], variables)
        if step + 1 in steps:
            snapshots.append({name: np.array(weight) for name, weight in zip(initial, model.weights, strict=True)})
    return snapshots


def in_model_order(replica: ModelReplica, values: Arrays) -> Arrays:
    return {weight.path: values[weight.path] for weight in replica.model.weights}


def assert_close(found: Arrays, expected: Arrays, initial: Arrays) -> None:
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=2e-4, atol=2e-5, err_msg=name)
    assert any(not np.allclose(value, initial[name], atol=1e-3) for name, value in expected.items())


THRESHOLDS = {"variable": 1 << 30, "table": 1}


# Two slots with a schedule. The others: one slot, one that does not begin with zero, one of the whole model, norms.
FEW = ("schedule",)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in FEW else pytest.mark.repetition) for name in OPTIMIZERS]
)
def test_a_run_continues_under_all_reduce_and_back(name: str, tmp_path: Path) -> None:
    module = make_module(OPTIMIZERS[name])
    kind = "variable" if name == "Lamb" else "table"  # of a shared table, no server has the norm
    servers = Servers(module, 2, THRESHOLDS[kind])
    servers.declare()
    assert bool(servers.network.tables) == (kind == "table")
    replica = make_replica(module)
    initial = in_model_order(replica, servers.values())

    servers.train(0, BEFORE)
    convert(replica, servers.save(tmp_path / "cut-00000001"))
    train_replica(replica, BEFORE, STEPS)
    amid, after = train_keras(module, initial, STEPS, STEPS + BEFORE)
    assert_close(dense_values(replica.state_arrays()), amid, initial)

    # Another number of servers, and an embedding that was a table is a variable.
    back = Servers(module, 3, THRESHOLDS["variable"])
    back.restore(save_replica(replica, tmp_path / "cut-00000002"))
    back.declare()
    assert {state.version for state in back.states} == {STEPS}
    back.train(STEPS, STEPS + BEFORE)
    assert_close(back.values(), after, initial)


@pytest.mark.parametrize("kind", ["table", pytest.param("variable", marks=pytest.mark.repetition)])
def test_a_run_of_all_reduce_continues_with_parameter_servers(kind: str, tmp_path: Path) -> None:
    module = make_module(OPTIMIZERS["Adam"])
    replica = make_replica(module)
    initial = in_model_order(replica, dense_values(replica.state_arrays()))
    train_replica(replica, 0, BEFORE)
    servers = Servers(module, 2, THRESHOLDS[kind])
    servers.restore(save_replica(replica, tmp_path / "cut-00000001"))
    with pytest.raises(PeerRefusedError, match="declared"):
        servers.states[0].require_store()
    servers.declare()
    for name, value in dense_values(replica.state_arrays()).items():
        np.testing.assert_array_equal(servers.values()[name], value, err_msg=name)
    servers.train(BEFORE, STEPS)
    assert_close(servers.values(), *train_keras(module, initial, STEPS), initial)
    # A checkpoint that the servers write is one of theirs.
    again = load_checkpoint(servers.save(tmp_path / "cut-00000002"), 0, servers.slots)
    assert isinstance(again, CutSnapshot)


def test_rows_that_were_never_trained_get_their_initial_values(tmp_path: Path) -> None:
    module = make_module(OPTIMIZERS["Adagrad"])
    servers = Servers(module, 2, THRESHOLDS["table"])
    servers.declare()
    directory = servers.save(tmp_path / "cut-00000001")
    replica = make_replica(module)
    converted = ServerCheckpointConverter(describe_keras_state(replica), replica.state_arrays()).convert(directory)
    (table,) = servers.network.tables
    np.testing.assert_array_equal(converted[f"dense/{table.name}"], servers.values()[table.name])
    accumulator = converted[describe_keras_state(replica).slots[table.name]["accumulator"]]
    np.testing.assert_array_equal(accumulator, np.full((IDS, 4), 0.1, np.float32))


NOT_ON_SERVERS: dict[str, tuple[Callable[[], Any], str]] = {
    "averages": (lambda: optimizers.SGD(0.1, use_ema=True), "use_ema"),
    "accumulation": (lambda: optimizers.SGD(0.1, gradient_accumulation_steps=2), "gradient_accumulation_steps"),
    "loss scale": (lambda: optimizers.LossScaleOptimizer(optimizers.SGD(0.1)), "LossScaleOptimizer"),
    "Adafactor": (lambda: optimizers.Adafactor(0.1), "Adafactor"),
}


@pytest.mark.parametrize("name", NOT_ON_SERVERS)
@pytest.mark.first_cases(2)
def test_a_state_that_servers_do_not_have_is_refused_by_name(name: str, tmp_path: Path) -> None:
    optimizer, named = NOT_ON_SERVERS[name]
    replica = make_replica(make_module(optimizer))
    with pytest.raises(BadInputError, match=named):
        describe_keras_state(replica).require_optimizer()
    trained = Servers(make_module(OPTIMIZERS["SGD"]), 1, THRESHOLDS["variable"])
    trained.declare()
    with pytest.raises(BadInputError, match=named):
        convert(replica, trained.save(tmp_path / "cut-00000001"))
    trained.restore(save_replica(replica, tmp_path / "cut-00000002"))
    with pytest.raises(PeerRefusedError, match=named):
        trained.declare()


def test_another_optimizer_is_refused_by_name(tmp_path: Path) -> None:
    adam, adagrad = (make_module(OPTIMIZERS[name]) for name in ("Adam", "Adagrad"))
    servers = Servers(adam, 1, THRESHOLDS["table"])
    servers.declare()
    with pytest.raises(BadInputError, match=r"adam .*adagrad"):
        convert(make_replica(adagrad), servers.save(tmp_path / "cut-00000001"))
    servers.restore(save_replica(make_replica(adagrad), tmp_path / "cut-00000002"))
    with pytest.raises(PeerRefusedError, match=r"adagrad .*adam"):
        servers.declare()


def test_another_model_is_refused_by_the_name_of_its_variable(tmp_path: Path) -> None:
    module = make_module(OPTIMIZERS["SGD"])
    servers = Servers(module, 1, THRESHOLDS["table"])
    servers.declare()
    directory = servers.save(tmp_path / "cut-00000001")
    replica = make_replica(module)
    state, arrays = describe_keras_state(replica), replica.state_arrays()
    with pytest.raises(BadInputError, match="variable 'other'"):
        ServerCheckpointConverter(state, {**arrays, "dense/other": np.zeros(2, np.float32)}).convert(directory)
    with pytest.raises(BadInputError, match=r"items/embeddings.*\[2\].*\[6, 4\]"):
        ServerCheckpointConverter(state, {**arrays, "dense/items/embeddings": np.zeros(2, np.float32)}).convert(
            directory
        )
    servers.restore(save_replica(replica, tmp_path / "cut-00000002"))
    checkpoint = load_checkpoint(tmp_path / "cut-00000002", 0, servers.slots)
    assert isinstance(checkpoint, KerasCheckpoint)
    (declaration,) = servers.declarations
    first, *more = declaration.variables
    other = ModelDeclaration((first, *more[1:]), (), declaration.optimizer, "other")
    checkpoint.convert(other)
    wide = type(first)(first.name, (*first.shape, 2), first.statistic)
    with pytest.raises(PeerRefusedError, match=first.name):
        checkpoint.convert(ModelDeclaration((wide,), (), declaration.optimizer, "other"))


def test_a_damaged_checkpoint_is_no_checkpoint_for_both(tmp_path: Path) -> None:
    module = make_module(OPTIMIZERS["SGD"])
    servers, replica = Servers(module, 2, THRESHOLDS["table"]), make_replica(module)
    servers.declare()
    loads: dict[Path, Callable[[], Any]] = {
        servers.save(tmp_path / "cut-00000001"): partial(convert, replica, tmp_path / "cut-00000001"),
        save_replica(replica, tmp_path / "cut-00000002"): lambda: load_checkpoint(
            tmp_path / "cut-00000002", 0, servers.slots
        ),
    }
    for directory, load in loads.items():
        load()
        path = sorted(directory.glob("*.safetensors"))[-1]
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
        with pytest.raises(StorageError, match="checksum"):
            load()


def make_seeded_model() -> Any:
    """A model with a random generator, whose state ranks do not save; it drops nothing."""
    x = keras.Input((3,))
    hidden = keras.layers.BatchNormalization()(keras.layers.Dense(5, activation="tanh")(x))
    return keras.Model(x, keras.layers.Dense(1)(keras.layers.Dropout(1e-9, seed=1)(hidden)))


def test_local_and_all_reduce_load_each_others_checkpoints_with_any_optimizer() -> None:
    """Also with an optimizer that parameter servers do not have; the result is that of a Local that trains through."""

    def minibatches(first: int, end: int) -> list[tuple[Any, Any]]:
        return [(features[1], labels) for features, labels in map(minibatch, range(first, end))]

    def make_local() -> ModelReplica:
        return ModelReplica(module, seed=3, rank_seed=None, sample=minibatch(0)[0][1])

    def train(model: ModelReplica, first: int, end: int) -> Arrays:
        for features, labels in minibatches(first, end):
            assert model.take_step(features, labels).is_finite
        return model.state_arrays()

    module = replace(make_module(lambda: optimizers.Adam(0.01, use_ema=True)), make_model=make_seeded_model)
    expected = train(make_local(), 0, STEPS + BEFORE)
    replica = ModelReplica(module, seed=3, rank_seed=0, sample=minibatch(0)[0][1])
    replica.load_state(train(make_local(), 0, BEFORE))
    for features, labels in minibatches(BEFORE, STEPS):
        replica.apply(replica.compute(features, labels).weight)
    saved, back = replica.state_arrays(), make_local()
    with pytest.raises(BadInputError, match="state/0"):
        back.load_state(saved)
    back.load_state(saved, by_ranks=True)
    arrays = train(back, STEPS, STEPS + BEFORE)
    assert arrays.keys() == expected.keys() > saved.keys()
    for name in saved:
        np.testing.assert_allclose(arrays[name], expected[name], rtol=2e-4, atol=2e-5, err_msg=name)

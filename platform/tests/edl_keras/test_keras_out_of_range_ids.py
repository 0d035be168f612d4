"""Ids that no Embedding can look up, and what people are told about them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.repetition import repetition

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning"),  # Keras'
    pytest.mark.filterwarnings("ignore:invalid value encountered in cast:RuntimeWarning"),
]

import keras  # noqa: E402
import tensorflow as tf  # noqa: E402
from edl_keras.embedding_harness import write_export  # noqa: E402
from support.text_keys import missing_keys  # noqa: E402
from worker.loop_harness import LinearNetwork, LinearStep, LoopHarness, task  # noqa: E402

from edl.api.errors import BadInputError  # noqa: E402
from edl.keras.model_contract import ModelModule  # noqa: E402
from edl.keras.network import KerasNetwork  # noqa: E402
from edl.keras.out_of_range_ids import id_out_of_range_error  # noqa: E402
from edl.keras.replica import ModelReplica  # noqa: E402
from edl.keras.user_callbacks import NoCallbacks  # noqa: E402
from edl.keras.user_code import UserCodeError, user_code  # noqa: E402
from edl.layers import Embedding  # noqa: E402
from edl.numerics.parameter_store import RowBatch  # noqa: E402
from edl.worker.lease_client import LeasedTask  # noqa: E402
from edl.worker.trainer import add_record_range  # noqa: E402
from edl.worker.training_setup import Evaluator  # noqa: E402

SERVED, DENSE = 1, 1 << 40


def network(dtype: str, threshold: int) -> KerasNetwork:
    def model() -> Any:
        inputs = keras.Input([2], dtype=dtype)
        rows = keras.layers.Embedding(50, 3, name="emb")(inputs)
        return keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Flatten()(rows)))

    return network_of(model, threshold)


def network_of(model: Any, threshold: int, sample: Any = None) -> KerasNetwork:
    module = ModelModule(
        zoo=Path(__file__).parent,
        make_model=model,
        loss=lambda labels, predictions: tf.reduce_mean(tf.square(labels - predictions)),
        optimizer=lambda: keras.optimizers.SGD(0.1),
        eval_metrics_fn=dict,
        feed=lambda dataset, mode, metadata: dataset,
    )
    return KerasNetwork.build(
        module, seed=1, embedding_threshold=threshold, ps_of_variable=lambda name: 0, ps_count=1, sample=sample
    )


def step(built: KerasNetwork, ids: Any) -> float:
    features = tf.constant(ids)
    rows = {
        name: RowBatch(wanted, np.zeros((len(wanted), 3), np.float32))
        for name, wanted in built.unique_ids(features).items()
    }
    return built.train(built.initial_values(), rows, features, np.ones((1, 1), np.float32)).loss


@pytest.mark.parametrize(
    ("dtype", "ids", "named"),
    [
        ("int32", [1, 50], "50"),
        ("int64", [1, -1], "-1"),
        ("int64", [2**31, 1], str(2**31)),
        ("int64", [2**62, 1], str(2**62)),
        ("uint64", [2**63 + 5, 1], str(5 - 2**63)),
        ("float32", [1.0, 3e9], "3000000000"),
        ("float32", [1.0, float("nan")], str(-(2**63))),
    ],
)
@pytest.mark.first_cases(2)
def test_ids_of_a_served_table_are_named_with_its_shape_and_a_remedy(dtype: str, ids: Any, named: str) -> None:
    built = network(dtype, SERVED)
    with pytest.raises(BadInputError) as caught:
        step(built, np.array([ids], dtype))
    assert not missing_keys(caught.value.message, f"id {named}", "'emb/embeddings' (50 x 3)", "0 to 49")
    assert "input_dim" in str(caught.value.hint)
    assert np.isfinite(step(built, np.array([[0, 49]], dtype))), "and goes on"


@pytest.mark.parametrize("wrong", [50, 2**31 - 1, -51])
def test_ids_of_a_dense_table_are_told_as_those_of_a_served_one(wrong: int) -> None:
    built = network("int32", DENSE)
    with pytest.raises(BadInputError) as caught:
        step(built, np.array([[1, wrong]], np.int32))
    assert not missing_keys(caught.value.message, f"id {wrong}", "'emb/embeddings' (50 x 3)", "0 to 49")
    assert "input_dim" in str(caught.value.hint)
    assert caught.value.where is None, "that is left to who knows the records"
    assert np.isfinite(step(built, np.array([[0, 49]], np.int32))), "and goes on"


@pytest.mark.parametrize("how", ["train", "evaluate", "predict"])
@pytest.mark.parametrize("wrong", [50, repetition(-1)])
@pytest.mark.parametrize("kind", [None, "mean"])
@pytest.mark.first_cases(2)
def test_ids_of_edls_dense_table_are_told_alike(how: str, wrong: int, kind: str | None) -> None:
    def model() -> Any:
        inputs = keras.Input([2], dtype="int64")
        rows = Embedding(3, 50, combiner=kind, name="emb")(inputs)
        return keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Flatten()(rows)))

    built, features = network_of(model, DENSE), np.array([[1, wrong]])
    labels = () if how == "predict" else (np.ones((1, 1), np.float32),)
    with pytest.raises(BadInputError, match=rf"^id {wrong} .*'emb/embeddings' \(50 x 3\)"):
        getattr(built, how)(built.initial_values(), {}, features, *labels)


@pytest.mark.parametrize("strategy", ["ParameterServer", "Local"])
@pytest.mark.parametrize("how", ["train", "evaluate", "predict"])
@pytest.mark.first_cases(2)
def test_negative_ids_of_a_dense_table_of_keras_are_refused_as_those_of_a_served_one(strategy: str, how: str) -> None:
    """Keras would count them from the table's end, in a job as well, and train other rows without a word."""

    def model() -> Any:
        inputs = keras.Input([2], dtype="int64")
        rows = ShiftedEmbedding(50, 3, name="emb")(inputs)
        return keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Flatten()(rows)))

    labels = np.ones((1, 1), np.float32)
    built = network_of(model, DENSE)
    local = ModelReplica(built.module, seed=1, rank_seed=None, sample=None)
    slab = built.initial_values()
    does: Any = {
        ("ParameterServer", "train"): lambda ids: built.train(slab, {}, ids, labels),
        ("ParameterServer", "evaluate"): lambda ids: built.evaluate(slab, {}, ids, labels),
        ("ParameterServer", "predict"): lambda ids: built.predict(slab, {}, ids),
        ("Local", "train"): lambda ids: local.take_step(ids, tf.constant(labels)),
        ("Local", "evaluate"): lambda ids: local.evaluate(ids, tf.constant(labels)),
        ("Local", "predict"): lambda ids: local.evaluate(ids, tf.constant(labels)),  # Local predicts to evaluate
    }[strategy, how]
    does(tf.constant([[-1, 48]], tf.int64))  # 0 and 49
    with pytest.raises(BadInputError, match=r"^id -1 .*'emb/embeddings' \(50 x 3\)"):
        does(tf.constant([[-2, 48]], tf.int64))


class ShiftedEmbedding(keras.layers.Embedding):  # type: ignore[misc]
    """Takes -1 for the first row: what counts are the ids that Keras' layer is given."""

    def call(self, ids: Any) -> Any:
        return super().call(ids + 1)


def test_ragged_and_float_ids_of_a_dense_table_are_looked_at_too() -> None:
    def model() -> Any:
        inputs = keras.Input([2])
        return keras.Model(inputs, keras.layers.Flatten()(keras.layers.Embedding(50, 3, name="emb")(inputs)))

    built = network_of(model, DENSE)
    assert built.predict(built.initial_values(), {}, np.array([[0, 49.0]], np.float32)).shape == (1, 6)
    with pytest.raises(BadInputError, match=r"^id -3 .*'emb/embeddings'"):
        built.predict(built.initial_values(), {}, np.array([[0, -3.0]], np.float32))


@pytest.mark.parametrize(
    ("threshold", "wrong"), [(SERVED, 50), (DENSE, -1), repetition(DENSE, 50), repetition(SERVED, -1)]
)
@pytest.mark.first_cases(1)
def test_an_exported_saved_model_refuses_them_as_the_job_does(threshold: int, wrong: int, tmp_path: Path) -> None:
    def model() -> Any:
        inputs = keras.Input([2], dtype="int64")
        return keras.Model(inputs, keras.layers.Dense(1)(Embedding(3, 50, combiner="sum", name="emb")(inputs)))

    write_export(network_of(model, threshold), {}, tmp_path)
    served = tf.saved_model.load(tmp_path / "saved_model")
    assert served.serve(tf.constant([[0, 49]], tf.int64)).shape == (1, 1)
    with pytest.raises(tf.errors.InvalidArgumentError, match="outside of the Embedding emb "):
        served.serve(tf.constant([[0, wrong]], tf.int64))


class SeveralTables(keras.Model):  # type: ignore[misc]
    """Tables in a list, without names, and a table that is none of an Embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = [keras.layers.Embedding(rows, 3) for rows in (50, 50, 7)]
        self.out = keras.layers.Dense(1)

    def call(self, inputs: Any) -> Any:
        other = tf.gather(tf.zeros([50, 3]), inputs[:, 3])
        return self.out(sum((table(inputs[:, at]) for at, table in enumerate(self.tables)), other))


@pytest.mark.parametrize(
    ("ids", "said"),
    [
        ([1, 50, 1, 1], "'several_tables/embedding_1/embeddings' (50 x 3), whose ids are 0 to 49"),
        ([1, 1, 7, 1], "'several_tables/embedding_2/embeddings' (7 x 3), whose ids are 0 to 6"),
    ],
)
@pytest.mark.first_cases(1)
def test_the_table_is_found_by_its_name_and_rows(ids: list[int], said: str) -> None:
    built = network_of(SeveralTables, DENSE, np.ones((1, 4), np.int64))
    with pytest.raises(BadInputError) as caught:
        step(built, np.array([ids]))
    assert said in caught.value.message


def test_what_is_gathered_elsewhere_is_no_embedding() -> None:
    built = network_of(SeveralTables, DENSE, np.ones((1, 4), np.int64))
    with pytest.raises(UserCodeError, match="is not in") as caught:
        step(built, np.array([[1, 1, 1, 50]]))
    assert "if this is an Embedding" in str(caught.value.hint)


def test_strategy_local_tells_them_too() -> None:
    model = ModelReplica(network("int32", DENSE).module, seed=1, rank_seed=None, sample=None)
    features, labels = tf.constant([[1, 50]]), tf.ones([1, 1])
    for call in (
        lambda: model.take_step(features, labels),
        lambda: model.evaluate(features, labels),
    ):
        with pytest.raises(BadInputError, match=r"id 50 .*'emb/embeddings'"):
            call()


def test_weights_that_are_not_those_of_the_ids_are_told_in_a_line() -> None:
    class WeightedTables(keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.tags = Embedding(1, 5, combiner="mean", name="tags")

        def call(self, inputs: Any) -> Any:
            return self.tags(inputs["ids"], weights=inputs["weights"])

    def features(*records: list[float]) -> Any:
        return {"ids": tf.ragged.constant([[1, 2], [3]]), "weights": tf.ragged.constant(records)}

    built = network_of(WeightedTables, DENSE, features([1.0, 2.0], [3.0]))
    with pytest.raises(UserCodeError) as caught:
        built.predict(built.initial_values(), {}, features([1.0], [2.0, 3.0]))
    assert not missing_keys(
        caught.value.message, "InvalidArgumentError", "Embedding weighted_tables/tags", "weights", "row_splits"
    )
    assert "[" not in caught.value.message.partition("Condition")[0]


@pytest.mark.parametrize("threshold", [SERVED, DENSE])
def test_strings_need_a_vocabulary(threshold: int) -> None:
    with pytest.raises(UserCodeError, match="Cast string to") as caught:
        step(network("string", threshold), np.array([["a", "b"]]))
    assert "StringLookup" in str(caught.value.hint)


@pytest.mark.parametrize("to", ["float", "half", "double", "int64"])
def test_strings_where_numbers_are_needed_may_be_labels(to: str) -> None:
    with pytest.raises(UserCodeError) as caught, user_code(Path(), "the model or its loss"):
        raise tf.errors.UnimplementedError(None, None, f"Cast string to {to} is not supported")
    assert "labels" in str(caught.value.hint)
    assert "feed" in str(caught.value.hint)


def test_floats_are_cut_to_whole_numbers_as_in_keras() -> None:
    assert network("float32", SERVED).unique_ids(tf.constant([[1.9, 7.0]]))["emb/embeddings"].tolist() == [1, 7]


def test_the_records_are_named() -> None:
    task = LeasedTask(1, "training", "part-0.recordio", 64, 100, minibatch_size=32)
    with pytest.raises(BadInputError, match=r"part-0\.recordio, records 96 to 99: id 50 is"), add_record_range(task, 1):
        raise BadInputError("id 50 is outside")
    with pytest.raises(BadInputError, match=r"^model\.py:3: no"), add_record_range(task, 1):
        raise BadInputError("no", where="model.py:3")


class OutOfRangeNetwork(LinearNetwork):
    """A dense table does not have the id of one record."""

    def __init__(self, bad: int) -> None:
        super().__init__()
        self.bad = bad

    def train(self, slab: Any, rows: Any, features: Any, labels: Any, weights: Any = None) -> LinearStep:
        self.check(labels)
        return super().train(slab, rows, features, labels)

    def evaluate(self, slab: Any, rows: Any, features: Any, labels: Any, weights: Any = None) -> None:
        self.check(labels)
        super().evaluate(slab, rows, features, labels)

    def check(self, labels: Any) -> None:
        if self.bad in labels:
            raise id_out_of_range_error(7, 5, {"emb/embeddings": 3})


@pytest.mark.parametrize("kind", ["training", "evaluation"])
@pytest.mark.parametrize(("bad", "records"), [(1, "0 to 3"), (9, "8 to 11")])
def test_the_records_of_a_step_are_named(kind: str, bad: int, records: str) -> None:
    harness = LoopHarness()
    network = OutOfRangeNetwork(bad)
    parameters = harness.parameters(network)
    parameters.pull_pinned = lambda pin: network.initial_values()  # type: ignore[method-assign]
    doing: dict[str, Any] = {
        "training": harness.trainer(network, parameters),
        "evaluation": Evaluator(
            network, parameters, harness.streams[kind], harness.leases, harness.progress, harness.gate, NoCallbacks()
        ),
    }
    (leased,) = harness.take(task(1, 0, 16, kind))
    try:
        with pytest.raises(BadInputError, match=rf"^s, records {records}: id 7 is outside of the embedding 'emb/"):
            doing[kind].run(leased)
    finally:
        harness.close()

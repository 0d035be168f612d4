"""The preprocessing layers: every example of ElasticDL's documents, for dense, sparse and ragged tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning"),  # Keras'
]

import tensorflow as tf  # noqa: E402

from elasticdl_preprocessing.layers import (  # noqa: E402
    ConcatenateWithOffset,
    Discretization,
    Embedding,
    Hashing,
    IndexLookup,
    LogRound,
    Normalizer,
    RoundIdentity,
    SparseEmbedding,
    ToNumber,
    ToRagged,
    ToSparse,
)

LETTERS = [["A"], ["B"], ["C"], ["D"], ["E"]]


def sparse_of(rows: list[list[Any]], dtype: Any = None) -> Any:
    """The rows as a sparse tensor: row i has its values in the first columns."""
    return tf.ragged.constant(rows, dtype, ragged_rank=1).to_sparse()


def listed(tensor: Any) -> list[Any]:
    """The values as Python lists by record; text as str."""
    if isinstance(tensor, tf.SparseTensor):
        rows: list[list[Any]] = [[] for _ in range(int(tensor.dense_shape[0]))]
        for (row, *_), value in zip(tensor.indices.numpy(), tensor.values.numpy(), strict=True):
            rows[row].append(value)
        values: Any = rows
    else:
        values = tensor.to_list() if isinstance(tensor, tf.RaggedTensor) else tensor.numpy().tolist()
    return [[v.decode() if isinstance(v, bytes) else v for v in row] for row in values]


# --------------------------------------------------------------------------------------------------
# The examples of the docstrings and of the tutorial on preprocessing.


def test_normalizer_of_the_docstring() -> None:
    result = Normalizer(subtractor=1.0, divisor=2.0)(np.asarray([[3.0], [5.0], [7.0]]))
    assert result.dtype == tf.float32
    assert listed(result) == [[1.0], [2.0], [3.0]]


def test_normalizer_of_the_tutorial() -> None:
    layer = Normalizer(subtractor=3.0, divisor=7.0 - 3.0)
    assert listed(layer(tf.constant([[3.0], [5.0], [7.0]]))) == [[0.0], [0.5], [1.0]]


def test_discretization_of_the_tutorial() -> None:
    assert listed(Discretization(bins=[30, 45])(tf.constant([[19, 42, 55]]))) == [[0, 1, 2]]
    layer = Discretization(bins=[20, 30, 40, 50])
    result = layer(tf.constant([[34, 45, 23, 67], [15, 37, 52, 47]]))
    assert result.dtype == tf.int64
    assert listed(result) == [[2, 3, 1, 4], [0, 2, 4, 3]]
    assert layer.num_bins() == 5


def test_discretization_includes_the_left_boundary() -> None:
    layer = Discretization(bins=[0.0, 1.0, 2.0])
    assert listed(layer(tf.constant([[-0.1, 0.0, 0.9, 1.0, 2.0, 9.0]]))) == [[0, 1, 1, 2, 3, 3]]


def test_log_round_of_the_tutorial() -> None:
    result = LogRound(num_bins=16, base=2)(np.asarray([[1.2], [1.6], [0.2], [3.1], [100]]))
    assert result.dtype == tf.int64
    assert listed(result) == [[0], [1], [0], [2], [7]]


def test_log_round_beyond_its_range_gives_the_default() -> None:
    layer = LogRound(num_bins=3, default_value=2)
    # the natural logarithm: 20.1 gives 3
    assert listed(layer(tf.constant([[1.0, 7.4, 20.1, 0.0, -1.0, np.inf]]))) == [[0, 2, 2, 2, 2, 2]]


def test_round_identity_of_the_tutorial() -> None:
    result = RoundIdentity(max_value=5)(np.asarray([[1.2], [1.6], [0.2], [3.1], [4.9]]))
    assert result.dtype == tf.int64
    assert listed(result) == [[1], [2], [0], [3], [5]]
    assert listed(RoundIdentity(max_value=5)(tf.constant([[5.4, 100.0, -3.0]]))) == [[5, 5, 0]]


def test_round_identity_with_buckets() -> None:
    layer = RoundIdentity(num_buckets=5, default_value=1)
    assert listed(layer(tf.constant([[3.9, 4.9, -2.0, np.nan]]))) == [[4, 1, 1, 1]]
    assert listed(RoundIdentity(5)(tf.constant([[4, 5]]))) == [[4, 0]]


def test_hashing_of_the_tutorial() -> None:
    result = Hashing(num_bins=3)(np.asarray(LETTERS))
    assert result.dtype == tf.int64
    assert listed(result) == [[1], [0], [1], [1], [2]]


def test_hashing_of_integers_is_that_of_their_text() -> None:
    layer = Hashing(num_bins=1000)
    assert listed(layer(tf.constant([[12, -7]]))) == listed(layer(tf.constant([["12", "-7"]])))
    assert listed(layer(tf.constant([["12"]]))) == listed(tf.keras.layers.Hashing(1000)(tf.constant([["12"]])))


def test_index_lookup_of_the_tutorial() -> None:
    result = IndexLookup(vocabulary=["A", "B", "C"])(np.array(LETTERS))
    assert result.dtype == tf.int64
    assert listed(result) == [[0], [1], [2], [3], [3]]


def test_index_lookup_with_a_file(tmp_path: Path) -> None:
    file = tmp_path / "terms.txt"
    file.write_text("A\nB \nC\n")
    assert listed(IndexLookup(str(file))(tf.constant(LETTERS))) == [[0], [1], [2], [3], [3]]
    file.write_text("A\nB\nA\n")
    with pytest.raises(ValueError, match=r"terms\.txt repeats 'A'"):
        IndexLookup(str(file))


def test_index_lookup_distributes_other_values() -> None:
    layer = IndexLookup(["A", "B", "C"], num_oov_tokens=4)
    hashed = listed(tf.strings.to_hash_bucket_fast(tf.constant(LETTERS), 4))
    assert listed(layer(tf.constant(LETTERS))) == [[0], [1], [2], [3 + hashed[3][0]], [3 + hashed[4][0]]]
    assert listed(IndexLookup(["A"], num_oov_tokens=0)(tf.constant([["A", "B"]]))) == [[0, -1]]


def test_index_lookup_of_integers() -> None:
    assert listed(IndexLookup([30, 10])(tf.constant([[10, 30, 7]]))) == [[1, 0, 2]]


def test_to_ragged_of_the_docstring() -> None:
    assert listed(ToRagged()(tf.constant([[1], [-1], [4]], tf.int64))) == [[1], [], [4]]
    assert listed(ToRagged()(tf.constant([["1,2,3"], ["4,5"], [""]]))) == [["1", "2", "3"], ["4", "5"], []]
    parts = tf.ragged.constant([["1", "2", "3"], ["4", "5"], [""]])
    assert listed(ToRagged()(parts)) == [["1", "2", "3"], ["4", "5"], []]


def test_to_ragged_with_its_arguments() -> None:
    assert listed(ToRagged(sep=";", ignore_value="0")(tf.constant([["1;0", "2"], ["0", "0"]]))) == [["1", "2"], []]
    assert listed(ToRagged()(tf.constant([[0.5, -1.0]]))) == [[0.5, -1.0]]
    assert listed(ToRagged(ignore_value=0)(tf.constant([[0.5, 0.0]]))) == [[0.5]]
    with pytest.raises(TypeError, match="sparse"):
        ToRagged()(sparse_of([[1]]))


def test_to_sparse_of_the_docstring() -> None:
    result = ToSparse()(tf.constant([["A", ""], ["B", "C"]]))
    assert result.indices.numpy().tolist() == [[0, 0], [1, 0], [1, 1]]
    assert result.values.numpy().tolist() == [b"A", b"B", b"C"]
    assert result.dense_shape.numpy().tolist() == [2, 2]
    assert ToSparse()(result) is result


def test_to_sparse_leaves_out_what_is_missing() -> None:
    assert listed(ToSparse()(tf.constant([[1, -1], [0, 2]]))) == [[1], [0, 2]]
    assert listed(ToSparse()(tf.constant([[1.5, 0.0]]))) == [[1.5]]
    assert listed(ToSparse(ignore_value=7)(tf.constant([[7, -1]]))) == [[-1]]
    assert listed(ToSparse()(tf.ragged.constant([["A", ""], ["B"]]))) == [["A"], ["B"]]


def test_concatenate_with_offset_of_the_docstring() -> None:
    layer = ConcatenateWithOffset(offsets=[0, 10], axis=1)
    assert listed(layer([tf.constant([[1], [1], [1]]), tf.constant([[2], [2], [2]])])) == [[1, 12], [1, 12], [1, 12]]


def test_concatenate_without_offsets_and_with_one_tensor() -> None:
    floats = [tf.constant([[0.5]]), tf.constant([[1.5, 2.5]])]
    assert listed(ConcatenateWithOffset(offsets=None)(floats)) == [[0.5, 1.5, 2.5]]
    assert listed(ConcatenateWithOffset([3])(tf.constant([[1]]))) == [[4]]


def test_concatenate_refuses_what_does_not_match() -> None:
    with pytest.raises(ValueError, match="2 tensors and 1 offsets"):
        ConcatenateWithOffset([0])([tf.constant([[1]]), tf.constant([[1]])])
    with pytest.raises(ValueError, match="some tensors are sparse"):
        ConcatenateWithOffset([0, 1])([tf.constant([[1]]), sparse_of([[1]])])


def test_to_number() -> None:
    result = ToNumber(out_type=tf.int32, default_value=-1)(tf.constant([["7", ""], ["-40", "0"]]))
    assert result.dtype == tf.int32
    assert listed(result) == [[7, -1], [-40, 0]]
    result = ToNumber(tf.float32, default_value=0.0)(tf.constant([["0.5", ""], ["3", "-2.25"]]))
    assert result.dtype == tf.float32
    assert listed(result) == [[0.5, 0.0], [3.0, -2.25]]
    assert ToNumber(tf.int8, 0)(tf.constant([["7"]])).dtype == tf.int8
    assert listed(ToNumber("int64", 0)(tf.constant([[1.5]]))) == [[1]]
    with pytest.raises(ValueError, match="string is not a type of numbers"):
        ToNumber(tf.string, "")


# --------------------------------------------------------------------------------------------------
# A group of features with one Embedding, from the tutorial.


def test_a_group_of_features_has_its_own_ids() -> None:
    """The tutorial's numbers are those of vocabularies without an index for other values."""
    education, status = (
        IndexLookup(["Master", "Doctor", "Bachelor"], num_oov_tokens=0),
        IndexLookup(["Divorced", "Never-married", "Never-married"], num_oov_tokens=0),
    )
    ids = [
        education(tf.constant([["Master"], ["Doctor"], ["Bachelor"]])),
        status(tf.constant([["Divorced"], ["Never-married"], ["Never-married"]])),
    ]
    assert [listed(each) for each in ids] == [[[0], [1], [2]], [[0], [1], [1]]]
    group = ConcatenateWithOffset(offsets=[0, education.vocab_size()], axis=1)(ids)
    assert listed(group) == [[0, 3], [1, 4], [2, 4]]
    table = tf.keras.layers.Embedding(education.vocab_size() + status.vocab_size(), 1)
    assert table(group).shape == (3, 2, 1)


def test_other_values_do_not_get_the_ids_of_the_next_feature() -> None:
    first, second = IndexLookup(["a", "b"]), IndexLookup(["c"])
    group = ConcatenateWithOffset([0, first.vocab_size()])([first(tf.constant([["?"]])), second(tf.constant([["c"]]))])
    assert listed(group) == [[2, 3]]


def test_a_group_with_missing_values() -> None:
    to_sparse = ToSparse(ignore_value="")
    education, status = IndexLookup(["Master", "Doctor", "Bachelor"]), IndexLookup(["Divorced", "Never-married"])
    ids = [
        education(to_sparse(tf.constant([["Master"], [""], ["Bachelor"]]))),
        status(to_sparse(tf.constant([["Divorced"], ["Never-married"], [""]]))),
    ]
    group = ConcatenateWithOffset(offsets=[0, education.vocab_size()], axis=1)(ids)
    assert listed(group) == [[0, 4], [5], [2]]
    layer = Embedding(education.vocab_size() + status.vocab_size(), 1, combiner="sum")
    result, table = layer(group).numpy(), np.asarray(layer.embeddings)
    np.testing.assert_allclose(result, [table[0] + table[4], table[5], table[2]], rtol=1e-6)


# --------------------------------------------------------------------------------------------------
# Kinds of tensors.


ELEMENTWISE = [
    pytest.param(lambda: Normalizer(1.0, 2.0), [[1.0, 2.0], [], [5.0]], id="Normalizer"),
    pytest.param(lambda: Discretization([1.5, 3.0]), [[1.0, 2.0], [], [5.0]], id="Discretization"),
    pytest.param(lambda: LogRound(8, base=2), [[1.0, 4.0], [], [5.0]], id="LogRound"),
    pytest.param(lambda: RoundIdentity(4), [[1.2, 2.7], [], [5.0]], id="RoundIdentity"),
    pytest.param(lambda: Hashing(9), [["a", "b"], [], ["c"]], id="Hashing"),
    pytest.param(lambda: IndexLookup(["a", "c"]), [["a", "b"], [], ["c"]], id="IndexLookup"),
    pytest.param(lambda: ToNumber(tf.int64, -1), [["1", ""], [], ["3"]], id="ToNumber"),
]


@pytest.mark.parametrize(("make", "rows"), ELEMENTWISE)
def test_sparse_and_ragged_tensors_give_what_dense_ones_do(make: Any, rows: Any) -> None:
    layer = make()
    expected = [listed(layer(tf.constant([row])))[0] if row else [] for row in rows]
    ragged = tf.ragged.constant(rows, ragged_rank=1)
    ragged_output, sparse_output = layer(ragged), layer(ragged.to_sparse())
    assert isinstance(ragged_output, tf.RaggedTensor)
    assert isinstance(sparse_output, tf.SparseTensor)
    assert listed(ragged_output) == expected
    assert listed(sparse_output) == expected
    assert sparse_output.dense_shape.numpy().tolist() == [3, 2]


def test_ragged_and_sparse_ids_are_concatenated() -> None:
    one, other = [[1], [], [2]], [[0], [3], []]
    ragged = [tf.ragged.constant(rows, tf.int64, 1) for rows in (one, other)]
    sparse = [each.to_sparse() for each in ragged]
    layer = ConcatenateWithOffset([0, 10])
    assert listed(layer(ragged)) == [[1, 10], [13], [2]]
    assert listed(layer(sparse)) == [[1, 10], [13], [2]]


# --------------------------------------------------------------------------------------------------
# SparseEmbedding.


@pytest.mark.parametrize("kind", ["sparse", "ragged", "dense"])
@pytest.mark.parametrize("combiner", ["sum", "mean", "sqrtn"])
def test_sparse_embedding_combines_the_rows_of_a_record(kind: str, combiner: str) -> None:
    rows = [[1, 2, 1], [], [4]]
    ragged = tf.ragged.constant(rows, tf.int64, 1)
    ids = {"sparse": ragged.to_sparse(), "ragged": ragged, "dense": ragged.to_tensor(-1)}[kind]
    layer = SparseEmbedding(5, 3, combiner=combiner)
    result, table = layer(ids).numpy(), np.asarray(layer.embeddings)
    divisor = {"sum": lambda n: 1, "mean": lambda n: n, "sqrtn": lambda n: n**0.5}[combiner]
    expected = [table[row].sum(0) / divisor(len(row)) if row else np.zeros(3) for row in rows]
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-7)


def test_sparse_embedding_is_tensorflows_lookup() -> None:
    ids = sparse_of([[1, 2, 1], [], [4, 0]], tf.int64)
    for combiner in ("sum", "mean", "sqrtn"):
        layer = SparseEmbedding(5, 3, combiner=combiner)
        output = layer(ids)
        expected = tf.nn.safe_embedding_lookup_sparse(layer.embeddings.value, ids, combiner=combiner)
        np.testing.assert_allclose(output, expected, rtol=1e-6, atol=1e-7)


def test_sparse_embedding_refuses_by_name() -> None:
    with pytest.raises(ValueError, match="sum, mean, sqrtn, not 'max'"):
        SparseEmbedding(5, 3, combiner="max")
    with pytest.raises(ValueError, match="records, columns"):
        SparseEmbedding(5, 3)(tf.zeros([1, 2, 3], tf.int64))


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: Normalizer(1.0, 0), "divisor"),
        (lambda: Hashing(0), "num_bins"),
        (lambda: Discretization([2, 1]), "ascending"),
        (lambda: RoundIdentity(), "num_buckets and max_value"),
        (lambda: RoundIdentity(3, max_value=3), "num_buckets and max_value"),
        (lambda: IndexLookup(), "vocabulary"),
        (lambda: IndexLookup([]), "vocabulary"),
    ],
)
def test_wrong_arguments_are_named(call: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        call()

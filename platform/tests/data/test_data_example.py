"""Examples are made without TensorFlow and are what TensorFlow makes."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.api.errors import BadInputError
from edl.data.tf_example import FeatureValue, serialize_example

FEATURES: dict[str, FeatureValue] = {
    "image": [0.0, 0.5, 255.0, -1.25],
    "label": 7,
    "ids": [0, 1, -1, 2**63 - 1, -(2**63)],
    "name": "Zürich",
    "raw": [b"\x00\xff", b""],
    "mixed": [1, 2.5],
}


@pytest.mark.tensorflow
def test_tensorflow_reads_and_writes_the_same() -> None:
    import tensorflow as tf

    data = serialize_example(FEATURES)
    example = tf.train.Example.FromString(data)
    feature = example.features.feature
    assert list(feature["image"].float_list.value) == FEATURES["image"]
    assert list(feature["label"].int64_list.value) == [7]
    assert list(feature["ids"].int64_list.value) == FEATURES["ids"]
    assert list(feature["name"].bytes_list.value) == ["Zürich".encode()]
    assert list(feature["raw"].bytes_list.value) == FEATURES["raw"]
    assert list(feature["mixed"].float_list.value) == [1.0, 2.5]
    assert example.SerializeToString(deterministic=True) == data


@pytest.mark.tensorflow
def test_tensorflow_parses_an_image_and_a_label() -> None:
    import tensorflow as tf

    data = serialize_example({"image": [float(pixel % 256) for pixel in range(784)], "label": 3})
    parsed = tf.io.parse_single_example(
        data,
        {"image": tf.io.FixedLenFeature([28, 28], tf.float32), "label": tf.io.FixedLenFeature([1], tf.int64)},
    )
    assert parsed["image"].numpy().ravel().tolist() == [float(pixel % 256) for pixel in range(784)]
    assert parsed["label"].numpy().tolist() == [3]


def test_makes_the_bytes_of_the_wire_format() -> None:
    # Example{1: Features{1: {1: "label", 2: Feature{3: Int64List{1: packed 7}}}}}
    assert serialize_example({"label": 7}) == bytes.fromhex("0a100a0e0a056c6162656c12051a030a0107")


@given(st.dictionaries(st.text(max_size=5), st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=3)))
def test_equal_features_give_equal_bytes_in_any_order(features: dict[str, list[int]]) -> None:
    assert serialize_example(features) == serialize_example(dict(reversed(features.items())))


@pytest.mark.parametrize("value", [[b"x", 1], [[1, 2]], [None], 2**63, [object()]])
def test_what_an_example_cannot_hold_is_refused(value: FeatureValue) -> None:
    with pytest.raises(BadInputError, match="feature 'x' cannot be stored"):
        serialize_example({"x": value})


def test_does_not_load_tensorflow() -> None:
    script = "import sys, edl.data.tf_example as e; e.serialize_example({'a': 1}); print('tensorflow' in sys.modules)"
    assert (
        subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout == "False\n"
    )

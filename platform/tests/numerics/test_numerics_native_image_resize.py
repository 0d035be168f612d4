"""The native resizing of images, and minibatches made with it, beside ``tf.image.resize``: equal bits."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from edl.api.job_spec import SchemaSpec
from edl.data.record_columns import ColumnRecords
from edl.keras.image_feed import make_image_parser, make_minibatch_parser

pytestmark = pytest.mark.native

sides = st.integers(1, 40)


def resize(image: np.ndarray, height: int, width: int) -> np.ndarray:
    from edl.data._records import resize_image

    out = np.full((height, width, image.shape[2]), np.nan, np.float32)
    resize_image(image, out)
    return out


@given(sides, sides, sides, sides, st.sampled_from([1, 3, 4]), st.integers(0, 1000))
def test_bits_are_those_of_tensorflow(
    height: int, width: int, rows: int, columns: int, channels: int, seed: int
) -> None:
    image = np.random.default_rng(seed).integers(0, 256, (height, width, channels), np.uint8)
    np.testing.assert_array_equal(resize(image, rows, columns), tf.image.resize(image, (rows, columns)))


@pytest.mark.parametrize(
    ("given_size", "made_size"), [((375, 500), (224, 224)), ((1, 1), (3, 5)), ((641, 3), (7, 900))]
)
def test_large_and_narrow_images(given_size: tuple[int, int], made_size: tuple[int, int]) -> None:
    image = np.random.default_rng(0).integers(0, 256, (*given_size, 3), np.uint8)
    np.testing.assert_array_equal(resize(image, *made_size), tf.image.resize(image, made_size))


@pytest.mark.parametrize(
    ("shape", "out", "said"),
    [
        ((2, 2, 3), (2, 2, 4), "same number of channels"),
        ((2, 2, 2), (2, 2, 2), "1, 3 or 4 channels"),
        ((0, 2, 3), (2, 2, 3), "no pixels"),
        ((2, 0, 3), (2, 2, 3), "no pixels"),
    ],
)
def test_other_shapes_are_refused(shape: tuple[int, ...], out: tuple[int, ...], said: str) -> None:
    from edl.data._records import resize_image

    with pytest.raises(ValueError, match=said):
        resize_image(np.zeros(shape, np.uint8), np.zeros(out, np.float32))


@pytest.mark.parametrize(
    ("image", "out"),
    [
        (np.zeros((2, 2, 3), np.float32), np.zeros((2, 2, 3), np.float32)),
        (np.zeros((2, 2, 3), np.uint8), np.zeros((2, 2, 3), np.float64)),
        (np.zeros((2, 4, 3), np.uint8)[:, ::2], np.zeros((2, 2, 3), np.float32)),
        (np.zeros((2, 2), np.uint8), np.zeros((2, 2), np.float32)),
    ],
)
def test_other_types_and_layouts_are_refused(image: np.ndarray, out: np.ndarray) -> None:
    from edl.data._records import resize_image

    with pytest.raises(TypeError):
        resize_image(image, out)


def test_a_result_that_cannot_be_written_is_refused() -> None:
    from edl.data._records import resize_image

    out = np.zeros((2, 2, 3), np.float32)
    out.flags.writeable = False
    with pytest.raises(TypeError):
        resize_image(np.zeros((2, 2, 3), np.uint8), out)


def test_an_empty_result_is_no_error() -> None:
    assert resize(np.zeros((2, 2, 3), np.uint8), 0, 4).shape == (0, 4, 3)


def bitmap(pixels: Any) -> bytes:
    content = io.BytesIO()
    Image.fromarray(pixels).save(content, "bmp")
    return content.getvalue()


@pytest.mark.parametrize(
    "encode",
    [
        lambda pixels: tf.io.encode_jpeg(pixels[..., :3]).numpy(),
        lambda pixels: tf.io.encode_png(pixels[..., :1]).numpy(),
        lambda pixels: tf.io.encode_png(tf.cast(pixels, tf.uint16) * 257).numpy(),
        lambda pixels: bitmap(pixels[..., :3]),
    ],
    ids=["jpeg", "grey", "16-bit", "bmp"],
)
@pytest.mark.parametrize("mode", ["training", "prediction"])
def test_a_minibatch_is_what_the_parser_of_a_graph_makes_of_each_image(
    encode: Callable[[Any], bytes], mode: str
) -> None:
    rng = np.random.default_rng(0)
    images = [encode(rng.integers(0, 256, (30, 20 + number, 4), np.uint8)) for number in range(5)]
    records = ColumnRecords(
        {
            "image": np.array(images, object),
            "label": np.arange(5) % 2,
            "path": np.array([b"a"] * 5, object),
        }
    )
    schema, classes = SchemaSpec(image_size=(13, 17), label_mode="categorical", color_mode="rgb"), ("cat", "dog")
    parse_minibatch = make_minibatch_parser(schema, {}, classes, mode)
    parse = make_image_parser(schema, {}, classes, mode)
    assert parse_minibatch is not None
    minibatch = parse_minibatch(records)
    expected = [parse({name: tf.constant(value) for name, value in record.items()}) for record in records]
    features = minibatch if mode == "prediction" else minibatch[0]
    np.testing.assert_array_equal(features, np.stack([image for image, _ in expected]))
    if mode == "training":
        np.testing.assert_array_equal(minibatch[1], np.stack([label for _, label in expected]))

"""Decodes and resizes the images of a minibatch, several at a time, into one array.

TensorFlow decodes; its operation is called without a graph, from threads of Python that it does not hold up. The image
is resized by native code into its place in the minibatch, with the bits of ``tf.image.resize``: TensorFlow takes a
quarter of an image's time for it, and copies the result into the minibatch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import count
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from edl.keras.traced_function import as_array
from edl.numerics.aligned_memory import allocate_aligned

ResizeImage = Callable[[NDArray[np.uint8], NDArray[np.float32]], None]


def find_resizer() -> ResizeImage | None:
    """The native ``(image, out)``; None where native code is not built."""
    try:
        from edl.data._records import resize_image
    except ImportError:
        return None
    return resize_image


def decode_images(
    encoded: Sequence[Any] | NDArray[Any], shape: tuple[int, int, int], resize: ResizeImage, threads: int | None
) -> NDArray[np.float32]:
    """Decode images of any size; returns ``[images, *shape]`` from 0 to 255, in aligned memory.

    Args:
        encoded: bytes of files that ``tf.io.decode_image`` decodes.
        shape: height, width and channels.
        resize: what :func:`find_resizer` returned.
        threads: the number of images that are decoded at the same time; None: one, by the caller.

    Raises:
        tf.errors.OpError: an image cannot be decoded.
    """
    images = allocate_aligned(len(encoded), *shape)
    numbers = count()

    def decode_some() -> None:
        # ``next`` gives each number once, to whichever thread asks.
        while (number := next(numbers)) < len(encoded):
            decoded: Any = tf.raw_ops.DecodeImage(
                contents=encoded[number], channels=shape[2], dtype=tf.uint8, expand_animations=False
            )
            resize(as_array(decoded), images[number])

    if threads is None:
        decode_some()
        return images
    for each in [_decoding_pool(threads).submit(decode_some) for _ in range(threads)]:
        each.result()
    return images


@cache
def _decoding_pool(threads: int) -> ThreadPoolExecutor:
    """Threads of the process: minibatches that are made at the same time share them."""
    return ThreadPoolExecutor(threads, thread_name_prefix="decode-images")

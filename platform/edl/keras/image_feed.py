"""The default ``feed`` of folders of images: what ``keras.utils.image_dataset_from_directory`` yields, one by one.

Where native code is built, a minibatch is made without a graph, to the same bits (``image_decoding``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from edl.api.errors import BadInputError
from edl.api.job_spec import SchemaSpec
from edl.data.record_columns import ColumnRecords
from edl.keras.feed_schema import DATA_SET_BY_FEED_MODE, ModelInput, encode_label
from edl.keras.image_decoding import decode_images, find_resizer
from edl.keras.traced_function import as_tensor
from edl.transport.process_identity import count_available_cores

_CHANNELS = {"grayscale": 1, "rgb": 3, "rgba": 4}
_DEFAULT_SIZE = (256, 256)
"""That of ``image_dataset_from_directory``."""


def make_image_parser(
    schema: SchemaSpec, inputs: Mapping[str, ModelInput], class_names: Sequence[str], mode: str
) -> Callable[[Any], Any]:
    """(image, label) of a record: float32 from 0 to 255 of the shape ``[height, width, channels]``, and its class.

    Raises:
        BadInputError: the schema is that of a table, or does not fit the model or the folders.
    """
    _refuse_unsuitable(schema, class_names, mode)
    height, width, channels = _choose_shape(schema, inputs)
    label_mode = schema.label_mode or "int"

    def parse(record: Any) -> Any:
        image = tf.io.decode_image(record["image"], channels=channels, expand_animations=False)
        image = tf.ensure_shape(tf.image.resize(image, (height, width)), (height, width, channels))
        if mode == "prediction":
            return image, None
        label = record["label"]
        # not tf.debugging.assert_*: its control flow would not run on the thread of feed
        in_class = tf.raw_ops.Assert(
            condition=label >= 0, data=["the image lies in no folder of a class:", record["path"]], summarize=1
        )
        with tf.control_dependencies([in_class] if in_class is not None else []):
            return image, encode_label(tf.identity(label), label_mode, len(class_names))

    return parse


def make_minibatch_parser(
    schema: SchemaSpec, inputs: Mapping[str, ModelInput], class_names: Sequence[str], mode: str
) -> Callable[[ColumnRecords], Any] | None:
    """What :func:`make_image_parser` makes, of all records of a minibatch at once; None where native code is not built.

    The function raises what TensorFlow does for an image that cannot be decoded, and ValueError for one in no class.

    Raises:
        BadInputError: as :func:`make_image_parser`.
    """
    resize = find_resizer()
    if resize is None:
        return None
    _refuse_unsuitable(schema, class_names, mode)
    shape = _choose_shape(schema, inputs)
    label_mode, threads = schema.label_mode or "int", decoding_threads()

    def parse(records: ColumnRecords) -> Any:
        images = as_tensor(decode_images(np.asarray(records.columns["image"]), shape, resize, threads))
        if mode == "prediction":
            return images
        labels = np.asarray(records.columns["label"])
        if (labels < 0).any():
            raise ValueError("an image lies in no folder of a class")
        return images, encode_label(tf.constant(labels), label_mode, len(class_names))

    return parse


def _refuse_unsuitable(schema: SchemaSpec, class_names: Sequence[str], mode: str) -> None:
    """Refuse a schema of a table, and images without classes if labels are needed."""
    for name in ("label", "features", "classes"):
        if getattr(schema, name):
            hint = "data.reader.classes names them" if name == "classes" else "leave it out"
            raise BadInputError("is of a table, and the data are images", where=f"data.schema.{name}", hint=hint)
    if mode != "prediction" and not class_names:
        raise BadInputError(
            "the images lie in no folders of classes",
            where=DATA_SET_BY_FEED_MODE[mode],
            hint="give each class a folder, or define feed(dataset, mode, metadata) in the model module",
        )


def explain_bad_image(record: Mapping[str, Any], mode: str) -> tuple[str, str]:
    """What is wrong with an image of which the parser raises, and what to do."""
    path = record["path"].decode(errors="replace")
    if mode != "prediction" and record["label"] < 0:
        return f"the image {path} lies in no folder of a class", "move it into one, or out of the folder"
    return f"the image {path} cannot be decoded", "replace the file, or remove it"


def decoding_threads() -> int | None:
    """Number of images of a minibatch that are decoded at the same time: this worker's share of cores; None for one.

    An image takes milliseconds, so that it costs nothing to hand it to another thread.
    """
    threads = tf.config.threading.get_intra_op_parallelism_threads() or count_available_cores()
    return threads if threads > 1 else None


def _choose_shape(schema: SchemaSpec, inputs: Mapping[str, ModelInput]) -> tuple[int, int, int]:
    """Height, width and channels: of the schema, else of the model's input, else Keras' defaults."""
    if len(inputs) > 1:
        raise BadInputError(
            f"the model has the inputs {', '.join(inputs)}, and an image is one",
            where="data.schema",
            hint="define feed(dataset, mode, metadata) in the model module",
        )
    input_shape = next((each.shape for each in inputs.values()), (None, None, None))
    if len(input_shape) != 3:
        raise BadInputError(
            f"the model's input has the shape {input_shape}, and an image [height, width, channels]",
            where="data.schema",
            hint="give the model such an input, or define feed(dataset, mode, metadata) in its module",
        )
    size = schema.image_size or tuple(axis or other for axis, other in zip(input_shape, _DEFAULT_SIZE, strict=False))
    channels = _CHANNELS[schema.color_mode] if schema.color_mode else input_shape[2] or 3
    chosen = (*size, channels)
    for axis, name in enumerate(("image_size", "image_size", "color_mode")):
        if input_shape[axis] not in (None, chosen[axis]):
            raise BadInputError(
                f"images become {chosen}, and the model's input is {input_shape}",
                where=f"data.schema.{name}",
                hint="leave the field out: images then become what the model's input is",
            )
    if channels not in _CHANNELS.values():
        raise BadInputError(
            f"the model's input has {channels} channels, and an image 1, 3 or 4",
            where="data.schema.color_mode",
            hint="define feed(dataset, mode, metadata) in the model module",
        )
    return chosen  # type: ignore[return-value]

"""Serializes ``tf.train.Example`` records without TensorFlow.

The module declares the message with TensorFlow's field numbers (tensorflow/core/example/{example,feature}.proto), in a
descriptor pool of its own: in the default pool, the names would collide with TensorFlow's. It needs protobuf.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, TypeAlias

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from edl.api.errors import BadInputError

FeatureValue: TypeAlias = bytes | str | int | float | Sequence[bytes] | Sequence[str] | Sequence[int] | Sequence[float]

_PACKAGE = "tensorflow"
_Field = descriptor_pb2.FieldDescriptorProto


def serialize_example(features: Mapping[str, FeatureValue]) -> bytes:
    """Serialize one record: features by name, each a value or a flat sequence of values of one type.

    ``bytes`` and ``str`` become a bytes list, ``int`` and ``bool`` an int64 list, ``float`` a float list (float32).
    Equal features give equal bytes.

    Raises:
        BadInputError: the values of a feature have another type or several types, or are out of range.
    """
    example = _build_example_class()()
    for name, value in features.items():
        _fill_feature(example.features.feature[name], name, value)
    # deterministic: protobuf otherwise writes the entries of a map in any order
    return bytes(example.SerializeToString(deterministic=True))


def parse_example(record: bytes) -> dict[str, Any]:
    """The features of a record by name, sorted: a value, or a list if there is not exactly one.

    Raises:
        ValueError: the bytes are no ``tf.train.Example``.
    """
    example = _build_example_class()()
    try:
        example.ParseFromString(record)
    except DecodeError as error:
        raise ValueError("the bytes are no tf.train.Example") from error
    features: dict[str, Any] = {}
    for name in sorted(example.features.feature):
        feature = example.features.feature[name]
        kind = feature.WhichOneof("kind")
        values = [] if kind is None else list(getattr(feature, kind).value)
        features[name] = values[0] if len(values) == 1 else values
    return features


def _fill_feature(feature: Any, name: str, value: FeatureValue) -> None:
    values = [value] if isinstance(value, bytes | str | int | float) else value
    try:
        kinds = set(map(type, values))
        # Integers first: every int would also pass as a float. An empty list becomes int64.
        if all(issubclass(kind, int) for kind in kinds):
            feature.int64_list.value.extend(map(int, values))  # protobuf refuses booleans
        elif all(issubclass(kind, int | float) for kind in kinds):
            feature.float_list.value.extend(values)
        else:
            feature.bytes_list.value.extend(_to_bytes(item) for item in values)
    except (TypeError, ValueError) as error:
        raise BadInputError(
            f"feature {name!r} cannot be stored: {error}",
            hint="use bytes, str, int or float, or a flat sequence of one of them",
        ) from error


def _to_bytes(item: object) -> bytes:
    if isinstance(item, str):
        return item.encode()
    if isinstance(item, bytes):
        return item
    raise TypeError(f"{item!r} is of type {type(item).__name__}")


@cache
def _build_example_class() -> Any:
    pool = descriptor_pool.DescriptorPool()
    pool.Add(_build_file_descriptor())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.Example"))


def _build_file_descriptor() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(name="edl/example.proto", package=_PACKAGE, syntax="proto3")
    _add_list_message(file, "BytesList", _Field.TYPE_BYTES)
    _add_list_message(file, "FloatList", _Field.TYPE_FLOAT)
    _add_list_message(file, "Int64List", _Field.TYPE_INT64)
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, kind in enumerate(("bytes", "float", "int64"), 1):
        _add_message_field(feature, f"{kind}_list", number, f"{kind.capitalize()}List").oneof_index = 0
    features = file.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=_Field.TYPE_STRING, label=_Field.LABEL_OPTIONAL)
    _add_message_field(entry, "value", 2, "Feature")
    _add_message_field(features, "feature", 1, "Features.FeatureEntry").label = _Field.LABEL_REPEATED
    _add_message_field(file.message_type.add(name="Example"), "features", 1, "Features")
    return file


def _add_list_message(file: descriptor_pb2.FileDescriptorProto, name: str, kind: _Field.Type.ValueType) -> None:
    file.message_type.add(name=name).field.add(name="value", number=1, type=kind, label=_Field.LABEL_REPEATED)


def _add_message_field(message: descriptor_pb2.DescriptorProto, name: str, number: int, kind: str) -> _Field:
    return message.field.add(
        name=name,
        number=number,
        type=_Field.TYPE_MESSAGE,
        label=_Field.LABEL_OPTIONAL,
        type_name=f".{_PACKAGE}.{kind}",
    )

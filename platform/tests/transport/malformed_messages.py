"""What a message should not hold, for every field of edl.proto: walked by descriptor."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from edl.transport import edl_pb2 as pb

MESSAGES: list[type[Message]] = [GetMessageClass(each) for each in pb.DESCRIPTOR.message_types_by_name.values()]

_TEXTS = ("", "\0", "\x1b[2Jgone", "\n", "x" * 100_000, "../" * 200 + "etc/passwd", "/etc", "ünï", "\U0010ffff")
_JSON = (rb'"\ud800"', b"9" * 400, b"[NaN, 1e999]", b"[" * 50_000, b"{}", b"[]", b'{"a": {"additive": true}}', b"\xff")
_INTEGERS = (-(2**63), -1, 1, 2**31 - 1, 2**62 - 1, 2**62, 2**63 - 1)
_FLOATS = (float("nan"), float("inf"), float("-inf"), 1e308, -1e308, -1.0, 0.5)

_MONITOR = {"monitor": "loss", "mode": "min", "min_delta": 0.5}
DOCUMENTS: Mapping[str, tuple[Any, ...]] = {
    "edl.v1.RegisterRequest.callbacks": (
        [
            {"kind": "EarlyStopping", **_MONITOR, "patience": 2, "baseline": None, "restore_best_weights": True},
            {"kind": "ReduceLROnPlateau", **_MONITOR, "factor": 0.5, "cooldown": 1, "min_lr": 0.1, "rate": 1.0},
            {"kind": "BestCheckpoint", **_MONITOR, "threshold": 1.5, "filepath": "a.keras", "weights_only": False},
        ],
    ),
    "edl.v1.ReportRequest.result": (
        {"training": [["digits", 8]], "validation": [["v", 4]]},
        {"training": [["digits", 8]], "blocks": {"runs": [[[4, 2]]], "record_bytes": 9}},
        {"accuracy": {"additive": True, "states": [1.5, [2]]}, "auc": {"additive": False, "states": [[1]]}},
        {"accuracy": 0.5, "auc": None},
        {"paths": ["/runs/r1/export"], "loading": "as it is"},
        {"place": 0, "cut": 1, "path": "/runs/r1/best.keras"},
    ),
    "edl.v1.Task.payload": (
        {"accuracy": {"additive": True, "states": [1.5, [2]]}},
        {"checkpoint": 3},
        {"place": 0, "cut": 1, "epoch": 2, "metrics": {"auc": 0.5}, "filepath": "a.keras", "weights_only": False},
    ),
    "edl.v1.Declare.optimizer": ({"name": "sgd", "hyperparameters": {"momentum": 0.5, "nesterov": True}},),
    "edl.v1.RoundState.shares": ({"after": 1, "step": 3, "done": [[1, 4, 2]], "newest": [[1, 4, 8]]},),
    # The message of a rank has a fixed layout, and no document would be one.
    "edl.v1.RoundStep.messages": ({"lease": 1},),
    "edl.v1.Table.initializer": ({"name": "uniform", "minval": -1.0, "maxval": 1.0, "seed": 7},),
}
"""What is JSON within a field, as it may be meant."""
_RAW = (
    r'"\ud800"',
    r'"\u001b[31m\u0000"',
    "9" * 400,
    "9" * 5000,
    str(2**63),
    str(2**63 - 1),
    "-1",
    "NaN",
    "1e999",
    "1e308",
    "[" * 500 + "]" * 500,
    '{"a":' * 500 + "1" + "}" * 500,
    "null",
    "true",
    '"x"',
    "0.5",
    "[]",
    "{}",
)
_RAW_NAMES = (r'"\ud800"', '"kind"', '"unheard of"', '""', f'"{"x" * 70_000}"')


def bad_values(field: FieldDescriptor) -> Iterator[Any]:
    """Values of a field that is no message."""
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        inner = [text for document in DOCUMENTS.get(field.full_name, ()) for text in bad_json_texts(document)]
        texts = (*_TEXTS, *(data.decode(errors="replace") for data in _JSON), *inner)
        raw = (*(t.encode() for t in _TEXTS), *_JSON, *(t.encode() for t in inner))
        yield from texts if field.type == FieldDescriptor.TYPE_STRING else raw
    elif field.cpp_type in (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE):
        yield from (x for x in _FLOATS if field.cpp_type == FieldDescriptor.CPPTYPE_DOUBLE or abs(x) < 1e38 or x != x)
    elif field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        yield from (False, True)
    elif field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        yield from (0, 1, 77, -1)
    elif field.cpp_type == FieldDescriptor.CPPTYPE_INT32:
        yield from (x for x in _INTEGERS if -(2**31) <= x < 2**31)
    else:
        assert field.cpp_type == FieldDescriptor.CPPTYPE_INT64, field.full_name
        yield from _INTEGERS


def messages_with(kind: type[Message], base: Message | None = None) -> Iterator[tuple[str, FieldDescriptor, Any, Any]]:
    """Messages of one kind with one horror each: where it is, the field, the value, the whole message.

    Args:
        kind: of the messages.
        base: what all else in them is; default: nothing.
    """
    for path in _paths(kind.DESCRIPTOR):
        for value in bad_values(path[-1]):
            message = kind()
            if base is not None:
                message.CopyFrom(base)
            at: Any = message
            for field in path[:-1]:
                at = getattr(at, field.name).add() if field.is_repeated else getattr(at, field.name)
                at.SetInParent()
            if path[-1].is_repeated:
                getattr(at, path[-1].name).append(value)
            else:
                setattr(at, path[-1].name, value)
            yield ".".join(field.name for field in path), path[-1], value, message


def _paths(descriptor: Descriptor) -> Iterator[tuple[FieldDescriptor, ...]]:
    """The way to every field that is no message, also of messages within."""
    for field in descriptor.fields:
        if field.message_type is None:
            yield (field,)
        else:
            yield from ((field, *rest) for rest in _paths(field.message_type))


_HERE = "of the place that something else stands in"


def bad_json_texts(document: Any) -> Iterator[str]:
    """The text of a document with each of its values, and each of its names, replaced by what should not be there."""
    yield json.dumps(document)
    for marked in _with_a_value_marked(document):
        text = json.dumps(marked)
        yield from (text.replace(json.dumps(_HERE), raw) for raw in _RAW)
    for marked in _with_a_name_marked(document):
        text = json.dumps(marked)
        yield from (text.replace(json.dumps(_HERE), raw) for raw in _RAW_NAMES)


def _with_a_value_marked(document: Any) -> Iterator[Any]:
    yield _HERE
    for key, value in _parts(document):
        for inner in _with_a_value_marked(value):
            yield _with(document, key, inner)


def _with_a_name_marked(document: Any) -> Iterator[Any]:
    if isinstance(document, dict):
        for name in document:
            yield {_HERE if other == name else other: value for other, value in document.items()}
            yield {other: value for other, value in document.items() if other != name}
        yield {**document, _HERE: 1}
    for key, value in _parts(document):
        for inner in _with_a_name_marked(value):
            yield _with(document, key, inner)


def _parts(document: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(document, dict):
        yield from document.items()
    elif isinstance(document, list):
        yield from enumerate(document)


def _with(document: Any, key: Any, value: Any) -> Any:
    copy = document.copy()
    copy[key] = value
    return copy

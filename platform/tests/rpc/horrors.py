"""What a message should not hold, for every field of edl.proto: walked by descriptor."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from edl.rpc import edl_pb2 as pb

MESSAGES: list[type[Message]] = [GetMessageClass(each) for each in pb.DESCRIPTOR.message_types_by_name.values()]

_TEXTS = ("", "\0", "\x1b[2Jgone", "\n", "x" * 100_000, "../" * 200 + "etc/passwd", "/etc", "ünï", "\U0010ffff")
_JSON = (rb'"\ud800"', b"9" * 400, b"[NaN, 1e999]", b"[" * 50_000, b"{}", b"[]", b'{"a": {"additive": true}}', b"\xff")
_INTEGERS = (-(2**63), -1, 1, 2**31 - 1, 2**62 - 1, 2**62, 2**63 - 1)
_FLOATS = (float("nan"), float("inf"), float("-inf"), 1e308, -1e308, -1.0, 0.5)


def horrors(field: FieldDescriptor) -> Iterator[Any]:
    """Values of a field that is no message."""
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        texts = (*_TEXTS, *(data.decode(errors="replace") for data in _JSON))
        yield from texts if field.type == FieldDescriptor.TYPE_STRING else (*(t.encode() for t in _TEXTS), *_JSON)
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
        for value in horrors(path[-1]):
            whole = kind()
            if base is not None:
                whole.CopyFrom(base)
            at: Any = whole
            for field in path[:-1]:
                at = getattr(at, field.name).add() if field.is_repeated else getattr(at, field.name)
                at.SetInParent()
            if path[-1].is_repeated:
                getattr(at, path[-1].name).append(value)
            else:
                setattr(at, path[-1].name, value)
            yield ".".join(field.name for field in path), path[-1], value, whole


def _paths(descriptor: Descriptor) -> Iterator[tuple[FieldDescriptor, ...]]:
    """The way to every field that is no message, also of messages within."""
    for field in descriptor.fields:
        if field.message_type is None:
            yield (field,)
        else:
            yield from ((field, *rest) for rest in _paths(field.message_type))

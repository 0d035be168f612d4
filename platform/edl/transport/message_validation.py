"""What messages from other processes may hold: text and numbers, checked once, before anybody acts on them.

Every message of edl.proto passes here: requests and replies of the control plane, and the heads of bulk frames. A field
that is not named below obeys the rule of its type, so that a new field is checked from its first day:

* whole numbers are counts, numbers and indices: from 0 to 2**62 - 1, so that none overflows when two are added;
* numbers with a fraction are finite;
* texts are names, addresses and paths: at most 4,096 characters, none of them a control character;
* values of an enum are those that it has.

Sizes are bounded before: messages by the transport, and what follows a bulk head by whoever reads it. JSON inside of a
field is checked where it is decoded (``edl.core.strict_json``).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeVar

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message

from edl.transport.peer_errors import Refused

MAX_NUMBER = 2**62 - 1
MAX_NAME = 4096
"""Characters of a name, an address or a path."""

_SIGNED: Mapping[str, int] = {"edl.v1.ScannedRows.cursor": -1}
"""Whole numbers that may be below 0, with the least that they may be."""
_ANY_BITS = frozenset({"edl.v1.Table.seed"})
"""Whole numbers that are 64 random bits, and that nothing is added to."""
_ANY_NUMBER = frozenset({"edl.v1.LeaseProgress.loss_sum"})
"""Numbers that may be infinite or none: a loss is what the user's model makes of it."""
_FREE_TEXT = frozenset(
    {
        "edl.v1.Declare.optimizer",
        "edl.v1.FailRequest.detail",
        "edl.v1.FailRequest.message",
        "edl.v1.LeaveRequest.reason",
        "edl.v1.Refusal.hint",
        "edl.v1.Refusal.reason",
        "edl.v1.ReportReply.reason",
        "edl.v1.SavedReply.error",
        "edl.v1.Stop.reason",
        "edl.v1.Table.initializer",
        "edl.v1.Wait.reason",
    }
)
"""Texts for people, of several lines perhaps, and JSON."""
_FILE_NAMES = frozenset({"edl.v1.Source.name", "edl.v1.Task.source"})
"""A file of the user's may be called anything that a file system takes."""
_MOST: Mapping[str, int] = {"edl.v1.PsFigures.tables": 256}
"""Elements of repeated fields that have a bound of their own."""

_INTEGERS = frozenset({FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_INT64})
_FLOATS = frozenset({FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE})
_CONTROL = re.compile("[\0-\x1f\x7f-\x9f]")

_Message = TypeVar("_Message", bound=Message)
_Check = Callable[[Any], str]
"""What is wrong with a value; empty when nothing is."""


def parse(message: type[_Message], data: bytes) -> _Message:
    """Read a message that came from another process.

    Raises:
        Refused: with kind ``bad``: it is not one, or holds what it may not; names the field.
    """
    try:
        return check(message.FromString(data))
    except DecodeError as error:
        raise Refused(f"this is no {message.DESCRIPTOR.name}: {error}", kind="bad") from error


def check(message: _Message) -> _Message:
    """Return a message whose every field holds what it may.

    Raises:
        Refused: with kind ``bad``; names the first field that does not.
    """
    descriptor: Any = message.DESCRIPTOR  # one of the C library's, which the types tell apart
    wrong = _wrong(message, descriptor)
    if wrong:
        raise Refused(f"{message.DESCRIPTOR.name}.{wrong}", kind="bad")
    return message


def _wrong(message: Any, descriptor: Descriptor) -> str:
    for name, most, check_value in _singles(descriptor):
        value = getattr(message, name)
        if most is None:
            if wrong := check_value(value):
                return f"{name}: {wrong}"
            continue
        if len(value) > most:
            return f"{name}: {len(value)} elements, {most} are the most"
        for position, element in enumerate(value):
            if wrong := check_value(element):
                return f"{name}[{position}]: {wrong}"
    for name, most, inner in _messages(descriptor):
        if most is None:
            if message.HasField(name) and (wrong := _wrong(getattr(message, name), inner)):
                return f"{name}.{wrong}"
            continue
        parts = getattr(message, name)
        if len(parts) > most:
            return f"{name}: {len(parts)} elements, {most} are the most"
        for position, part in enumerate(parts):
            if wrong := _wrong(part, inner):
                return f"{name}[{position}].{wrong}"
    return ""


@cache
def _singles(descriptor: Descriptor) -> tuple[tuple[str, float | None, _Check], ...]:
    """Fields that are no messages: name, the most elements (None: it is not repeated), and the check of an element."""
    return tuple(
        (field.name, _most(field), found)
        for field in descriptor.fields
        if field.message_type is None and (found := _check_of(field)) is not None
    )


@cache
def _messages(descriptor: Descriptor) -> tuple[tuple[str, float | None, Descriptor], ...]:
    """Fields that are messages: name, the most elements (None: it is not repeated), and what they are."""
    return tuple((f.name, _most(f), f.message_type) for f in descriptor.fields if f.message_type is not None)


def _most(field: FieldDescriptor) -> float | None:
    return _MOST.get(field.full_name, math.inf) if field.is_repeated else None


def _check_of(field: FieldDescriptor) -> _Check | None:
    """The rule of a field; None where every value of its type may be."""
    name = field.full_name
    if field.cpp_type in _INTEGERS:
        if name in _ANY_BITS:
            return None
        return _whole(_SIGNED.get(name, 0))
    if field.cpp_type in _FLOATS:
        return None if name in _ANY_NUMBER else _finite
    if field.enum_type is not None:
        return _one_of(frozenset(field.enum_type.values_by_number))
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING and field.type == FieldDescriptor.TYPE_STRING:
        if name in _FREE_TEXT:
            return None
        return _file_name if name in _FILE_NAMES else _name
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL or field.type == FieldDescriptor.TYPE_BYTES:
        return None
    raise TypeError(f"{name} is of a type that has no rule here")


def _whole(least: int) -> _Check:
    def check_whole(value: int) -> str:
        return "" if least <= value <= MAX_NUMBER else f"{value} is not from {least} to {MAX_NUMBER}"

    return check_whole


def _one_of(known: frozenset[int]) -> _Check:
    return lambda value: "" if value in known else f"{value} is not known"


def _finite(value: float) -> str:
    return "" if math.isfinite(value) else f"{value} is not a number that is finite"


def _file_name(value: str) -> str:
    if len(value) > MAX_NAME:
        return f"{len(value)} characters, {MAX_NAME} are the most"
    return "a character is NUL" if "\0" in value else ""


def _name(value: str) -> str:
    if len(value) > MAX_NAME:
        return f"{len(value)} characters, {MAX_NAME} are the most"
    return "" if value.isprintable() or not _CONTROL.search(value) else "a control character"

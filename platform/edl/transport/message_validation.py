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

from edl.transport.peer_errors import PeerRefusedError

MAX_INTEGER = 2**62 - 1
MAX_NAME_LENGTH = 4096
"""Characters of a name, an address or a path."""

_SIGNED_FIELDS: Mapping[str, int] = {"edl.v1.ScannedRows.cursor": -1}
"""Whole numbers that may be below 0, with the least that they may be."""
_ANY_BITS_FIELDS = frozenset({"edl.v1.Table.seed"})
"""Whole numbers that are 64 random bits, and that nothing is added to."""
_ANY_NUMBER_FIELDS = frozenset({"edl.v1.LeaseProgress.loss_sum"})
"""Numbers that may be infinite or none: a loss is what the user's model makes of it."""
_FREE_TEXT_FIELDS = frozenset(
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
_FILE_NAME_FIELDS = frozenset({"edl.v1.Source.name", "edl.v1.Task.source"})
"""A file of the user's may be called anything that a file system takes."""
_MAX_ELEMENTS: Mapping[str, int] = {"edl.v1.PsFigures.tables": 256}
"""Elements of repeated fields that have a bound of their own."""

_INTEGER_TYPES = frozenset({FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_INT64})
_FLOAT_TYPES = frozenset({FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE})
_CONTROL_CHARACTERS = re.compile("[\0-\x1f\x7f-\x9f]")

_MessageT = TypeVar("_MessageT", bound=Message)
_ValueCheck = Callable[[Any], str]
"""What is wrong with a value; empty when nothing is."""


def parse_message(message: type[_MessageT], data: bytes) -> _MessageT:
    """Read a message that came from another process.

    Raises:
        PeerRefusedError: with kind ``bad``: it is not one, or holds what it may not; names the field.
    """
    try:
        return check_message(message.FromString(data))
    except DecodeError as error:
        raise PeerRefusedError(f"this is no {message.DESCRIPTOR.name}: {error}", kind="bad") from error


def check_message(message: _MessageT) -> _MessageT:
    """Return a message whose every field holds what it may.

    Raises:
        PeerRefusedError: with kind ``bad``; names the first field that does not.
    """
    descriptor: Any = message.DESCRIPTOR  # one of the C library's, which the types tell apart
    wrong = _find_invalid_field(message, descriptor)
    if wrong:
        raise PeerRefusedError(f"{message.DESCRIPTOR.name}.{wrong}", kind="bad")
    return message


def _find_invalid_field(message: Any, descriptor: Descriptor) -> str:
    for name, max_elements, check_value in _scalar_fields(descriptor):
        value = getattr(message, name)
        if max_elements is None:
            if problem := check_value(value):
                return f"{name}: {problem}"
            continue
        if len(value) > max_elements:
            return f"{name}: {len(value)} elements, {max_elements} are the most"
        for position, element in enumerate(value):
            if problem := check_value(element):
                return f"{name}[{position}]: {problem}"
    for name, max_elements, inner in _message_fields(descriptor):
        if max_elements is None:
            if message.HasField(name) and (problem := _find_invalid_field(getattr(message, name), inner)):
                return f"{name}.{problem}"
            continue
        parts = getattr(message, name)
        if len(parts) > max_elements:
            return f"{name}: {len(parts)} elements, {max_elements} are the most"
        for position, part in enumerate(parts):
            if problem := _find_invalid_field(part, inner):
                return f"{name}[{position}].{problem}"
    return ""


@cache
def _scalar_fields(descriptor: Descriptor) -> tuple[tuple[str, float | None, _ValueCheck], ...]:
    """Fields that are no messages: name, the most elements (None: it is not repeated), and the check of an element."""
    return tuple(
        (field.name, _max_elements(field), found)
        for field in descriptor.fields
        if field.message_type is None and (found := _check_for_field(field)) is not None
    )


@cache
def _message_fields(descriptor: Descriptor) -> tuple[tuple[str, float | None, Descriptor], ...]:
    """Fields that are messages: name, the most elements (None: it is not repeated), and what they are."""
    return tuple((f.name, _max_elements(f), f.message_type) for f in descriptor.fields if f.message_type is not None)


def _max_elements(field: FieldDescriptor) -> float | None:
    return _MAX_ELEMENTS.get(field.full_name, math.inf) if field.is_repeated else None


def _check_for_field(field: FieldDescriptor) -> _ValueCheck | None:
    """The rule of a field; None where every value of its type may be."""
    name = field.full_name
    if field.cpp_type in _INTEGER_TYPES:
        if name in _ANY_BITS_FIELDS:
            return None
        return _integer_check(_SIGNED_FIELDS.get(name, 0))
    if field.cpp_type in _FLOAT_TYPES:
        return None if name in _ANY_NUMBER_FIELDS else _check_finite
    if field.enum_type is not None:
        return _enum_check(frozenset(field.enum_type.values_by_number))
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING and field.type == FieldDescriptor.TYPE_STRING:
        if name in _FREE_TEXT_FIELDS:
            return None
        return _check_file_name if name in _FILE_NAME_FIELDS else _check_name
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL or field.type == FieldDescriptor.TYPE_BYTES:
        return None
    raise TypeError(f"{name} is of a type that has no rule here")


def _integer_check(least: int) -> _ValueCheck:
    def check_whole(value: int) -> str:
        return "" if least <= value <= MAX_INTEGER else f"{value} is not from {least} to {MAX_INTEGER}"

    return check_whole


def _enum_check(known: frozenset[int]) -> _ValueCheck:
    return lambda value: "" if value in known else f"{value} is not known"


def _check_finite(value: float) -> str:
    return "" if math.isfinite(value) else f"{value} is not a number that is finite"


def _check_file_name(value: str) -> str:
    if len(value) > MAX_NAME_LENGTH:
        return f"{len(value)} characters, {MAX_NAME_LENGTH} are the most"
    return "a character is NUL" if "\0" in value else ""


def _check_name(value: str) -> str:
    if len(value) > MAX_NAME_LENGTH:
        return f"{len(value)} characters, {MAX_NAME_LENGTH} are the most"
    return "" if value.isprintable() or not _CONTROL_CHARACTERS.search(value) else "a control character"

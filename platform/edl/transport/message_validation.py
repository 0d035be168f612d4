"""Validates messages from other processes once, before anybody uses their text and numbers.

Every message of edl.proto passes through here: requests and replies of the control plane, and heads of bulk frames.
Fields that are not listed below follow the rule of their type, so that a new field is checked from the start:

* whole numbers are counts, numbers and indices: 0 to 2**62 - 1, so that a sum of two does not overflow;
* floating-point numbers are finite;
* texts are names, addresses and paths: at most 4,096 characters, none of them a control character;
* values of an enum are those in its declaration.

Sizes are limited before: those of messages by the transport, those of bodies by their readers. JSON inside of a field
is checked when it is decoded (``edl.core.strict_json``).
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
"""Maximum characters of a name, an address or a path."""

_SIGNED_FIELDS: Mapping[str, int] = {"edl.v1.ScannedRows.cursor": -1}
"""Whole numbers that may be negative, with their minimum."""
_ANY_BITS_FIELDS = frozenset({"edl.v1.Table.seed"})
"""Whole numbers that are 64 random bits, with which nothing is computed."""
_ANY_NUMBER_FIELDS = frozenset({"edl.v1.LeaseProgress.loss_sum"})
"""Numbers that may be infinite or NaN: a loss is whatever the user's model computes."""
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
        "edl.v1.UnreadableCheckpoint.error",
        "edl.v1.Wait.reason",
        "edl.v1.WorkerWarning.text",
        "edl.v1.WorkerWarning.topic",
        "edl.v1.WorldReply.reason",
        "edl.v1.WrittenShard.error",
    }
)
"""Texts for people, perhaps of several lines, and JSON."""
_FILE_NAME_FIELDS = frozenset({"edl.v1.Source.name", "edl.v1.Task.source"})
"""Names of users' files, which may contain anything that a file system allows."""
_MAX_ELEMENTS: Mapping[str, int] = {"edl.v1.PsFigures.tables": 256, "edl.v1.FetchParts.parts": 64}
"""Limits of repeated fields that have one of their own."""

_INTEGER_TYPES = frozenset({FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_INT64})
_FLOAT_TYPES = frozenset({FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE})
_CONTROL_CHARACTERS = re.compile("[\0-\x1f\x7f-\x9f]")

_MessageT = TypeVar("_MessageT", bound=Message)
_ValueCheck = Callable[[Any], str]
"""Returns what is wrong with a value; empty if it is valid."""


def parse_message(message: type[_MessageT], data: bytes) -> _MessageT:
    """Parse a message from another process.

    Raises:
        PeerRefusedError: with kind ``bad``: it cannot be parsed, or a field is invalid; the message names the field.
    """
    try:
        return check_message(message.FromString(data))
    except DecodeError as error:
        raise PeerRefusedError(f"not a {message.DESCRIPTOR.name} message: {error}", kind="bad") from error


def check_message(message: _MessageT) -> _MessageT:
    """Return the message if all of its fields are valid.

    Raises:
        PeerRefusedError: with kind ``bad``; the message names the first invalid field.
    """
    descriptor: Any = message.DESCRIPTOR  # the C library has its own type for it, which the type stubs do not know
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
            return f"{name}: {len(value)} elements, at most {max_elements} are allowed"
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
            return f"{name}: {len(parts)} elements, at most {max_elements} are allowed"
        for position, part in enumerate(parts):
            if problem := _find_invalid_field(part, inner):
                return f"{name}[{position}].{problem}"
    return ""


@cache
def _scalar_fields(descriptor: Descriptor) -> tuple[tuple[str, float | None, _ValueCheck], ...]:
    """Scalar fields: name, maximum number of elements (None: not repeated), and the check of an element."""
    return tuple(
        (field.name, _max_elements(field), check)
        for field in descriptor.fields
        if field.message_type is None and (check := _check_for_field(field)) is not None
    )


@cache
def _message_fields(descriptor: Descriptor) -> tuple[tuple[str, float | None, Descriptor], ...]:
    """Message fields: name, maximum number of elements (None: not repeated), and the type of the message."""
    return tuple((f.name, _max_elements(f), f.message_type) for f in descriptor.fields if f.message_type is not None)


def _max_elements(field: FieldDescriptor) -> float | None:
    return _MAX_ELEMENTS.get(field.full_name, math.inf) if field.is_repeated else None


def _check_for_field(field: FieldDescriptor) -> _ValueCheck | None:
    """The check of a field; None if all values of its type are valid."""
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
    # a new type must get a rule before it can be used in edl.proto
    raise TypeError(f"{name} has a type without a rule")


def _integer_check(least: int) -> _ValueCheck:
    def check_whole(value: int) -> str:
        return "" if least <= value <= MAX_INTEGER else f"{value} is not from {least} to {MAX_INTEGER}"

    return check_whole


def _enum_check(known: frozenset[int]) -> _ValueCheck:
    return lambda value: "" if value in known else f"{value} is not known"


def _check_finite(value: float) -> str:
    return "" if math.isfinite(value) else f"{value} is not finite"


def _check_file_name(value: str) -> str:
    if len(value) > MAX_NAME_LENGTH:
        return f"{len(value)} characters, at most {MAX_NAME_LENGTH} are allowed"
    return "it contains a NUL character" if "\0" in value else ""


def _check_name(value: str) -> str:
    if len(value) > MAX_NAME_LENGTH:
        return f"{len(value)} characters, at most {MAX_NAME_LENGTH} are allowed"
    return "" if value.isprintable() or not _CONTROL_CHARACTERS.search(value) else "it contains a control character"

"""Converts specs of variables and tables to messages, which workers send and parameter servers receive."""

from __future__ import annotations

import json
from typing import Any

from edl.api.tables import TableSpec
from edl.api.variables import VariableSpec
from edl.core.strict_json import decode_json
from edl.transport import edl_pb2 as pb
from edl.transport.peer_errors import PeerRefusedError


def variable_to_message(spec: VariableSpec) -> pb.Variable:
    """For a PS, which reads it with ``variable_from_message``."""
    return pb.Variable(name=spec.name, shape=spec.shape, statistic=spec.statistic)


def variable_from_message(message: pb.Variable) -> VariableSpec:
    """The inverse of ``variable_to_message``."""
    return VariableSpec(message.name, tuple(message.shape), message.statistic)


def table_to_message(spec: TableSpec) -> pb.Table:
    """The spec as a message, with the initializer as JSON."""
    initializer = json.dumps(dict(spec.initializer))
    return pb.Table(name=spec.name, rows=spec.rows, dim=spec.dim, initializer=initializer, seed=spec.seed)


def table_from_message(message: pb.Table) -> TableSpec:
    """The spec in a message.

    Raises:
        PeerRefusedError: the initializer is not a JSON object.
    """
    initializer = json_object(message.initializer, f"the initializer of table '{message.name}'")
    return TableSpec(message.name, message.rows, message.dim, initializer, message.seed)


def json_object(text: str, what: str) -> dict[str, Any]:
    """The JSON object in a field of a message.

    Args:
        text: value of the field.
        what: name of the field, for errors.

    Raises:
        PeerRefusedError: with kind ``bad``: it is not a JSON object.
    """
    try:
        value = decode_json(text)
    except ValueError as error:
        raise PeerRefusedError(f"{what} is not JSON: {error}", kind="bad") from error
    if not isinstance(value, dict):
        raise PeerRefusedError(f"{what} is {value!r:.40}, not a JSON object", kind="bad")
    return value

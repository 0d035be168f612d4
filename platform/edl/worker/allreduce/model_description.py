"""What a worker says of its model's variables, so that another one can name those that differ."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from edl.core.strict_json import decode_json

MODEL_HINT = (
    "every worker must build the same model: check the packages and random choices in model code; a worker that starts "
    "after model code was edited has the new code, and with --resume all have it"
)


def format_variables(variables: Mapping[str, str]) -> bytes:
    """Type and shape of each variable, by its name, as JSON."""
    return json.dumps(dict(variables)).encode()


def parse_variables(data: bytes) -> dict[str, str]:
    """Read what ``format_variables`` returned.

    Raises:
        ValueError: it is something else.
    """
    return _check_variables(decode_json(data))


def format_model(worker: str, variables: Mapping[str, str]) -> str:
    """A worker's name and its variables, as JSON."""
    return json.dumps({"worker": worker, "variables": dict(variables)})


def parse_model(text: str) -> tuple[str, dict[str, str]]:
    """Read what ``format_model`` returned.

    Raises:
        ValueError: it is something else.
    """
    value = decode_json(text)
    is_model = isinstance(value, dict) and isinstance(value.get("worker"), str)
    if not is_model:
        raise ValueError("the description of a model has no worker")
    return value["worker"], _check_variables(value.get("variables"))


def _check_variables(value: Any) -> dict[str, str]:
    is_table = isinstance(value, dict) and all(isinstance(kind, str) for kind in value.values())
    if not is_table:
        raise ValueError("the variables of a model are not an object of texts")
    variables: dict[str, str] = value
    return variables

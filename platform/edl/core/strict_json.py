"""Strict JSON decoding of external input, applied once where the input enters.

Python's decoder accepts values that would fail later, in the middle of a decision: lone surrogates,
which cannot be written to a file; integers of hundreds of digits, which no float can hold; NaN, which
other JSON readers refuse; and nesting that exceeds the recursion limit of other functions.
"""

from __future__ import annotations

import json
import math
from typing import Any

MAX_DEPTH = 64
"""Maximum nesting depth of lists and objects."""
MAX_INTEGER = 2**63 - 1
"""The largest accepted integer, and the negative of the smallest."""


def decode_json(data: bytes | str, *, nonfinite_as_none: bool = False) -> Any:
    """Decode a JSON text in UTF-8.

    Args:
        data: the JSON text.
        nonfinite_as_none: decode numbers that are not finite as None; otherwise they are refused.

    Raises:
        ValueError: the text is not JSON, or a string, number or nesting is invalid; the message says which.
    """
    try:
        value = json.loads(data.decode("utf-8") if isinstance(data, bytes) else data)
    # Python's own limit, which a text may exceed before its depth is checked below.
    except RecursionError:
        raise ValueError(f"it is nested deeper than {MAX_DEPTH} levels") from None
    return _check_value(value, MAX_DEPTH, nonfinite_as_none)


def decode_json_file(data: bytes | str) -> Any:
    """Decode JSON from a file that EDL wrote: any JSON that is not nested deeper than ``MAX_DEPTH``.

    Args:
        data: the JSON text.

    Raises:
        ValueError: the text is not JSON, or is nested deeper than ``MAX_DEPTH``; the message says which.
    """
    try:
        value = json.loads(data)
    except RecursionError:
        raise ValueError(f"it is nested deeper than {MAX_DEPTH} levels") from None
    _check_depth(value, MAX_DEPTH)
    return value


def _check_depth(value: Any, depth: int) -> None:
    if isinstance(value, list | dict):
        if not depth:
            raise ValueError(f"it is nested deeper than {MAX_DEPTH} levels")
        for inner in value if isinstance(value, list) else value.values():
            if isinstance(inner, list | dict):
                _check_depth(inner, depth - 1)


def check_text(text: str) -> str:
    """Return the text if it can be encoded as UTF-8.

    Raises:
        ValueError: it has an unpaired surrogate.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(f"a string has an unpaired surrogate at position {error.start}") from None
    return text


def escape_surrogates(text: str) -> str:
    """Replace unpaired surrogates by their numbers, so that every message and file can hold the text."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _check_value(value: Any, depth: int, nonfinite_as_none: bool) -> Any:
    if isinstance(value, str):
        return check_text(value)
    if isinstance(value, int):
        if abs(value) > MAX_INTEGER:
            raise ValueError(f"an integer of {len(str(abs(value)))} digits exceeds 64 bits")
        return value
    if isinstance(value, float) and not math.isfinite(value):
        if nonfinite_as_none:
            return None
        raise ValueError(f"a number is not finite: {value}")
    if isinstance(value, list | dict):
        if not depth:
            raise ValueError(f"it is nested deeper than {MAX_DEPTH} levels")
        if isinstance(value, list):
            return [_check_value(x, depth - 1, nonfinite_as_none) for x in value]
        return {check_text(name): _check_value(x, depth - 1, nonfinite_as_none) for name, x in value.items()}
    return value

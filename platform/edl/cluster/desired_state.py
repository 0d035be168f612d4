"""The desired state of a running job as JSON: parsed, written, and checked.

On Kubernetes it is an annotation of the Job, and on one machine a file in the run directory.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from edl.api.cluster_port import MOST_WORKERS
from edl.api.errors import BadInputError
from edl.cluster.status_port import DesiredState
from edl.core.strict_json import decode_json

_MAX_SHOWN_CHARS = 80
ANY_BOUNDS = (0, 2**31 - 1)
"""Bounds that allow any number, for callers without a spec."""


def parse_desired_state(text: str, source: str) -> DesiredState:
    """Parse a request, which anybody may have written. If it is invalid, it changes no number of workers.

    Args:
        text: the request; empty: nothing is requested.
        source: where it is from, for the message.
    """
    try:
        value = decode_json(text or "{}")
    except ValueError as error:
        return unreadable_state(source, text, f"it is not JSON: {error}")
    if not isinstance(value, dict):
        return unreadable_state(source, text, "it is not a JSON object")
    wrong = next((fault for name, what in value.items() if (fault := _member_error(name, what))), "")
    if wrong:
        # a request to stop is honoured even if another member is invalid
        return replace(unreadable_state(source, text, wrong), stop=value.get("stop") is True)
    return DesiredState(value.get("min"), value.get("max"), value.get("stop") is True)


def desired_state_json(desired: DesiredState) -> dict[str, Any]:
    """The request as a JSON object, without the fields that are not set."""
    stop = {"stop": True} if desired.stop else {}
    return {name: n for name, n in (("min", desired.min), ("max", desired.max)) if n is not None} | stop


def format_desired_state(desired: DesiredState) -> str:
    """The request as a text; ``parse_desired_state`` returns an equal value."""
    return json.dumps(desired_state_json(desired))


def merge_desired_state(current: DesiredState, change: DesiredState, spec_bounds: tuple[int, int]) -> DesiredState:
    """``current``, updated by the fields that ``change`` sets.

    Args:
        current: the desired state so far.
        change: a field that is None keeps its current value.
        spec_bounds: ``workers.min`` and ``workers.max`` of the job file.

    Raises:
        BadInputError: the minimum would be above the maximum, or a number is outside a job's limits.
    """
    merged = replace(
        current,
        unreadable="",
        min=current.min if change.min is None else change.min,
        max=current.max if change.max is None else change.max,
        stop=current.stop or change.stop,
    )
    for name, requested in (("--min", change.min), ("--max", change.max)):
        if requested is not None and requested > MOST_WORKERS:
            raise BadInputError(f"{name} {requested}: a job can have at most {MOST_WORKERS} workers")
    low, high = (
        (spec_bounds[0] if merged.min is None else merged.min),
        (spec_bounds[1] if merged.max is None else merged.max),
    )
    if high < 1:
        raise BadInputError("a job needs at least one worker", hint="`edl stop` ends a job.")
    if low > high:
        both = change.min is not None and change.max is not None
        missing = "" if both else ("Give --max too." if change.max is None else "Give --min too.")
        raise BadInputError(f"min would be {low}, more than max, which is {high}", hint=missing or None)
    return merged


def _member_error(name: str, value: object) -> str:
    """What is wrong with one member of a desired state; empty if it is valid."""
    if name == "stop":
        return "" if isinstance(value, bool) else "stop must be true or false"
    if name not in ("min", "max"):
        return f"unknown field {_shorten_text(name)}; allowed: min, max, stop"
    least = 0 if name == "min" else 1
    # type(), because true is an int for isinstance()
    if value is None or (type(value) is int and least <= value <= MOST_WORKERS):
        return ""
    return f"{name} must be a whole number from {least} to {MOST_WORKERS}"


def unreadable_state(source: str, text: str, reason: str) -> DesiredState:
    """The desired state of a request that cannot be read; see ``parse_desired_state`` for the arguments."""
    shown = f": {_shorten_text(text)}" if text else ""
    return DesiredState(unreadable=f"{source} is ignored, {reason}{shown}")


def _shorten_text(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN_CHARS else f"{text[:_MAX_SHOWN_CHARS]}…"

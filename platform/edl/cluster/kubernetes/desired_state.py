"""What people want of a job that runs, pinned to it as an annotation: ``edl.dev/desired``, a JSON object."""

from __future__ import annotations

import json
from dataclasses import replace

from edl.api.cluster_port import MOST_WORKERS
from edl.api.errors import BadInputError
from edl.cluster.kubernetes import names
from edl.cluster.kubernetes.api_client import KubeClient
from edl.cluster.kubernetes.api_errors import ConflictError
from edl.cluster.kubernetes.resource_kinds import JOBS, Manifest
from edl.cluster.status_port import DesiredState
from edl.core.strict_json import decode_json

_MAX_ATTEMPTS = 5
_MAX_SHOWN_CHARS = 80
ANY_BOUNDS = (0, 2**31 - 1)
"""Bounds of a spec that is not looked at."""


def read_desired_state(job: Manifest) -> DesiredState:
    """What is wanted of a Job, or what is wrong with it."""
    return parse_desired_state(job["metadata"].get("annotations", {}).get(names.DESIRED_ANNOTATION, ""))


def parse_desired_state(text: str) -> DesiredState:
    """The wish that an annotation holds; anybody may write one. One that is wrong changes no number of workers."""
    try:
        value = decode_json(text or "{}")
    except ValueError as error:
        return _unreadable_state(text, f"it is not JSON: {error}")
    if not isinstance(value, dict):
        return _unreadable_state(text, "it is not a JSON object")
    wrong = next((why for name, what in value.items() if (why := _member_error(name, what))), "")
    if wrong:
        return replace(_unreadable_state(text, wrong), stop=value.get("stop") is True)
    return DesiredState(value.get("min"), value.get("max"), value.get("stop") is True)


def format_desired_state(desired: DesiredState) -> str:
    """The annotation; ``read`` gives an equal value back."""
    stop = {"stop": True} if desired.stop else {}
    return json.dumps({name: n for name, n in (("min", desired.min), ("max", desired.max)) if n is not None} | stop)


def merge_desired_state(known: DesiredState, wanted: DesiredState, spec: tuple[int, int]) -> DesiredState:
    """``known`` with what ``wanted`` changes of it.

    Args:
        known: what is wanted already.
        wanted: None changes nothing.
        spec: ``workers.min`` and ``workers.max`` of the job file.

    Raises:
        BadInputError: more workers would be needed than asked for, none at all, or more than a job may have.
    """
    found = replace(
        known,
        unreadable="",
        min=known.min if wanted.min is None else wanted.min,
        max=known.max if wanted.max is None else wanted.max,
        stop=known.stop or wanted.stop,
    )
    for name, asked in (("--min", wanted.min), ("--max", wanted.max)):
        if asked is not None and asked > MOST_WORKERS:
            raise BadInputError(f"{name} {asked}: a job has at most {MOST_WORKERS} workers")
    low, high = (spec[0] if found.min is None else found.min), (spec[1] if found.max is None else found.max)
    if high < 1:
        raise BadInputError("a job needs at least one worker", hint="`edl stop` ends a job.")
    if low > high:
        both = wanted.min is not None and wanted.max is not None
        missing = "" if both else ("Give --max too." if wanted.max is None else "Give --min too.")
        raise BadInputError(f"min would be {low}, more than max, which is {high}", hint=missing or None)
    return found


def update_desired_state(
    api: KubeClient, job: str, wanted: DesiredState, spec: tuple[int, int], *, namespace: str | None = None
) -> DesiredState:
    """Want something of a job, beside what is wanted already; returns all that is wanted now.

    Raises:
        BadInputError: see ``merged``.
        RbacDeniedError: the user may not patch Jobs here.
    """
    for attempt in range(_MAX_ATTEMPTS):
        found = api.get(JOBS, names.master_name(job), namespace)
        desired = merge_desired_state(read_desired_state(found), wanted, spec)
        meta = {
            "resourceVersion": found["metadata"]["resourceVersion"],
            "annotations": {names.DESIRED_ANNOTATION: format_desired_state(desired)},
        }
        try:
            api.patch(JOBS, names.master_name(job), {"metadata": meta}, namespace=namespace)
        except ConflictError:  # the Job controller counts pods in the same object
            if attempt == _MAX_ATTEMPTS - 1:
                raise
        else:
            return desired
    raise AssertionError("unreachable")


def _member_error(name: str, value: object) -> str:
    """What is wrong with one member of a wish; empty if nothing is."""
    if name == "stop":
        return "" if isinstance(value, bool) else "stop is true or false"
    if name not in ("min", "max"):
        return f"nobody knows {_shorten_text(name)}: min, max and stop can be wanted"
    least = 0 if name == "min" else 1
    if value is None or (type(value) is int and least <= value <= MOST_WORKERS):
        return ""
    return f"{name} is a whole number from {least} to {MOST_WORKERS}"


def _unreadable_state(text: str, why: str) -> DesiredState:
    return DesiredState(
        unreadable=f"the annotation {names.DESIRED_ANNOTATION} of the Job is ignored, {why}: {_shorten_text(text)}"
    )


def _shorten_text(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN_CHARS else f"{text[:_MAX_SHOWN_CHARS]}…"

"""What people want of a job that runs, pinned to it as an annotation: ``edl.dev/desired``, a JSON object."""

from __future__ import annotations

import json
from dataclasses import replace

from edl.api.cluster_port import MOST_WORKERS
from edl.api.errors import BadInputError
from edl.cluster.kubernetes import names
from edl.cluster.kubernetes.api_client import Api
from edl.cluster.kubernetes.api_errors import ConflictError
from edl.cluster.kubernetes.resource_kinds import JOBS, Manifest
from edl.cluster.status_port import Desired
from edl.core.strict_json import decode_json

_ATTEMPTS = 5
_SHOWN = 80
ANY = (0, 2**31 - 1)
"""Bounds of a spec that is not looked at."""


def desired_of(job: Manifest) -> Desired:
    """What is wanted of a Job, or what is wrong with it."""
    return read(job["metadata"].get("annotations", {}).get(names.DESIRED, ""))


def read(text: str) -> Desired:
    """The wish that an annotation holds; anybody may write one. One that is wrong changes no number of workers."""
    try:
        value = decode_json(text or "{}")
    except ValueError as error:
        return _unreadable(text, f"it is not JSON: {error}")
    if not isinstance(value, dict):
        return _unreadable(text, "it is not a JSON object")
    wrong = next((why for name, what in value.items() if (why := _wrong(name, what))), "")
    if wrong:
        return replace(_unreadable(text, wrong), stop=value.get("stop") is True)
    return Desired(value.get("min"), value.get("max"), value.get("stop") is True)


def write(desired: Desired) -> str:
    """The annotation; ``read`` gives an equal value back."""
    stop = {"stop": True} if desired.stop else {}
    return json.dumps({name: n for name, n in (("min", desired.min), ("max", desired.max)) if n is not None} | stop)


def merged(known: Desired, wanted: Desired, spec: tuple[int, int]) -> Desired:
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


def pin(api: Api, job: str, wanted: Desired, spec: tuple[int, int], *, namespace: str | None = None) -> Desired:
    """Want something of a job, beside what is wanted already; returns all that is wanted now.

    Raises:
        BadInputError: see ``merged``.
        NoRightError: the user may not patch Jobs here.
    """
    for attempt in range(_ATTEMPTS):
        found = api.get(JOBS, names.master(job), namespace)
        desired = merged(desired_of(found), wanted, spec)
        meta = {"resourceVersion": found["metadata"]["resourceVersion"], "annotations": {names.DESIRED: write(desired)}}
        try:
            api.patch(JOBS, names.master(job), {"metadata": meta}, namespace=namespace)
        except ConflictError:  # the Job controller counts pods in the same object
            if attempt == _ATTEMPTS - 1:
                raise
        else:
            return desired
    raise AssertionError("unreachable")


def _wrong(name: str, value: object) -> str:
    """What is wrong with one member of a wish; empty if nothing is."""
    if name == "stop":
        return "" if isinstance(value, bool) else "stop is true or false"
    if name not in ("min", "max"):
        return f"nobody knows {_shown(name)}: min, max and stop can be wanted"
    least = 0 if name == "min" else 1
    if value is None or (type(value) is int and least <= value <= MOST_WORKERS):
        return ""
    return f"{name} is a whole number from {least} to {MOST_WORKERS}"


def _unreadable(text: str, why: str) -> Desired:
    return Desired(unreadable=f"the annotation {names.DESIRED} of the Job is ignored, {why}: {_shown(text)}")


def _shown(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"

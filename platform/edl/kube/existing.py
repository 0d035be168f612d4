"""The job that has a name already: whether it runs, since when, and what its master said last."""

from __future__ import annotations

import json
from dataclasses import dataclass

from edl.kube import names
from edl.kube.kinds import CONFIGMAPS, JOBS, Manifest
from edl.kube.removal import Remains

_ENDS = {"Complete": "Done", "Failed": "Failed"}


@dataclass(frozen=True, slots=True)
class Existing:
    """A Job of that name.

    Attributes:
        phase: as its master published it, or as far as the Job tells.
        since: when it was submitted, as the API server writes times.
        ended: whether its master runs no more and never will again.
        leaving: whether it is being deleted.
    """

    uid: str
    phase: str
    since: str
    ended: bool
    leaving: bool


def existing(there: Remains) -> Existing | None:
    """The Job among what has a job's label; None when there is none, though other objects may be left."""
    for job in there.of(JOBS):
        meta, end = job["metadata"], _end(job)
        phase = end or _published(there) or ("Suspended" if job["spec"].get("suspend") else "Starting")
        since = str(meta.get("creationTimestamp", "")).replace("T", " ").replace("Z", " UTC")
        return Existing(meta["uid"], phase, since, end is not None, "deletionTimestamp" in meta)
    return None


def _end(job: Manifest) -> str | None:
    """How the Job ended; None while it has not."""
    for condition in job.get("status", {}).get("conditions") or ():
        if condition["type"] in _ENDS and condition["status"] == "True":
            return _ENDS[condition["type"]]
    return None


def _published(there: Remains) -> str:
    for page in there.of(CONFIGMAPS):
        text = (page.get("data") or {}).get("status.json")
        if text and page["metadata"]["name"] == names.status(page["metadata"]["labels"][names.JOB]):
            try:
                return str(json.loads(text).get("phase", ""))
            except ValueError:
                return ""
    return ""

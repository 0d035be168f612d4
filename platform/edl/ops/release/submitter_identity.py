"""Who a submitter is, as its pod is told, and what its job is called."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass

from edl.api.errors import BadInputError

_MINUTES = re.compile(r"[0-9]{1,8}")
"""What the CronJob controller puts behind the last dash of a Job's name: minutes since 1970."""
_DIGITS = 8
_TRUTH = {"": False, "false": False, "true": True}


@dataclass(frozen=True, slots=True)
class Identity:
    """A submitter, as its environment names it; see the package's docstring.

    Attributes:
        release: of the chart.
        job: name of the submitter Job.
        uid: of the submitter Job; also the name of its one submission.
        scheduled: whether a CronJob made it.
        resume: the run to go on with: its id, or ``latest``; None for a new one.
    """

    release: str
    job: str
    uid: str
    scheduled: bool = False
    resume: str | None = None

    @property
    def submission(self) -> str:
        """What all pods of this submitter call their one submission."""
        return self.uid

    def job_name(self, name: str) -> str:
        """The name of the job: that of its spec; of a scheduled one, another for each date."""
        if not self.scheduled:
            return name
        tail = self.job.rpartition("-")[2]
        if not _MINUTES.fullmatch(tail):  # kubectl create job --from=cronjob/…
            tail = hashlib.sha256(self.job.encode()).hexdigest()[:_DIGITS]
        return f"{name}-{tail}"


def identity_of(variables: Mapping[str, str]) -> Identity | None:
    """The submitter that the environment names; None if it names no release.

    Raises:
        BadInputError: something is missing, or contradicts itself.
    """
    release = variables.get("EDL_RELEASE", "")
    if not release:
        return None
    names = ("EDL_SUBMITTER_JOB", "EDL_SUBMITTER_UID")
    if missing := [name for name in names if not variables.get(name)]:
        raise _wrong(f"the environment of a submitter lacks {' and '.join(missing)}")
    flag = variables.get("EDL_SCHEDULED", "")
    if flag not in _TRUTH:
        raise _wrong(f"EDL_SCHEDULED is true or false, not {flag!r}")
    resume = variables.get("EDL_RESUME") or None
    if resume is not None and _TRUTH[flag]:
        raise _wrong("each date of a schedule is a job of its own, which has no earlier run to go on with")
    job, uid = (variables[name] for name in names)
    return Identity(release, job, uid, _TRUTH[flag], resume)


def _wrong(message: str) -> BadInputError:
    return BadInputError(message, where="edl-role submit", hint="The chart edl-job makes such pods as they must be.")

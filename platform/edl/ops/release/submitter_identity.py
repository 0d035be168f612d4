"""Who a submitter is, as its pod is told, and what its job is called."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass

from edl.api.errors import BadInputError

_CRON_MINUTES = re.compile(r"[0-9]{1,8}")
"""What the CronJob controller puts behind the last dash of a Job's name: minutes since 1970."""
_DIGEST_CHARS = 8
_BOOLEAN_WORDS = {"": False, "false": False, "true": True}


@dataclass(frozen=True, slots=True)
class SubmitterIdentity:
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
    def submission_id(self) -> str:
        """What all pods of this submitter call their one submission."""
        return self.uid

    def derive_job_name(self, name: str) -> str:
        """The name of the job: that of its spec; of a scheduled one, another for each date."""
        if not self.scheduled:
            return name
        tail = self.job.rpartition("-")[2]
        if not _CRON_MINUTES.fullmatch(tail):  # kubectl create job --from=cronjob/…
            tail = hashlib.sha256(self.job.encode()).hexdigest()[:_DIGEST_CHARS]
        return f"{name}-{tail}"


def read_identity(variables: Mapping[str, str]) -> SubmitterIdentity | None:
    """The submitter that the environment names; None if it names no release.

    Raises:
        BadInputError: something is missing, or contradicts itself.
    """
    release = variables.get("EDL_RELEASE", "")
    if not release:
        return None
    names = ("EDL_SUBMITTER_JOB", "EDL_SUBMITTER_UID")
    if missing := [name for name in names if not variables.get(name)]:
        raise _environment_error(f"the environment of a submitter lacks {' and '.join(missing)}")
    flag = variables.get("EDL_SCHEDULED", "")
    if flag not in _BOOLEAN_WORDS:
        raise _environment_error(f"EDL_SCHEDULED is true or false, not {flag!r}")
    resume = variables.get("EDL_RESUME") or None
    if resume is not None and _BOOLEAN_WORDS[flag]:
        raise _environment_error("each date of a schedule is a job of its own, which has no earlier run to go on with")
    job, uid = (variables[name] for name in names)
    return SubmitterIdentity(release, job, uid, _BOOLEAN_WORDS[flag], resume)


def _environment_error(message: str) -> BadInputError:
    return BadInputError(message, where="edl-role submit", hint="The chart edl-job makes such pods as they must be.")

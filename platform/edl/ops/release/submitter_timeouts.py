"""How long a submitter puts up with what fails: absences, refusals that may pass, a master that does not start."""

from __future__ import annotations

from edl.api.errors import RetryableError
from edl.ops.master_start import (
    PERMANENT_WAIT_REASONS,
    PULL_FAILED_REASON,
    SETTLE_SECONDS,
    MasterPodStatus,
    MasterStage,
)

API_AWAY_SECONDS = 120.0
"""An absence of the API server that is waited out within one pod."""
REFUSAL_RETRY_SECONDS = 15.0
"""A refusal that is looked at again: what goes counts in quotas a little longer, RBAC is late after a restart of the
server, and claims and accounts of the same installation may come a moment later."""
FAILED_START_SECONDS = 30.0
"""For a master that fails before its first word: registries, networks and RBAC have bad moments, and Kubernetes tries
again."""
CLEANUP_TIMEOUT_SECONDS = 300.0
"""How long one pod of a submitter waits until the pods of an earlier job are gone."""
_SIGNAL_EXIT_BASE = 128
"""Above this exit code a signal ended the master."""


class RetryDeadline:
    """Counts since the first failure of a row."""

    def __init__(self) -> None:
        self._since: tuple[bool, float] | None = None

    def reset(self) -> None:
        """Something worked: the row is over."""
        self._since = None

    def may_retry(self, error: Exception, now: float) -> bool:
        """Whether to try again after ``error``; ``now``: monotonic seconds."""
        away = isinstance(error, RetryableError)
        if self._since is None or self._since[0] != away:
            self._since = away, now
        return now - self._since[1] < (API_AWAY_SECONDS if away else REFUSAL_RETRY_SECONDS)


class CleanupTimeout:
    """Counts since an earlier job began to go; the next one that goes has its own time."""

    def __init__(self) -> None:
        self._since: float | None = None

    def has_expired(self, *, left: bool, now: float) -> bool:
        """Whether it does not go; ``left``: something of it is still there, ``now``: monotonic seconds."""
        if not left:
            self._since = None
        elif self._since is None:
            self._since = now
        return self._since is not None and now - self._since >= CLEANUP_TIMEOUT_SECONDS


class StartTimeout:
    """Judges the sights of a master that has published nothing yet."""

    def __init__(self) -> None:
        self._since: tuple[bool, float] | None = None
        """Whether a container was created at all, and since when it fails."""
        self._running: float | None = None

    def has_expired(self, sight: MasterPodStatus, now: float) -> bool:
        """Whether the master will not start; a pod that was taken from its node says nothing about that."""
        if sight.stage is not MasterStage.FAILED or not _is_job_failure(sight):
            self._record_progress(sight, now)
            return False
        self._running, created = None, sight.exit_code is not None
        if self._since is None or self._since[0] != created:
            self._since = created, now
        return now - self._since[1] >= FAILED_START_SECONDS

    def _record_progress(self, sight: MasterPodStatus, now: float) -> None:
        """A container that comes to be had its image; one that crashes again and again runs for moments between.

        A pull that failed once more is the same failure that a back-off is: it neither ends one nor begins one.
        """
        if sight.reason == PULL_FAILED_REASON:
            return
        if sight.stage is not MasterStage.RUNNING:
            self._running = None
        elif self._running is None:
            self._running = now
        settled = self._running is not None and now - self._running >= SETTLE_SECONDS
        if settled or (self._since is not None and not self._since[0]):
            self._since = None


def _is_job_failure(sight: MasterPodStatus) -> bool:
    """Whether the failure is the job's; an eviction or a lost node is not."""
    if sight.exit_code is None:
        return sight.reason in PERMANENT_WAIT_REASONS
    return sight.exit_code <= _SIGNAL_EXIT_BASE

"""What a face needs to know about the job that it shows, wherever that runs."""

from __future__ import annotations

from typing import Protocol

from edl.reporting.run_outcome import RunOutcome


class RunInfo(Protocol):
    """One run, planned: on this machine, ``edl.ops.local_run_plan``; on a cluster, ``edl.ops.job_following``."""

    @property
    def job(self) -> str:
        """The job's name."""
        ...

    @property
    def run_id(self) -> str:
        """The run's id."""
        ...

    @property
    def logs(self) -> str | None:
        """Directory of the run's logs; None: the summary says it."""
        ...

    @property
    def output(self) -> str | None:
        """Where predictions go; None for a run that trains."""
        ...

    def lines(self) -> list[str]:
        """The plan, for people."""
        ...

    def next_steps(self, outcome: RunOutcome) -> list[str]:
        """What people may do after the end."""
        ...

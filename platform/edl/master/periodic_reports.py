"""Telling people how it is going, to each place on a thread of its own: a disk or a server that hangs delays only its
own account."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

from edl.api.status import Status
from edl.master import guarded_threads, progress_log, status_publication, status_reporter
from edl.master.progress_log import ProgressLogger
from edl.master.shell import MasterShell
from edl.master.status_publication import RunPublisher
from edl.master.status_reporter import StatusReporter
from edl.storage import training_history
from edl.storage.run_directory import RunDirectory


class PeriodicReports:
    """The status in the run directory, its course in the log and, where there is a board, all of it on the board.

    Args:
        shell: whose lock is held while the job is looked at.
        reporter: knows the status, writes it.
        publisher: of the board; None where there is none.
        run: the run directory.
    """

    def __init__(
        self, shell: MasterShell, reporter: StatusReporter, publisher: RunPublisher | None, run: RunDirectory
    ) -> None:
        self._run = run
        self._shell, self._reporter, self._publisher = shell, reporter, publisher
        self._closing = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Begin to tell."""
        self._begin("status", status_reporter.PERIOD_SECONDS, self._reporter.write_status)
        self._begin("progress", progress_log.PERIOD_SECONDS, ProgressLogger().tell)
        self._begin(
            "history", training_history.HISTORY_PERIOD_SECONDS, training_history.TrainingHistory(self._run).tell
        )
        if (publisher := self._publisher) is not None:
            self._begin("board", status_publication.PERIOD_SECONDS, publisher.tell)
            self._begin("timeline", status_publication.KEEP_SECONDS, lambda status: publisher.keep())

    def close(self) -> None:
        """Tell nothing more."""
        self._closing.set()
        for thread in self._threads:
            thread.join()

    def now(self) -> Status:
        """The job as it is."""
        with self._shell.lock:
            return self._reporter.status()

    def _begin(self, name: str, period: float, report: Callable[[Status], None]) -> None:
        self._threads.append(
            guarded_threads.start_guarded_thread(name, partial(self._run_loop, period, report), self._shell.fail)
        )

    def _run_loop(self, period: float, report: Callable[[Status], None]) -> None:
        """A master that may not decide knows nothing that another one does not know better."""
        while not self._closing.wait(period):
            if self._shell.time.runs():
                report(self.now())

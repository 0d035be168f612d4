"""The worker's loop: take a task, do it, take the next; what goes wrong is told to the master."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from edl.api.errors import BadInputError, RefusedError
from edl.transport.peer_errors import refusal_kind
from edl.worker import failure_report
from edl.worker.lease_client import LeaseClient, LeasedTask
from edl.worker.master_session import MasterLostError, MasterSession
from edl.worker.progress_reporter import ProgressReporter
from edl.worker.shutdown_gate import LeavingError, ShutdownGate

_LOG = logging.getLogger(__name__)

_FINAL_REPORT_SECONDS = 30.0
"""Seconds that the last reports may take before the worker ends."""


class TaskLoop:
    """Does tasks until there are no more.

    Args:
        session: the master, which is told of failures.
        leases: where tasks come from.
        progress: where results go.
        gate: says whether the worker was told to go.
        handlers: what to do, by kind of task.
    """

    def __init__(
        self,
        session: MasterSession,
        leases: LeaseClient,
        progress: ProgressReporter,
        gate: ShutdownGate,
        handlers: Mapping[str, Callable[[LeasedTask], None]],
    ) -> None:
        self._session = session
        self._leases = leases
        self._progress = progress
        self._gate = gate
        self._handlers = handlers

    def run(self) -> int:
        """Work until the master says stop, or something fails for good; returns the exit code.

        Raises:
            LeavingError: the worker was told to go; whoever closed the gate ends the process.
        """
        while (task := self._leases.take()) is not None:
            code = self._do(task)
            if code is not None:
                return code
            self._leases.release(task)
        self._progress.flush(_FINAL_REPORT_SECONDS)
        return 0

    def _do(self, task: LeasedTask) -> int | None:
        """Do one task; the exit code if the worker must end."""
        if self._gate.closed:
            raise LeavingError
        if not self._leases.alive(task.lease):
            return None
        try:
            self._find_handler(task)(task)
        except (LeavingError, MasterLostError):
            raise
        except RefusedError as error:
            if refusal_kind(error) != "pin":
                return self.fail(error, task.lease)
            _LOG.info("lease %d: dropped, the pinned version is gone: %s", task.lease, error)
            self._progress.drop(task.lease)
        except Exception as error:  # noqa: BLE001  everything is told to the master, which decides
            return self.fail(error, task.lease)
        return None

    def _find_handler(self, task: LeasedTask) -> Callable[[LeasedTask], None]:
        try:
            return self._handlers[task.kind]
        except KeyError:
            raise BadInputError(f"this worker does not know tasks of kind {task.kind!r}") from None

    def fail(self, error: BaseException, lease: int = 0) -> int | None:
        """Tell the master; None if this worker should drop the task and go on."""
        failure = failure_report.describe_failure(error)
        _LOG.error("%s", failure.message, exc_info=error)
        self._progress.drop(lease)
        fatal = self._session.fail(failure.kind, failure.message, failure.detail, lease)
        return failure.exit_code if fatal or failure.kind == "crash" else None

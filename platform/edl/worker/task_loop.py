"""The task loop: take a task, run it, take the next; failures are reported to the master."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from edl.api.errors import BadInputError, EdlError, RefusedError, StorageError
from edl.transport.peer_errors import refusal_kind
from edl.worker.graceful_shutdown import LeavingError, ShutdownGate
from edl.worker.lease_client import (
    FINAL_REPORT_SECONDS,
    PLACEMENT_CHECK_KIND,
    LeaseClient,
    LeasedTask,
    ProgressReporter,
)
from edl.worker.master_session import MasterLostError, MasterSession
from edl.worker.not_finite import NotFiniteError

# --------------------------------------------------------------------------------------------------
# Failures of a worker, as reported to the master and to users.


@dataclass(frozen=True, slots=True)
class WorkerFailure:
    """The content of a ``Fail`` message and the matching exit code.

    Attributes:
        kind: ``input``, ``nan``, ``refused``, ``storage`` or ``crash``; all but the last end the job.
        message: for users: the error, its place and a remedy.
        detail: a traceback if it helps: the user's frames if the user's code raised, all frames of an
            unexpected error.
        exit_code: exit code of the worker if the master tells it to exit.
    """

    kind: str
    message: str
    detail: str
    exit_code: int


def describe_failure(error: BaseException) -> WorkerFailure:
    """What the master is told of an exception: its kind decides whether a new worker may help."""
    if isinstance(error, EdlError):
        # UserCodeError has a detail. It is looked up by attribute because its module is not
        # imported here.
        return WorkerFailure(_failure_kind(error), str(error), getattr(error, "detail", ""), error.exit_code)
    detail = "".join(traceback.format_exception(error))
    first_line = (str(error).strip().splitlines() or [""])[0]
    return WorkerFailure("crash", f"{type(error).__name__}: {first_line}", detail, 1)


def _failure_kind(error: EdlError) -> str:
    kinds = {NotFiniteError: "nan", BadInputError: "input", StorageError: "storage", RefusedError: "refused"}
    return next((kind for of, kind in kinds.items() if isinstance(error, of)), "crash")


_LOG = logging.getLogger(__name__)

_FAILURES = (Exception, KeyboardInterrupt, SystemExit)
"""Every error is reported to the master, which decides. The last two only code can raise: workers ignore SIGINT."""


class TaskLoop:
    """Runs tasks until there are no more.

    Args:
        session: the session with the master, for reports of failures.
        leases: returns the tasks.
        progress: receives the results.
        gate: shows whether the worker was asked to stop.
        handlers: the handler of each kind of task.
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
        """Run tasks until the master has no more work or a failure is permanent; returns the exit code.

        Raises:
            LeavingError: the worker was asked to stop; the thread that closed the gate ends the process.
        """
        while (task := self._leases.next_task()) is not None:
            exit_code = self.run_task(task)
            if exit_code is not None:
                return exit_code
        self._progress.flush(FINAL_REPORT_SECONDS)
        return 0

    def run_task(self, task: LeasedTask) -> int | None:
        """Run one task and request another one; returns the exit code if the worker must exit.

        Raises:
            LeavingError: the worker was asked to stop.
        """
        exit_code = self._run_task(task)
        if exit_code is None:
            self._leases.release_slot(task)
        return exit_code

    def _run_task(self, task: LeasedTask) -> int | None:
        """Run one task; returns the exit code if the worker must exit."""
        if self._gate.closed:
            raise LeavingError
        # Revoked while it waited in the queue.
        if not self._leases.is_held(task.lease_id):
            return None
        # Only a worker that has declared a model to parameter servers has something to check.
        if task.kind == PLACEMENT_CHECK_KIND and task.kind not in self._handlers:
            return None
        try:
            self._find_handler(task)(task)
        # No failures of the task: the first ends the process in order, and of the second no master
        # would hear.
        except (LeavingError, MasterLostError):
            raise
        except RefusedError as error:
            # A lost pin is no failure: the master abandons the evaluation and takes another cut.
            if refusal_kind(error) != "pin":
                return self.report_failure(error, task.lease_id)
            _LOG.info("lease %d: dropped, the pinned version is gone: %s", task.lease_id, error)
            self._progress.drop_lease(task.lease_id)
        except _FAILURES as error:
            return self.report_failure(error, task.lease_id)
        return None

    def run_guarded(self, train: Callable[[], int]) -> int:
        """Run a loop of another kind; its failures are reported to the master. Returns the exit code.

        Raises:
            LeavingError: the worker was asked to stop.
            MasterLostError: no master is there that could be told.
        """
        try:
            code = train()
        except (LeavingError, MasterLostError):
            raise
        except _FAILURES as error:
            return self.report_failure(error) or 1
        self._progress.flush(FINAL_REPORT_SECONDS)
        return code

    def _find_handler(self, task: LeasedTask) -> Callable[[LeasedTask], None]:
        try:
            return self._handlers[task.kind]
        except KeyError:
            raise BadInputError(f"this worker does not support tasks of kind {task.kind!r}") from None

    def report_failure(self, error: BaseException, lease_id: int = 0) -> int | None:
        """Report a failure to the master; None if this worker should drop the task and continue."""
        failure = describe_failure(error)
        _LOG.error("%s", failure.message, exc_info=error)
        self._progress.drop_lease(lease_id)
        fatal = self._session.report_failure(failure.kind, failure.message, failure.detail, lease_id)
        # After a crash the worker exits whatever the answer: the master decides when its pod has
        # ended.
        return failure.exit_code if fatal or failure.kind == "crash" else None

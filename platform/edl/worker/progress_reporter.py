"""What this worker tells the master about its leases: batched progress, heartbeats, reports.

Steps wait for nothing here; everything is sent by one thread, in order.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable

from edl.api.errors import EdlError
from edl.transport import edl_pb2 as pb
from edl.worker.lease_client import LeasedTask
from edl.worker.master_session import MasterSession
from edl.worker.progress_buffer import ProgressBuffer, TaskReport

_LOG = logging.getLogger(__name__)

REPORT_INTERVAL_SECONDS = 0.1
"""Seconds between two messages at least: a report costs the master an fsync."""
_MAX_WAIT_SECONDS = 60.0
"""Seconds: nothing is due while no lease is held."""


class ProgressReporter:
    """Collects steps and results, and sends them.

    Args:
        session: the master.
        lost: is told of leases that are not this worker's any more.
        interval: seconds between two messages at least.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        session: MasterSession,
        lost: Callable[[Iterable[int]], None],
        *,
        interval: float = REPORT_INTERVAL_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._session = session
        self._lost = lost
        self._interval = interval
        self._clock = clock
        self._changed = threading.Condition()
        self._send_lock = threading.Lock()
        self._held: dict[int, ProgressBuffer] = {}
        self._report_queue: deque[TaskReport] = deque()
        self._last_sent_at = clock()
        self._stopped = False
        self._failure: EdlError | None = None

    def hold(self, task: LeasedTask) -> None:
        """A lease was granted: keep it alive."""
        with self._changed:
            self._held[task.lease] = ProgressBuffer(task.expires_seconds)
            self._changed.notify_all()

    def stepped(self, lease: int, through: int, *, loss: float | None, skipped: int = 0) -> None:
        """Steps ``0 .. through - 1`` of a lease are in, on all PS.

        Args:
            lease: which one.
            through: steps that are in.
            loss: of the newest step; None if it applied nothing.
            skipped: corrupt records of the newest step that were left out.
        """
        with self._changed:
            held = self._held.get(lease)
            if held is None:
                return
            if held.through == held.told:  # else there is news already, and the sending thread waits for its time only
                self._changed.notify_all()
            held.through = through
            held.skipped += skipped
            if loss is not None:
                held.loss_sum += loss
                held.loss_steps += 1

    def finish(self, lease: int, result: bytes = b"") -> None:
        """A task is done: report it, after everything that was said before."""
        with self._changed:
            held = self._held.pop(lease, None)
            if held is not None:
                self._report_queue.append(TaskReport(held.message(lease), result))
            self._changed.notify_all()

    def drop(self, lease: int) -> None:
        """Say no more about a lease."""
        with self._changed:
            self._held.pop(lease, None)

    def leases(self) -> list[pb.LeaseProgress]:
        """Everything that is in and not reported yet, for ``Leave``."""
        with self._changed:
            held = [held.message(lease) for lease, held in self._held.items()]
            return held + [report.last for report in self._report_queue]

    def known(self) -> list[int]:
        """The leases that the master may believe to be this worker's."""
        with self._changed:
            return [*self._held, *(report.last.lease for report in self._report_queue)]

    def count_pending_reports(self) -> int:
        """Reports that the master has not answered yet."""
        with self._changed:
            return len(self._report_queue)

    def send(self) -> None:
        """Tell everything now: progress of the held leases first, then reports, in order."""
        with self._send_lock:
            self._send_progress()
            while self._report_queue:
                self._send_report(self._report_queue[0])
                with self._changed:
                    self._report_queue.popleft()
                    self._changed.notify_all()

    def _send_progress(self) -> None:
        with self._changed:
            sent = [held.take(lease) for lease, held in self._held.items()]
        if not sent:
            return
        reply = self._session.progress(sent)
        self._told()
        self._drop_lost(reply.lost)

    def _send_report(self, report: TaskReport) -> None:
        reply = self._session.report(report.last, report.result)
        self._told()
        if not reply.accepted:
            _LOG.info("lease %d: the report was not taken: %s", report.last.lease, reply.reason)

    def _told(self) -> None:
        with self._changed:
            self._last_sent_at = self._clock()

    def _drop_lost(self, lost: Iterable[int]) -> None:
        numbers = list(lost)
        if not numbers:
            return
        _LOG.info("leases lost: %s", ", ".join(map(str, numbers)))
        for number in numbers:
            self.drop(number)
        self._lost(numbers)

    def run(self) -> None:
        """Send what is new at most every ``interval``, and a heartbeat when nothing is; until ``stop``."""
        try:
            while self._wait_until_due():
                self.send()
        except EdlError as error:
            with self._changed:
                self._failure = error
                self._changed.notify_all()

    def _wait_until_due(self) -> bool:
        with self._changed:
            while not self._stopped:
                since = self._clock() - self._last_sent_at
                due = self._interval if self._news() else self._heartbeat_seconds()
                if since >= due:
                    return True
                self._changed.wait(min(due - since, _MAX_WAIT_SECONDS))
            return False

    def _news(self) -> bool:
        return bool(self._report_queue) or any(held.through > held.told for held in self._held.values())

    def _heartbeat_seconds(self) -> float:
        return min((held.expires_seconds / 4 for held in self._held.values()), default=float("inf"))

    def flush(self, timeout: float) -> None:
        """Wait until the master has answered every report.

        Raises:
            EdlError: the sending thread failed, or it takes longer than ``timeout`` seconds.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._report_queue or self._failure is not None, timeout)
            if self._failure is not None:
                raise self._failure

    def stop(self) -> None:
        """End ``run``; nothing more is sent."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

"""Logs the progress of training: ``Loss`` every few seconds, and each ``EvaluationResult``.

For ``edl logs``, ``kubectl logs`` and log collectors; ``edl status`` shows more.

For who watches a job with ``edl logs`` or ``kubectl logs``, and for those who collect logs: whoever asks for the status
(``edl status``) learns more.
"""

from __future__ import annotations

import logging

from edl.api.events import EvaluationEnded, JobEvent
from edl.api.status import Status
from edl.reporting.event_text import format_metrics

log = logging.getLogger(__name__)

PERIOD_SECONDS = 5.0


class ProgressLogger:
    """Logs each training step count once: a waiting job logs nothing."""

    def __init__(self) -> None:
        self._logged_step = -1

    def log_status(self, status: Status) -> None:
        """Log the newest loss if a step was completed since; call every ``PERIOD_SECONDS``."""
        if status.loss is None or status.step == self._logged_step:
            return
        self._logged_step = status.step
        epoch = f", epoch {status.epoch}/{status.epochs}" if status.epochs > 1 and status.epoch else ""
        records = f"{status.records_done:,} of {status.records_total:,} records"
        log.info("Loss %.4g at step %s%s, %s", status.loss, f"{status.step:,}", epoch, records)


def log_event(event: JobEvent) -> None:
    """Log the result of an evaluation."""
    if isinstance(event, EvaluationEnded):
        log.info("Evaluation of step %s: %s", f"{event.step:,}", format_metrics(event.metrics) or "done")

"""Logs a worker's training loss at intervals of steps: ``log.loss_every_steps``."""

from __future__ import annotations

import logging

_LOG = logging.getLogger(__name__)


class LossLog:
    """Logs ``Loss = 0.3105, steps = 200`` once in every interval of steps.

    Workers of parameter servers share the steps, so that one worker sees some of them only. It logs the first step
    that it sees in an interval, with the number of steps that the job has made.

    Args:
        every_steps: length of an interval; None logs nothing.
    """

    def __init__(self, every_steps: int | None) -> None:
        self._every_steps = every_steps
        self._interval: int | None = None

    def end_step(self, steps: int, loss: float | None) -> None:
        """Log if a new interval has begun.

        Args:
            steps: steps that the job has made.
            loss: of the newest one; None if it had no records.
        """
        if self._every_steps is None or loss is None:
            return
        interval = steps // self._every_steps
        # A worker that comes later has missed the intervals before, and the step that began this one.
        before = (steps - 1) // self._every_steps if self._interval is None else self._interval
        if interval > before:
            _LOG.info("Loss = %.4g, steps = %d", loss, steps)
        self._interval = max(interval, before)

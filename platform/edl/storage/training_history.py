"""Records the course of training in the run's directory: a line with loss and speed every few seconds."""

from __future__ import annotations

import logging

from edl.api.errors import StorageError
from edl.api.status import Status
from edl.jobfile.section_type import to_json
from edl.storage.durable_files import append_json_line
from edl.storage.run_directory import RunDirectory

log = logging.getLogger(__name__)

HISTORY_PERIOD_SECONDS = 5.0
"""Time between two lines of about 150 bytes, which is 2.6 MB per day."""
_PENDING_STATES = ("pending", "leaving")


class TrainingHistory:
    """Appends to ``history.jsonl``, also when a run is resumed. A full disk is logged and does not stop the job.

    Args:
        run: the run.
    """

    def __init__(self, run: RunDirectory) -> None:
        self._run = run
        self._last_step, self._last_time = -1, float("-inf")

    def record_status(self, status: Status) -> None:
        """Add a line if steps were done since the last one, and the period has passed or training is over."""
        over = status.phase not in ("Starting", "Training")
        # 0.9: the times at which a status is written are not exact
        if status.step == self._last_step or (
            status.updated - self._last_time < 0.9 * HISTORY_PERIOD_SECONDS and not over
        ):
            return
        self._last_step, self._last_time = status.step, status.updated
        pending = sum(worker.state in _PENDING_STATES for worker in status.workers)
        line = {
            "time": status.updated,
            "step": status.step,
            "epoch": status.epoch,
            "records_done": status.records_done,
            "loss": to_json(status)["loss"],  # null if it is NaN or infinite, which JSON cannot express
            "samples_per_second": status.samples_per_second,
            "workers": len(status.workers) - pending,
            "pending": pending,
        }
        try:
            append_json_line(self._run.history, line)
        except StorageError as error:
            log.error("%s", error)

"""What a checkpoint that cannot be written does to the job.

A full disk must not cost more than was promised: what went back with a lost parameter server is bounded by the newest
checkpoint. So training goes on for one interval after a checkpoint was due and not written, then it waits, with the
reason. Saving is tried again meanwhile (``snapshots``); when it works training goes on. After
``checkpoint.full_timeout`` without room the job fails, and a run that failed so can be resumed.
"""

from __future__ import annotations

from edl.core.saved_checkpoint import CheckpointFailure
from edl.core.state import JobState


def record_save_failure(state: JobState, reason: str) -> None:
    """Take note that a checkpoint was not written; since when training waits stays as it was."""
    since = state.checkpoint_failure.paused_at if state.checkpoint_failure else None
    state.checkpoint_failure = CheckpointFailure(reason, since)


def clear_save_failure(state: JobState) -> None:
    """Take note that a checkpoint was written."""
    state.checkpoint_failure = None


def steps_before_pause(state: JobState) -> int | None:
    """Steps that may still be handed out without a new checkpoint; None: saving works, or no checkpoint is due."""
    every, training = state.settings.checkpoint_steps, state.training
    if state.checkpoint_failure is None or training is None or not every:
        return None
    was_due = (state.last_checkpoint // every + 1) * every
    return max(0, was_due + every - training.done_steps - training.outstanding_steps)


def advance_save_failure(state: JobState, now: float) -> None:
    """Pause training one interval after a checkpoint was due; end the job when there is no room for too long."""
    failure = state.checkpoint_failure
    if failure is None:
        return
    if failure.paused_at is None and (state.checkpoint is None or steps_before_pause(state) == 0):
        failure.paused_at = now  # what people hear of it: module ``stall``
    if failure.paused_at is not None and now >= failure.paused_at + state.settings.checkpoint_full_timeout:
        seconds = state.settings.checkpoint_full_timeout
        state.end(
            "Failed",
            f"no checkpoint could be written, and training waited for {seconds:g} s (checkpoint.full_timeout): "
            f"{failure.reason}",
            kind="storage",
        )


def pause_deadline(state: JobState) -> float:
    """When ``advance`` ends the job."""
    failure = state.checkpoint_failure
    if failure is None or failure.paused_at is None or state.ended:
        return float("inf")
    return failure.paused_at + state.settings.checkpoint_full_timeout

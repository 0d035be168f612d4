"""Files of ``ModelCheckpoint`` under strategy AllReduce: all pause at the step of a file until one rank has written it.

So the file has the variables of exactly this step, which is in the ledger, and any member can write it: if the writer
is lost, another one gets the task. An epoch begins when all records of the one before are in the ledger and its files
are written, so the file of an epoch has all records of it and none of the next one, as with ``keras.fit``. An epoch
has no file if records of the next one had been trained when the callback was declared, in a run that was resumed.
"""

from __future__ import annotations

from typing import Any

from edl.core.ledger import MODEL_FILE, Ledger, single_task_ledger
from edl.core.record_ranges import RecordRange
from edl.core.state import JobState
from edl.core.world_rounds import RoundPhase, WorldRounds


def is_due(state: JobState) -> bool:
    """Whether a file of the newest step in the ledger has to be written before the next step."""
    return bool(_due_places(state))


def _due_places(state: JobState) -> tuple[int, ...]:
    rounds, training = state.world, state.training_ledger
    if rounds is None or training is None or not state.model_files.specs:
        return ()
    return state.model_files.due(rounds.committed_step, _ended_epochs(state, training))


def _ended_epochs(state: JobState, training: Ledger) -> int | None:
    """The epochs that have ended at the newest step in the ledger; None: it is the middle of an epoch.

    An epoch also ends where training does, as with ``keras.fit``.
    """
    epoch, left = training.open_epoch()
    if left in (0, training.plan.records):
        return epoch
    return epoch + 1 if state.is_training_over() else None


def pause_step(state: JobState) -> int:
    """The step after which all ranks pause for a file: they stop there by themselves; 0: there is none."""
    return state.model_files.next_step(state.step) if state.world is not None else 0


def may_begin(state: JobState, ledger: Ledger, work: RecordRange) -> bool:
    """Whether training records may be leased, or the files of the epoch before come first."""
    if not state.model_files.has_epoch_files:
        return True
    return work.epoch <= ledger.open_epoch()[0] and not is_due(state)


def begin_if_paused(state: JobState, rounds: WorldRounds) -> None:
    """No rank trains any more, and all have the same variables: let one write the files that are due."""
    if rounds.phase is RoundPhase.RUNNING and is_due(state) and MODEL_FILE not in state.ledgers:
        state.ledgers[MODEL_FILE] = single_task_ledger(MODEL_FILE)
        state.notify_workers()


def may_write(state: JobState, worker: str) -> bool:
    """Whether a worker may write the files that are due: the first member that stays.

    It has seen more steps of the epoch than a member that joined later, so it knows the mean loss for their names.
    """
    rounds = state.world
    if rounds is None or not rounds.trains(worker) or not is_due(state):
        return False
    return worker == next((x for x in rounds.members if x not in rounds.leaving and x not in rounds.lost), None)


def task_payload(state: JobState) -> dict[str, Any] | None:
    """The task of the writer. It returns ``written`` when the files are on disk."""
    training, files, step = state.training_ledger, state.model_files, state.step
    places = _due_places(state)
    if training is None or not places:
        return None
    ended = _ended_epochs(state, training)
    return {
        "files": [
            {"filepath": files.specs[place].filepath, "weights_only": files.specs[place].weights_only}
            for place in places
        ],
        "written": [[place, files.mark_of(place, step, ended)] for place in places],
        "epoch": training.open_epoch()[0] + 1 if ended is None else ended,
        "step": step,
        "loss": state.counters.loss,
    }


def describe_pause(state: JobState) -> str:
    """Why all ranks pause, for users; empty if they do not."""
    return "training pauses until a worker has written the file of ModelCheckpoint" if is_due(state) else ""

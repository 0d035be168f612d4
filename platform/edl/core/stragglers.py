"""Members of AllReduce whose main thread hangs while the others wait for it: users learn which, and it is replaced.

Such a worker (its ``feed`` reads from a dead network file system, a callback loops for ever) sends heartbeats like any
other, and its connections are intact. So nothing else notices it, and all others would wait without limit. A long step
is no such thing: the limit for users' eyes follows the duration of steps, and no worker is lost before
``REPLACEMENT_SECONDS``. A wrong replacement is worse than a late one.

While all pause, main threads evaluate, export or write files. The lease of a worker that hangs in such a task returns
by a limit of its own, but nobody can do the task: the others wait in an exchange until this worker enters it, too.
Before a round starts, its members call callbacks, and one of them may read a checkpoint.
"""

from __future__ import annotations

from typing import NamedTuple

from edl.api.cluster_port import Role
from edl.api.run_events import WarningRaised
from edl.core import world_evaluations
from edl.core.lease_timeouts import SILENCE_FLOOR, STUCK_FIRST
from edl.core.ledger import BEST_MODEL, EVALUATION, EXPORT, METRICS, MODEL_FILE, TRAINING
from edl.core.scaling import terminate_worker
from edl.core.short_list import format_short_list
from edl.core.state import JobState
from edl.core.world_rounds import NO_ROUND, RoundPhase, WorldRounds

REPLACEMENT_SECONDS = 3600.0
"""Least seconds for which all others have waited for a worker before it is replaced.

Many times longer than a step: TensorFlow may trace a large model for minutes, and a callback at the end of an epoch may
evaluate for many more, with all heartbeats going on. It doubles with each replacement after which no step was made:
what takes longer than an hour is done at the second or third time, and a minibatch that hangs for ever costs few pods.
"""


def watch_stragglers(state: JobState, late_seconds: float, now: float) -> dict[str, str]:
    """Tell users for which members the others wait, and ask those to stop that have hung for too long.

    Call this in a tick.

    Args:
        late_seconds: for how long the master was blocked.

    Returns:
        The workers that the rounds must not wait for any more, with the reason.
    """
    rounds, arrivals = state.world, state.step_arrivals
    if rounds is None or state.has_ended or not state.pods_synced:
        return {}
    arrivals.excuse(late_seconds, now)
    arrivals.follow_round(rounds.round, rounds.phase, now)
    if not _is_watched(state, rounds):
        arrivals.count_anew(now)
        return {}
    if _is_paused(state, rounds):
        # Its length is none of a step.
        arrivals.committed_at = None
    wait = _find_wait(state, rounds, now)
    if wait is None:
        arrivals.description = ""
        return {}
    arrivals.description = _describe_wait(state, rounds, wait)
    if not arrivals.is_reported:
        arrivals.is_reported = True
        state.emit(WarningRaised(arrivals.description))
    if wait.seconds < max(wait.limit, REPLACEMENT_SECONDS * 2**arrivals.replacements):
        return {}
    return _replace(state, wait, now) if _may_replace(state, rounds, wait) else {}


class LongWait(NamedTuple):
    """Members that are late for longer than usual, and those that wait.

    Attributes:
        late: whose main thread has given no sign for ``seconds``; none: all are in a step of their own.
        limit: the seconds after which users hear of it.
    """

    late: list[str]
    waiting: list[str]
    seconds: float
    limit: float


def _find_wait(state: JobState, rounds: WorldRounds, now: float) -> LongWait | None:
    """Who waits for whom, for longer than usual; None: nobody, or this is unknown."""
    arrivals, is_paused = state.step_arrivals, _is_paused(state, rounds)
    limit = arrivals.step_timeouts.stuck_seconds
    if is_paused:
        limit = max(limit, _task_limit(state))
    late_and_waiting = _find_late(state, rounds, now) if now - arrivals.since >= limit else None
    if late_and_waiting is None:
        return None
    late, waiting = late_and_waiting
    if late:
        if any(_has_other_task(state, worker) for worker in late):
            limit = max(limit, _task_limit(state))
        # Others that are late go on with their tasks.
        late = [worker for worker in late if arrivals.idle_seconds(worker, now) >= limit]
        seconds = min((arrivals.idle_seconds(worker, now) for worker in late), default=0.0)
    elif is_paused or rounds.phase is RoundPhase.CONFIRMING or any(_has_other_task(state, each) for each in waiting):
        # Each is at a task of its own, whose lease has a limit of its own; or the state is copied, of any size.
        return None
    else:
        # The step of their own begins when the last one has entered it.
        seconds = now - arrivals.newest_arrival
    return LongWait(late, waiting, seconds, limit) if seconds >= limit else None


def _is_watched(state: JobState, rounds: WorldRounds) -> bool:
    """Whether members may wait for each other; a stop has a limit of its own."""
    return state.training_ledger is not None and state.pending_stop is None and rounds.round != NO_ROUND


def _is_paused(state: JobState, rounds: WorldRounds) -> bool:
    """Whether nobody has to make a step, and some may have other tasks meanwhile."""
    if rounds.phase is RoundPhase.CONFIRMING:
        return False
    if state.is_training_over():
        return True
    if rounds.phase is not RoundPhase.RUNNING:
        return state.world_pauses and bool(_open_task(state))
    training = state.training_ledger
    is_at_limit = training is not None and state.has_reached_limit(training)
    return state.world_pauses or is_at_limit or bool(state.callback_stop_reason)


_TASKS = {
    EVALUATION: "the evaluation",
    METRICS: "the metrics of the evaluation",
    BEST_MODEL: "writing the file of the best model",
    MODEL_FILE: "writing the file of ModelCheckpoint",
    EXPORT: "the export",
}


def _open_task(state: JobState) -> str:
    """The task that main threads have to do while all pause, for users; empty: none."""
    for kind, task in _TASKS.items():
        ledger = state.ledgers.get(kind)
        if ledger is not None and not ledger.is_finished and not world_evaluations.needs_copy(state, kind):
            return task
    return ""


def _task_limit(state: JobState) -> float:
    """Seconds after which users hear of a worker that keeps the others waiting with a task."""
    if _open_task(state) == _TASKS[EVALUATION]:
        return state.lease_timeouts.stuck_seconds
    # Other tasks report no steps.
    return max(STUCK_FIRST, state.lease_timeouts.stuck_seconds)


def _find_late(state: JobState, rounds: WorldRounds, now: float) -> tuple[list[str], list[str]] | None:
    """The members that are waited for, and those that wait; None: this is unknown."""
    members = rounds.awaited_workers()
    holders = [state.holders.get(worker) for worker in members]
    # A silent one is lost soon, and the master may be the one that is cut off.
    if any(holder is None or now - holder.last_seen >= SILENCE_FLOOR for holder in holders):
        return None
    if rounds.phase is RoundPhase.CLOSING:
        late = [worker for worker in members if worker not in rounds.reports]
        if not late:
            return None
    else:
        arrived = state.step_arrivals.find_late(members)
        if arrived is None:
            return None
        late = arrived
    return late, [worker for worker in members if worker not in late]


def _has_other_task(state: JobState, worker: str) -> bool:
    """Whether a worker has a task that its main thread runs between two steps."""
    kinds = [kind for kind, _ in state.worker_leases(worker) if kind != TRAINING]
    # It evaluates a copy on another thread.
    return any(not world_evaluations.runs_on_copy(state, worker, kind) for kind in kinds)


def _describe_wait(state: JobState, rounds: WorldRounds, wait: LongWait) -> str:
    """Who waits for whom."""
    late, waiting, seconds = wait.late, len(wait.waiting), wait.seconds
    step, task = state.step_arrivals.step + 1, _open_task(state) if _is_paused(state, rounds) else ""
    if not late:
        if waiting == 1:
            return f"the only worker has been in step {step:,} for {seconds:.0f} s"
        return f"all {waiting} workers have been in their own step {step:,} for {seconds:.0f} s: none waits for another"
    names = format_short_list([f"worker-{state.pods.index_of(worker)}" for worker in late])
    has, part, them = ("has", "its part", "it") if len(late) == 1 else ("have", "their parts", "them")
    others = "1 other waits" if waiting == 1 else f"{waiting} others wait"
    if task:
        return f"{names} {has} made no progress in {task} for {seconds:.0f} s; {others} for {them}"
    if rounds.phase is RoundPhase.CONFIRMING:
        return f"{names} {has} not begun round {rounds.round.number} for {seconds:.0f} s; {others} for {them}"
    if rounds.phase is RoundPhase.CLOSING:
        return f"{names} {has} not left round {rounds.round.number} for {seconds:.0f} s; {others} for {them}"
    return f"{names} {has} not finished {part} of step {step:,} for {seconds:.0f} s; {others} for {them}"


def _may_replace(state: JobState, rounds: WorldRounds, wait: LongWait) -> bool:
    """Whether the late ones are to blame: as many that compute themselves wait for them, and one of these stays.

    While more of them compute than wait, the step is probably just long. A program of the user's may evaluate or save
    its model on one worker between two steps, for as long as it likes. In a pause nobody computes: there those wait
    that are done with their tasks, and the late ones must have a task to do: a callback may take as long as it likes.
    Before a round starts nobody computes either.
    """
    if not wait.late or not state.settings.has_parameters:
        return False
    if rounds.phase is RoundPhase.CONFIRMING:
        witnesses = wait.waiting
    elif _is_paused(state, rounds):
        witnesses = wait.waiting if _open_task(state) else []
    else:
        witnesses = [worker for worker in wait.waiting if _has_records(state, rounds, worker)]
    return len(wait.late) <= len(witnesses) and any(worker not in rounds.leaving for worker in witnesses)


def _has_records(state: JobState, rounds: WorldRounds, worker: str) -> bool:
    """Whether a worker computes a part of each step; others enter the next exchange at once."""
    if state.evaluation_copies.holds_any(rounds, worker):
        return False
    return any(kind == TRAINING for kind, _ in state.worker_leases(worker))


def _replace(state: JobState, wait: LongWait, now: float) -> dict[str, str]:
    """Ask the late ones to stop; one that leaves already is killed after its grace period in any case."""
    reasons = {}
    staying = {pod.uid: pod for pod in state.pods.by_role[Role.WORKER].staying.values()}
    for worker in wait.late:
        pod = staying.get(worker)
        if pod is None:
            continue
        kept = f"kept the others waiting for {wait.seconds:.0f} s"
        state.emit(WarningRaised(f"worker-{pod.index} has {kept}: it is replaced"))
        reasons[worker] = f"it {kept}"
        terminate_worker(state, pod, reasons[worker], now)
    state.step_arrivals.replacements += bool(reasons)
    return reasons

"""Evaluations under strategy AllReduce: of a copy while the others train, or of the variables while all pause.

All pause if there is no second worker that could train, if ``evaluation.max_workers`` is 0, or if callbacks decide by
the evaluation: what they decide then holds from the next step on, as with ``keras.fit``. docs/design/0010-allreduce.md
describes both.
"""

from __future__ import annotations

from edl.api.journal_entries import EvaluationAbandoned, EvaluationBegun
from edl.api.run_events import EvaluationStarted, WarningRaised
from edl.core import revocation
from edl.core.journal_application import record_entry
from edl.core.ledger import EVALUATION, METRICS
from edl.core.state import JobState
from edl.core.world_rounds import RoundPhase, WorldRounds


def uses_copies(state: JobState) -> bool:
    """Whether the next evaluation is one of a copy, as far as the present world goes."""
    rounds, settings = state.world, state.settings
    if rounds is None or not settings.evaluation_steps or not state.validation or not settings.evaluation_workers:
        return False
    staying = [each for each in rounds.members if each not in rounds.leaving and each not in rounds.lost]
    # All workers declare the same callbacks before the first round.
    return len(staying) > 1 and bool(state.evaluation_copies.usable_members(rounds)) and not state.callbacks.specs


def is_pause_due(state: JobState) -> bool:
    """Whether the workers have to pause for an evaluation: all of them evaluate the same variables."""
    return not uses_copies(state) and _may_begin(state) and 0 < state.step == _next_step(state)


def pauses(state: JobState) -> bool:
    """Whether nobody trains because an evaluation is due or in progress."""
    running = state.evaluation
    return is_pause_due(state) or (running is not None and not running.final and not running.of_copy)


def _may_begin(state: JobState) -> bool:
    training = state.training_ledger
    if state.world is None or training is None or not state.validation or state.evaluation is not None:
        return False
    # The last step has the final evaluation. Leases may be open until they return.
    is_over = state.has_reached_limit(training) or state.is_training_over() or bool(state.callback_stop_reason)
    return not is_over


def pause_step(state: JobState) -> int:
    """The step after which all ranks pause: they stop there by themselves, so evaluations are not late."""
    if not state.settings.evaluation_steps or not state.validation or uses_copies(state):
        return 0
    return _next_step(state)


def _next_step(state: JobState) -> int:
    """The next multiple of ``train.evaluation_steps`` that is not evaluated; 0: there are none.

    A multiple that training has passed, since a copy was still being evaluated, is left out, as among copies.
    """
    every = state.settings.evaluation_steps
    return -(-max(state.last_evaluation + 1, state.step) // every) * every if every else 0


def begin_if_paused(state: JobState, rounds: WorldRounds) -> None:
    """No rank trains any more, and all have the same variables: begin the evaluation that is due."""
    if rounds.phase is RoundPhase.RUNNING and is_pause_due(state):
        _begin(state, rounds.committed_step, of_copy=False)


def advance_evaluation(state: JobState, now: float) -> None:
    """Choose the workers that copy, begin the evaluation of a copy, and give it up if all copies are lost."""
    rounds = state.world
    if rounds is None:
        return
    copies, every = state.evaluation_copies, state.settings.evaluation_steps
    running = state.evaluation
    if running is not None and running.of_copy:
        _return_leases(state, rounds, now)
        # The metric values follow from the states that the master has.
        if copies.are_lost(rounds, running.step) and not running.ledger.is_finished:
            reason = "no worker is left that has a copy of its variables"
            if not copies.stuck.isdisjoint(rounds.members):
                reason += ", but for one that hangs"
            record_entry(state, EvaluationAbandoned(reason=reason))
            state.emit(WarningRaised(f"the evaluation of step {running.step} was given up: {reason}"))
            state.notify_workers()
    if state.pending_stop is None and uses_copies(state) and _may_begin(state):
        assert every is not None
        step, has_changed = copies.advance(
            rounds, state.last_evaluation, every=every, most=state.settings.evaluation_workers
        )
        if step:
            # Workers also have to know which step is evaluated.
            _begin(state, step, of_copy=True)
            has_changed = True
    else:
        has_changed = copies.clear_plan()
    if has_changed:
        state.notify_workers()


def _begin(state: JobState, step: int, *, of_copy: bool) -> None:
    record_entry(state, EvaluationBegun(pin=max(1, step), step=step, final=False, of_copy=of_copy or None))
    state.emit(EvaluationStarted(step=step))


def _return_leases(state: JobState, rounds: WorldRounds, now: float) -> None:
    """Lease the records of workers that have no copy any more to the others."""
    running = state.evaluation
    assert running is not None
    for worker in {lease.worker for lease in running.ledger.leases.values()}:
        if state.evaluation_copies.lacks_copy(rounds, worker, running.step):
            leases = [lease.number for lease in running.ledger.worker_leases(worker)]
            revocation.revoke_leases(state, worker, "it has no copy of the variables", now, only_leases=leases)


def may_evaluate(state: JobState, worker: str, kind: str) -> bool:
    """Whether a worker may get a task of an evaluation now."""
    rounds, running = state.world, state.evaluation
    if rounds is None or running is None or not running.of_copy:
        # Other workers do not have the variables.
        return kind != EVALUATION or rounds is None or rounds.trains(worker)
    holders = state.evaluation_copies.holders(rounds, running.step)
    # They have the time to compute the metric values; without them anybody can.
    if holders or kind != METRICS:
        return worker in holders
    stuck = state.evaluation_copies.stuck
    return worker not in stuck or stuck.issuperset(rounds.members)


def evaluates_copy(state: JobState, worker: str) -> bool:
    """Whether a worker is busy with the evaluation of its copy: it gets no training records meanwhile."""
    rounds, running = state.world, state.evaluation
    return (
        rounds is not None
        and running is not None
        and running.of_copy
        and state.evaluation_copies.has_copy(rounds, worker, running.step)
    )


def runs_on_copy(state: JobState, worker: str, kind: str) -> bool:
    """Whether a worker runs its tasks of a kind on its copy, so on a thread of their own."""
    return kind in (EVALUATION, METRICS) and evaluates_copy(state, worker)


def needs_copy(state: JobState, kind: str) -> bool:
    """Whether only workers with a copy can get the tasks of a kind."""
    rounds, running = state.world, state.evaluation
    if rounds is None or running is None or not running.of_copy:
        return False
    return kind == EVALUATION or (kind == METRICS and bool(state.evaluation_copies.holders(rounds, running.step)))


def training_members(state: JobState) -> tuple[str, ...]:
    """The members that take training records, by rank: all but those that evaluate a copy."""
    rounds, running = state.world, state.evaluation
    if rounds is None:
        return ()
    if running is None or not running.of_copy:
        return rounds.members
    evaluators = state.evaluation_copies.holders(rounds, running.step)
    return tuple(worker for worker in rounds.members if worker not in evaluators)


def evaluated_step(state: JobState, worker: str) -> int:
    """The step whose copies are being evaluated: the worker keeps one that it has; 0: there is none."""
    running, is_stuck = state.evaluation, worker in state.evaluation_copies.stuck
    return running.step if running is not None and running.of_copy and not is_stuck else 0


def describe_evaluation(state: JobState) -> str:
    """What the world does about an evaluation, for users; empty if it does nothing."""
    rounds, running = state.world, state.evaluation
    if rounds is None:
        return ""
    if running is not None and running.of_copy:
        holders = state.evaluation_copies.holders(rounds, running.step)
        if not holders:
            return f"the evaluation of step {running.step:,} waits for a worker that has its variables"
        names = ", ".join(f"worker-{state.pods.index_of(worker)}" for worker in holders)
        return (
            f"{names} {'evaluates' if len(holders) == 1 else 'evaluate'} step {running.step:,} while the others train"
        )
    if running is not None and not running.final:
        return f"training pauses for the evaluation of step {running.step:,}: {_pause_reason(state, rounds)}"
    if is_pause_due(state):
        return f"training pauses for an evaluation: {_pause_reason(state, rounds)}"
    if state.callbacks.best_to_write is not None:
        return "training pauses until a worker has written the file of the best model"
    return ""


def _pause_reason(state: JobState, rounds: WorldRounds) -> str:
    if state.callbacks.specs:
        return "callbacks decide by it"
    if not state.settings.evaluation_workers:
        return "evaluation.max_workers is 0"
    if len(rounds.members) == 1:
        return "there is a single worker"
    if state.evaluation_copies.stuck.intersection(rounds.members):
        return "the worker that would evaluate a copy hangs"
    return "it began when a single worker stayed"

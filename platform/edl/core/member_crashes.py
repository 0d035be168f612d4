"""Which minibatch is accused when a worker of AllReduce ends by itself.

The cluster says that a worker has ended; the next round says how many of its records are in the state. They come
in any order. docs/design/0010-allreduce.md has the rule and its reasons.
"""

from __future__ import annotations

from collections.abc import Sequence

from edl.core import revocation
from edl.core.journal_application import end_job
from edl.core.ledger import Lease
from edl.core.pod_lifecycle import MAX_CRASHES
from edl.core.state import JobState


def handle_member_ended(state: JobState, worker: str, *, crashed: bool) -> None:
    """A worker has ended.

    Args:
        crashed: whether it ended by itself, by an error or without a report, and while it trained.
    """
    rounds, training = state.world, state.training_ledger
    returned = state.returned_work.pop(worker, None)
    if rounds is None or training is None:
        return
    if returned is not None:
        _settle_leases(state, returned, crashed=crashed, is_progress_known=True)
    elif not crashed:
        return
    elif any(member not in rounds.lost and member != worker for member in rounds.members):
        # The survivors know which of its records are in their state.
        state.crashed_members.add(worker)
    else:
        _settle_leases(state, list(training.worker_leases(worker)), crashed=True, is_progress_known=False)
        _count_loss_of_all(state)


def _count_loss_of_all(state: JobState) -> None:
    """All members have ended. If that goes on before a minibatch is done, no single one is the cause."""
    suspects = state.crash_suspects
    suspects.fruitless_losses += 1
    if suspects.fruitless_losses >= MAX_CRASHES and not state.has_ended:
        message, detail = state.last_failure or ("see the workers' logs", "")
        end_job(
            state,
            "Failed",
            f"all workers ended {suspects.fruitless_losses} times in succession before one of them had finished a "
            f"minibatch, whichever it was: {message}",
            detail,
            "crash",
        )


def judge_returned_leases(state: JobState, leases: Sequence[Lease], *, is_progress_known: bool) -> None:
    """These leases of lost workers have returned: accuse the minibatches of those that crashed."""
    held_by: dict[str, list[Lease]] = {}
    for lease in leases:
        held_by.setdefault(lease.worker, []).append(lease)
    for worker, worker_leases in held_by.items():
        # The cluster may not have said yet how it ended.
        if state.pods.is_live(worker):
            state.returned_work[worker] = worker_leases
        else:
            crashed = worker in state.crashed_members
            state.crashed_members.discard(worker)
            _settle_leases(state, worker_leases, crashed=crashed, is_progress_known=is_progress_known)


def open_leases(state: JobState) -> list[Lease]:
    """All training leases."""
    return list(state.training_ledger.leases.values()) if state.training_ledger is not None else []


def forget_returned_leases(state: JobState, worker: str) -> None:
    """A lost worker is a member again, so it has not crashed."""
    _settle_leases(state, state.returned_work.pop(worker, ()), crashed=False, is_progress_known=True)


def _settle_leases(state: JobState, leases: Sequence[Lease], *, crashed: bool, is_progress_known: bool) -> None:
    """These training leases of a worker that has ended are not its own any more."""
    suspects, guilty = state.crash_suspects, None
    if crashed:
        applied = [(lease, lease.done_steps) for lease in leases]
        guilty = suspects.record_member_crash(
            applied, state.settings.suspect_records, is_progress_known=is_progress_known
        )
    for lease in leases:
        suspects.close_lease(lease, lease.done_steps)
    # Whoever would get it next sets it aside: a ledger that went back leases it again later.
    if guilty is not None and revocation.punish_range(state, *guilty):
        suspects.guilty_ranges[guilty[0]] = guilty[1]

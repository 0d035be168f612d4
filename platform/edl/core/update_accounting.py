"""Balances the steps that the ledger counts as done against the steps that each PS admitted.

At a cut no push is in flight: every PS has admitted every step that is done, except those that it
lost when it rolled back to a checkpoint. A PS counts the steps that it has admitted since it started
or rolled back. So for each process

    updates that it lacks = steps done at the cut + offset - steps that it admitted

The offset is 0 for a PS that started with the job. For a PS that rolled back, it is what the checkpoint
lacked less the steps that were done there. It grows by steps that only some PS admitted, because those
steps are leased again under another number.

Between cuts, the counters hold what is known when a PS is lost: the steps that are done by then and
not in the checkpoint. Steps that were applied and not yet reported are added at the next cut. A
difference at a PS that lost nothing since the previous cut has another cause: some worker reports
steps that it did not push, or pushes steps that it does not report.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from edl.api.journal_entries import CutTaken
from edl.core.cuts import PendingCut, SavedCheckpoint
from edl.core.job_counters import JobCounters
from edl.core.job_pods import JobPods


def checkpoint_missing_updates(counters: JobCounters, checkpoint: SavedCheckpoint | None) -> Mapping[str, int]:
    """Updates that a checkpoint's parameters lack, by PS index."""
    if checkpoint is None:
        return {}
    # Checkpoints of older versions do not have the numbers; the current ones are the best estimate.
    lacking: Mapping[str, int] = checkpoint.ledger.get("lacking", counters.updates_of)
    return lacking


def count_updates_lost(counters: JobCounters, checkpoint: SavedCheckpoint | None, step: int, index: int) -> int:
    """Updates that a PS loses when it rolls back at ``step`` to this checkpoint; None: to the start."""
    checkpoint_step = checkpoint.step if checkpoint is not None else 0
    lacking = step - checkpoint_step + checkpoint_missing_updates(counters, checkpoint).get(str(index), 0)
    # What it lacked before is already counted.
    return max(0, lacking - counters.updates_of.get(str(index), 0))


def add_lost_updates(counters: JobCounters, index: str, updates: int) -> None:
    """Add updates that a PS lacks."""
    if updates:
        counters.updates_of[index] = counters.updates_of.get(index, 0) + updates
        counters.updates_rolled_back += updates


@dataclass(frozen=True, slots=True)
class UpdateBalance:
    """The balance at a cut.

    Attributes:
        missing_updates: updates that the parameters of each PS lack, by its index.
        step_differences: by uid of a PS, the done steps less the admitted ones, beyond what it lost.
    """

    missing_updates: dict[str, int] = field(default_factory=dict)
    step_differences: dict[str, int] = field(default_factory=dict)


def compare_with_cut(fleet: JobPods, counters: JobCounters, cut: PendingCut, done: int) -> UpdateBalance:
    """Compare the steps that every PS had admitted when it made its copy with the steps done in the cut."""
    known = counters.updates_of
    balance = UpdateBalance()
    restored_ps: dict[str, int] = {}
    steady_differences = []
    for uid, entered in cut.admitted_steps.items():
        if uid not in fleet.by_uid or (uid in fleet.restore_lease and uid not in fleet.update_offsets):
            # A master of an older version told it to load its checkpoint.
            continue
        index = fleet.by_uid[uid].index
        # A PS that rolled back since the previous cut may lack more than the counters say: steps that
        # were applied and not yet reported when it was lost.
        difference = done + fleet.update_offsets.get(uid, 0) - entered
        if uid in fleet.restore_lease and fleet.measured_ps.get(index) != uid:
            restored_ps[uid] = difference
            continue
        before = known.get(str(index), 0)
        balance.missing_updates[str(index)] = before
        steady_differences.append(difference - before)
        if difference != before:
            balance.step_differences[uid] = difference - before
    # Updates that all other PS miss are missing for the same reason on those that rolled back.
    common = max(0, min(steady_differences, default=0))
    for uid, difference in restored_ps.items():
        which = str(fleet.by_uid[uid].index)
        lacking = max(difference - common, known.get(which, 0))
        balance.missing_updates[which] = lacking
        if difference != lacking:
            balance.step_differences[uid] = difference - lacking
    return balance


def apply_balance_entry(fleet: JobPods, counters: JobCounters, entry: CutTaken) -> None:
    """Apply the balance of a cut; no change if no PS counts its steps."""
    if entry.lacking is None:
        return
    counters.updates_of.update(entry.lacking)
    counters.updates_of = {index: updates for index, updates in counters.updates_of.items() if updates}
    counters.updates_rolled_back = sum(counters.updates_of.values())
    fleet.measured_ps = {index: uid for index, uid in fleet.parameter_holders.items() if str(index) in entry.lacking}
    differs = entry.differs or {}
    for uid, steps in differs.items():
        fleet.update_offsets[uid] = fleet.update_offsets.get(uid, 0) - steps
    counters.steps_not_applied += max(map(abs, differs.values()), default=0)


def apply_full_rollback(fleet: JobPods, counters: JobCounters, lacking: Mapping[str, int] | None) -> None:
    """Apply a rollback of all parameters to a checkpoint that lacks ``lacking`` updates; None: unknown."""
    fleet.measured_ps.clear()
    if lacking is not None:
        counters.updates_of = {index: updates for index, updates in lacking.items() if updates}
        counters.updates_rolled_back = sum(counters.updates_of.values())


def apply_ps_restore(
    fleet: JobPods, counters: JobCounters, checkpoint: SavedCheckpoint | None, uid: str, index: int
) -> None:
    """Apply that a PS loads this checkpoint, or starts from initial values if there is none."""
    step = checkpoint.step if checkpoint is not None else 0
    fleet.update_offsets[uid] = checkpoint_missing_updates(counters, checkpoint).get(str(index), 0) - step
    fleet.measured_ps.pop(index, None)


def add_repeated_steps(fleet: JobPods, steps: Mapping[str, int]) -> None:
    """Add steps that each of these PS admitted, that are not done and will be leased again."""
    for uid, extra in steps.items():
        # A PS that was restored by a master of an older version has no offset and is not balanced.
        if uid in fleet.update_offsets or uid not in fleet.restore_lease:
            fleet.update_offsets[uid] = fleet.update_offsets.get(uid, 0) + extra

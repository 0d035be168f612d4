"""The state as one JSON object, with which a compacted journal starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from edl.api.journal_entries import DatasetEntered, EvaluationBegun
from edl.core import world_entries
from edl.core.callback_decisions import CallbackState
from edl.core.cuts import SavedCheckpoint
from edl.core.job_counters import JobCounters
from edl.core.journal_application import apply_entry
from edl.core.ledger import EVALUATION, PREDICTION, TRAINING, LeaseRevocation, single_task_ledger
from edl.core.model_files import ModelFiles
from edl.core.pod_lifecycle import MemoryRaise
from edl.core.record_ranges import RecordSource
from edl.core.state import JobState
from edl.core.world_rounds import WorldRounds

# Their order is part of the file format.
_SNAPSHOT_FIELDS = (
    "cut_number",
    "last_evaluation",
    "last_checkpoint",
    "final_pin",
    "evaluated_final",
    "phase",
    "reason",
    "lease_counter",
    "incarnation",
)


_LATER_COUNTERS = ("updates_skipped", "warnings")
"""Counters that a snapshot of an earlier version lacks. They are written only if there is something in them."""


def _counters_to_snapshot(counters: JobCounters) -> dict[str, Any]:
    named = {name: getattr(counters, name) for name in JobCounters.__slots__}
    return {name: value for name, value in named.items() if value or name not in _LATER_COUNTERS}


def state_to_snapshot(state: JobState) -> dict[str, Any]:
    """The state that all journal entries so far have produced."""
    checkpoint, fleet = state.checkpoint, state.pods
    return {
        "sources": dataset_entry(state) if state.is_dataset_known else None,
        # The ledger of an evaluation in progress is in ``round``.
        "ledgers": {k: x.to_snapshot() for k, x in state.ledgers.items() if k != EVALUATION or not state.evaluation},
        "round": state.evaluation.to_snapshot() if state.evaluation else None,
        "counters": _counters_to_snapshot(state.counters),
        "checkpoint": checkpoint and [checkpoint.cut, checkpoint.step, checkpoint.version, checkpoint.ledger],
        "marks": [getattr(state, name) for name in _SNAPSHOT_FIELDS],
        "fleet": [
            fleet.next_worker_index,
            dict(fleet.restore_lease),
            dict(fleet.worker_indices),
            sorted(fleet.parameter_holders.items()),
        ],
        "dismissed": sorted(fleet.leaving_workers),
        "handed_over": [state.paused_cut, dict(fleet.handed_over_ps)],
        "memory": [fleet.worker_memory.raise_count, fleet.worker_memory.first_worker],
        "scaled": list(state.scale_override),
        "balance": [dict(fleet.update_offsets), sorted(fleet.measured_ps.items())],
        "callbacks": state.callbacks.to_snapshot(),
        "best_restored": state.best_restored,
        "revoked": sorted(state.revoked_leases),
        "revocations": [revocation.to_row() for revocation in state.revocations],
        **({"evaluated_step": state.evaluated_step} if state.evaluated_step else {}),
        **({} if state.world is not None or state.stopped_after is None else {"stopped_after": state.stopped_after}),
        **({} if state.world is None else _world_snapshot(state, state.world)),
    }


def _world_snapshot(state: JobState, rounds: WorldRounds) -> dict[str, Any]:
    files = {"model_files": state.model_files.to_snapshot()} if state.model_files.specs else {}
    return {"world": world_entries.rounds_to_snapshot(rounds), "stopped_after": state.stopped_after, **files}


def snapshot_cut_number(snapshot: Mapping[str, Any]) -> int:
    """The number of the last cut in a snapshot."""
    return int(snapshot["marks"][_SNAPSHOT_FIELDS.index("cut_number")])


def restore_state(state: JobState, snapshot: Mapping[str, Any]) -> None:
    """Restore into a new state what ``state_to_snapshot`` returned."""
    # Snapshots of earlier versions lack keys; ``get`` gives the value that they meant. The data set
    # comes first, because it creates the ledgers.
    if snapshot["sources"] is not None:
        apply_entry(state, DatasetEntered.from_fields(snapshot["sources"]))
    if snapshot["round"]:
        _restore_evaluation(state, snapshot["round"])
    for kind, ledger in snapshot["ledgers"].items():
        state.ledgers.setdefault(kind, single_task_ledger(kind)).restore_snapshot(ledger)
    state.counters = JobCounters(**snapshot["counters"])
    state.checkpoint = SavedCheckpoint(*snapshot["checkpoint"]) if snapshot["checkpoint"] else None
    for name, value in zip(_SNAPSHOT_FIELDS, snapshot["marks"], strict=True):
        setattr(state, name, value)
    state.pods.next_worker_index, state.pods.restore_lease, state.pods.worker_indices, holding = snapshot["fleet"]
    state.pods.parameter_holders = dict(holding)
    state.pods.leaving_workers = set(snapshot.get("dismissed", ()))
    state.paused_cut, handed_over = snapshot.get("handed_over", (0, {}))
    state.pods.handed_over_ps = dict(handed_over)
    state.pods.worker_memory = MemoryRaise(*snapshot.get("memory", ()))
    offsets, measured = snapshot.get("balance", ({}, ()))
    state.pods.update_offsets, state.pods.measured_ps = dict(offsets), dict(measured)
    state.stopped_after = snapshot.get("stopped_after")
    if "callbacks" in snapshot:
        state.callbacks = CallbackState.from_snapshot(snapshot["callbacks"])
    if "model_files" in snapshot:
        state.model_files = ModelFiles.from_snapshot(snapshot["model_files"])
    state.best_restored = snapshot.get("best_restored", 0)
    state.evaluated_step = snapshot.get("evaluated_step", 0)
    least, most = snapshot.get("scaled", (None, None))
    state.scale_override = least, most
    state.revoked_leases = set(snapshot["revoked"])
    if state.world is not None and "world" in snapshot:
        world_entries.restore_rounds(state.world, snapshot["world"])
        state.world.checkpoint_step = state.checkpoint.step if state.checkpoint else 0
    leases = state.training_ledger.leases if state.training_ledger else {}
    found = [LeaseRevocation.from_row(row) for row in snapshot["revocations"]]
    state.revocations = [revocation for revocation in found if revocation.mark_leases(leases)]


def _restore_evaluation(state: JobState, snapshot: Mapping[str, Any]) -> None:
    apply_entry(state, EvaluationBegun.from_fields(snapshot))
    assert state.evaluation is not None
    state.evaluation.ledger.restore_snapshot(snapshot["ledger"])
    state.evaluation.states = snapshot["states"]
    state.evaluation.saved = snapshot.get("saved", False)


def dataset_entry(state: JobState) -> dict[str, Any]:
    """The journal's ``dataset`` entry for the current data set."""

    def rows(sources: Sequence[RecordSource]) -> list[list[Any]]:
        return [[source.name, source.records] for source in sources]

    fields: dict[str, Any] = {
        k: rows(state.ledgers[k].plan.sources) for k in (TRAINING, PREDICTION) if k in state.ledgers
    }
    if state.shuffle_order is not None:
        fields |= {TRAINING: rows(state.shuffle_order.sources), "order": state.shuffle_order.to_json()}
    if state.file_digests:
        fields["digests"] = dict(state.file_digests)
    return {**fields, "validation": rows(state.validation)}

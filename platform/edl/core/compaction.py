"""The state as one JSON object: what a journal begins anew with, instead of all entries so far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from edl.api.journal_entries import DatasetEntered, EvaluationBegun
from edl.core.callback_decisions import CallbackState
from edl.core.job_counters import JobCounters
from edl.core.oom_policy import MemoryRaise
from edl.core.revocation_settlement import LeaseRevocation
from edl.core.saved_checkpoint import SavedCheckpoint
from edl.core.shards import RecordSource
from edl.core.task_kinds import EVALUATION, PREDICTION, TRAINING, single_task_ledger

if TYPE_CHECKING:
    from edl.core.state import JobState

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


def state_to_snapshot(state: JobState) -> dict[str, Any]:
    """All that the journal's entries so far have led to."""
    checkpoint, fleet = state.checkpoint, state.pods
    return {
        "sources": dataset_entry(state) if state.is_dataset_known else None,
        "ledgers": {k: x.snapshot() for k, x in state.ledgers.items() if k != EVALUATION},
        "round": state.round.snapshot() if state.round else None,
        "counters": {name: getattr(state.counters, name) for name in JobCounters.__slots__},
        "checkpoint": checkpoint and [checkpoint.cut, checkpoint.step, checkpoint.version, checkpoint.ledger],
        "marks": [getattr(state, name) for name in _SNAPSHOT_FIELDS],
        "fleet": [
            fleet.next_worker_index,
            dict(fleet.born),
            dict(fleet.workers),
            sorted(fleet.parameter_holders.items()),
        ],
        "dismissed": sorted(fleet.leaving_workers),
        "handed_over": [state.paused_cut, dict(fleet.handed_over_ps)],
        "memory": [fleet.memory.raise_count, fleet.memory.since],
        "scaled": list(state.scaled),
        "balance": [dict(fleet.update_offsets), sorted(fleet.measured.items())],
        "callbacks": state.callbacks.snapshot(),
        "best_restored": state.best_restored,
        "revoked": sorted(state.revoked),
        "revocations": [revocation.to_row() for revocation in state.revocations],
    }


def snapshot_cut_number(snapshot: Mapping[str, Any]) -> int:
    """The number of the last cut that a snapshot knows of."""
    return int(snapshot["marks"][_SNAPSHOT_FIELDS.index("cut_number")])


def restore_state(state: JobState, was: Mapping[str, Any]) -> None:
    """Make a fresh state what ``state_to_snapshot`` described."""
    if was["sources"] is not None:
        state.apply(DatasetEntered.from_fields(was["sources"]))
    if was["round"]:
        _restore_evaluation(state, was["round"])
    for kind, ledger in was["ledgers"].items():
        state.ledgers.setdefault(kind, single_task_ledger(kind)).restore(ledger)
    state.counters = JobCounters(**was["counters"])
    state.checkpoint = SavedCheckpoint(*was["checkpoint"]) if was["checkpoint"] else None
    for name, value in zip(_SNAPSHOT_FIELDS, was["marks"], strict=True):
        setattr(state, name, value)
    state.pods.next_worker_index, state.pods.born, state.pods.workers, holding = was["fleet"]
    state.pods.parameter_holders = dict(holding)
    state.pods.leaving_workers = set(was.get("dismissed", ()))
    state.paused_cut, handed_over = was.get("handed_over", (0, {}))
    state.pods.handed_over_ps = dict(handed_over)
    state.pods.memory = MemoryRaise(*was.get("memory", ()))
    offsets, measured = was.get("balance", ({}, ()))
    state.pods.update_offsets, state.pods.measured = dict(offsets), dict(measured)
    if "callbacks" in was:
        state.callbacks = CallbackState.restore(was["callbacks"])
    state.best_restored = was.get("best_restored", 0)
    least, most = was.get("scaled", (None, None))
    state.scaled = least, most
    state.revoked = set(was["revoked"])
    held = state.training.leases if state.training else {}
    found = [LeaseRevocation.of(row) for row in was["revocations"]]
    state.revocations = [revocation for revocation in found if revocation.begin(held)]


def _restore_evaluation(state: JobState, was: Mapping[str, Any]) -> None:
    state.apply(EvaluationBegun.from_fields(was))
    assert state.round is not None
    state.round.ledger.restore(was["ledger"])
    state.round.states = was["states"]
    state.round.saved = was.get("saved", False)


def dataset_entry(state: JobState) -> dict[str, Any]:
    """What a ``dataset`` entry of the journal says, as the state has it."""

    def rows(sources: Sequence[RecordSource]) -> list[list[Any]]:
        return [[source.name, source.records] for source in sources]

    found: dict[str, Any] = {
        k: rows(state.ledgers[k].plan.sources) for k in (TRAINING, PREDICTION) if k in state.ledgers
    }
    if state.order is not None:
        found |= {TRAINING: rows(state.order.sources), "order": state.order.to_json()}
    return {**found, "validation": rows(state.validation)}

"""A run that continues under another strategy: it begins a new journal at its newest checkpoint.

The entries of one strategy mean nothing under the other: parameter servers hold parameters, ranks are in rounds. What
both have in common is carried over: the ledger of the checkpoint, the description of the data set, and what the job's
callbacks have decided.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace

from edl.api.errors import BadInputError, StorageError
from edl.api.job_spec import JobSpec
from edl.api.journal_entries import (
    CallbacksDeclared,
    EvaluationCompleted,
    JournalEntry,
    ParametersRolledBack,
    WorldAnnounced,
)
from edl.core.callback_decisions import CallbackState, callbacks_from_json, callbacks_to_json
from edl.core.cuts import WORLD_STEP_KEY, checkpoint_step
from edl.jobfile.loader import load_job_file
from edl.numerics.keras_state import KERAS_STATE_KEY, KerasState
from edl.storage.checkpoint_manifest import CheckpointManifest
from edl.storage.journal_reader import JournalContent, read_journal
from edl.storage.journal_truncation import CheckpointRestart, check_not_truncated, explain_journal_damage, plan_restart
from edl.storage.run_directory import RunDirectory
from edl.storage.safetensors_header import read_safetensors_header


def plan_resumption(run: RunDirectory, spec: JobSpec, *, from_checkpoint: bool) -> CheckpointRestart | None:
    """The checkpoint at which a run begins a new journal; None: it continues with its journal.

    Args:
        run: the run; ``check_resume_changes`` has accepted the changes of its spec.
        spec: the spec with which it continues.
        from_checkpoint: whether the user asked to continue without the journal.

    Raises:
        BadInputError: there is no intact checkpoint, or the new strategy cannot continue from it.
        JournalDamagedError: the strategy changes, and the journal cannot be read.
        StorageError: the folder cannot be read.
    """
    old, new = load_job_file(run.spec).strategy.name, spec.strategy.name
    if old == new:
        # Strategy Local has no journal, and always continues from a checkpoint.
        return plan_restart(run) if from_checkpoint and new != "Local" else None
    if old == "Local":
        return _leave_local(run, new, from_checkpoint=from_checkpoint)
    decided = _CallbackReplay()
    try:
        with nullcontext() if from_checkpoint else explain_journal_damage(run):
            replayed = read_journal(run.journal)
            check_not_truncated(run, replayed)
            decided.replay(replayed)
    except StorageError:
        # The user continues without the journal, and so without what callbacks have decided.
        if not from_checkpoint:
            raise
    restart = plan_restart(run)
    if new == "Local":
        if not from_checkpoint:
            _refuse_decided(decided.state.evaluations if decided.state.specs else 0, old, new)
        if WORLD_STEP_KEY not in restart.checkpoint.ledger and "records_done" not in restart.checkpoint.ledger:
            raise BadInputError(
                "parameter servers wrote the newest checkpoint, and strategy Local continues from those of AllReduce",
                where=str(restart.checkpoint.directory),
                hint="resume with strategy AllReduce until it has written another checkpoint",
            )
        return replace(restart, old_strategy=old, new_strategy=new)
    if new == "ParameterServer":
        _check_convertible(restart.checkpoint)
    carried = tuple(entry.to_json() for entry in decided.entries_at(restart.checkpoint.step))
    return replace(restart, old_strategy=old, new_strategy=new, carried_entries=carried)


def _leave_local(run: RunDirectory, new: str, *, from_checkpoint: bool) -> CheckpointRestart:
    """The checkpoint of strategy Local, which has no journal, at which another strategy begins one.

    Raises:
        BadInputError: there is no intact checkpoint, or callbacks have decided by evaluations.
        StorageError: the folder cannot be read.
    """
    restart = plan_restart(run)
    callbacks = restart.checkpoint.ledger.get("callbacks") or {}
    if not from_checkpoint:
        _refuse_decided(callbacks.get("evaluations", 0) if callbacks.get("monitors") else 0, "Local", new)
    return replace(restart, old_strategy="Local", new_strategy=new)


def _refuse_decided(evaluations: int, old: str, new: str) -> None:
    """Refuse to continue with callbacks whose progress the other strategy cannot take over.

    Strategy Local runs Keras' own callbacks and keeps their weights; otherwise the master decides, by checkpoints.

    Raises:
        BadInputError: they have seen evaluations.
    """
    if evaluations:
        raise BadInputError(
            f"the run's callbacks have decided by {evaluations} evaluations under strategy {old}, and strategy {new} "
            "cannot take over what they know",
            hint="keep the strategy, or add --from-checkpoint: then their evaluations so far do not count",
        )


def _check_convertible(checkpoint: CheckpointManifest) -> None:
    """Refuse a checkpoint of AllReduce with which parameter servers cannot continue.

    Raises:
        BadInputError: its optimizer has a state that they do not have.
        StorageError: a file cannot be read.
    """
    assert checkpoint.directory is not None
    for shard in checkpoint.shards[:1]:
        header = read_safetensors_header(checkpoint.directory / shard.file)
        text = header.metadata.get(KERAS_STATE_KEY)
        if text is None:
            raise BadInputError(
                "the checkpoint does not say what its arrays are: an earlier version of EDL wrote it",
                where=str(header.path),
                hint="resume with strategy AllReduce until it has written another checkpoint",
            )
        try:
            state = KerasState.from_json(text)
        except ValueError as error:
            raise StorageError(str(error), where=str(header.path)) from error
        state.require_optimizer()


@dataclass(slots=True)
class _CallbackReplay:
    """What the job's callbacks have decided, from the entries of a journal.

    Attributes:
        state: after the newest entry.
        metrics: of the newest evaluation.
    """

    state: CallbackState = field(default_factory=CallbackState)
    metrics: Mapping[str, float | None] = field(default_factory=dict)

    def replay(self, journal_content: JournalContent) -> None:
        """Apply a whole journal."""
        snapshot = journal_content.snapshot
        if snapshot is not None and "callbacks" in snapshot:
            self.state = CallbackState.from_snapshot(snapshot["callbacks"])
            self.metrics = snapshot["counters"]["metrics"]
        kinds = {entry.kind for entry in (CallbacksDeclared, EvaluationCompleted, ParametersRolledBack, WorldAnnounced)}
        for fields in journal_content.entries:
            if fields["kind"] in kinds:
                self._apply(JournalEntry.from_json(fields))

    def _apply(self, entry: JournalEntry) -> None:
        match entry:
            case CallbacksDeclared():
                self.state = self.state.declare_callbacks(callbacks_from_json(entry.declared))
            case EvaluationCompleted():
                self.metrics = entry.metrics
                if entry.callbacks is not None:
                    self.state = self.state.apply_evaluated_state(entry.step, entry.callbacks)
            case ParametersRolledBack(ledger=Mapping() as ledger):
                self.state = self.state.roll_back_to(checkpoint_step(ledger))
            case WorldAnnounced(ledger=Mapping()):
                self.state = self.state.roll_back_to(entry.step)

    def entries_at(self, step: int) -> Iterator[JournalEntry]:
        """Entries that give a new journal the state at a checkpoint of ``step``."""
        state = self.state.roll_back_to(step)
        if not state.specs:
            return
        yield CallbacksDeclared(declared=callbacks_to_json(state.specs))
        evaluated = [one for one in state.history if len(one[1]["progress"]) == len(state.specs)]
        if state.evaluations and (not evaluated or evaluated[-1][1] != state.evaluated_state()):
            evaluated.append((step, state.evaluated_state()))
        for at, each in evaluated:
            yield EvaluationCompleted(metrics=self.metrics, step=at, pin=0, final=False, callbacks=each)

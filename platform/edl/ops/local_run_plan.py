"""The plan of an ``edl run``. It is checked before a process starts, and shown in a few lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from edl.api.errors import BadInputError, StorageError
from edl.api.job_spec import JobSpec
from edl.core.cuts import STOPPED, SavedCheckpoint
from edl.jobfile.command_rules import describe_program
from edl.jobfile.strategy_choice import describe_first_round, uses_all_reduce
from edl.jobfile.strategy_rules import describe_unused_fields
from edl.jobfile.zoo_lookup import find_model_function
from edl.ops.followup_command import command_arguments, program_name
from edl.ops.local_run_resumption import resume_checkpoint
from edl.reporting.run_progress import RunOutcome
from edl.reporting.unit_formats import pluralize
from edl.storage.journal_reader import JournalDamagedError
from edl.storage.journal_truncation import CheckpointRestart, plan_restart
from edl.storage.run_directory import RunDirectory
from edl.storage.run_resumption import FieldChange, describe_nothing_to_do, format_change, read_status
from edl.storage.weights_lookup import TrainedWeights

_CHANGE_SETTINGS_HINT = "If one of the --set options is the cause, change it in the command below."


_PROCESSOR = "PredictionOutputsProcessor"


@dataclass(frozen=True, slots=True)
class RecordCounts:
    """Records of each source; None if the model module has its own reader, which only workers run."""

    training: tuple[int, ...] | None = ()
    validation: tuple[int, ...] | None = ()
    prediction: tuple[int, ...] | None = ()


@dataclass(frozen=True, slots=True)
class RunArguments:
    """A job file as the user named it, and the overrides of the command line."""

    job_file: Path
    settings: Sequence[str] = ()
    workers: int | None = None
    ps: int | None = None

    def followup_command(self, verb: str, *more: str) -> str:
        """Another command for the same job, which can be copied into a shell."""
        numbers = [("--workers", self.workers), ("--ps", None if verb == "predict" else self.ps)]
        options = [word for name, number in numbers if number is not None for word in (name, str(number))]
        return " ".join(
            [program_name(), verb, command_arguments(str(self.job_file), None, None, self.settings), *options, *more]
        )

    def resume_command(self, run_id: str) -> str:
        return self.followup_command("run", "--resume", run_id)

    def resume_from_checkpoint_command(self, run_id: str) -> str:
        """The command that resumes a run from its newest intact checkpoint, without its journal."""
        return self.followup_command("run", "--resume", run_id, "--from-checkpoint")


@dataclass(frozen=True, slots=True)
class LocalRunPlan:
    """One start of a run.

    Attributes:
        spec: the job, with the paths of this machine.
        arguments: the user's arguments.
        record_counts: record counts of the sources.
        run_dir: directory of the run.
        is_resumed: whether the run is resumed. Then ``field_changes`` lists the differences from its last
            start.
        weights: weights to evaluate or predict with; None for a run that trains.
        output: target of predictions; None for other runs.
        initial_weights: weights that a new run begins to train with; None: the initial values of its layers.
        checkpoint_restart: the checkpoint from which the run is resumed without its journal; None: it is
            resumed with its journal.
    """

    spec: JobSpec
    arguments: RunArguments
    record_counts: RecordCounts
    run_dir: RunDirectory
    is_resumed: bool = False
    field_changes: Sequence[FieldChange] = ()
    weights: TrainedWeights | None = None
    output: str | None = None
    initial_weights: TrainedWeights | None = None
    checkpoint_restart: CheckpointRestart | None = None

    @property
    def job(self) -> str:
        return self.spec.name

    @property
    def trains(self) -> bool:
        return self.spec.task == "train"

    @property
    def run_id(self) -> str:
        return self.run_dir.run_id

    @property
    def logs(self) -> str:
        """Directory of the run's logs."""
        return str(self.run_dir.logs)

    def plan_lines(self) -> list[str]:
        title = f"{self.job}: {describe_program(self.spec, self.spec.model.zoo)}"
        work = self._stored_model_lines(self.weights) if self.weights else self._training_lines()
        roles = [
            self._roles_text(),
            *(describe_unused_fields(self.spec) if self.trains and not self.spec.command else []),
        ]
        lines = [*work, *roles, self._location_text(), *self._resume_lines()]
        return [title, *(f"  {line}" for line in lines)]

    def next_steps(self, outcome: RunOutcome) -> list[str]:
        """What the user can do after the end."""
        if not self.trains:
            return []
        if outcome.phase == "Interrupted":
            stop_lines = [f"It was {outcome.reason}."] if outcome.reason.startswith(STOPPED) else []
            return [*stop_lines, *self._resume_steps("Continue with")]
        if outcome.phase != "Done":
            return self._steps_after_failure(outcome)
        if self.spec.data.prediction:
            more = ("--from", self.run_id, "--output", "predictions")
            return [f"Predict with: {self.arguments.followup_command('predict', *more)}"]
        return []

    def _steps_after_failure(self, outcome: RunOutcome) -> list[str]:
        changed = [_CHANGE_SETTINGS_HINT] if self.arguments.settings else []
        if self._must_start_again(outcome):
            return [*changed, f"Fix the cause, then {self._start_again_text()}"]
        return self._resume_steps("Fix the cause, then continue with", *changed)

    def _start_again_text(self) -> str:
        return f"start again with: {self.arguments.followup_command('run')}"

    def _resume_steps(self, how: str, *changed: str) -> list[str]:
        """Where a resumed run would begin, if that can be read, and the command that resumes it."""
        again = self.arguments.resume_command(self.run_id)
        try:
            checkpoint = resume_checkpoint(self.run_dir)
        except JournalDamagedError as error:
            with suppress(BadInputError, StorageError):
                costs = plan_restart(self.run_dir).describe_losses()
                return [
                    *_as_sentences(error.message, *costs),
                    *changed,
                    f"{how}: {self.arguments.resume_from_checkpoint_command(self.run_id)}",
                ]
        except StorageError:
            pass  # the end of the run was reported already
        else:
            return [resume_point_text(self.run_dir, checkpoint), *changed, f"{how}: {again}"]
        return [*changed, f"{how}: {again}"]

    def _must_start_again(self, outcome: RunOutcome) -> bool:
        """Whether to suggest a new run: the failed one trained nothing and may not be resumable.

        To fix a fault of the model or data, the user may change fields that are fixed for a resumed
        run. The errors of other causes, such as a full table, suggest to resume themselves.
        """
        if self.is_resumed or outcome.summary.records_done:
            return False
        try:
            return outcome.exit_code == BadInputError.exit_code or resume_checkpoint(self.run_dir) is None
        except StorageError:
            return True

    def _training_lines(self) -> list[str]:
        train, counts = self.spec.train, self.record_counts
        lines = [f"trains on {_records_text(counts.training, self.spec.data.training)}"]
        if self.initial_weights is not None:
            lines += [f"begins with {self.initial_weights.path}", *self.initial_weights.origin_lines()]
        steps = total_steps(self.spec, counts.training)
        often = f"{pluralize(train.epochs, 'epoch')} in minibatches of {train.minibatch_size}"
        if uses_all_reduce(self.spec):
            most = f", at most {pluralize(train.max_steps, 'step')}" if train.max_steps else ""
            lines.append(f"{describe_batches(self.spec)}{most}")
        else:
            lines.append(f"{often}: {pluralize(steps, 'step')}" if steps else often)
        if self.spec.data.validation:
            often = f"every {train.evaluation_steps:,} steps and " if train.evaluation_steps else ""
            lines.append(
                f"evaluates on {_records_text(counts.validation, self.spec.data.validation)}, {often}at the end"
            )
        return lines

    def _stored_model_lines(self, weights: TrainedWeights) -> list[str]:
        if self.spec.task == "evaluate":
            records = _records_text(self.record_counts.validation, self.spec.data.validation)
            return [f"evaluates {records} with {weights.path}", *weights.origin_lines()]
        records = _records_text(self.record_counts.prediction, self.spec.data.prediction)
        return [f"predicts {records} with {weights.path}", *weights.origin_lines(), self.output_line()]

    @property
    def has_processor(self) -> bool:
        """Whether the model module has a function for predictions, so that none are written."""
        model = self.spec.model
        if self.spec.master.prepare and not Path(model.zoo, model.definition.partition(".")[0] + ".py").exists():
            return False  # the command writes the module
        return find_model_function(Path(model.zoo), model.definition, model.functions).may_define(_PROCESSOR)

    def output_line(self) -> str:
        """Where predictions go."""
        if self.has_processor:
            return f"gives predictions to {_PROCESSOR} of the model module, writes no files to {self.output}"
        return f"writes to {self.output}"

    def _roles_text(self) -> str:
        if self.spec.strategy.name == "Local":
            return "one process (strategy Local)"
        workers = pluralize(self.spec.workers.max, "worker")
        if uses_all_reduce(self.spec):
            return f"{workers} (strategy AllReduce); {describe_first_round(self.spec)}"
        if self.spec.command:
            return workers
        return workers if not self.trains else f"{workers}, {pluralize(self.spec.ps.count, 'parameter server')}"

    def _location_text(self) -> str:
        return f"{'resumes' if self.is_resumed else 'run'} {self.run_dir.run_id} in {self.run_dir.path}"

    def _resume_lines(self) -> Iterator[str]:
        """The lines about a resumed run: where it begins, what changed, and whether it is at its
        end.
        """
        if not self.is_resumed:
            return
        if self.checkpoint_restart is not None:
            yield from self.checkpoint_restart.describe_losses()
        else:
            checkpoint = resume_checkpoint(self.run_dir)
            yield f"from {_checkpoint_text(checkpoint)}" if checkpoint else "from the start: it has no checkpoint"
        yield from (f"changed: {format_change(change)}" for change in self.field_changes)
        status = read_status(self.run_dir)
        if status and self.checkpoint_restart is not None:
            # Where it continues, as its strategy counts steps.
            status = replace(status, step=self.checkpoint_restart.step)
        if status and (end := describe_nothing_to_do(status, self.spec)):
            yield f"warning: {end}"


def _checkpoint_text(checkpoint: SavedCheckpoint) -> str:
    return f"checkpoint {checkpoint.cut} at step {checkpoint.step:,}"


def resume_point_text(run: RunDirectory, checkpoint: SavedCheckpoint | None) -> str:
    """Where a resumed run would begin."""
    if checkpoint is None:
        return "There is no checkpoint: the run would start from the beginning."
    status = read_status(run)
    where_it_stopped = status is not None and status.step == checkpoint.step
    since = ", where it stopped" if where_it_stopped else "; later work is repeated"
    return f"It continues from {_checkpoint_text(checkpoint)}{since}."


def _as_sentences(*parts: str) -> list[str]:
    return [f"{part[:1].upper()}{part[1:]}." for part in parts]


def describe_batches(spec: JobSpec) -> str:
    """The epochs of a job under AllReduce, and what is in a step."""
    epochs, minibatch = pluralize(spec.train.epochs, "epoch"), spec.train.minibatch_size
    if (global_batch := spec.strategy.global_batch) is not None:
        return f"{epochs} in steps of {pluralize(global_batch, 'record')}, at most {minibatch:,} at a time on a worker"
    return f"{epochs} in minibatches of {minibatch}, one per worker and step"


def total_steps(spec: JobSpec, counts: Sequence[int] | None) -> int | None:
    """Steps of the whole job, or None if unknown. A minibatch never spans two sources."""
    if counts is None:
        return spec.train.max_steps
    steps = spec.train.epochs * sum(-(-records // spec.train.minibatch_size) for records in counts)
    return min(steps, spec.train.max_steps or steps)


def _records_text(counts: Sequence[int] | None, paths: Sequence[str]) -> str:
    places = paths[0] if len(paths) == 1 else f"{len(paths)} paths"
    if counts is None:
        return f"{places} (the model module's reader counts the records)"
    sources = f" of {len(counts):,} sources" if len(counts) > 1 else ""
    return f"{pluralize(sum(counts), 'record')}{sources} in {places}"

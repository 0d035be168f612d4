"""What ``edl run`` is about to do: checked before any process starts, and said in a few lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from edl.api.errors import BadInputError, StorageError
from edl.core.saved_checkpoint import STOPPED, Checkpoint
from edl.jobfile.job_spec import JobSpec
from edl.ops.followup_command import called, program
from edl.ops.local_run_resumption import goes_on_from, nothing_left, status_of
from edl.ops.weights_lookup import Weights
from edl.reporting.run_outcome import Outcome
from edl.storage.checkpoint_restart import CheckpointRestart, plan_restart
from edl.storage.journal_replay import JournalDamagedError
from edl.storage.run_directory import RunDir
from edl.storage.run_resumption import Change, said

_CHANGE_SETTINGS = "The command below has the --set of this one: if one of them is the cause, change it."


@dataclass(frozen=True, slots=True)
class Counts:
    """Records of each source; None where the model module has a reader of its own, which a worker asks."""

    training: tuple[int, ...] | None = ()
    validation: tuple[int, ...] | None = ()
    prediction: tuple[int, ...] | None = ()


@dataclass(frozen=True, slots=True)
class Order:
    """A job file as the user named it, and what the command line says over it."""

    job_file: Path
    settings: Sequence[str] = ()
    workers: int | None = None
    ps: int | None = None

    def command(self, verb: str, *more: str) -> str:
        """Another command about the same work, to be copied into a shell."""
        numbers = [("--workers", self.workers), ("--ps", None if verb == "predict" else self.ps)]
        given = [word for name, number in numbers if number is not None for word in (name, str(number))]
        return " ".join([program(), verb, called(str(self.job_file), None, None, self.settings), *given, *more])

    def goes_on(self, run_id: str) -> str:
        """The command that goes on with a run."""
        return self.command("run", "--resume", run_id)

    def goes_back(self, run_id: str) -> str:
        """The command that goes on with a run from its newest intact checkpoint, without its journal."""
        return self.command("run", "--resume", run_id, "--from-checkpoint")


@dataclass(frozen=True, slots=True)
class Plan:
    """One start of a run.

    Attributes:
        spec: the job, with the paths of this machine.
        order: what the user typed.
        counts: how many records there are.
        run: where it happens.
        resumed: whether the run goes on; then ``changes`` says what differs from its last start.
        weights: what predictions are made with; None for a run that trains.
        output: where predictions go; None for a run that trains.
        restart: the checkpoint that the run goes back to without its journal; None: it goes on with its journal.
    """

    spec: JobSpec
    order: Order
    counts: Counts
    run: RunDir
    resumed: bool = False
    changes: Sequence[Change] = ()
    weights: Weights | None = None
    output: str | None = None
    restart: CheckpointRestart | None = None

    @property
    def job(self) -> str:
        """The job's name."""
        return self.spec.name

    @property
    def run_id(self) -> str:
        """The run's id."""
        return self.run.run_id

    @property
    def logs(self) -> str:
        """Directory of the run's logs."""
        return str(self.run.logs)

    def lines(self) -> list[str]:
        """The plan, for people."""
        title = f"{self.job}: {self.spec.model.definition} from {self.spec.model.zoo}"
        work = self._prediction(self.weights) if self.weights else self._training()
        return [title, *(f"  {line}" for line in [*work, self._roles(), self._where(), *self._resumed()])]

    def next_steps(self, outcome: Outcome) -> list[str]:
        """What people may do after the end."""
        if self.output:
            return []
        if outcome.phase == "Interrupted":
            why = [f"It was {outcome.reason}."] if outcome.reason.startswith(STOPPED) else []
            return [*why, *self._onwards("Go on with")]
        if outcome.phase != "Done":
            return self._after_failure(outcome)
        if self.spec.data.prediction:
            more = ("--from", self.run_id, "--output", "predictions")
            return [f"Predict with: {self.order.command('predict', *more)}"]
        return []

    def _after_failure(self, outcome: Outcome) -> list[str]:
        changed = [_CHANGE_SETTINGS] if self.order.settings else []
        if self._begins_anew(outcome):
            return [*changed, f"Start again when the cause is gone with: {self.order.command('run')}"]
        return self._onwards("Go on when the cause is gone with", *changed)

    def _onwards(self, how: str, *changed: str) -> list[str]:
        """From where the run goes on, and the command; nothing of the former where that cannot be read."""
        again = self.order.goes_on(self.run_id)
        try:
            found = goes_on_from(self.run)
        except JournalDamagedError as error:
            with suppress(BadInputError, StorageError):
                costs = plan_restart(self.run).lines()
                return [*_sentences(error.message, *costs), *changed, f"{how}: {self.order.goes_back(self.run_id)}"]
        except StorageError:
            pass  # how the run ended was told already
        else:
            return [_since(self.run, found), *changed, f"{how}: {again}"]
        return [*changed, f"{how}: {again}"]

    def _begins_anew(self, outcome: Outcome) -> bool:
        """Whether nothing is lost with the run that failed, and going on with it may not be possible.

        A fault of the model or of the data may be mended in fields that are fixed for a run that goes on. Other causes,
        such as a table that is full, say themselves to go on.
        """
        if self.resumed or outcome.summary.records_done:
            return False
        try:
            return outcome.exit_code == BadInputError.exit_code or goes_on_from(self.run) is None
        except StorageError:
            return True

    def _training(self) -> list[str]:
        train, counts = self.spec.train, self.counts
        lines = [f"trains on {_records(counts.training, self.spec.data.training)}"]
        steps = steps_of(self.spec, counts.training)
        often = f"{_times(train.epochs, 'epoch')} in minibatches of {train.minibatch_size}"
        lines.append(f"{often}: {_times(steps, 'step')}" if steps else often)
        if self.spec.data.validation:
            often = f"every {train.evaluation_steps:,} steps and " if train.evaluation_steps else ""
            lines.append(f"evaluates on {_records(counts.validation, self.spec.data.validation)}, {often}at the end")
        return lines

    def _prediction(self, weights: Weights) -> list[str]:
        records = _records(self.counts.prediction, self.spec.data.prediction)
        return [f"predicts {records} with {weights.path}", *weights.lines(), f"writes to {self.output}"]

    def _roles(self) -> str:
        if self.spec.strategy.name == "Local":
            return "one process (strategy Local)"
        workers = _times(self.spec.workers.max, "worker")
        return workers if self.output else f"{workers}, {_times(self.spec.ps.count, 'parameter server')}"

    def _where(self) -> str:
        return f"{'goes on with' if self.resumed else 'run'} {self.run.run_id} in {self.run.path}"

    def _resumed(self) -> Iterator[str]:
        """What people must know of a run that goes on: from where, with what else, and whether that is its end."""
        if not self.resumed:
            return
        if self.restart is not None:
            yield from self.restart.lines()
        else:
            found = goes_on_from(self.run)
            yield f"from {_named(found)}" if found else "from its start: it has no checkpoint"
        yield from (f"changed: {said(change)}" for change in self.changes)
        status = status_of(self.run)
        if status and (end := nothing_left(status, self.spec)):
            yield f"warning: {end}"


def _named(found: Checkpoint) -> str:
    return f"checkpoint {found.cut} at step {found.step:,}"


def _since(run: RunDir, found: Checkpoint | None) -> str:
    """From where a run that ended goes on."""
    if found is None:
        return "There is no checkpoint: it would begin again."
    status = status_of(run)
    where_it_stopped = status is not None and status.step == found.step
    since = ", where it stopped" if where_it_stopped else "; what was done since is done again"
    return f"It goes on from {_named(found)}{since}."


def _sentences(*parts: str) -> list[str]:
    return [f"{part[:1].upper()}{part[1:]}." for part in parts]


def steps_of(spec: JobSpec, counts: Sequence[int] | None) -> int | None:
    """Steps of the whole job: a minibatch never spans two sources. None when that is not known yet."""
    if counts is None:
        return spec.train.max_steps
    steps = spec.train.epochs * sum(-(-records // spec.train.minibatch_size) for records in counts)
    return min(steps, spec.train.max_steps or steps)


def _records(counts: Sequence[int] | None, paths: Sequence[str]) -> str:
    places = paths[0] if len(paths) == 1 else f"{len(paths)} paths"
    if counts is None:
        return f"{places} (the model module's reader counts the records)"
    sources = f" of {len(counts):,} sources" if len(counts) > 1 else ""
    return f"{_times(sum(counts), 'record')}{sources} in {places}"


def _times(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"

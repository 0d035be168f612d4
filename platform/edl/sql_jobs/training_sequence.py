"""Carries out the trainings of a small table after the first one, as ``later_trainings`` decides.

A statement on this machine does so in its own folder, and the master of a statement on a cluster in a copy of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from edl.sql_jobs.column_plan import LabelKind
from edl.sql_jobs.later_trainings import (
    LINEAR_JOB_FILE,
    LINEAR_RATE,
    REFIT_JOB_FILE,
    History,
    count_epochs,
    describe_choice,
    find_gain,
    find_least_gain,
    linear_document,
    refit_document,
)
from edl.sql_jobs.model_registry import ModelDescription
from edl.sql_jobs.prepared_rows import PreparedRows
from edl.sql_jobs.statement_folders import PreparedTraining, write_job
from edl.sql_jobs.undefined_metrics import Metrics

Mark: TypeAlias = Callable[[Metrics], Mapping[str, float | None]]
"""Marks metrics that have no value on the validation rows as None."""


@dataclass(frozen=True, slots=True)
class MeasuredTraining:
    """What a training said.

    Attributes:
        history: step and metrics of each evaluation.
        metrics: at the end.
        records_done: over all epochs.
    """

    history: History
    metrics: Metrics
    records_done: int

    @classmethod
    def from_events(cls, events: Iterable[Mapping[str, Any]], summary: Mapping[str, Any]) -> MeasuredTraining:
        """What the job of a training said.

        Args:
            events: of the job; those that end an evaluation count.
            summary: of the job. A summary without metrics leaves those of the last evaluation.
        """
        ended = [each for each in events if each.get("event") == "evaluation_ended"]
        history = [(int(each["step"]), dict(each["metrics"])) for each in ended]
        metrics = dict(summary.get("metrics") or (history[-1][1] if history else {}))
        return cls(history, metrics, int(summary.get("records_done", 0)))


class RunTraining(Protocol):
    """Runs a job file of the folder."""

    def __call__(self, job: str, *, exports: bool, has_validation: bool) -> MeasuredTraining:
        """Without ``exports``, the model is not kept; without ``has_validation``, no rows are held back."""


@dataclass(frozen=True, slots=True)
class FurtherTrainings:
    """What trains after the first training.

    Attributes:
        document: job file of the first one.
        rows: of the first one.
        kind: of the label.
        rate: learning rate of the first one.
        compares: a linear model is trained, too, and kept unless the network is clearly better.
    """

    document: Mapping[str, Any]
    rows: PreparedRows
    kind: LabelKind
    rate: float
    compares: bool

    @classmethod
    def from_prepared(cls, prepared: PreparedTraining) -> FurtherTrainings:
        """Those of a prepared training."""
        settings = prepared.settings
        rate = float(str(settings.optimizer.arguments["learning_rate"]))
        return cls(prepared.document, prepared.counts, prepared.plan.label.kind, rate, settings.compares)

    def write(self, file: Path) -> None:
        """Write a file that ``read`` reads."""
        file.write_text(json.dumps({**asdict(self), "kind": self.kind.name}), encoding="utf-8")

    @classmethod
    def read(cls, file: Path) -> FurtherTrainings:
        """Read what ``write`` wrote."""
        content = json.loads(file.read_text(encoding="utf-8"))
        rows, kind = PreparedRows(**content.pop("rows")), LabelKind[content.pop("kind")]
        return cls(**content, rows=rows, kind=kind)


@dataclass(frozen=True, slots=True)
class KeptTraining:
    """The training whose model was kept, and trained again on all rows.

    Attributes:
        measured: before.
        is_linear: it is the linear model that was compared.
        choice: why; empty: none was compared.
        epochs: of the training on all rows.
    """

    measured: MeasuredTraining
    is_linear: bool
    choice: str
    epochs: int


def train_again(
    folder: Path, first: MeasuredTraining, further: FurtherTrainings, run: RunTraining, say: Callable[[str], object]
) -> KeptTraining:
    """Compare a linear model, if this is wanted, and train the better one on all rows, into ``export`` of the folder.

    Args:
        folder: with the module, ``job.yaml`` and the data of the first training. It gets the other job files.
        first: what the first training said.
        further: what is to be done.
        run: runs a job file.
        say: hears what begins.
    """
    document, rows, kept, choice = further.document, further.rows, first, ""
    epochs = count_epochs(first.history, first.records_done, rows.training, int(document["train"]["epochs"]))
    rate = further.rate
    if further.compares:
        linear = linear_document(document, rows.training)
        own_epochs = int(linear["train"]["epochs"])
        write_job(folder, LINEAR_JOB_FILE, linear, LINEAR_RATE, own_epochs)
        say("training a linear model")
        other = run(LINEAR_JOB_FILE, exports=False, has_validation=True)
        (folder / LINEAR_JOB_FILE).unlink()
        gain = find_gain(further.kind, rows.validation, other.metrics, first.metrics)
        least = find_least_gain(len(first.history))
        choice = describe_choice(gain, least)
        if not gain > least:
            kept, document, rate, epochs = other, {**linear, "name": document["name"]}, LINEAR_RATE, own_epochs
            write_job(folder, "job.yaml", document, rate, epochs)
    write_job(folder, REFIT_JOB_FILE, refit_document(document, epochs, rows), rate, epochs)
    say("training on all rows")
    run(REFIT_JOB_FILE, exports=True, has_validation=False)
    return KeptTraining(kept, kept is not first, choice, epochs)


def with_measured(model: ModelDescription, measured: MeasuredTraining, mark: Mark) -> ModelDescription:
    """The description of a model with what its training said."""
    history = [(step, mark(metrics)) for step, metrics in measured.history]
    return replace(model, metrics=mark(measured.metrics), history=history)


def with_kept(model: ModelDescription, kept: KeptTraining, mark: Mark) -> ModelDescription:
    """The description of a model that was kept, and trained again."""
    estimator = "linear" if kept.is_linear else model.estimator
    measured = with_measured(model, kept.measured, mark)
    return replace(measured, estimator=estimator, choice=kept.choice, refit_epochs=kept.epochs)

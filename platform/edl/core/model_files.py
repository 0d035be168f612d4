"""The files of ``ModelCheckpoint`` without ``save_best_only``: when each is due, and which are written.

Everything is a value. ``world_model_files`` says when the workers of AllReduce pause for a file, and who writes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class ModelFile:
    """``keras.callbacks.ModelCheckpoint`` without ``save_best_only``.

    Attributes:
        filepath: path of the file that a worker writes, with Keras' placeholders.
        weights_only: whether the file has weights only instead of a whole model.
        every_steps: the steps between two files (``save_freq``); 0: a file is written after each epoch.
    """

    filepath: str
    weights_only: bool = False
    every_steps: int = 0


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """The declared files, and how far they are written.

    Attributes:
        specs: the callbacks in the order of the user's list.
        written: of each, the step of its newest file, or with a file of each epoch the number of epochs that had ended.
    """

    specs: tuple[ModelFile, ...] = ()
    written: tuple[int, ...] = ()

    @property
    def has_epoch_files(self) -> bool:
        """Whether a file is written after each epoch."""
        return any(not spec.every_steps for spec in self.specs)

    def declare(self, specs: Sequence[ModelFile], step: int, epochs: int) -> ModelFiles:
        """The state for these callbacks: known ones keep what is written, new ones begin here.

        Args:
            step: training is at this step.
            epochs: the epochs that have ended.
        """
        before = dict(zip(self.specs, self.written, strict=True))
        return ModelFiles(tuple(specs), tuple(before.get(x, step if x.every_steps else epochs) for x in specs))

    def due(self, step: int, ended_epochs: int | None) -> tuple[int, ...]:
        """The places in the list whose files are to be written between two steps.

        Args:
            step: the number of steps before.
            ended_epochs: the epochs that have ended; None: this is the middle of an epoch.
        """
        return tuple(
            place
            for place, (spec, written) in enumerate(zip(self.specs, self.written, strict=True))
            if self._mark(spec, step, ended_epochs) > written
        )

    def mark_of(self, place: int, step: int, ended_epochs: int | None) -> int:
        """What ``written`` is when the file that is due now has been written."""
        return self._mark(self.specs[place], step, ended_epochs)

    @staticmethod
    def _mark(spec: ModelFile, step: int, ended_epochs: int | None) -> int:
        if not spec.every_steps:
            return ended_epochs or 0
        return step if step % spec.every_steps == 0 else 0

    def next_step(self, step: int) -> int:
        """The first step from ``step`` on after which a file is due by the number of steps; 0: there is none."""
        dues = [
            (max(step - 1, written) // spec.every_steps + 1) * spec.every_steps
            for spec, written in zip(self.specs, self.written, strict=True)
            if spec.every_steps
        ]
        return min(dues, default=0)

    def mark_written(self, marks: Mapping[int, int]) -> ModelFiles:
        """Record that files are written: by place, how far."""
        return replace(self, written=tuple(marks.get(place, each) for place, each in enumerate(self.written)))

    def roll_back_to(self, step: int, epochs: int) -> ModelFiles:
        """Training goes back: later files are written again."""
        pairs = zip(self.specs, self.written, strict=True)
        return replace(self, written=tuple(min(each, step if spec.every_steps else epochs) for spec, each in pairs))

    def to_snapshot(self) -> dict[str, Any]:
        """The complete state, as JSON."""
        return {"declared": [asdict(spec) for spec in self.specs], "written": list(self.written)}

    @classmethod
    def from_snapshot(cls, snapshot: Mapping[str, Any]) -> ModelFiles:
        """Restore what :meth:`to_snapshot` returned."""
        return cls(tuple(ModelFile(**row) for row in snapshot["declared"]), tuple(snapshot["written"]))

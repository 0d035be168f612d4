"""The stored weights of a run that evaluates or predicts: chosen once, and named by a file in the run directory.

``<run>/predict.json`` is ``{"from": PATH, "output": DIRECTORY}``, ``<run>/evaluate.json`` is
``{"from": PATH, "step": N}``.
``edl predict`` and ``edl evaluate`` write it before the run starts, on a cluster the first master does.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edl.api.errors import BadInputError
from edl.api.job_spec import JobSpec
from edl.storage.durable_files import read_json, write_json
from edl.storage.run_directory import RunDirectory
from edl.storage.weights_lookup import WEIGHTS_FILE_BY_TASK, find_weights

OUTPUT_DIRECTORY = "predictions"
"""Where a run on a cluster writes predictions, in its directory."""


@dataclass(frozen=True, slots=True)
class RunWeights:
    """What a run evaluates or predicts with.

    Attributes:
        path: a ``.keras`` file or the directory of a checkpoint.
        step: the global step of the weights; 0 if it is unknown.
        output: directory of the predictions; None for an evaluation.
    """

    path: Path
    step: int = 0
    output: Path | None = None

    @property
    def is_checkpoint(self) -> bool:
        """Whether the weights are a checkpoint, which has PS-backed tables in separate arrays."""
        return self.path.is_dir()

    @classmethod
    def read(cls, run: RunDirectory, task: str) -> RunWeights | None:
        """Read the file of a run; None if it is not written yet.

        Raises:
            StorageError: the file cannot be read.
            BadInputError: it lacks a field.
        """
        path = run.path / WEIGHTS_FILE_BY_TASK[task]
        if not path.exists():
            return None
        value = read_json(path)
        try:
            output = Path(value["output"]) if task == "predict" else None
            return cls(Path(value["from"]), int(value.get("step", 0)), output)
        except (KeyError, TypeError) as error:
            fields = '"from" and "output"' if task == "predict" else '"from"'
            raise BadInputError(
                f"lacks {error}", where=str(path), hint=f"the file must have the fields {fields}"
            ) from error

    @classmethod
    def require(cls, run: RunDirectory, task: str) -> RunWeights:
        """Read the file of a run whose master has started.

        Raises:
            StorageError: the file cannot be read.
            BadInputError: there is none, or it lacks a field.
        """
        weights = cls.read(run, task)
        if weights is None:
            raise BadInputError(
                f"has no {WEIGHTS_FILE_BY_TASK[task]}, which the master writes",
                where=str(run.path),
                hint="Master and workers must have the same storage: set storage.claim.",
            )
        return weights

    def write(self, run: RunDirectory, task: str) -> None:
        """Write the file of a run.

        Raises:
            StorageError: it cannot be written.
        """
        more: dict[str, Any] = {"step": self.step} if self.output is None else {"output": str(self.output)}
        write_json(run.path / WEIGHTS_FILE_BY_TASK[task], {"from": str(self.path), **more}, fsync=True)


def choose_run_weights(run: RunDirectory, spec: JobSpec) -> RunWeights:
    """Choose the weights that ``model.weights`` names, and write them down for workers and later masters.

    Raises:
        BadInputError: there are no such weights.
        StorageError: they cannot be read, or the file cannot be written.
    """
    found = find_weights(run.job_dir, spec.model.weights)
    chosen = RunWeights(found.path, found.step, run.path / OUTPUT_DIRECTORY if spec.task == "predict" else None)
    chosen.write(run, spec.task)
    return chosen

"""The weights of another run that a run works with: chosen once, and named by a file in the run directory.

``<run>/predict.json`` is ``{"from": PATH, "output": DIRECTORY}``. ``<run>/evaluate.json``, and ``<run>/init.json`` of a
run that trains (``model.init_from``), are ``{"from": PATH, "step": N}``.
The command writes it before the run starts, on a cluster the first master does.

The run that wrote a checkpoint may go on training, and then it removes its old checkpoints. So the files of the chosen
one get a second name in the run that reads it (``held``), where the file system has hard links.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from edl.api.errors import BadInputError, EdlError
from edl.api.job_spec import JobSpec
from edl.storage.checkpoint_manifest import MANIFEST_NAME
from edl.storage.durable_files import read_json, write_json
from edl.storage.run_directory import RunDirectory
from edl.storage.weights_lookup import WEIGHTS_FILE_BY_TASK, find_weights

HELD_DIRECTORY = "weights"
"""Folder in a run with the files of weights that it holds."""
_FILE_BY_TASK = {**WEIGHTS_FILE_BY_TASK, "train": "init.json"}
OUTPUT_DIRECTORY = "predictions"
"""Where a run on a cluster writes predictions, in its directory."""


@dataclass(frozen=True, slots=True)
class RunWeights:
    """What a run evaluates, predicts or begins with.

    Attributes:
        path: a ``.keras`` file or the directory of a checkpoint.
        step: the global step of the weights; 0 if it is unknown.
        output: directory of the predictions; None for other runs.
        held: the directory with the same files in this run; None: they are only where ``path`` names them.
    """

    path: Path
    step: int = 0
    output: Path | None = None
    held: Path | None = None

    @property
    def readable_path(self) -> Path:
        """Where the weights are read: the other run may have removed its checkpoint."""
        return self.held if self.held is not None and self.held.is_dir() else self.path

    @property
    def may_be_removed(self) -> bool:
        """Whether the run that wrote the checkpoint may remove it while this run reads it."""
        return self.is_checkpoint and self.held is None

    @property
    def removal_warning(self) -> str:
        """What to say if ``may_be_removed``."""
        return (
            f"{self.path} is read where it is, because its files cannot be linked into this run: if the run that "
            "wrote it still trains, it may remove it (checkpoint.keep). Raise checkpoint.keep there, or name an export"
        )

    @property
    def is_checkpoint(self) -> bool:
        """Whether the weights are a checkpoint, which has PS-backed tables in separate arrays."""
        return self.readable_path.is_dir()

    @classmethod
    def read(cls, run: RunDirectory, task: str) -> RunWeights | None:
        """Read the file of a run; None if it is not written yet.

        Raises:
            StorageError: the file cannot be read.
            BadInputError: it lacks a field.
        """
        path = run.path / _FILE_BY_TASK[task]
        if not path.exists():
            return None
        value = read_json(path)
        try:
            output = Path(value["output"]) if task == "predict" else None
            kept_files = value.get("held")
            return cls(
                Path(value["from"]), int(value.get("step", 0)), output, None if kept_files is None else Path(kept_files)
            )
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
                f"has no {_FILE_BY_TASK[task]}, which the master writes",
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
        if self.held is not None:
            more["held"] = str(self.held)
        write_json(run.path / _FILE_BY_TASK[task], {"from": str(self.path), **more}, fsync=True)

    def hold(self, run: RunDirectory) -> RunWeights:
        """The same weights, kept for this run even if the run that wrote the checkpoint removes it.

        On a file system without hard links, or on another one, they are read where they are.

        Raises:
            BadInputError: the checkpoint has been removed since it was found.
        """
        if not self.path.is_dir() or self.held is not None:
            return self
        folder = run.path / HELD_DIRECTORY / self.path.name
        try:
            _link_files(self.path, folder)
        except FileNotFoundError as error:
            raise BadInputError(
                "the checkpoint has just been removed: its run has written newer ones",
                where=str(self.path),
                hint="Try again, name the run instead of the checkpoint, or raise checkpoint.keep of that job.",
            ) from error
        except OSError:
            shutil.rmtree(folder, ignore_errors=True)
            return self
        return replace(self, held=folder)


def _link_files(source: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for path in source.iterdir():
        with suppress(FileExistsError):  # of an attempt that a crash ended
            os.link(path, folder / path.name)
    # The manifest is removed first: with it, all files that it names were there.
    (folder / MANIFEST_NAME).stat()


def choose_run_weights(run: RunDirectory, spec: JobSpec) -> RunWeights:
    """Choose the weights that ``model.weights`` or ``model.init_from`` names, for workers and later masters.

    Raises:
        BadInputError: there are no such weights.
        StorageError: they cannot be read, or the file cannot be written.
    """
    weights = find_weights(run.job_dir, spec.model.init_from if spec.task == "train" else spec.model.weights)
    output = run.path / OUTPUT_DIRECTORY if spec.task == "predict" else None
    chosen = RunWeights(weights.path, weights.step, output).hold(run)
    chosen.write(run, spec.task)
    return chosen


def describe_initial_weights(run: RunDirectory) -> str | None:
    """What a run that trains has begun with, for people; None: its own initial values."""
    try:
        weights = RunWeights.read(run, "train")
    except EdlError:
        return None  # the run's own failure says why
    return None if weights is None else f"{weights.path}{f', step {weights.step:,}' if weights.step else ''}"


def release_run_weights(run: RunDirectory) -> None:
    """Give up the weights that an ended run holds: their space is freed if the other run has removed its own."""
    shutil.rmtree(run.path / HELD_DIRECTORY, ignore_errors=True)

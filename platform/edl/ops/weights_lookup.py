"""Finds the weights for ``edl predict``: a ``.keras`` file, or a checkpoint or export of a run."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from edl.api.errors import BadInputError, EdlError
from edl.ops.local_run_resumption import training_runs
from edl.storage import checkpoint_manifest
from edl.storage.checkpoint_manifest import MANIFEST_NAME, CheckpointManifest, SkippedCheckpoint, load_manifest
from edl.storage.run_directory import RunDirectory, find_run
from edl.storage.run_resumption import read_status

_END_WORDS = {"Done": "which is done", "Failed": "which failed"}
"""How a run ended, by its phase. With any other phase it was interrupted."""


@dataclass(frozen=True, slots=True)
class TrainedWeights:
    """Weights and their origin.

    Attributes:
        path: a ``.keras`` file, or the directory of a checkpoint.
        run: the run that wrote them; None for a file that the user named.
        checkpoint: the checkpoint that contains them; None for a file.
        damaged_checkpoints: newer checkpoints of the run that cannot be used.
    """

    path: Path
    run: RunDirectory | None = None
    checkpoint: CheckpointManifest | None = None
    damaged_checkpoints: tuple[SkippedCheckpoint, ...] = ()

    @property
    def is_trained(self) -> bool:
        """Whether the weights were trained. A file is assumed to be."""
        return self.checkpoint is None or self.checkpoint.step > 0

    def origin_lines(self) -> Iterator[str]:
        """Lines that describe the origin; none for a file that the user named."""
        if self.run is None:
            return
        ended, step = _run_end(self.run)
        if self.checkpoint is not None:
            what = f"checkpoint {self.checkpoint.cut} at step {self.checkpoint.step:,}"
        else:
            what = "its export" if step is None else f"its export at step {step:,}"
        yield f"from run {self.run.run_id}, {ended}: {what}"
        if not self.is_trained:
            yield "warning: the checkpoint was written at step 0, before any training"

    def skipped_lines(self) -> list[str]:
        """Lines about newer checkpoints that were skipped because they are damaged."""
        return [
            f"checkpoint {each.cut} of run {self.run.run_id} is skipped: {each.reason}"
            for each in self.damaged_checkpoints
            if self.run
        ]


def find_weights(folder: Path, source: str | None) -> TrainedWeights:
    """Find the weights that ``--from`` names.

    Args:
        folder: folder of the job's runs.
        source: a run, as ``RUN`` or ``JOB/RUN``, or a file; None: the newest run that trained something.

    Raises:
        BadInputError: there is no such run or file, the file is not a Keras file, or the run has no
            weights.
        StorageError: the checkpoints cannot be read.
    """
    if source is not None and source.endswith(".keras"):
        return TrainedWeights(_require_keras_file(source))
    if source is not None:
        source = source.removeprefix(f"{folder.name}/")
    for run in reversed(training_runs(folder) if source is None else [find_run(folder, source)]):
        weights = _weights_of_run(run)
        if weights is not None and (weights.is_trained or source is not None):
            return weights
    if source is not None:
        what = f"run {source} has neither a checkpoint nor an export"
    else:
        what = f"no run of this job ({folder}) has a checkpoint after step 0 or an export"
    raise BadInputError(what, hint="Train with edl run, or give --from.")


def _weights_of_run(run: RunDirectory) -> TrainedWeights | None:
    """The newest intact checkpoint, or the export if that checkpoint is untrained.

    A checkpoint also contains the rows of unbounded tables.

    Raises:
        BadInputError: all trained checkpoints of the run are damaged, and it has no export.
    """
    skipped: list[SkippedCheckpoint] = []
    checkpoint, export_file = (
        checkpoint_manifest.newest_intact_checkpoint(run.checkpoints, skipped.append),
        _exported_model(run),
    )
    damaged = tuple(filter(_was_trained, skipped))
    if checkpoint and checkpoint.directory:
        of_checkpoint = TrainedWeights(checkpoint.directory, run, checkpoint, damaged)
        if of_checkpoint.is_trained or not (export_file or damaged):
            return of_checkpoint
    if export_file is not None:
        return TrainedWeights(export_file, run, damaged_checkpoints=damaged)
    if damaged:
        reasons = "".join(f"\n  checkpoint {each.cut}: {each.reason}" for each in damaged)
        raise BadInputError(
            f"no trained checkpoint of run {run.run_id} is intact{reasons}",
            where=str(run.checkpoints),
            hint="Copy the run from a backup of its volume, or choose another one: --from RUN.",
        )
    return None


def _was_trained(skipped: SkippedCheckpoint) -> bool:
    """Whether a damaged checkpoint seems to contain trained weights."""
    found = load_manifest(skipped.directory)
    return found.step > 0 if isinstance(found, CheckpointManifest) else (skipped.directory / MANIFEST_NAME).exists()


def _exported_model(run: RunDirectory) -> Path | None:
    return next(iter(sorted(run.export.glob("*.keras"))), None) if run.export.is_dir() else None


def _require_keras_file(source: str) -> Path:
    """The path, if the file is a zip archive. Keras checks its content later, in a worker."""
    file = Path(source).absolute()
    if not file.is_file():
        raise BadInputError("no such file", where=source)
    if not zipfile.is_zipfile(file):
        raise BadInputError("is not a .keras file, or not a complete one", where=source, hint="Export the model again.")
    return file


def _run_end(run: RunDirectory) -> tuple[str, int | None]:
    """How a run ended and after which step, if its status says so; weights do not depend on it."""
    try:
        status = read_status(run)
    except EdlError:
        return "whose status cannot be read", None
    if status is None:
        return "which has no status", None
    return _END_WORDS.get(status.phase, "which was interrupted"), status.step

"""Finds the weights to evaluate or predict with: a ``.keras`` file, or a checkpoint or export of a run."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from edl.api.errors import BadInputError, EdlError
from edl.storage import checkpoint_manifest
from edl.storage.checkpoint_manifest import (
    MANIFEST_NAME,
    CheckpointManifest,
    SkippedCheckpoint,
    list_cuts,
    load_manifest,
)
from edl.storage.run_directory import RunDirectory, find_run, list_numbered_runs, list_submitted_runs
from edl.storage.run_resumption import read_status

WEIGHTS_FILE_BY_TASK = {"predict": "predict.json", "evaluate": "evaluate.json"}
"""The file that marks a run which evaluates or predicts. Such a run is started anew instead of resumed."""

_VERSION_NAME = re.compile(r"version-([0-9]+)")
"""The last part of ``DIRECTORY/version-N``: the checkpoint at step N of a run in DIRECTORY."""

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

    @property
    def step(self) -> int:
        """The global step of the weights; 0 if it is unknown."""
        if self.checkpoint is not None:
            return self.checkpoint.step
        return (_run_end(self.run)[1] or 0) if self.run is not None else 0

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


def training_runs(job_dir: Path) -> list[RunDirectory]:
    """The job's runs that train, oldest first; on a cluster the one that was started last is last."""
    runs = list_numbered_runs(job_dir) or list_submitted_runs(job_dir)
    return [run for run in runs if read_task(run) == "train"]


def read_task(run: RunDirectory) -> str:
    """What a run does: train, evaluate or predict."""
    return next((task for task, name in WEIGHTS_FILE_BY_TASK.items() if (run.path / name).exists()), "train")


def find_weights(folder: Path, source: str | None) -> TrainedWeights:
    """Find the weights that ``--from`` or ``model.weights`` names.

    Args:
        folder: folder of the job's runs; the folders of other jobs are beside it.
        source: a run, as ``RUN``, ``JOB/RUN`` or its directory; another job, whose newest trained run it is; the
            directory of a checkpoint or an export; ``DIRECTORY/version-N``, the checkpoint at step N of the newest run
            in DIRECTORY that has one; a file; None: the job's newest run that trained something.

    Raises:
        BadInputError: there is no such run or file, the file is not a Keras file, or the run has no
            weights.
        StorageError: the checkpoints cannot be read.
    """
    if source is None:
        return _newest_weights(folder)
    if source.endswith(".keras"):
        return TrainedWeights(_require_keras_file(source))
    if (run := _find_named_run(folder, source)) is not None:
        return _require_weights(run, source)
    job, _, more = source.partition("/")
    if not more and (folder.parent / job).is_dir() and training_runs(folder.parent / job):
        return _newest_weights(folder.parent / job)
    if Path(source).is_dir():
        return _weights_of_directory(Path(source).absolute())
    is_path = source.startswith(("/", "."))
    if (match := _VERSION_NAME.fullmatch(Path(source).name)) and (is_path or Path(source).parent.is_dir()):
        return _weights_at_step(Path(source).absolute().parent, int(match[1]), source)
    if is_path:
        raise BadInputError("no such file or directory", where=source)
    job, _, run_id = source.rpartition("/")
    if job not in ("", folder.name):
        runs = ", ".join(run.run_id for run in training_runs(folder.parent / job)) or "none"
        raise BadInputError(
            f"there is no run {source!r}", where=str(folder.parent / job), hint=f"The runs of the job {job}: {runs}."
        )
    if not list_numbered_runs(folder):
        raise BadInputError(
            f"there is no file, no directory and no run {source!r}",
            where=str(folder),
            hint="This job has no run in this folder. Give the path of a run, a checkpoint or a .keras file.",
        )
    return _require_weights(find_run(folder, run_id), source)


def _newest_weights(folder: Path) -> TrainedWeights:
    """The weights of a job's newest run that trained something."""
    for run in reversed(training_runs(folder)):
        weights = _weights_of_run(run)
        if weights is not None and weights.is_trained:
            return weights
    what = f"no run of this job ({folder}) has a checkpoint after step 0 or an export"
    raise BadInputError(what, hint="Train with edl run, or give --from (in a job file: model.weights).")


def _find_named_run(folder: Path, source: str) -> RunDirectory | None:
    """The run ``RUN`` or ``JOB/RUN``; None if there is none."""
    job, slash, run_id = source.rpartition("/")
    if "/" in job or (slash and not (job and run_id)):
        return None
    path = (folder.parent / job if job else folder) / run_id
    return RunDirectory(path) if run_id not in (".", "..") and _is_run(path) else None


def _is_run(path: Path) -> bool:
    return (path / "checkpoints").is_dir()


def _require_weights(run: RunDirectory, source: str) -> TrainedWeights:
    weights = _weights_of_run(run)
    if weights is None:
        raise BadInputError(
            f"run {source} has neither a checkpoint nor an export", hint="Train with edl run, or give --from."
        )
    return weights


_SAVED_MODEL_FILE = "saved_model.pb"


def _weights_of_directory(path: Path) -> TrainedWeights:
    """The weights in the directory of a run, a checkpoint or an export."""
    if _is_run(path):
        return _require_weights(RunDirectory(path), str(path))
    if (path / MANIFEST_NAME).exists():
        return _weights_of_checkpoint(path)
    files = sorted(path.glob("*.keras"))
    if len(files) == 1:
        return TrainedWeights(_require_keras_file(str(files[0])))
    if not files and any(path.rglob(_SAVED_MODEL_FILE)):
        raise BadInputError(
            "is a SavedModel without a .keras file, and its weights cannot be read by name",
            where=str(path),
            hint="Name the run that exported it, or one of its checkpoints.",
        )
    if any(path.glob("*.ckpt")):
        raise BadInputError(
            "is a checkpoint of ElasticDL or of TensorFlow, which EDL cannot read",
            where=str(path),
            hint="Name a run of EDL, one of its checkpoints or a .keras file.",
        )
    runs = _runs_below(path)
    raise BadInputError(
        "is neither a run, nor a checkpoint, nor an export with one .keras file",
        where=str(path),
        hint=f"The newest run in it is {runs[0].path}."
        if runs
        else "A run's directory contains checkpoints/, a checkpoint's a manifest.",
    )


def _runs_below(path: Path) -> list[RunDirectory]:
    """The runs in a directory of storage (``local/JOB/RUN``), of a job (``RUN``) or of a run, the newest first."""
    folders = [each for depth in (".", "*", "*/*", "*/*/*") for each in path.glob(f"{depth}/checkpoints")]
    folders.sort(key=lambda each: each.stat().st_mtime_ns, reverse=True)
    return [RunDirectory(each.parent) for each in folders]


def _weights_at_step(path: Path, step: int, source: str) -> TrainedWeights:
    """The checkpoint at a step of the newest run below ``path`` that has one."""
    kept: list[str] = []
    for run in _runs_below(path):
        directories = [checkpoint_manifest.cut_directory(run.checkpoints, cut) for cut in list_cuts(run.checkpoints)]
        manifests = [each for each in map(load_manifest, directories) if isinstance(each, CheckpointManifest)]
        for manifest in reversed(manifests):
            if manifest.step == step and manifest.directory is not None:
                return _weights_of_checkpoint(manifest.directory)
        steps = ", ".join(f"{each.step:,}" for each in manifests)
        kept += [f"{run.job_dir.name}/{run.run_id} has {steps}"] if manifests else []
    raise BadInputError(
        f"no run in {path} has a checkpoint at step {step:,}",
        where=source,
        hint=f"Steps of the checkpoints: {'; '.join(kept)}. Write one of these after version-, or name the run."
        if kept
        else "Name a run of EDL, one of its checkpoints or a .keras file. Checkpoints of ElasticDL cannot be read.",
    )


def _weights_of_checkpoint(path: Path) -> TrainedWeights:
    manifest = load_manifest(path)
    if isinstance(manifest, CheckpointManifest):
        damage = checkpoint_manifest.verify_checkpoint(path, manifest)
        if damage is None:
            return TrainedWeights(path, RunDirectory(path.parent.parent), manifest)
    else:
        damage = manifest.reason
    raise BadInputError(
        f"the checkpoint cannot be used: {damage}",
        where=str(path),
        hint="Choose another one: edl checkpoint ls --verify shows which checkpoints of a run are intact.",
    )


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
    manifest = load_manifest(skipped.directory)
    return (
        manifest.step > 0 if isinstance(manifest, CheckpointManifest) else (skipped.directory / MANIFEST_NAME).exists()
    )


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

"""Prediction of leased ranges: one ``.npz`` per task, or the user's ``PredictionOutputsProcessor``.

A file is named after its range and renamed into place when complete, so a task that is repeated
because its first worker died before the report leaves one file. A processor is called once per
minibatch, and progress is reported after every call, so a killed worker repeats at most one call.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePath
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from edl.api.errors import BadInputError
from edl.keras.user_code import source_file, user_code
from edl.numerics.array_types import Floats
from edl.storage.durable_files import replace_file, translate_os_errors
from edl.worker.graceful_shutdown import ShutdownGate
from edl.worker.lease_client import LeaseClient, LeasedTask, ProgressReporter
from edl.worker.model_interface import NetworkLike, RowSource, pull_needed_rows
from edl.worker.record_stream import RecordStream
from edl.worker.trainer import add_record_range

OutputArray = npt.NDArray[np.generic]


class PredictionProcessor(Protocol):
    """The user's ``PredictionOutputsProcessor``."""

    def process(self, predictions: Any, worker_id: int) -> None:
        """Process the predictions of one minibatch."""


class PredictionOutput(Protocol):
    """The destination of predictions."""

    def begin_range(self, task: LeasedTask) -> None:
        """Start a range."""

    def add_minibatch(self, predictions: Any) -> bool:
        """Add one minibatch; True if its records are done with that, so that progress may be reported."""

    def end_range(self, task: LeasedTask) -> None:
        """Complete the range."""


class Predictor:
    """Runs prediction tasks."""

    def __init__(
        self,
        network: NetworkLike,
        flat_values: Floats,
        row_source: RowSource,
        output: PredictionOutput,
        stream: RecordStream,
        leases: LeaseClient,
        progress: ProgressReporter,
        gate: ShutdownGate,
    ) -> None:
        self._network = network
        self._flat_values = flat_values
        self._row_source = row_source
        self._output = output
        self._stream = stream
        self._leases = leases
        self._progress = progress
        self._gate = gate

    def run(self, task: LeasedTask) -> None:
        """Predict every record of the range."""
        self._output.begin_range(task)
        steps_done = 0
        for loaded in self._stream.load_steps(task):
            if not self._leases.is_held(task.lease_id):
                self._progress.drop_lease(task.lease_id)
                return
            predictions = None
            if loaded.minibatch is not None:
                features = loaded.minibatch.features
                with add_record_range(task, loaded.step):
                    rows = pull_needed_rows(self._network, self._row_source, features)
                    predictions = self._network.predict(self._flat_values, rows, features)
            # SIGTERM must not come between a processor's call and its report: the call would be
            # repeated.
            with self._gate.critical_section():
                if predictions is not None and self._output.add_minibatch(predictions):
                    steps_done = loaded.step + 1
                self._progress.record_step(task.lease_id, steps_done, loss=None, skipped_records=loaded.skipped_records)
                # A processor has delivered these records: after a revocation, the next worker starts behind them.
                if steps_done:
                    self._progress.send_all()
        # The file is durable before the range is reported as done.
        with self._gate.critical_section():
            self._output.end_range(task)
        self._progress.finish_task(task.lease_id)


class NpzOutput:
    """Writes one ``.npz`` per range: ``source``, ``start``, ``end`` and the outputs of its records.

    A model with one output has ``outputs``; a model with several has ``outputs_0`` and so on, or
    ``outputs_<name>``.

    Args:
        directory: directory of the files; created if it does not exist.
        sources: the names of all sources, to find out whether their file names are unique.
    """

    def __init__(self, directory: Path, sources: Iterable[str]) -> None:
        self._directory = directory
        self._file_stems = _file_stems(sources)
        self._minibatch_outputs: list[dict[str, OutputArray]] = []

    def begin_range(self, task: LeasedTask) -> None:
        del task
        # A range whose lease was lost may have left minibatches.
        self._minibatch_outputs = []

    def add_minibatch(self, predictions: Any) -> bool:
        """Keep one minibatch's outputs until the range ends."""
        self._minibatch_outputs.append(outputs_by_name(predictions))
        return False

    def end_range(self, task: LeasedTask) -> None:
        """Write the file and rename it into place.

        Raises:
            StorageError: the file cannot be written.
        """
        outputs = {
            name: np.concatenate([part[name] for part in self._minibatch_outputs])
            for name in _output_names(self._minibatch_outputs)
        }
        path = self.file_path(task)
        with translate_os_errors(path, "write predictions"):
            self._directory.mkdir(parents=True, exist_ok=True)
            with replace_file(path) as temporary, temporary.open("wb") as file:
                np.savez(file, source=task.source, start=task.start, end=task.end, **outputs)  # type: ignore[arg-type]

    def file_path(self, task: LeasedTask) -> Path:
        stem = self._file_stems.get(task.source) or _stem_with_checksum(task.source)
        return self._directory / f"{stem}-{task.start}-{task.end}.npz"


class OutputsArray(np.ndarray):
    """An output of the model for a processor: an array that has the method of a tensor which returns one."""

    def numpy(self) -> OutputArray:
        """The same array."""
        return self.view(np.ndarray)


class ProcessorOutput:
    """Passes every minibatch to the user's processor.

    Args:
        processor: the user's processor.
        worker_index: index of this worker.
        zoo: the model zoo; frames of files below it are the user's in tracebacks.

    Raises:
        BadInputError: the processor has no method ``process``.
    """

    def __init__(self, processor: PredictionProcessor, worker_index: int, zoo: Path) -> None:
        if not callable(getattr(processor, "process", None)):
            raise BadInputError(
                "PredictionOutputsProcessor has no method process",
                where=source_file(type(processor)),
                hint="define process(self, predictions, worker_id)",
            )
        self._processor = processor
        self._worker_index = worker_index
        self._zoo = zoo

    def begin_range(self, task: LeasedTask) -> None:
        """Nothing to do."""

    def add_minibatch(self, predictions: Any) -> bool:
        """Call the user's code; the records that it accepted are done.

        Raises:
            UserCodeError: the processor raised. This ends the job, because the same call would raise in
                every worker.
        """
        with user_code(self._zoo, "PredictionOutputsProcessor.process()"):
            self._processor.process(_make_outputs_arrays(predictions), self._worker_index)
        return True

    def end_range(self, task: LeasedTask) -> None:
        """Nothing to do."""


def _make_outputs_arrays(predictions: Any) -> Any:
    """The outputs as ``OutputsArray``, nested as the model nests its outputs."""
    if isinstance(predictions, Mapping):
        return {name: _make_outputs_arrays(value) for name, value in predictions.items()}
    if isinstance(predictions, tuple | list):
        make = getattr(predictions, "_make", type(predictions))  # of a namedtuple
        return make([_make_outputs_arrays(value) for value in predictions])
    return np.asarray(predictions).view(OutputsArray)


def outputs_by_name(predictions: Any) -> dict[str, OutputArray]:
    """A model's outputs by their names in the file."""
    if isinstance(predictions, Mapping):
        return {f"outputs_{name}": np.asarray(value) for name, value in predictions.items()}
    if isinstance(predictions, tuple | list):
        return {f"outputs_{number}": np.asarray(value) for number, value in enumerate(predictions)}
    return {"outputs": np.asarray(predictions)}


def _output_names(parts: list[dict[str, OutputArray]]) -> list[str]:
    return list(parts[0]) if parts else []


def _file_stems(sources: Iterable[str]) -> dict[str, str]:
    """File names where they are unique, otherwise names with a checksum."""
    short = {source: _safe_file_name(PurePath(source).name) for source in sources}
    count = Counter(short.values())
    return {source: stem if count[stem] == 1 else _stem_with_checksum(source) for source, stem in short.items()}


def _stem_with_checksum(source: str) -> str:
    return f"{_safe_file_name(PurePath(source).name)}-{zlib.crc32(source.encode()):08x}"


def _safe_file_name(name: str) -> str:
    return "".join(c if c.isalnum() or c in "._-" else "_" for c in name)[:100] or "source"

"""Predicting leased ranges: one ``.npz`` a task, or the user's ``PredictionOutputsProcessor``.

A file is named by its range and renamed into place when it is whole, so that a task that is done twice, because its
first worker died before the report, leaves one file. A processor is called once for each minibatch; progress is
reported after every call, so that a killed worker costs at most the call that it was in.
"""

from __future__ import annotations

import os
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePath
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from edl.api.errors import BadInputError
from edl.keras.flat_buffer import Floats
from edl.keras.user_code import defined_in, user_code
from edl.storage.durable_files import removed_on_error, translated
from edl.worker.lease_client import Leased, Leases
from edl.worker.model_interface import Network, RowSource, rows_of
from edl.worker.progress_reporter import Progress
from edl.worker.record_errors import of_records
from edl.worker.record_stream import RecordStream
from edl.worker.shutdown_gate import Gate

Array = npt.NDArray[np.generic]


class Processor(Protocol):
    """The user's ``PredictionOutputsProcessor``."""

    def process(self, predictions: Any, worker_id: int) -> None:
        """Take the predictions of one minibatch."""


class Output(Protocol):
    """Where predictions go."""

    def begin(self, task: Leased) -> None:
        """A range begins."""

    def add(self, predictions: Any) -> bool:
        """Take one minibatch; True if its records are done for good with that."""

    def end(self, task: Leased) -> None:
        """The range is complete."""


class Predictor:
    """Does prediction tasks."""

    def __init__(
        self,
        network: Network,
        slab: Floats,
        rows: RowSource,
        output: Output,
        stream: RecordStream,
        leases: Leases,
        progress: Progress,
        gate: Gate,
    ) -> None:
        self._network = network
        self._slab = slab
        self._rows = rows
        self._output = output
        self._stream = stream
        self._leases = leases
        self._progress = progress
        self._gate = gate

    def run(self, task: Leased) -> None:
        """Predict every record of the range."""
        self._output.begin(task)
        done = 0
        for loaded in self._stream.minibatches(task):
            if not self._leases.alive(task.lease):
                self._progress.drop(task.lease)
                return
            predictions = None
            if loaded.minibatch is not None:
                features = loaded.minibatch.features
                with of_records(task, loaded.step):
                    rows = rows_of(self._network, self._rows, features)
                    predictions = self._network.predict(self._slab, rows, features)
            with self._gate.critical():
                if predictions is not None and self._output.add(predictions):
                    done = loaded.step + 1
                self._progress.stepped(task.lease, done, loss=None, skipped=loaded.skipped)
                if done:
                    self._progress.send()
        with self._gate.critical():
            self._output.end(task)
        self._progress.finish(task.lease)


class Files:
    """One ``.npz`` for each range: ``source``, ``start``, ``end`` and the outputs of its records.

    A model with one output gives ``outputs``; one with several ``outputs_0`` and so on, or ``outputs_<name>``.

    Args:
        directory: where the files go; made when it is missing.
        sources: all names, to see whether file names alone tell them apart.
    """

    def __init__(self, directory: Path, sources: Iterable[str]) -> None:
        self._directory = directory
        self._stems = _stems(sources)
        self._parts: list[dict[str, Array]] = []

    def begin(self, task: Leased) -> None:
        """A range begins."""
        del task
        self._parts = []

    def add(self, predictions: Any) -> bool:
        """Keep one minibatch's outputs until the range ends."""
        self._parts.append(named_outputs(predictions))
        return False

    def end(self, task: Leased) -> None:
        """Write the file and rename it into place.

        Raises:
            StorageError: it cannot be written.
        """
        outputs = {name: np.concatenate([part[name] for part in self._parts]) for name in _names(self._parts)}
        path = self.path(task)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        with translated(path, "write predictions"):
            self._directory.mkdir(parents=True, exist_ok=True)
            with removed_on_error(temporary), temporary.open("wb") as file:
                np.savez(file, source=task.source, start=task.start, end=task.end, **outputs)  # type: ignore[arg-type]
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)

    def path(self, task: Leased) -> Path:
        """The file of a range."""
        stem = self._stems.get(task.source) or _distinct(task.source)
        return self._directory / f"{stem}-{task.start}-{task.end}.npz"


class Processed:
    """Hands every minibatch to the user's processor.

    Args:
        processor: the user's.
        worker: index of this worker.
        zoo: the model zoo; frames of files below it are the user's in tracebacks.

    Raises:
        BadInputError: it has no ``process``.
    """

    def __init__(self, processor: Processor, worker: int, zoo: Path) -> None:
        if not callable(getattr(processor, "process", None)):
            raise BadInputError(
                "PredictionOutputsProcessor has no method process",
                where=defined_in(type(processor)),
                hint="define process(self, predictions, worker_id)",
            )
        self._processor = processor
        self._worker = worker
        self._zoo = zoo

    def begin(self, task: Leased) -> None:
        """Nothing to do."""

    def add(self, predictions: Any) -> bool:
        """Call the user's code; what it has taken is done.

        Raises:
            ModuleError: it raised: the job ends, for the same call would raise in every worker.
        """
        with user_code(self._zoo, "PredictionOutputsProcessor.process()"):
            self._processor.process(predictions, self._worker)
        return True

    def end(self, task: Leased) -> None:
        """Nothing to do."""


def named_outputs(predictions: Any) -> dict[str, Array]:
    """The arrays of a model's outputs by the name they have in the file."""
    if isinstance(predictions, Mapping):
        return {f"outputs_{name}": np.asarray(value) for name, value in predictions.items()}
    if isinstance(predictions, tuple | list):
        return {f"outputs_{number}": np.asarray(value) for number, value in enumerate(predictions)}
    return {"outputs": np.asarray(predictions)}


def _names(parts: list[dict[str, Array]]) -> list[str]:
    return list(parts[0]) if parts else []


def _stems(sources: Iterable[str]) -> dict[str, str]:
    """File names where they are unique, names with a checksum where they are not."""
    short = {source: _safe(PurePath(source).name) for source in sources}
    count = Counter(short.values())
    return {source: stem if count[stem] == 1 else _distinct(source) for source, stem in short.items()}


def _distinct(source: str) -> str:
    return f"{_safe(PurePath(source).name)}-{zlib.crc32(source.encode()):08x}"


def _safe(name: str) -> str:
    return "".join(c if c.isalnum() or c in "._-" else "_" for c in name)[:100] or "source"

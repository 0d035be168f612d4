"""A job for ``edl run`` in a folder of its own: its zoo, its data and its job file.

Whole jobs of tests begin here. Those whose result can be recomputed add their records:
`faults.linear_job`, `support.signed_job`, `chaos.counting_job`. `support.job_process` runs them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from support.job_process import STARTED, JobProcess

from edl.data.recordio.writer import Writer
from edl.data.tf_example import serialize_example
from edl.storage.checkpoint_manifest import cut_directory, list_cuts

MODEL_ZOO = Path(__file__).parents[3] / "model_zoo"


@dataclass(frozen=True)
class JobFolder:
    """A folder with a job.

    Attributes:
        folder: of everything.
        name: of the job.
        spec: fields of the job file.
    """

    folder: Path
    name: str
    spec: dict[str, Any]

    @classmethod
    def make(
        cls,
        folder: Path,
        name: str,
        definition: str,
        *,
        zoo: Path | None = None,
        params: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> JobFolder:
        """Write the job file; one worker and one PS, no export, where ``fields`` do not say otherwise."""
        folder.mkdir(parents=True, exist_ok=True)
        model: dict[str, Any] = {"zoo": str(zoo or folder / "zoo"), "definition": definition}
        spec: dict[str, Any] = {
            "apiVersion": "edl.dev/v1",
            "name": name,
            "model": model if params is None else {**model, "params": dict(params)},
            "export": None,
            "ps": {"count": 1},
            "workers": {"max": 1},
            **fields,
        }
        job_folder = cls(folder, name, spec)
        job_folder.file.write_text(json.dumps(spec, indent=1))
        return job_folder

    @property
    def file(self) -> Path:
        return self.folder / f"{self.name}.json"

    def run(self, *options: str, started: bool = STARTED) -> JobProcess:
        return JobProcess(self.file, *options, cwd=self.folder, started=started)

    def evaluate(self, *options: str) -> JobProcess:
        return JobProcess(self.file, *options, cwd=self.folder, command="evaluate")

    def predict(self, output: Path, *options: str) -> JobProcess:
        return JobProcess(self.file, "--output", str(output), *options, cwd=self.folder, command="predict")


def write_module(folder: Path, name: str, text: str, constants: Mapping[str, Any] | None = None) -> Path:
    """A module of a zoo in ``folder``; returns the zoo. ``constants`` come before its functions and classes."""
    zoo = folder / "zoo"
    zoo.mkdir(parents=True, exist_ok=True)
    if constants:
        lines = "\n".join(f"{constant} = {value!r}" for constant, value in constants.items())
        text = re.sub(r"\n\n\n(?=def |class )", lambda _: f"\n\n{lines}\n\n\n", text, count=1)
    (zoo / f"{name}.py").write_text(text)
    return zoo


EXAMPLE_FEED = """

def feed(dataset, mode, metadata):
    shapes = {
        "x": tf.io.FixedLenFeature((WIDTH,), tf.float32),
        "ids": tf.io.FixedLenFeature((IDS,), tf.int64),
        "y": tf.io.FixedLenFeature((1,), tf.float32),
    }

    def parsed(record):
        found = tf.io.parse_single_example(record, shapes)
        return (found["x"], tf.cast(found["ids"], tf.int32)), found["y"]

    return dataset.map(parsed)
"""
"""Of a zoo module with the constants WIDTH and IDS, for records that `write_example_arrays` wrote."""


def write_examples(file: Path, records: Iterable[dict[str, Any]], *, chunk_limit: int = 1 << 20) -> Path:
    """Records as ``tf.train.Example`` in a RecordIO file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with Writer(file, chunk_limit=chunk_limit) as writer:
        for record in records:
            writer.write(serialize_example(record))
    return file


def write_example_arrays(
    file: Path, x: NDArray[np.float32], ids: NDArray[np.int64], y: NDArray[np.float32], *, chunk_limit: int
) -> Path:
    """Records with float features ``x`` and ``y`` and integer ``ids``, one a row."""
    rows = zip(x.tolist(), ids.tolist(), y.tolist(), strict=True)
    return write_examples(file, ({"x": a, "ids": b, "y": c} for a, b, c in rows), chunk_limit=chunk_limit)


@dataclass(frozen=True)
class DigitsData:
    """Images and labels that a model can learn, and the RecordIO file with them."""

    images: NDArray[np.float32]
    labels: NDArray[np.int64]
    file: Path

    @classmethod
    def write(cls, file: Path, count: int, seed: int) -> DigitsData:
        """Each class has its own bright rows; the rest is noise."""
        random = np.random.default_rng(seed)
        labels = random.integers(0, 10, count)
        images = random.integers(0, 100, (count, 28, 28)).astype(np.float32)
        for image, label in zip(images, labels, strict=True):
            image[2 * label : 2 * label + 3] += 120
        flat = images.reshape(count, 784)
        pairs = zip(flat.tolist(), labels.tolist(), strict=True)
        write_examples(file, ({"image": image, "label": label} for image, label in pairs))
        return cls(flat / 255.0, labels, file)


def newest_cut(run_dir: Path) -> Path:
    """The folder of a run's newest checkpoint."""
    checkpoints = run_dir / "checkpoints"
    return cut_directory(checkpoints, list_cuts(checkpoints)[-1])


def predictions(folder: Path) -> tuple[NDArray[np.float32], list[tuple[int, int]]]:
    """The outputs of all ``.npz`` files of one source in the order of the records, and the files' ranges."""
    parts = []
    for path in folder.glob("*.npz"):
        with np.load(path) as file:
            assert len(file["outputs"]) == file["end"] - file["start"]
            parts.append((int(file["start"]), int(file["end"]), file["outputs"]))
    parts.sort(key=lambda part: part[0])
    return np.concatenate([part[2] for part in parts]), [(start, end) for start, end, _ in parts]


def covers(ranges: list[tuple[int, int]], count: int) -> bool:
    """Whether ascending ranges hold every record of ``count`` exactly once."""
    ends = [0, *(end for _, end in ranges)]
    return [start for start, _ in ranges] == ends[:-1] and ends[-1] == count

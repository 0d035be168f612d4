"""Where a job under test lives: its zoo, its data and its job file, in a folder of its own."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from support.job_process import JobProcess

from edl.data.recordio.writer import Writer
from edl.data.tf_example import serialize_example
from edl.storage.checkpoint_manifest import cut_directory, list_cuts

MODEL_ZOO = Path(__file__).parents[3] / "model_zoo"


@dataclass(frozen=True)
class Place:
    """A folder with a job.

    Attributes:
        folder: of everything.
        name: of the job.
        spec: fields of the job file.
    """

    folder: Path
    name: str
    spec: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def make(cls, folder: Path, name: str, definition: str, *, zoo: Path | None = None, **fields: Any) -> Place:
        """Write the job file; one worker and one PS, no export, where ``fields`` do not say otherwise."""
        folder.mkdir(parents=True, exist_ok=True)
        spec = {
            "apiVersion": "edl.dev/v1",
            "name": name,
            "model": {"zoo": str(zoo or folder / "zoo"), "definition": definition},
            "export": None,
            "ps": {"count": 1},
            "workers": {"max": 1},
            **fields,
        }
        place = cls(folder, name, spec)
        place.file.write_text(json.dumps(spec, indent=1))
        return place

    @property
    def file(self) -> Path:
        return self.folder / f"{self.name}.json"

    def run(self, *options: str) -> JobProcess:
        return JobProcess(self.file, *options, cwd=self.folder)

    def predict(self, output: Path, *options: str) -> JobProcess:
        return JobProcess(self.file, "--output", str(output), *options, cwd=self.folder, command="predict")


def write_module(folder: Path, name: str, text: str) -> Path:
    """A module of a zoo in ``folder``; returns the zoo."""
    zoo = folder / "zoo"
    zoo.mkdir(parents=True, exist_ok=True)
    (zoo / f"{name}.py").write_text(text)
    return zoo


def write_examples(file: Path, records: Iterable[dict[str, Any]], *, chunk_limit: int = 1 << 20) -> Path:
    """Records as ``tf.train.Example`` in a RecordIO file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with Writer(file, chunk_limit=chunk_limit) as writer:
        for record in records:
            writer.write(serialize_example(record))
    return file


@dataclass(frozen=True)
class Digits:
    """Images and labels that a model can learn, and the RecordIO file with them."""

    images: NDArray[np.float32]
    labels: NDArray[np.int64]
    file: Path

    @classmethod
    def write(cls, file: Path, count: int, seed: int) -> Digits:
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

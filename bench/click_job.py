"""What the benchmarks on click logs share: a generated log, and a job of the zoo's models over it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mnist_job import EDL, ZOO

from edl.data.reader_factory import open_reader

BLOCKS = 16
"""Minibatches of which peers know the records: they go round in them."""


@dataclass(frozen=True)
class ClickLogFolder:
    """A folder with a click log: ``train``, ``test`` and ``about.json`` below ``log``.

    Attributes:
        vocabulary: ids of all categorical features together.
    """

    folder: Path
    vocabulary: int

    @property
    def training_folder(self) -> Path:
        return self.folder / "log" / "train"

    @property
    def held_back(self) -> Path:
        return self.folder / "log" / "test"

    @property
    def best_auc(self) -> float:
        """The AUC on ``test`` of the model that made the labels."""
        auc: float = json.loads((self.folder / "log" / "about.json").read_text())["test"]["auc"]
        return auc

    def job(self, name: str, model: str = "deepfm", *, params: dict[str, Any] | None = None, **fields: Any) -> Path:
        """Write a job file: a model of the zoo, two workers, one PS, no export; ``fields`` replace whole sections."""
        spec = {
            "apiVersion": "edl.dev/v1",
            "name": name,
            "model": {
                "zoo": str(ZOO),
                "definition": f"{model}.{model}.custom_model",
                "params": {"vocabulary": self.vocabulary, **(params or {})},
            },
            "data": {"training": str(self.training_folder)},
            "export": None,
            "ps": {"count": 1},
            "workers": {"max": 2},
            **fields,
        }
        file = self.folder / f"{name}.json"
        file.write_text(json.dumps(spec))
        return file


@contextmanager
def click_log_folder(records: int, vocabulary: int, validation: float = 0.02) -> Iterator[ClickLogFolder]:
    """A folder with a log of so many records, removed at the end."""
    with TemporaryDirectory(prefix="edl-bench-") as folder:
        options = ["--records", str(records), "--vocabulary", str(vocabulary), "--validation", str(validation)]
        subprocess.run([EDL, "data", "clicks", f"{folder}/log", *options], check=True, capture_output=True)
        yield ClickLogFolder(Path(folder), vocabulary)


def records_of(folder: Path, most: int | None = None) -> list[bytes]:
    """The first records of a folder as they are in its files."""
    reader = open_reader((str(folder),), {})
    records: list[bytes] = []
    for source in reader.sources():
        wanted = source.records if most is None else min(source.records, most - len(records))
        for record in reader.read(source.name, 0, wanted):
            assert isinstance(record, bytes)
            records.append(record)
    return records

"""The job that the benchmarks train: digits in RecordIO files and the MLP of ``model_zoo/mnist``."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ZOO = Path(__file__).resolve().parents[1] / "model_zoo"
EDL = Path(sys.executable).with_name("edl")
MLP = "mnist.mlp.custom_model"


@dataclass(frozen=True)
class DigitsFolder:
    """A folder with digits: ``train`` and ``test`` below ``digits``."""

    folder: Path
    records: int

    @property
    def training_folder(self) -> Path:
        return self.folder / "digits" / "train"

    @property
    def held_back(self) -> Path:
        return self.folder / "digits" / "test"

    def job(self, name: str, *, params: dict[str, Any] | None = None, **fields: Any) -> Path:
        """Write a job file: the MLP, two workers, one PS, no export; sections in ``fields`` replace the defaults."""
        spec = {
            "apiVersion": "edl.dev/v1",
            "name": name,
            "model": {"zoo": str(ZOO), "definition": MLP, "params": params or {}},
            "data": {"training": str(self.training_folder)},
            "train": {"epochs": 1},
            "export": None,
            "ps": {"count": 1},
            "workers": {"max": 2},
            **fields,
        }
        file = self.folder / f"{name}.json"
        file.write_text(json.dumps(spec))
        return file


@contextmanager
def digits_folder(records: int) -> Iterator[DigitsFolder]:
    """A folder with so many training records, removed at the end."""
    with TemporaryDirectory(prefix="edl-bench-") as folder:
        command = [str(EDL), "data", "mnist", f"{folder}/digits", "--source", "digits", "--records", str(records)]
        subprocess.run(command, check=True, capture_output=True)
        yield DigitsFolder(Path(folder), records)

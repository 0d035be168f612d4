"""Predictions of ``edl predict`` in the order of their rows, and as values of the label."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from edl.sql_jobs.column_plan import LabelKind
from edl.sql_jobs.edl_process import UnstoredResultError
from edl.sql_jobs.model_registry import ModelDescription


def read_predictions(folder: Path) -> Callable[[int], Any]:
    """A function that returns the outputs of the next so many rows, ``[rows, outputs]``.

    Raises:
        UnstoredResultError: by the function, if rows have no prediction.
    """
    ranges = list[tuple[int, int, Path]]()
    for path in folder.glob("*.npz"):
        with np.load(path) as content:
            ranges.append((int(content["start"]), int(content["end"]), path))
    files = iter(sorted(ranges))
    known = 0
    held: Any = None

    def take(rows: int) -> Any:
        nonlocal held, known
        while held is None or len(held) < rows:
            start, end, path = next(files, (None, 0, folder))
            if start is None or start > known:
                raise UnstoredResultError("some rows have no prediction", where=str(folder))
            if end <= known:
                continue  # a lost worker had written them, too
            with np.load(path) as content:
                part = content["outputs"].reshape(end - start, -1)[known - start :]
            known = end
            held = part if held is None else np.concatenate((held, part))
        taken, held = held[:rows], held[rows:]
        return taken

    return take


def predicted_values(outputs: Any, model: ModelDescription) -> Any:
    """Outputs as an Arrow array of the label: a class as the label has it, or a number."""
    if LabelKind[model.label_kind] is LabelKind.NUMBER:
        return pa.array(outputs[:, 0].astype(np.float64))
    numbers = (outputs[:, 0] >= 0.5).astype(int) if outputs.shape[1] == 1 else outputs.argmax(1)
    texts = pa.array([model.classes[number] for number in numbers], pa.string())
    if model.label_type == "bool":
        return pa.array([value == "true" for value in texts.to_pylist()])
    if model.label_type.startswith(("int", "uint")):
        return texts.cast(pa.int64())
    return texts.cast(pa.float64()) if model.label_type in ("double", "float") else texts


def class_probabilities(outputs: Any, model: ModelDescription) -> Iterator[tuple[str, Any]]:
    """Each class with its probability in each row, as an Arrow array."""
    if outputs.shape[1] == 1:
        outputs = np.concatenate((1 - outputs, outputs), axis=1)
    for number, name in enumerate(model.classes):
        yield name, pa.array(outputs[:, number].astype(np.float64))

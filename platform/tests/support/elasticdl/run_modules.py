"""``python -m support.elasticdl.run_modules FOLDER PATH...``: trains modules with strategy Local in one process.

Each is a whole run: three steps, an evaluation, and an export. For each a JSON line says how it ended. The data are
drawn at random into FOLDER.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Mapping
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
from support.elasticdl.modules import MODULES, ZOO, Module

from edl.data.recordio.writer import Writer
from edl.data.tf_example import serialize_example
from edl.jobfile.loader import dump_job_spec, load_job_file
from edl.storage.run_directory import create_run

RECORDS, MINIBATCH, STEPS = 12, 4, 3


def draw_census(draw: np.random.Generator) -> dict[str, Any]:
    return {
        "age": float(draw.integers(17, 80)),
        "hours_per_week": float(draw.integers(5, 60)),
        "workclass": str(draw.choice(["private", "public", "none"])),
        "education": str(draw.choice(["school", "college", "master"])),
        "label": int(draw.integers(2)),
    }


def draw_heart(draw: np.random.Generator) -> dict[str, Any]:
    numbers = {name: float(draw.integers(90, 200)) for name in ("trestbps", "chol", "thalach", "oldpeak")}
    thal = str(draw.choice(["normal", "fixed"]))
    return {**numbers, "age": int(draw.integers(20, 80)), "thal": thal, "target": int(draw.integers(2))}


def draw_clicks(draw: np.random.Generator) -> dict[str, Any]:
    ids = {name: f"{draw.integers(9):08x}" for name in ("C1", "C2", "C3")}
    return {"I1": float(draw.integers(9)), "I2": float(draw.integers(200)), **ids, "label": int(draw.integers(2))}


def draw_frappe(draw: np.random.Generator) -> dict[str, Any]:
    return {"feature": draw.integers(0, 400, 10).tolist(), "label": int(draw.integers(2))}


def draw_image(*shape: int) -> Callable[[np.random.Generator], dict[str, Any]]:
    def draw_one(draw: np.random.Generator) -> dict[str, Any]:
        return {"image": draw.uniform(0, 255, shape).ravel().tolist(), "label": int(draw.integers(10))}

    return draw_one


def draw_iris(draw: np.random.Generator) -> dict[str, Any]:
    numbers = {name: float(draw.uniform()) for name in ("sepal_length", "sepal_width", "petal_length", "petal_width")}
    return {**numbers, "class": int(draw.integers(3))}


DRAWN: Mapping[str, Callable[[np.random.Generator], dict[str, Any]]] = {
    "census": draw_census,
    "census_table": draw_census,
    "cifar10": draw_image(32, 32, 3),
    "clicks": draw_clicks,
    "frappe": draw_frappe,
    "heart": draw_heart,
    "iris_table": draw_iris,
    "mnist": draw_image(28, 28),
}


def make_data(name: str, folder: Path) -> Path:
    """The folder of a data set, which is written if it is not there: CSV for tables, otherwise RecordIO."""
    directory = folder / "data" / name
    if directory.exists():
        return directory
    directory.mkdir(parents=True)
    draw = np.random.default_rng(0)
    records = [DRAWN[name](draw) for _ in range(RECORDS)]
    if name.endswith("_table"):
        with (directory / "data-0.csv").open("w", newline="", encoding="utf-8") as file:
            table = csv.DictWriter(file, list(records[0]))
            table.writeheader()
            table.writerows(records)
    else:
        with Writer(directory / "data-00000") as writer:
            for record in records:
                writer.write(serialize_example(record))
    return directory


def train(module: Module, folder: Path) -> dict[str, Any]:
    """Run the module's job; returns how it ended."""
    from edl.worker.local_strategy.local_main import main as train_locally

    data = str(make_data(module.data, folder))
    spec = {
        "apiVersion": "edl.dev/v1",
        "name": "module",
        "model": {"zoo": str(ZOO), "definition": module.definition, "keras": module.keras},
        "data": {"training": data, "validation": data},
        "train": {"minibatch_size": MINIBATCH, "epochs": 1, "evaluation_steps": STEPS},
        "checkpoint": None,
        "export": {},
        "strategy": {"name": "Local"},
    }
    if module.data == "census_table":
        spec["data"]["reader"] = {"label": "label"}  # type: ignore[index]
    run = create_run(folder / "runs" / module.path.replace("/", "_") / "job")
    path = run.path / "given.json"
    path.write_text(json.dumps(spec), encoding="utf-8")
    run.spec.write_text(json.dumps(dump_job_spec(load_job_file(path))), encoding="utf-8")
    errors = StringIO()
    with redirect_stdout(StringIO()), redirect_stderr(errors):
        code = train_locally({"EDL_RUN_DIR": str(run.path)})
    summary = json.loads((run.path / "summary.json").read_text(encoding="utf-8"))
    return {"path": module.path, "records": RECORDS, "code": code, "error": errors.getvalue(), "summary": summary}


def main(folder: Path, paths: list[str]) -> None:
    """Train the modules, and print a line for each."""
    from edl.worker import worker_process

    worker_process.set_thread_counts = lambda workers: None  # the second run could not change them
    for module in MODULES:
        if module.path in paths:
            print(json.dumps(train(module, folder)), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])

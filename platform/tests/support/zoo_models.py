"""The models of the zoo that people know, each with a job that is small enough for a test.

A test runs the zoo's own job file with these settings, on data with a planted signal in the zoo's own format.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from support.job_folder import MODEL_ZOO
from support.job_process import edl


@dataclass(frozen=True)
class ZooModel:
    """A model and its small job.

    Attributes:
        definition: of the job file; the folder of the job file is its first part.
        data: name of the data set, see :func:`make_data`.
        least: what the metric reaches at least, well above chance.
        metric: ``accuracy`` or ``auc``.
        params: of the model.
        train: fields of ``train`` that differ from the job file's.
        settings: further settings of the job.
        tables: the PS-backed embeddings under ParameterServer.
        is_synchronous: whether parameter servers must wait for both workers: the optimizer has a large momentum.
    """

    definition: str
    data: str
    least: float
    metric: str = "accuracy"
    params: Mapping[str, Any] = field(default_factory=dict)
    train: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    tables: tuple[str, ...] = ()
    is_synchronous: bool = False

    @property
    def job_file(self) -> Path:
        return MODEL_ZOO / self.definition.split(".")[0] / "job.yaml"

    def job_settings(self, data: Path, strategy: str, *, exports: bool = False) -> list[str]:
        """Settings of the job file: the data are in the folder ``data``, in place of ``demo-data``."""
        values = {
            "model.definition": self.definition,
            "model.params": self.params,
            **{f"train.{name}": value for name, value in self.train.items()},
            **self.settings,
            "volumes": [{"claim": "fileserver-claim", "mount": "/data", "local": str(data)}],
            "strategy.name": strategy,
            "checkpoint": {"every_steps": 1_000_000, "keep": 1},
            "export": {} if exports else None,
        }
        if strategy != "Local":
            # A job begins with `min`: so two workers sum their gradients.
            values["workers"] = {"min": 2 if strategy == "AllReduce" or self.is_synchronous else 1, "max": 2}
        if strategy == "ParameterServer":
            values["ps"] = {"count": 1, "embedding_threshold": 0}
            if self.is_synchronous:
                values |= {"strategy.mode": "sync", "strategy.grads_to_wait": 2}
        return [f"{name}={json.dumps(value)}" for name, value in values.items()]


CLICKS: dict[str, Any] = {
    "data": "clicks",
    "metric": "auc",
    "least": 0.62,
    "train": {"epochs": 3, "minibatch_size": 64, "minibatches_per_task": 16},
}
CENSUS: dict[str, Any] = {
    "data": "census",
    "metric": "auc",
    "least": 0.85,
    "train": {"epochs": 3, "minibatch_size": 64, "minibatches_per_task": 8},
}
CIFAR: dict[str, Any] = {
    "data": "cifar10",
    "least": 0.5,
    "train": {"epochs": 2, "minibatch_size": 16, "minibatches_per_task": 8},
}
MODELS = {
    "dcn": ZooModel(
        "dcn.dcn.custom_model",
        params={"vocabulary": 520, "dim": 4, "crosses": 2, "hidden": [16]},
        tables=("vectors",),
        **CLICKS,
    ),
    "xdeepfm": ZooModel(
        "xdeepfm.xdeepfm.custom_model",
        params={"vocabulary": 520, "dim": 4, "rows": [8, 8], "hidden": [16]},
        tables=("vectors", "weights"),
        **CLICKS,
    ),
    "census_dnn": ZooModel("census.dnn.custom_model", **CENSUS),
    "census_wide_and_deep": ZooModel(
        "census.wide_and_deep.custom_model", tables=("deep_words", "wide_pairs", "wide_words"), **CENSUS
    ),
    "heart": ZooModel("heart.heart.custom_model", "heart", 0.75, train={"epochs": 6}),
    "cifar10_functional": ZooModel("cifar10.functional.custom_model", params={"filters": 8}, **CIFAR),
    "cifar10_subclass": ZooModel("cifar10.subclass.ConvMixer", params={"dim": 16, "depth": 2, "patch": 4}, **CIFAR),
    "cifar10_resnet20": ZooModel(
        "cifar10.resnet20.custom_model", params={"filters": 8}, is_synchronous=True, **{**CIFAR, "least": 0.35}
    ),
    "cifar10_mobilenet_v2": ZooModel(
        "cifar10.mobilenet_v2.custom_model",
        "cifar10",
        0.25,
        params={"size": 32, "width": 0.35},
        train={**CIFAR["train"], "epochs": 5},
    ),
    "resnet50": ZooModel(
        "resnet50.resnet50.custom_model",
        "resnet50",
        0.25,
        params={"classes": 10, "size": 32},
        train={"epochs": 3, "minibatch_size": 16, "minibatches_per_task": 8},
    ),
    "text": ZooModel(
        "text.transformer.custom_model",
        "text",
        0.6,
        params={"vocabulary": 4000, "length": 32, "dim": 16, "heads": 2, "blocks": 1},
        train={"epochs": 4, "minibatch_size": 32, "minibatches_per_task": 8},
        tables=("places", "words"),
    ),
}


SMALL_CLICKS = {"vocabulary": 520, "dim": 4, "hidden": [16]}
DIGITS: dict[str, Any] = {
    "data": "mnist",
    "least": 0.7,
    "train": {"epochs": 5, "minibatch_size": 16, "minibatches_per_task": 8},
}
TESTED_ELSEWHERE = {
    "iris": ZooModel("iris.iris_dnn.custom_model", "iris", 0.6),
    "mnist_mlp": ZooModel("mnist.mlp.custom_model", **DIGITS),
    "mnist_functional": ZooModel("mnist.mnist_functional_api.custom_model", params={"filters": 4}, **DIGITS),
    "mnist_subclass": ZooModel("mnist.mnist_subclass.CustomModel", params={"filters": 4}, **DIGITS),
    "deepfm": ZooModel("deepfm.deepfm.custom_model", params=SMALL_CLICKS, tables=("vectors", "weights"), **CLICKS),
    "wide_and_deep": ZooModel(
        "wide_and_deep.wide_and_deep.custom_model", params=SMALL_CLICKS, tables=("vectors", "wide"), **CLICKS
    ),
    "recommender": ZooModel("recommender.ratings.custom_model", "ratings", 0.6, "auc", tables=("items", "users")),
}
"""Models that other tests of ``make test`` train."""


def make_data(name: str, out: Path) -> None:
    """Write a data set of the zoo into ``out/name``, where ``out`` stands for ``demo-data``."""
    if name in COMMANDS:
        result = edl("data", name, name, *COMMANDS[name], cwd=out)
        assert result.returncode == 0, result.stderr
    elif name == "ratings":
        import_module("model_zoo.recommender.synthesize").main(out / name)
    else:
        import_module(f"model_zoo.{name}.make_data").main(out / name, **DATA[name])


COMMANDS: dict[str, tuple[str, ...]] = {
    "clicks": ("--records", "8000", "--vocabulary", "520"),
    "iris": ("--format", "csv"),
    "mnist": ("--format", "recordio", "--source", "digits"),
}
"""Arguments of ``edl data``."""
DATA: dict[str, dict[str, Any]] = {
    "census": {"records": 4000},
    "cifar10": {"records": 1000},
    "heart": {"records": 1000},
    "resnet50": {"records": 600, "size": 32},
    "text": {"records": 2000},
}
"""Arguments of ``make_data.main``."""

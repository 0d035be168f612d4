"""The zoo's click models under plain ``keras.fit``: what convergence.py compares with. Prints nothing but answers."""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf
from click_job import records_of
from mnist_job import ZOO
from peer import serve_questions

sys.path.insert(0, str(ZOO.parent))
from model_zoo.clicks.records import feed


def read_records(folder: Path) -> Any:
    """All records of a folder: features and labels as a dataset of single records, in memory."""
    records = records_of(folder)
    everything = feed(tf.data.Dataset.from_tensor_slices(records), "training", None).batch(len(records))
    return tf.data.Dataset.from_tensor_slices(everything.get_single_element()), len(records)


class ModelFits:
    """Trains a model anew for each question."""

    def __init__(self, given: argparse.Namespace) -> None:
        self._arguments = given
        self._training, self._count = read_records(given.training)
        self._held_back = read_records(given.held_back)[0].batch(4096)

    def fit_auc(self, question: dict[str, Any]) -> dict[str, Any]:
        """AUC on the held-back records of the ``model`` after training with a ``seed``."""
        name = question["model"]
        module = importlib.import_module(f"model_zoo.{name}.{name}")
        keras.utils.set_random_seed(question["seed"])
        model = module.custom_model(**question["params"])
        model.compile(optimizer=module.optimizer(), loss=module.loss)
        shuffled = self._training.shuffle(self._count, seed=question["seed"]).batch(self._arguments.batch)
        model.fit(shuffled.prefetch(tf.data.AUTOTUNE), epochs=self._arguments.epochs, verbose=0)
        metric = module.eval_metrics_fn()["auc"]
        for features, labels in self._held_back:
            metric.update_state(labels[:, None], model.predict_on_batch(features))
        return {"auc": float(metric.result())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("training", type=Path)
    parser.add_argument("held_back", type=Path)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--epochs", type=int, required=True)
    serve_questions(ModelFits(parser.parse_args()).fit_auc)


if __name__ == "__main__":
    main()

"""The same DeepFM under plain ``keras.fit``, in one process that has the whole machine: the other side of deepfm.py.

Records are read once, kept in memory as they are, parsed as a batch and ahead of training.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf
from keras_fit import EpochClock
from mnist_job import ZOO
from parameter_server_strategy import read_dataset
from peer import serve_questions

sys.path.insert(0, str(ZOO.parent))
from model_zoo.deepfm import deepfm


class FitSide:
    """A compiled model for each way to fit."""

    def __init__(self, given: argparse.Namespace) -> None:
        self._arguments = given
        self._data = read_dataset(str(given.records / "*"), given.batch)
        self._compiled_models: dict[tuple[int, bool], Any] = {}

    def samples_per_second(self, question: dict[str, Any]) -> dict[str, Any]:
        """Samples a second of ``fit`` without metrics, ``execution`` steps at a time, with XLA or without (``jit``)."""
        execution, batch = question["execution"], self._arguments.batch
        model = self._compiled_model(execution, question["jit"])
        begun = time.perf_counter()
        model.fit(self._data, epochs=1, steps_per_epoch=execution, verbose=0)
        blocks = max(1, int(question["seconds"] / 2 / (time.perf_counter() - begun)))
        clock = EpochClock()
        model.fit(self._data, epochs=3, steps_per_epoch=blocks * execution, verbose=0, callbacks=[clock])
        return {"rate": 2 * blocks * execution * batch / (clock.ends[-1] - clock.ends[0])}

    def _compiled_model(self, execution: int, jit: bool) -> Any:
        if (execution, jit) not in self._compiled_models:
            model = deepfm.custom_model(self._arguments.vocabulary)
            model.compile(
                optimizer=deepfm.optimizer(), loss=deepfm.loss, steps_per_execution=execution, jit_compile=jit
            )
            model.fit(self._data, epochs=1, steps_per_epoch=execution, verbose=0)
            self._compiled_models[execution, jit] = model
        return self._compiled_models[execution, jit]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("records", type=Path, help="folder of TFRecord files")
    parser.add_argument("--vocabulary", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True)
    arguments = parser.parse_args()
    keras.utils.set_random_seed(0)
    tf.get_logger().setLevel("ERROR")
    serve_questions(FitSide(arguments).samples_per_second)


if __name__ == "__main__":
    main()

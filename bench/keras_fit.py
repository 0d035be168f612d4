"""The same model on the same records under ``keras.fit``: the other side of throughput.py and accuracy.py.

Runs as a process of its own, as a user's script does, tuned in good faith: records are read from the RecordIO files
once and kept in memory as the serialized examples that they are, go through the zoo's own ``feed`` in parallel to
training (``prefetch(AUTOTUNE)``), in batches of 64, with or without XLA, whichever is faster. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf
from mnist_job import ZOO

from edl.data.reader_factory import open_reader

sys.path.insert(0, str(ZOO.parent))
from model_zoo.mnist import mlp

BATCH = 64


def read_dataset(folder: Path, mode: str) -> tuple[Any, int]:
    """All records of a folder through the model's ``feed``, and how many they are."""
    reader = open_reader((str(folder),), {})
    records = [record for source in reader.sources() for record in reader.read(source.name, 0, source.records)]
    return mlp.feed(tf.data.Dataset.from_tensor_slices(records), mode, None), len(records)


def compiled_model(**how: Any) -> Any:
    """The zoo's model, ready to fit."""
    model = mlp.custom_model()
    model.compile(optimizer=mlp.optimizer(), loss=mlp.loss, **how)
    return model


class EpochClock(keras.callbacks.Callback):  # type: ignore[misc]
    """When each epoch ended; a callback for each batch would cost more than the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: list[float] = []

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.ends.append(time.perf_counter())


def fit_rate(records: int, training: Any, epochs: int, **how: Any) -> float:
    """Samples a second of ``fit`` without metrics, once the first epoch is over."""
    clock, steps = EpochClock(), records // BATCH // 32 * 32
    compiled_model(**how).fit(training, epochs=epochs + 1, steps_per_epoch=steps, verbose=0, callbacks=[clock])
    return epochs * steps * BATCH / (clock.ends[-1] - clock.ends[0])


def fit_rates(folder: Path, epochs: int) -> dict[str, float]:
    """Rates of ``fit`` for one and for 32 steps an execution, and of the bare mathematics."""
    examples, count = read_dataset(folder, "training")
    training = examples.repeat().batch(BATCH, drop_remainder=True).prefetch(tf.data.AUTOTUNE)
    rates = {
        f"fit_{steps}{'_xla' if jit else ''}": fit_rate(
            count, training, epochs, steps_per_execution=steps, jit_compile=jit
        )
        for steps in (1, 32)
        for jit in (False, True)
    }
    return {**rates, "step_only": bare_rate(next(iter(training)), epochs * count // BATCH)}


def bare_rate(batch: Any, steps: int) -> float:
    """Samples a second of forward, backward and update alone, on one batch that stays in memory."""
    model, optimizer = mlp.custom_model(), mlp.optimizer()
    optimizer.build(model.trainable_variables)
    features, labels = batch

    def apply_gradients() -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(mlp.loss(labels, model(features, training=True)))
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)

    step = tf.function(apply_gradients)
    for _ in range(50):
        step()
    began = time.perf_counter()
    for _ in range(steps):
        step()
    return steps * BATCH / (time.perf_counter() - began)


def held_back_accuracies(training: Path, held_back: Path, epochs: int, seeds: Sequence[int]) -> dict[str, list[float]]:
    """Accuracy on the held-back records after training, for each seed."""
    examples, count = read_dataset(training, "training")
    test = read_dataset(held_back, "evaluation")[0].batch(256)
    accuracies = []
    for seed in seeds:
        keras.utils.set_random_seed(seed)
        model = compiled_model(metrics=list(mlp.eval_metrics_fn().values()))
        shuffled = examples.shuffle(count, seed=seed).batch(BATCH).prefetch(tf.data.AUTOTUNE)
        model.fit(shuffled, epochs=epochs, verbose=0)
        accuracies.append(float(model.evaluate(test, verbose=0)[1]))
        print(f"keras, seed {seed}: {accuracies[-1]:.4f}", file=sys.stderr, flush=True)
    return {"accuracy": accuracies}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("training", type=Path)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--held-back", type=Path, help="measure accuracy on these records instead of the rate")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    arguments = parser.parse_args()
    if arguments.held_back:
        result: Any = held_back_accuracies(arguments.training, arguments.held_back, arguments.epochs, arguments.seeds)
    else:
        result = fit_rates(arguments.training, arguments.epochs)
    json.dump(result, sys.stdout)


if __name__ == "__main__":
    main()

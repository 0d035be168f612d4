"""A GAN as Keras' examples write one: two networks, two optimizers, metrics and a ``compile`` of its own.

Real records and noise are features, so that all ranks and Keras get the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

Records = tuple[dict[str, Any], Any]
"""Features and labels."""

SOURCE = """
import keras, tensorflow as tf

class GAN(keras.Model):
    def __init__(self):
        super().__init__(dtype="float64")
        def make_network(name, inputs, outputs, *first):
            hidden = keras.layers.Dense(4, activation="tanh", dtype="float64")
            layers = [*first, hidden, keras.layers.Dense(outputs, dtype="float64")]
            return keras.Sequential([keras.Input([inputs], dtype="float64"), *layers], name=name)
        self.discriminator = make_network("discriminator", 3, 1)
        self.generator = make_network("generator", 2, 3)
        self.norm = keras.layers.BatchNormalization(dtype="float64")
        self.norm.build((None, 3))
        self.steps = self.add_weight(shape=(), initializer="zeros", trainable=False, name="steps")
        self.outside = tf.Variable([[1.0]])

    def compile(self, d_optimizer, g_optimizer, loss_fn):
        super().compile()
        self.d_optimizer, self.g_optimizer, self.loss_fn = d_optimizer, g_optimizer, loss_fn
        self.d_loss_metric = keras.metrics.Mean(name="d_loss")
        self.g_loss_metric = keras.metrics.Mean(name="g_loss")

    @property
    def metrics(self):
        return [self.d_loss_metric, self.g_loss_metric]

    def call(self, x, training=False):
        return self.discriminator(x["real"], training=training)

    def train_step(self, data):
STEP

def custom_model():
    gan = GAN()
    gan.compile(
        d_optimizer=keras.optimizers.Adam(0.02),
        g_optimizer=keras.optimizers.SGD(0.05, momentum=0.9),
        loss_fn=keras.losses.BinaryCrossentropy(from_logits=True, dtype="float64"),
    )
    return gan

def feed(dataset, mode, metadata):
    return dataset
"""

CRITIC = """
with tf.GradientTape() as tape:
    fake = self.generator(x["noise"], training=True)
    d_loss = self.loss_fn(tf.zeros_like(y), self.discriminator(fake, training=True))
    d_loss += self.loss_fn(tf.ones_like(y), self.discriminator(x["real"], training=True))
gradients = tape.gradient(d_loss, self.discriminator.trainable_weights)
self.d_optimizer.apply_gradients(zip(gradients, self.discriminator.trainable_weights))
"""
GENERATOR = """
with tf.GradientTape() as tape:
    fake = self.generator(x["noise"], training=True)
    g_loss = self.loss_fn(tf.ones_like(y), self.discriminator(fake, training=True)) + tf.reduce_mean(y * fake)
gradients = tape.gradient(g_loss, self.generator.trainable_weights)
self.g_optimizer.apply_gradients(zip(gradients, self.generator.trainable_weights))
"""
RETURN = """
self.d_loss_metric.update_state(d_loss)
self.g_loss_metric.update_state(g_loss)
return {"d_loss": self.d_loss_metric.result(), "g_loss": self.g_loss_metric.result()}
"""
ADVERSARIAL = f"x, y = data\n{CRITIC}{GENERATOR}{RETURN}"
"""The generator trains against the discriminator that was just updated."""
TWO_CRITIC_STEPS = (
    f"x, y = data\nfor _ in range(2):\n    {CRITIC.strip().replace(chr(10), chr(10) + '    ')}\n{GENERATOR}{RETURN}"
)
PERSISTENT = f"""
x, y = data
with tf.GradientTape(persistent=True) as tape:
    fake = self.generator(x["noise"], training=True)
    guessed = self.discriminator(fake, training=True)
    d_loss = self.loss_fn(tf.zeros_like(y), guessed)
    d_loss += self.loss_fn(tf.ones_like(y), self.discriminator(x["real"], training=True))
    g_loss = self.loss_fn(tf.ones_like(y), guessed)
d_weights, g_weights = self.discriminator.trainable_weights, self.generator.trainable_weights
self.d_optimizer.apply_gradients(zip(tape.gradient(d_loss, d_weights), d_weights))
self.g_optimizer.apply_gradients(zip(tape.gradient(g_loss, g_weights), g_weights))
{RETURN}
"""


def write_gan(folder: Path, step: str, changes: Mapping[str, str] | None = None) -> None:
    """Write the module ``gan`` with this body of ``train_step``; further parts of the source may be replaced."""
    folder.mkdir(exist_ok=True)
    body = "".join(f"        {line}\n" for line in step.strip().splitlines())
    source = SOURCE.replace("STEP\n", body)
    for old, new in (changes or {}).items():
        assert old in source
        source = source.replace(old, new)
    (folder / "gan.py").write_text(source)


def make_records(count: int, dtype: str = "float64") -> Records:
    """Random records."""
    random = np.random.default_rng(5)
    features = {"real": random.normal(size=(count, 3)), "noise": random.normal(size=(count, 2))}
    return {name: values.astype(dtype) for name, values in features.items()}, np.zeros((count, 1), dtype)


def pick(records: Records, part: slice | Sequence[int]) -> Records:
    """Some of the records."""
    features, labels = records
    return {name: values[part] for name, values in features.items()}, labels[part]


def train_plainly(folder: Path, weights: Sequence[Any], steps: Iterable[Records]) -> tuple[Any, list[float]]:
    """The module's own ``train_step``, as ``fit`` calls it, for each of these batches; returns the model and losses.

    Args:
        folder: where ``write_gan`` wrote the module.
        weights: the first ones; none: those of a job with seed 0.
        steps: the records of each step, of all ranks.
    """
    import keras
    import tensorflow as tf

    scope: dict[str, Any] = {}
    exec((folder / "gan.py").read_text(), scope)
    # As in every process of a job.
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(0)
    plain = scope["custom_model"]()
    steps = list(steps)
    # To trace a few steps would take longer than to make them.
    traced = tf.function(plain.train_step, autograph=False, reduce_retracing=True)
    step = traced if len(steps) > 10 else plain.train_step
    losses: list[float] = []
    for features, labels in steps:
        if not plain.built:
            plain(pick((features, labels), slice(1))[0])
        if weights and not losses:
            plain.set_weights(weights)
        for metric in plain.metrics:
            metric.reset_state()
        logs = step((tf.nest.map_structure(tf.constant, features), tf.constant(labels)))
        losses.append(sum(float(value) for value in logs.values()))
    return plain, losses

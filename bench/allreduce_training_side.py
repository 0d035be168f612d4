"""One of two processes beside which allreduce_training.py measures EDL: the peer, or the limit.

    python bench/allreduce_training_side.py MODEL limit
    python bench/allreduce_training_side.py MODEL mirrored INDEX ADDRESS ADDRESS
    python bench/allreduce_training_side.py MODEL fit INDEX ADDRESS ADDRESS

*limit*: the zoo's Keras model and optimizer; forward, backward and update are one function, and nothing is exchanged.
*mirrored*: ``tf.distribute.MultiWorkerMirroredStrategy`` with ring communication, tuned in good faith: raw variables
instead of Keras' layers and optimizer, TensorFlow's own momentum kernel, one or several steps in each function that is
called. *fit*: ``fit`` of the package ``tf_keras`` under the same strategy, with one or several steps per execution;
Keras 3 does not run under it. Minibatches are in memory, and one thread computes.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from peer import serve_questions

sys.path.append(str(Path(__file__).with_name("zoo")))
import momentum_models as zoo
import tensorflow as tf
import tf_keras

BLOCKS = 8
"""Minibatches in memory."""
Step = Callable[[Any, Any], None]


def limit_step(model: str) -> Step:
    """A step of the zoo's model."""
    network, optimizer = getattr(zoo, model)(), zoo.optimizer()
    variables = network.trainable_variables
    optimizer.build(variables)

    def step(images: Any, labels: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(zoo.loss(labels, network(images, training=True)))
        optimizer.apply(tape.gradient(loss, [variable.value for variable in variables]), variables)

    return step


def ring_options() -> Any:
    return tf.distribute.experimental.CommunicationOptions(
        implementation=tf.distribute.experimental.CommunicationImplementation.RING
    )


def mirrored_step(model: str) -> Step:
    """A step over raw variables whose gradients are averaged over all workers."""
    options = ring_options()
    strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    network, shapes = (_run_cnn, CNN_SHAPES) if model == "cnn" else (_run_mlp, MLP_SHAPES)
    random = np.random.default_rng(0)  # equal on all workers
    variables = [tf.Variable(random.normal(0, 0.05, shape).astype(np.float32)) for shape in shapes]
    momenta = [tf.Variable(tf.zeros(shape)) for shape in shapes]

    def replica_step(images: Any, labels: Any) -> None:
        with tf.GradientTape() as tape:
            logits = network(images, variables)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
        gradients = tape.gradient(loss, variables)
        gradients = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.MEAN, gradients, options)
        for variable, momentum, gradient in zip(variables, momenta, gradients, strict=True):
            tf.raw_ops.ResourceApplyMomentum(
                var=variable.handle, accum=momentum.handle, lr=zoo.RATE, grad=gradient, momentum=zoo.MOMENTUM
            )

    def step(images: Any, labels: Any) -> None:
        strategy.run(replica_step, args=(images, labels))

    return step


CNN_SHAPES = ((3, 3, 1, 32), (32,), (3, 3, 32, 64), (64,), (1600, 600), (600,), (600, zoo.CLASSES), (zoo.CLASSES,))
_WIDTHS = (zoo.SIDE**2, 2800, 2800, zoo.CLASSES)
MLP_SHAPES = tuple(shape for a, b in pairwise(_WIDTHS) for shape in ((a, b), (b,)))


def _run_cnn(images: Any, variables: Any) -> Any:
    x = tf.reshape(images, [-1, zoo.SIDE, zoo.SIDE, 1])
    for kernel, bias in (variables[:2], variables[2:4]):
        x = tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(x, kernel, 1, "VALID"), bias))
        x = tf.nn.max_pool2d(x, 2, 2, "VALID")
    return _run_dense(tf.reshape(x, [-1, CNN_SHAPES[4][0]]), variables[4:])


def _run_mlp(images: Any, variables: Any) -> Any:
    return _run_dense(images, variables)


def _run_dense(x: Any, variables: Any) -> Any:
    *hidden, (kernel, bias) = zip(variables[::2], variables[1::2], strict=True)
    for each, offset in hidden:
        x = tf.nn.relu(x @ each + offset)
    return x @ kernel + bias


def make_minibatches(batch: int) -> list[tuple[Any, Any]]:
    rows = zoo.images(BLOCKS * batch)
    blocks = [rows[at : at + batch] for at in range(0, len(rows), batch)]
    return [(tf.constant(b[:, :-1] / np.float32(255)), tf.constant(b[:, -1].astype(np.int32))) for b in blocks]


class TrainingSide:
    """Answers with the seconds that a number of steps take."""

    def __init__(self, step: Step) -> None:
        self._step = step
        self._functions: dict[tuple[int, int], Callable[[], Any]] = {}

    def answer_question(self, question: dict[str, Any]) -> dict[str, Any]:
        """``calls`` of a function with ``unroll`` steps each, with minibatches of ``batch``."""
        way = question["batch"], question["unroll"]
        if way not in self._functions:
            self._functions[way] = self._unrolled_call(*way)
            self._functions[way]()
        function = self._functions[way]
        begun = time.perf_counter()
        for _ in range(question["calls"]):
            function()
        return {"seconds": time.perf_counter() - begun}

    def _unrolled_call(self, batch: int, unroll: int) -> Callable[[], Any]:
        minibatches = make_minibatches(batch)
        steps = tf.function(lambda blocks: [self._step(*block) for block in blocks] and None, autograph=False)
        at = 0

        def run_steps() -> None:
            nonlocal at
            steps([minibatches[(at + more) % BLOCKS] for more in range(unroll)])
            at += unroll

        return run_steps


class FitSide:
    """The same with ``fit`` of ``tf_keras``, and its model of the same layers."""

    def __init__(self, model: str) -> None:
        self._strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=ring_options())
        with self._strategy.scope():
            self._model = _fit_model(model)
        self._unroll = 0

    def answer_question(self, question: dict[str, Any]) -> dict[str, Any]:
        calls, unroll, batch = question["calls"], question["unroll"], question["batch"]
        if unroll != self._unroll:
            self._unroll = unroll
            with self._strategy.scope():
                # Its update of each variable is one operation of TensorFlow.
                optimizer = tf_keras.optimizers.legacy.SGD(zoo.RATE, momentum=zoo.MOMENTUM)
                loss = tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True)
                self._model.compile(optimizer, loss, steps_per_execution=unroll)
            self._fit(2, batch)
        ends = self._fit(calls, batch)
        # Without the first one, before which ``fit`` makes an iterator.
        return {"seconds": (ends[-1] - ends[0]) * calls / (calls - 1)}

    def _fit(self, calls: int, batch: int) -> list[float]:
        """When each call ended."""
        ends: list[float] = []
        clock = tf_keras.callbacks.LambdaCallback(on_batch_end=lambda batch, logs: ends.append(time.perf_counter()))
        self._model.fit(
            self._strategy.distribute_datasets_from_function(lambda context: _dataset(batch)),
            steps_per_epoch=calls * self._unroll,
            verbose=0,
            callbacks=[clock],
        )
        return ends


def _fit_model(model: str) -> Any:
    layers = tf_keras.layers
    if model == "cnn":
        hidden = [layers.Reshape([zoo.SIDE, zoo.SIDE, 1])]
        for filters in (32, 64):
            hidden += [layers.Conv2D(filters, 3, activation="relu"), layers.MaxPooling2D()]
        hidden += [layers.Flatten(), layers.Dense(600, activation="relu")]
    else:
        hidden = [layers.Dense(2800, activation="relu"), layers.Dense(2800, activation="relu")]
    return tf_keras.Sequential([layers.Input([zoo.SIDE**2]), *hidden, layers.Dense(zoo.CLASSES)])


def _dataset(batch: int) -> Any:
    images, labels = (tf.concat(parts, 0) for parts in zip(*make_minibatches(batch), strict=True))
    blocks = tf.data.Dataset.from_tensor_slices((images, labels)).batch(batch, drop_remainder=True)
    return blocks.cache().repeat().prefetch(2)


def main() -> None:
    model, side = sys.argv[1:3]
    if side != "limit":
        cluster = {"worker": sys.argv[4:]}
        os.environ["TF_CONFIG"] = json.dumps(
            {"cluster": cluster, "task": {"type": "worker", "index": int(sys.argv[3])}}
        )
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)  # as EDL's workers have
    if side == "fit":
        serve_questions(FitSide(model).answer_question)
        return
    step = limit_step(model) if side == "limit" else mirrored_step(model)
    serve_questions(TrainingSide(step).answer_question)


if __name__ == "__main__":
    main()

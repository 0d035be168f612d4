"""The same DeepFM under ``tf.distribute.ParameterServerStrategy``: one PS, two workers, a coordinator.

The other side of deepfm.py, tuned in good faith; what was tried stands in docs/benchmarks.md. Raw variables on the PS
instead of Keras' layers and optimizer; all dense variables as one, hence one read and one update a step; ids made
unique on the worker, so that each row travels once; rows are gathered and updated on the PS by the kernels that
TensorFlow has for it (``ResourceGather``, ``ResourceSparseApplyAdagradV2``), without locks; some steps in each function
that is scheduled, so that the coordinator is not in the way. Records are read once from TFRecord files, kept in
memory as they are, and parsed as a batch, ahead of training.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

import tensorflow as tf
from peer import serve_questions

NUMBERS, IDS, DIM, HIDDEN = 13, 26, 16, (256, 128, 64)
RATE, START, EPSILON = 0.05, 0.1, 1e-7
"""Keras' Adagrad as the zoo's model makes it."""
PS, WORKERS = "/job:ps/replica:0/task:0/device:CPU:0", 2
_FEATURES = {
    "numbers": tf.io.FixedLenFeature([NUMBERS], tf.float32),
    "ids": tf.io.FixedLenFeature([IDS], tf.int64),
    "label": tf.io.FixedLenFeature([], tf.int64),
}


def cluster_addresses() -> dict[str, list[str]]:
    """Addresses on free ports of this machine."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(WORKERS + 1)]
    names = [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]
    for one in sockets:
        one.close()
    return {"ps": names[:1], "worker": names[1:]}


def run_server(role: str, index: int, spec: dict[str, list[str]], threads: int) -> None:
    """A TensorFlow server of the cluster, until it is ended."""
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    server = tf.distribute.Server(
        tf.train.ClusterSpec(spec), job_name=role, task_index=index, protocol="grpc", config=None, start=True
    )
    server.join()


@contextmanager
def start_servers(spec: dict[str, list[str]], threads: int) -> Iterator[None]:
    """The other processes."""
    environment = {**os.environ, "TF_NUM_INTRAOP_THREADS": str(threads)}
    roles = [(role, index) for role, names in spec.items() for index in range(len(names))]
    started = [
        subprocess.Popen(
            [sys.executable, __file__, "--be", role, str(index), json.dumps(spec), "--threads", str(threads)],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        for role, index in roles
    ]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


class DeepFmModel:
    """DeepFM over raw variables on the PS."""

    def __init__(self, vocabulary: int) -> None:
        sizes = [NUMBERS + IDS * DIM, *HIDDEN, 1]
        self._shapes = [shape for a, b in pairwise(sizes) for shape in ((a, b), (b,))]
        initial = [
            tf.random.uniform([prod(shape)], -1, 1) * (6 / sum(shape)) ** 0.5
            if len(shape) == 2
            else tf.zeros([prod(shape)])
            for shape in self._shapes
        ]
        with tf.device(PS):
            self._dense = self._make_variable(tf.concat(initial, 0))
            self._weights = self._make_variable(tf.random.uniform([vocabulary, 1], -0.05, 0.05))
            self._vectors = self._make_variable(tf.random.uniform([vocabulary, DIM], -0.05, 0.05))

    @staticmethod
    def _make_variable(value: Any) -> tuple[Any, Any]:
        return tf.Variable(value), tf.Variable(tf.fill(value.shape, START))

    def train_step(self, features: Any, labels: Any) -> None:
        """Pull, compute, push."""
        ids, places = tf.unique(tf.reshape(features["ids"], [-1]))
        with tf.device(PS):
            pulled = [self._dense[0].read_value(), *(tf.gather(t[0], ids) for t in (self._weights, self._vectors))]
        with tf.GradientTape() as tape:
            tape.watch(pulled)
            loss = tf.reduce_mean(
                tf.nn.sigmoid_cross_entropy_with_logits(
                    labels[:, None], self._logits(features["numbers"], places, pulled)
                )
            )
        dense, *rows = (tf.convert_to_tensor(gradient) for gradient in tape.gradient(loss, pulled))
        with tf.device(PS):
            variable, sums = self._dense
            tf.raw_ops.ResourceApplyAdagradV2(
                var=variable.handle, accum=sums.handle, lr=RATE, epsilon=EPSILON, grad=dense
            )
            for (variable, sums), gradient in zip((self._weights, self._vectors), rows, strict=True):
                tf.raw_ops.ResourceSparseApplyAdagradV2(
                    var=variable.handle, accum=sums.handle, lr=RATE, epsilon=EPSILON, grad=gradient, indices=ids
                )

    def _logits(self, numbers: Any, places: Any, given: list[Any]) -> Any:
        dense, weights, vectors = given
        batch = tf.shape(numbers)[0]
        first = tf.reshape(tf.gather(weights, places), [batch, IDS])
        v = tf.reshape(tf.gather(vectors, places), [batch, IDS, DIM])
        pairs = (tf.square(tf.reduce_sum(v, 1)) - tf.reduce_sum(tf.square(v), 1)) / 2
        x = tf.concat([numbers, tf.reshape(v, [batch, IDS * DIM])], 1)
        pieces = [
            tf.reshape(piece, shape)
            for piece, shape in zip(tf.split(dense, [prod(s) for s in self._shapes]), self._shapes, strict=True)
        ]
        for kernel, bias in zip(pieces[:-2:2], pieces[1:-2:2], strict=True):
            x = tf.nn.relu(x @ kernel + bias)
        return x @ pieces[-2] + pieces[-1] + tf.reduce_sum(first, 1, True) + tf.reduce_sum(pairs, 1, True)


def read_dataset(pattern: str, batch: int) -> Any:
    """Parsed batches without end."""

    def parse_batch(records: Any) -> Any:
        example = tf.io.parse_example(records, _FEATURES)
        return {name: example[name] for name in ("numbers", "ids")}, tf.cast(example["label"], tf.float32)

    records = tf.data.TFRecordDataset(tf.io.gfile.glob(pattern)).cache().repeat()
    return records.batch(batch, drop_remainder=True).map(parse_batch).prefetch(2)


class StrategySide:
    """A coordinator with a model for each way to train it.

    Args:
        spec: addresses of the others.
        given: of the command line.
    """

    def __init__(self, spec: dict[str, list[str]], given: argparse.Namespace) -> None:
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(tf.train.ClusterSpec(spec), rpc_layer="grpc")
        strategy = tf.distribute.ParameterServerStrategy(resolver)
        self._coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        with strategy.scope():
            self._model = DeepFmModel(given.vocabulary)
        self._arguments = given
        self._step_functions: dict[tuple[int, int], Any] = {}

    def samples_per_second(self, question: dict[str, Any]) -> dict[str, Any]:
        """Samples a second of both workers together, for about ``seconds``, at a ``batch``, so many steps a call."""
        batch, unroll = question["batch"], question["unroll"]
        steps, iterator = self._step_function(batch, unroll)
        begun = time.perf_counter()
        self._run_calls(steps, iterator, 4)
        calls = max(4, int(4 * question["seconds"] / (time.perf_counter() - begun)))
        begun = time.perf_counter()
        self._run_calls(steps, iterator, calls)
        return {"rate": calls * unroll * batch / (time.perf_counter() - begun)}

    def _run_calls(self, steps: Any, iterator: Any, calls: int) -> None:
        for _ in range(calls):
            self._coordinator.schedule(steps, args=(iterator,))
        self._coordinator.join()

    def _step_function(self, batch: int, unroll: int) -> Any:
        if (batch, unroll) in self._step_functions:
            return self._step_functions[batch, unroll]

        def unrolled_steps(iterator: Any) -> None:
            for _ in range(unroll):
                self._model.train_step(*next(iterator))

        steps = tf.function(unrolled_steps)
        pattern = str(self._arguments.records / "*")
        iterator = iter(self._coordinator.create_per_worker_dataset(lambda: read_dataset(pattern, batch)))
        self._run_calls(steps, iterator, 2 * WORKERS)
        self._step_functions[batch, unroll] = steps, iterator
        return steps, iterator


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("records", type=Path, nargs="?", help="folder of TFRecord files")
    parser.add_argument("--vocabulary", type=int)
    parser.add_argument("--threads", type=int, default=1, help="of each server, for the work of one operation")
    parser.add_argument("--be", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.be:
        run_server(arguments.be[0], int(arguments.be[1]), json.loads(arguments.be[2]), arguments.threads)
    spec = cluster_addresses()
    with start_servers(spec, arguments.threads):
        serve_questions(StrategySide(spec, arguments).samples_per_second)


if __name__ == "__main__":
    main()

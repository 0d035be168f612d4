"""A model whose table would fill the machine is built, and trained for a step, in the memory of its rows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

pytestmark = pytest.mark.tensorflow

ROWS, DIM = 100_000_000, 16  # 6.4 GB
AS_FLOATS = 1 << 24
"""Rows that a model can have whose ids Keras makes float32: 1 GB."""
ALLOWED = 300 << 20

PROGRAM = """
    import sys
    import keras, numpy as np, tensorflow as tf
    from keras import layers
    from edl_keras.embedding_harness import network_of, rows_for

    ROWS, AS_FLOATS, DIM = map(int, sys.argv[1:])

    def functional():
        ids = keras.Input([26], dtype="int64")
        return keras.Model(ids, layers.Dense(1)(layers.Flatten()(layers.Embedding(ROWS, DIM)(ids))))

    class Subclassed(keras.Model):
        def __init__(self):
            super().__init__()
            self.tables, self.out = [layers.Embedding(ROWS, DIM), layers.Embedding(ROWS, 1)], layers.Dense(1)

        def call(self, inputs):
            return self.out(tf.concat([tf.reduce_sum(table(inputs), 1) for table in self.tables], -1))

    def built_by_its_first_call():
        return keras.Sequential([layers.Embedding(AS_FLOATS, DIM), layers.Flatten(), layers.Dense(1)])

    def peak():  # KiB; ru_maxrss would begin with that of the process which started this one
        return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))

    tf.reduce_sum(tf.ones([8])).numpy()  # TensorFlow's own threads and buffers
    before = peak()
    for model, rows in (functional, ROWS), (Subclassed, ROWS), (built_by_its_first_call, AS_FLOATS):
        ids = np.random.default_rng(0).integers(0, rows, (64, 26))
        network = network_of(model, ids, threshold=2 << 20)
        assert all(table.rows == rows for table in network.tables) and network.tables
        network.train(network.initial_values(), rows_for(network, ids), ids, np.zeros((64, 1)))
    print(peak() - before)
"""


@pytest.mark.repetition
def test_no_table_above_the_threshold_is_allocated() -> None:
    tests = Path(__file__).parents[1]
    command = [sys.executable, "-c", dedent(PROGRAM), str(ROWS), str(AS_FLOATS), str(DIM)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tests, timeout=170, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert 1024 * int(done.stdout) < ALLOWED

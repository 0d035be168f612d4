"""An export takes the memory of its tables twice: once to have them, and once for Keras to write them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

pytestmark = pytest.mark.tensorflow

ROWS, DIM = 2_000_000, 16
TABLE = 4 * ROWS * DIM
ALLOWED = 2.5  # times the table

PROGRAM = """
    import gc, sys
    from pathlib import Path
    import keras, numpy as np, tensorflow as tf
    from edl_keras.embedding_harness import network_of
    from edl.layers import Embedding
    from edl.keras import model_export as export

    def written(layer, ROWS, DIM):
        def made():
            ids = keras.Input([3], dtype="int64")
            return keras.Model(ids, keras.layers.Dense(1)(layer(ROWS, DIM)(ids)))

        def model():
            return keras.models.clone_model(made())  # the first one's table is the same memory

        network = network_of(model, np.array([[1, 2, 3]]))
        (table,) = network.tables
        stored = ((np.arange(at, at + CHUNK), np.full((CHUNK, DIM), at, np.float32)) for at in range(0, ROWS, CHUNK))
        folder = Path(sys.argv[3], layer.__name__, str(ROWS))
        exported = folder / "saved_model"
        export.export_model(network, network.initial_values(), {table.name: stored}, folder / "m.keras", exported)

    def of_keras(ROWS, DIM):
        return keras.layers.Embedding(ROWS, DIM)

    def combined(ROWS, DIM):
        return Embedding(DIM, ROWS, combiner="sum")

    def peak():  # KiB; ru_maxrss would begin with that of the process which started this one
        return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))

    CHUNK = 1000
    for layer in of_keras, combined:
        written(layer, CHUNK, int(sys.argv[2]))  # all that TensorFlow and HDF5 need, whatever the size
    before = peak()
    for layer in of_keras, combined:
        written(layer, int(sys.argv[1]), int(sys.argv[2]))
        gc.collect()  # a job exports once; models are cycles
    print(peak() - before)
"""


@pytest.mark.repetition
def test_an_export_holds_a_table_once_and_once_more_to_write_it(tmp_path: Path) -> None:
    command = [sys.executable, "-c", dedent(PROGRAM), str(ROWS), str(DIM), str(tmp_path)]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=Path(__file__).parents[1], timeout=170, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert 1024 * int(done.stdout) < ALLOWED * TABLE

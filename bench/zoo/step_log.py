"""A callback that notes when each step of a worker was in, and that lets a step take long at no cost.

Each worker process writes a file of its own in the folder that ``EDL_BENCH_DIARY`` names: three
doubles for each step, its number, unix seconds, and the seconds that it slept. ``bench/stalls.py``
reads them.
"""

from __future__ import annotations

import os
import struct
import time
from pathlib import Path

import keras

_LINE = struct.Struct("<ddd")


class StepLog(keras.callbacks.Callback):
    """Args: ``sleep``: seconds that a step sleeps before it is computed, as if it computed so long elsewhere."""

    def __init__(self, sleep=0.0):
        super().__init__()
        self.sleep = sleep
        self.slept = 0.0
        file = Path(os.environ["EDL_BENCH_DIARY"]) / str(os.getpid())
        self.file = file.open("ab", buffering=0)  # until the process ends

    def on_train_batch_begin(self, batch, logs=None):
        if self.sleep:
            began = time.monotonic()
            time.sleep(self.sleep)
            self.slept = time.monotonic() - began

    def on_train_batch_end(self, batch, logs=None):
        self.file.write(_LINE.pack(batch, time.time(), self.slept))

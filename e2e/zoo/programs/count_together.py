"""A program whose workers take steps together: their state counts records and their bytes, as slowly as wanted."""

import os
import time
from pathlib import Path

import numpy as np

from edl.sharding import Client

hurry, pause = Path(os.environ["E2E_HURRY"]), float(os.environ["E2E_STEP_SECONDS"])
totals = np.zeros(2)


def load(state):
    totals[:] = state["totals"]


with Client.from_env() as client:
    for step in client.steps([totals], lambda: {"totals": totals}, load, reduction="sum"):
        with step:
            own = None
            if step.batch is not None:
                own = [np.array([len(step.batch), sum(len(record) for record in step.batch)], float)]
            if not hurry.exists():
                time.sleep(pause)
            (sums,) = step.allreduce(own, loss=1.0 / (1 + step.number))
            totals[:] = totals + sums
    if client.world is not None:
        print(f"worker {client.index} knows of {totals[0]:.0f} records, {totals[1]:.0f} bytes", flush=True)

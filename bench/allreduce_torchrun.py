"""A worker of allreduce_recovery.py under ``torchrun``, run by the Python that has PyTorch.

Its step is that of ``zoo/timed_arrays.py``: a sleep of 10 ms, a reduction of a million floats, an update. A restarted
world starts anew: it reads no checkpoint, which a real script would have to do.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch  # type: ignore[import-not-found]
import torch.distributed as dist  # type: ignore[import-not-found]

sys.path.append(str(Path(__file__).with_name("zoo")))
from step_times import note_step

STEP_SECONDS = 0.01
PARAMETERS = 1_000_000
RATE = 1e-6


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    state, gradient = torch.zeros(PARAMETERS), torch.zeros(PARAMETERS)
    note_step()  # as EDL's workers note the trace of their model
    while True:
        time.sleep(STEP_SECONDS)
        gradient.fill_(1)
        dist.all_reduce(gradient)
        state.sub_(gradient, alpha=RATE / dist.get_world_size())
        note_step()


if __name__ == "__main__":
    main()

"""One process of ``torch_loop.py``: the same loop in PyTorch over its own DataLoader, or over ``edl.sharding``.

It runs with the Python that has PyTorch, and imports nothing of EDL if it is the peer. It trains while it is its side's
turn, and lies still while others are measured.
"""

from __future__ import annotations

import argparse
import itertools
import json
import mmap
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch  # type: ignore[import-not-found]
from torch.utils.data import BatchSampler, DataLoader, Dataset, DistributedSampler  # type: ignore[import-not-found]

WARM_STEPS = 20
END = 255
"""The side in the file of turns that ends all processes."""
IDLE_SECONDS = 0.001
Batches = Iterable[Any]


def make_model(name: str) -> Any:
    """A model for images of 28 x 28: two convolutions, or two dense layers, whose step is short."""
    nn = torch.nn
    if name == "dense":
        return nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))
    features = [nn.Conv2d(1, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*features, nn.Flatten(), nn.Linear(800, 10))


class Turns:
    """The file that says whose turn it is: a side, and the number of the turn. Writes what was counted in each turn.

    Args:
        folder: where the processes of the benchmark find each other.
        name: of this process.
        side: that it is a part of.
    """

    def __init__(self, folder: Path, name: str, side: int) -> None:
        with (folder / "turn").open("rb") as file:
            self._turn = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._side = side
        self._ready = folder / f"ready-{name}"
        self._said = (folder / f"counts-{name}").open("a", buffering=1)
        self._number, self._count, self._began, self._cpu_began = -1, 0, 0.0, 0.0

    def wait_for_turn(self, step: int, records: int) -> bool:
        """A step of so many records is done: wait until this process may go on; False: it may end."""
        if step < WARM_STEPS:
            return True
        if step == WARM_STEPS:
            self._ready.touch()
        self._count += records
        if self._turn[0] == self._side and self._turn[1] == self._number:
            return True
        if self._number >= 0:
            seconds = time.perf_counter() - self._began
            cpu_seconds = time.process_time() - self._cpu_began
            self._said.write(json.dumps([self._number, self._count / seconds, self._count / cpu_seconds]) + "\n")
        while (side := self._turn[0]) not in (self._side, END):
            time.sleep(IDLE_SECONDS)
        self._number, self._count = self._turn[1], 0
        self._began, self._cpu_began = time.perf_counter(), time.process_time()
        return side != END


def train(batches: Batches, given: argparse.Namespace, name: str) -> None:
    """Train on all batches, as long as the benchmark wants."""
    torch.manual_seed(0)
    turns = Turns(given.folder, name, given.side)
    model = make_model(given.model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for step, batch in enumerate(batches):
        images = batch["image"].float().div_(255.0).unsqueeze_(1)
        loss = torch.nn.functional.cross_entropy(model(images), batch["label"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if not turns.wait_for_turn(step, len(images)):
            return
    raise RuntimeError("the records were not enough")


class Images(Dataset):  # type: ignore[misc]  # torch has no types here
    """The arrays as tensors. An index is a number, or a list of them for a whole minibatch."""

    def __init__(self, file: Path) -> None:
        with np.load(file) as arrays:
            self._image, self._label = torch.from_numpy(arrays["image"]), torch.from_numpy(arrays["label"])

    def __len__(self) -> int:
        return len(self._label)

    def __getitem__(self, index: Any) -> dict[str, Any]:
        return {"image": self._image[index], "label": self._label[index]}


def own_batches(given: argparse.Namespace) -> Iterator[Any]:
    """Epochs of PyTorch's loader, as its documentation shows it, or with whole minibatches as indices."""
    images = Images(given.data)
    sampler = DistributedSampler(images, given.processes, given.index, shuffle=True)
    options: dict[str, Any] = {"num_workers": given.loaders, "persistent_workers": given.loaders > 0}
    if given.form == "minibatches":
        options |= {"sampler": BatchSampler(sampler, given.minibatch, drop_last=False), "batch_size": None}
    else:
        options |= {"sampler": sampler, "batch_size": given.minibatch}
    loader = DataLoader(images, **options)
    for epoch in itertools.count():
        sampler.set_epoch(epoch)
        yield from loader


def sharded_batches(given: argparse.Namespace) -> None:
    """What a worker of the job does."""
    from edl.sharding import Client
    from edl.sharding.torch_data import ShardedDataset

    with Client.from_env() as client:
        train(DataLoader(ShardedDataset(client), batch_size=None), given, f"{given.side}-{client.index}")
        client.stop_training()
        for _ in client.batches():
            pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("form", choices=["edl", "records", "minibatches"])
    parser.add_argument("--folder", type=Path, required=True, help="where processes find each other")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", default="convolutions")
    parser.add_argument("--minibatch", type=int, default=64)
    parser.add_argument("--side", type=int, required=True, help="its number in the file of turns")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--index", type=int, default=0)
    parser.add_argument("--loaders", type=int, default=0, help="processes of the DataLoader")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.form == "edl":
        sharded_batches(arguments)
    else:
        train(own_batches(arguments), arguments, f"{arguments.side}-{arguments.index}")


if __name__ == "__main__":
    main()

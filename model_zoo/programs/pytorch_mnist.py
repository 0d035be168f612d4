"""Digits in PyTorch: all workers train one model together, and go on when one of them is lost.

``edl data mnist demo-data/mnist && edl run model_zoo/programs/pytorch_mnist.yaml``, with PyTorch installed.
"""

import numpy as np
import torch
from torch import nn

from edl.data import parse_example
from edl.sharding import Client
from edl.sharding.torch_steps import TorchState

torch.manual_seed(0)
model = nn.Sequential(
    nn.Unflatten(1, (1, 28)),
    nn.Conv2d(1, 16, 5, stride=2),
    nn.ReLU(),
    nn.Conv2d(16, 32, 3, stride=2),
    nn.ReLU(),
    nn.Flatten(),
    nn.Linear(32 * 5 * 5, 10),
)
optimizer = torch.optim.Adam(model.parameters(), lr=0.002)
state = TorchState(model, optimizer)


def to_tensors(records):
    rows = [parse_example(record) for record in records]
    images = np.array([row["image"] for row in rows], np.float32).reshape(-1, 28, 28)
    return torch.from_numpy(images / 255), torch.tensor([row["label"] for row in rows])


with Client.from_env() as client:
    for step in client.steps(state.gradients_like, state.state_dict, state.load_state_dict):
        with step:
            optimizer.zero_grad()
            loss = None
            if step.batch is not None:
                images, labels = to_tensors(step.batch.records)
                loss = nn.functional.cross_entropy(model(images), labels)
                loss.backward()
            state.combine_gradients(step, loss)
            optimizer.step()

    if client.world is not None and client.world.rank == 0:
        torch.save(model.state_dict(), "pytorch_mnist.pt")

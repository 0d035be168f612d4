"""Where in an image is a shape, and what is it? A small detector in PyTorch, on images with the annotations of COCO.

``python -m model_zoo.programs.make_shapes demo-data/shapes && edl run model_zoo/programs/pytorch_shapes.yaml``
"""

import io

import numpy as np
import torch
from PIL import Image
from torch import nn

from edl.sharding import Client
from edl.sharding.torch_steps import TorchState

SIZE = 64
torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(3, 16, 5, stride=2),
    nn.ReLU(),
    nn.Conv2d(16, 32, 5, stride=2),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Flatten(),
    nn.Linear(32 * 6 * 6, 4 + 2),  # a box, and a score for each class
)
optimizer = torch.optim.Adam(model.parameters(), lr=0.002)
state = TorchState(model, optimizer)


def load_image(content):
    with Image.open(io.BytesIO(content)) as image:
        return np.asarray(image.convert("RGB"), np.float32).transpose(2, 0, 1) / 255


def to_tensors(columns):
    images = np.stack([load_image(content) for content in columns["image"]])
    # Each of these images has one object; its first one, of images with several.
    boxes = np.stack([columns["boxes"].cell(row)[0] for row in range(len(images))]) / SIZE
    labels = np.array([columns["labels"].cell(row)[0] for row in range(len(images))])
    return torch.from_numpy(images), torch.from_numpy(boxes), torch.from_numpy(labels)


with Client.from_env() as client:
    for step in client.steps(state.gradients_like, state.state_dict, state.load_state_dict):
        with step:
            optimizer.zero_grad()
            loss = None
            if step.batch is not None:
                images, boxes, labels = to_tensors(step.batch.records.columns)
                found = model(images)
                loss = nn.functional.cross_entropy(found[:, 4:], labels)
                loss = loss + 10 * nn.functional.smooth_l1_loss(found[:, :4], boxes)
                loss.backward()
            state.combine_gradients(step, loss)
            optimizer.step()

    if client.world is not None and client.world.rank == 0:
        torch.save(model.state_dict(), "pytorch_shapes.pt")

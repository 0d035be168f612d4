"""Images that need no network: two classes have the same colour, one with wide stripes and one with narrow ones.

Place and direction of the stripes are random, and there is noise. So mirroring or shifting an image does not change its
class, and no single pixel tells it.
"""

import numpy as np


def draw_images(count, side, classes, seed):
    """Images `[count, side, side, 3]` of 0 to 255, and their labels."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, count)
    hues = 4 * np.pi * (labels // 2)[:, None] / (classes + 1) + 2 * np.pi * np.arange(3) / 3
    colours = 40 * np.cos(hues)[:, None, None, :]
    angle, phase = rng.uniform(0, np.pi, (2, count, 1, 1))
    across, down = np.meshgrid(np.arange(side), np.arange(side))
    position = (across * np.cos(angle) + down * np.sin(angle)) / side
    frequency = np.where(labels % 2, 3, 8)[:, None, None]
    stripes = 40 * np.sin(2 * np.pi * position * frequency + 2 * phase)[..., None]
    images = 128 + colours + stripes + rng.normal(0, 30, (count, side, side, 3))
    return np.clip(images, 0, 255).astype(np.uint8), labels

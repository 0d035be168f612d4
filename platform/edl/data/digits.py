"""Handwritten digits without a network: the 8x8 images that ship with scikit-learn, brought to the shape of MNIST."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

ImageArray: TypeAlias = npt.NDArray[np.uint8]
LabelArray: TypeAlias = npt.NDArray[np.int64]

IMAGE_SIDE = 28
_MOST_SHIFT = 2  # pixels
_MOST_NOISE = 16  # of 255


@dataclass(frozen=True)
class DigitImages:
    """Images ``[n, 28, 28]`` of 0 (paper) to 255 (ink), and their labels ``[n]`` of 0 to 9."""

    images: ImageArray
    labels: LabelArray

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, order: npt.NDArray[np.int64]) -> DigitImages:
        """These images, in this order."""
        return DigitImages(self.images[order], self.labels[order])


def load_digits() -> DigitImages:
    """All 1,797 digits of scikit-learn (UCI *Optical Recognition of Handwritten Digits*, its test part)."""
    from sklearn import datasets

    raw = datasets.load_digits()
    small = raw.images / 16.0 * 255.0  # its values run from 0 to 16
    return DigitImages(np.rint(resize_images(small, IMAGE_SIDE)).astype(np.uint8), raw.target.astype(np.int64))


def resize_images(images: npt.NDArray[np.float64], side: int) -> npt.NDArray[np.float64]:
    """Bilinear interpolation of square images ``[n, s, s]`` to ``[n, side, side]``, pixel centres aligned."""
    weights = _interpolation_weights(images.shape[1], side)
    resized: npt.NDArray[np.float64] = weights @ images @ weights.T
    return resized


def _interpolation_weights(old: int, new: int) -> npt.NDArray[np.float64]:
    """``[new, old]``: the share of each old pixel in each new one, along one axis."""
    centres = np.clip((np.arange(new) + 0.5) * old / new - 0.5, 0, old - 1)
    weights: npt.NDArray[np.float64] = np.maximum(1 - np.abs(centres[:, None] - np.arange(old)), 0.0)
    return weights


def split_digits(digits: DigitImages, held_back: float, rng: np.random.Generator) -> tuple[DigitImages, DigitImages]:
    """Shuffle, and hold back this share (rounded) for validation: ``(training, validation)``."""
    order = rng.permutation(len(digits))
    count = round(len(digits) * held_back)
    return digits.take(order[count:]), digits.take(order[:count])


def enlarge_digits(digits: DigitImages, records: int, rng: np.random.Generator) -> DigitImages:
    """Exactly ``records`` images: the originals first, then copies moved by up to 2 pixels, with a little noise.

    Each original is copied as often as any other, give or take one; the whole is shuffled.
    """
    source = np.arange(records) % len(digits)
    images, copies = digits.images[source], slice(len(digits), None)
    images[copies] = _add_noise(_shift_images(images[copies], rng), rng)
    return DigitImages(images, digits.labels[source]).take(rng.permutation(records))


def _shift_images(images: ImageArray, rng: np.random.Generator) -> ImageArray:
    """Each image moved down and right by -2 to 2 pixels; paper comes in at the border."""
    offsets = rng.integers(0, 2 * _MOST_SHIFT + 1, (len(images), 2))
    padded = np.pad(images, ((0, 0), (_MOST_SHIFT, _MOST_SHIFT), (_MOST_SHIFT, _MOST_SHIFT)))
    moved = np.empty_like(images)
    for down in range(2 * _MOST_SHIFT + 1):
        for right in range(2 * _MOST_SHIFT + 1):
            chosen = (offsets == (down, right)).all(axis=1)
            moved[chosen] = padded[chosen, down : down + IMAGE_SIDE, right : right + IMAGE_SIDE]
    return moved


def _add_noise(images: ImageArray, rng: np.random.Generator) -> ImageArray:
    noise = rng.integers(-_MOST_NOISE, _MOST_NOISE + 1, images.shape, dtype=np.int16)
    noisy = np.clip(images.astype(np.int16) + noise, 0, 255)
    # Paper stays blank: that keeps the files small when compressed.
    return np.where(images > 0, noisy, 0).astype(np.uint8)

"""Records before they are written: each as the features of an Example or as the cells of a CSV row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from edl.data.digits import IMAGE_SIDE, DigitImages
from edl.data.tf_example import FeatureValue

IRIS_LENGTHS = ("sepal_length", "sepal_width", "petal_length", "petal_width")


class RecordTable(Protocol):
    """Records that know both of their shapes."""

    @property
    def columns(self) -> Sequence[str]:
        """Names of a row's cells."""

    def __len__(self) -> int: ...

    def features(self) -> Iterator[dict[str, FeatureValue]]:
        """Each record as the features of an Example."""

    def rows(self) -> Iterator[Sequence[object]]:
        """Each record as the cells of a CSV row, in the order of ``columns``."""


@dataclass(frozen=True)
class DigitTable:
    """Digits as ElasticDL's MNIST zoo reads them: ``image``, 784 floats of 0 to 255, and ``label``."""

    digits: DigitImages
    columns: Sequence[str] = ("label", *(f"pixel{number}" for number in range(IMAGE_SIDE * IMAGE_SIDE)))

    def __len__(self) -> int:
        return len(self.digits)

    def features(self) -> Iterator[dict[str, FeatureValue]]:
        """``image`` as a float list, row by row; ``label`` as one int64."""
        for image, label in zip(self.digits.images, self.digits.labels, strict=True):
            yield {"image": image.ravel().astype(np.float32).tolist(), "label": int(label)}

    def rows(self) -> Iterator[Sequence[object]]:
        """The label, then the pixels row by row."""
        for image, label in zip(self.digits.images, self.digits.labels, strict=True):
            yield [int(label), *image.ravel().tolist()]


@dataclass(frozen=True)
class IrisTable:
    """Iris flowers: four lengths in cm, and the class (0 setosa, 1 versicolor, 2 virginica)."""

    lengths: Sequence[Sequence[float]]
    classes: Sequence[int]
    columns: Sequence[str] = (*IRIS_LENGTHS, "class")

    def __len__(self) -> int:
        return len(self.classes)

    def features(self) -> Iterator[dict[str, FeatureValue]]:
        """One float for each length; ``class`` as one int64."""
        for lengths, kind in zip(self.lengths, self.classes, strict=True):
            yield {**dict(zip(IRIS_LENGTHS, lengths, strict=True)), "class": kind}

    def rows(self) -> Iterator[Sequence[object]]:
        """The lengths, then the class."""
        for lengths, kind in zip(self.lengths, self.classes, strict=True):
            yield [*lengths, kind]


@dataclass(frozen=True)
class GeneratedDataset:
    """What is to be written.

    Attributes:
        training: records of ``train/``.
        validation: records of ``test/``.
        origin: a sentence on where they come from.
        about: facts that are written beside them as ``about.json``; nothing is when it is empty.
    """

    training: RecordTable
    validation: RecordTable
    origin: str
    about: Mapping[str, Any] = field(default_factory=dict)

"""The data sets that ``edl data`` generates."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from edl.api.errors import BadInputError, RetryableError
from edl.data.synthetic_clicks import ID_FEATURES, NUMBER_FEATURES, ClickModel, ClickTable
from edl.data.tf_example import FeatureValue

# --------------------------------------------------------------------------------------------------
# Handwritten digits that need no network: the 8x8 images of scikit-learn, enlarged to the shape of
# MNIST.


ImageArray: TypeAlias = npt.NDArray[np.uint8]
LabelArray: TypeAlias = npt.NDArray[np.int64]

IMAGE_SIDE = 28
_MOST_SHIFT = 2  # pixels
_MOST_NOISE = 16  # of 255


@dataclass(frozen=True)
class DigitImages:
    """Images ``[n, 28, 28]`` of 0 (background) to 255 (ink), and their labels ``[n]`` of 0 to 9."""

    images: ImageArray
    labels: LabelArray

    def __len__(self) -> int:
        return len(self.labels)

    def select_images(self, order: npt.NDArray[np.int64]) -> DigitImages:
        """The images with these indexes, in this order."""
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


def split_digits(
    digits: DigitImages, validation_share: float, rng: np.random.Generator
) -> tuple[DigitImages, DigitImages]:
    """Shuffle, and hold back this share (rounded) for validation: ``(training, validation)``."""
    order = rng.permutation(len(digits))
    count = round(len(digits) * validation_share)
    return digits.select_images(order[count:]), digits.select_images(order[:count])


def enlarge_digits(digits: DigitImages, records: int, rng: np.random.Generator) -> DigitImages:
    """Exactly ``records`` images: the originals, then copies that are shifted by up to 2 pixels and have some noise.

    All originals are copied equally often, give or take one. The result is shuffled.
    """
    source = np.arange(records) % len(digits)
    images, copies = digits.images[source], slice(len(digits), None)
    images[copies] = _add_noise(_shift_images(images[copies], rng), rng)
    return DigitImages(images, digits.labels[source]).select_images(rng.permutation(records))


def _shift_images(images: ImageArray, rng: np.random.Generator) -> ImageArray:
    """Shift each image by -2 to 2 pixels in both directions; new pixels at the border are background."""
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
    # The background stays 0, which keeps compressed files small.
    return np.where(images > 0, noisy, 0).astype(np.uint8)


# --------------------------------------------------------------------------------------------------
# MNIST through keras.datasets, if the network or Keras' cache has it.
#
# Keras runs in another process, because importing TensorFlow takes seconds and a process can be
# killed if a download hangs.


_MNIST_URL = "https://storage.googleapis.com/tensorflow/tf-keras-datasets/mnist.npz"
# A short probe of the network first: Keras would wait and retry much longer. The process limit is
# above urllib's own timeout, because that timeout does not cover DNS lookups.
_PROBE_SECONDS = 4.0
_PROBE_SCRIPT = "import sys, urllib.request; urllib.request.urlopen(sys.argv[1], timeout=3).close()"
_LOAD_SECONDS = 180.0
_LOAD_SCRIPT = """
import sys
import keras
import numpy
(x, y), (vx, vy) = keras.datasets.mnist.load_data()
numpy.savez(sys.argv[1], x=x, y=y, vx=vx, vy=vy)
"""


class MnistUnavailableError(RetryableError):
    """keras.datasets cannot provide MNIST now."""


def load_mnist() -> tuple[DigitImages, DigitImages]:
    """MNIST's 60,000 training and 10,000 test digits.

    Raises:
        MnistUnavailableError: there is no network (after 4 seconds) or no Keras, or the download failed or took longer
            than 3 minutes.
    """
    if not _is_cached():
        _run_python(_PROBE_SCRIPT, _MNIST_URL, _PROBE_SECONDS, "the network")
    with tempfile.TemporaryDirectory(prefix="edl-mnist-") as folder:
        target = Path(folder, "mnist.npz")
        _run_python(_LOAD_SCRIPT, str(target), _LOAD_SECONDS, "keras.datasets")
        # allow_pickle=False: loading a pickle can run code, and the data came over a network
        with np.load(target, allow_pickle=False) as arrays:
            return _digits_from_arrays(arrays["x"], arrays["y"]), _digits_from_arrays(arrays["vx"], arrays["vy"])


def _digits_from_arrays(images: npt.NDArray[np.uint8], labels: npt.NDArray[np.uint8]) -> DigitImages:
    return DigitImages(images, labels.astype(np.int64))


def _is_cached() -> bool:
    home = os.environ.get("KERAS_HOME") or Path.home() / ".keras"
    return Path(home, "datasets", "mnist.npz").is_file()


def _run_python(script: str, argument: str, seconds: float, what: str) -> None:
    """Run a script in another process for at most ``seconds``."""
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    command = [sys.executable, "-c", script, argument]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=seconds, env=environment)
    except subprocess.TimeoutExpired as error:
        raise _unavailable_error(f"{what} did not answer within {seconds:.0f} s") from error
    except subprocess.CalledProcessError as error:
        lines = error.stderr.strip().splitlines() or [f"exit code {error.returncode}"]
        raise _unavailable_error(f"{what} failed ({lines[-1]})") from error


def _unavailable_error(reason: str) -> MnistUnavailableError:
    return MnistUnavailableError(f"MNIST is not available: {reason}", hint="--source digits works without a network")


# --------------------------------------------------------------------------------------------------
# Records before they are written, as features of an Example or as cells of a CSV row.


IRIS_LENGTHS = ("sepal_length", "sepal_width", "petal_length", "petal_width")


class RecordTable(Protocol):
    """Records that can be written as Examples and as CSV."""

    @property
    def columns(self) -> Sequence[str]:
        """Names of the cells of a row."""

    def __len__(self) -> int: ...

    def features(self) -> Iterator[dict[str, FeatureValue]]:
        """Each record as the features of an Example."""

    def rows(self) -> Iterator[Sequence[object]]:
        """Each record as the cells of a CSV row, in the order of ``columns``."""


@dataclass(frozen=True)
class DigitTable:
    """Digits in the format of ElasticDL's MNIST zoo: ``image``, 784 floats of 0 to 255, and ``label``."""

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
    """A data set to write.

    Attributes:
        training: records of ``train/``.
        validation: records of ``test/``.
        origin: where the records come from, in one sentence.
        about: facts to write as ``about.json`` beside them; if it is empty, no file is written.
    """

    training: RecordTable
    validation: RecordTable
    origin: str
    about: Mapping[str, Any] = field(default_factory=dict)


ImageSource: TypeAlias = Literal["auto", "keras", "digits"]


def make_mnist_dataset(
    source: ImageSource, *, validation_share: float, records: int | None, seed: int
) -> GeneratedDataset:
    """Digits of 28x28: MNIST or, without a network, those of scikit-learn.

    Args:
        source: ``auto`` tries keras.datasets for a few seconds and then uses the offline digits.
        validation_share: share of the offline digits for validation; MNIST has its own test part.
        records: number of training records. If it exceeds the data set, shifted copies are added; if it is smaller,
            a part is used.
        seed: seed of the split, the order and the copies.

    Raises:
        MnistUnavailableError: ``source`` is ``keras`` and there is no network.
        BadInputError: no records are left for one of the parts.
    """
    rng = np.random.default_rng(seed)
    training, validation, origin = _load_digit_parts(source, validation_share, rng)
    if records is not None:
        if records < 1:
            raise BadInputError(f"--records {records}", hint="at least 1")
        origin += f"; {records:,} training records" + (" with shifted copies" if records > len(training) else "")
        training = enlarge_digits(training, records, rng)
    return GeneratedDataset(DigitTable(training), DigitTable(validation), origin)


def _load_digit_parts(
    source: ImageSource, held_back: float, rng: np.random.Generator
) -> tuple[DigitImages, DigitImages, str]:
    reason = "as requested"
    if source != "digits":
        try:
            training, test = load_mnist()
            return training.select_images(rng.permutation(len(training))), test, "MNIST, through keras.datasets"
        except MnistUnavailableError as error:
            if source == "keras":
                raise
            reason = error.message
    _check_validation_share(held_back)
    training, validation = split_digits(load_digits(), held_back, rng)
    return training, validation, f"scikit-learn's 8x8 digits enlarged to 28x28 ({reason})"


def make_iris_dataset(*, validation_share: float, seed: int) -> GeneratedDataset:
    """The 150 iris flowers of scikit-learn, shuffled by ``seed``; a share is held back for validation."""
    from sklearn import datasets

    _check_validation_share(validation_share)
    raw = datasets.load_iris()
    order = np.random.default_rng(seed).permutation(len(raw.target))
    count = round(len(order) * validation_share)
    training, validation = (
        IrisTable(raw.data[part].tolist(), raw.target[part].tolist()) for part in (order[count:], order[:count])
    )
    return GeneratedDataset(training, validation, "scikit-learn's iris flowers")


def make_click_dataset(law: ClickModel, *, records: int, validation_share: float) -> GeneratedDataset:
    """A click log from a planted model; ``about`` has the best AUC that any model can reach on the validation part.

    Args:
        law: the model of the log.
        records: number of records in both parts together.
        validation_share: share of the records for validation.

    Raises:
        BadInputError: no records are left for one of the parts.
    """
    _check_validation_share(validation_share)
    count = round(records * validation_share)
    if not 0 < count < records:
        raise BadInputError(f"{records} records, of which {validation_share:g} are held back", hint="take more records")
    training, validation = ClickTable(law, records - count, part_number=0), ClickTable(law, count, part_number=1)
    best = validation.best_scores()
    origin = (
        f"a planted model over {NUMBER_FEATURES} numbers and {ID_FEATURES} ids; the best possible AUC on test/ is"
        f" {best['auc']:.4f}"
    )
    return GeneratedDataset(training, validation, origin, {"law": law.to_json(), "test": best})


def _check_validation_share(held_back: float) -> None:
    if not 0 < held_back < 1:
        raise BadInputError(f"--validation {held_back}", hint="a share between 0 and 1, such as 0.2")

"""The data sets that ``edl data`` makes."""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np

from edl.api.errors import BadInputError
from edl.data.digits import DigitImages, enlarge_digits, load_digits, split_digits
from edl.data.mnist import MnistUnavailableError, load_mnist
from edl.data.record_tables import DigitTable, GeneratedDataset, IrisTable
from edl.data.synthetic_clicks import ID_FEATURES, NUMBER_FEATURES, ClickModel, ClickTable

ImageSource: TypeAlias = Literal["auto", "keras", "digits"]


def make_mnist_dataset(source: ImageSource, *, held_back: float, records: int | None, seed: int) -> GeneratedDataset:
    """Digits of 28x28: MNIST or, without a network, scikit-learn's.

    Args:
        source: ``auto`` tries keras.datasets for a few seconds and then takes the offline digits.
        held_back: share of the offline digits for validation; MNIST has a test part of its own.
        records: training records wanted; more than there are means moved copies, fewer a part of them.
        seed: of the split, the order and the copies.

    Raises:
        MnistUnavailableError: ``keras`` was asked for and there is no network.
        BadInputError: a share or a count that leaves nothing.
    """
    rng = np.random.default_rng(seed)
    training, validation, origin = _load_digit_parts(source, held_back, rng)
    if records is not None:
        if records < 1:
            raise BadInputError(f"--records {records}", hint="at least 1")
        origin += f"; {records:,} training records" + (" by moved copies" if records > len(training) else "")
        training = enlarge_digits(training, records, rng)
    return GeneratedDataset(DigitTable(training), DigitTable(validation), origin)


def _load_digit_parts(
    source: ImageSource, held_back: float, rng: np.random.Generator
) -> tuple[DigitImages, DigitImages, str]:
    reason = "as asked for"
    if source != "digits":
        try:
            training, test = load_mnist()
            return training.take(rng.permutation(len(training))), test, "MNIST, through keras.datasets"
        except MnistUnavailableError as error:
            if source == "keras":
                raise
            reason = error.message
    _check_validation_share(held_back)
    training, validation = split_digits(load_digits(), held_back, rng)
    return training, validation, f"scikit-learn's 8x8 digits brought to 28x28 ({reason})"


def make_iris_dataset(*, held_back: float, seed: int) -> GeneratedDataset:
    """The 150 iris flowers of scikit-learn, shuffled by ``seed``; a share is held back for validation."""
    from sklearn import datasets

    _check_validation_share(held_back)
    raw = datasets.load_iris()
    order = np.random.default_rng(seed).permutation(len(raw.target))
    count = round(len(order) * held_back)
    training, validation = (
        IrisTable(raw.data[part].tolist(), raw.target[part].tolist()) for part in (order[count:], order[:count])
    )
    return GeneratedDataset(training, validation, "scikit-learn's iris flowers")


def make_click_dataset(law: ClickModel, *, records: int, held_back: float) -> GeneratedDataset:
    """A click log from a planted model; ``about`` says the best AUC that a model can reach on the validation part.

    Args:
        law: of the log.
        records: in both parts together.
        held_back: share of them for validation.

    Raises:
        BadInputError: a share that leaves nothing of one part.
    """
    _check_validation_share(held_back)
    count = round(records * held_back)
    if not 0 < count < records:
        raise BadInputError(f"{records} records, of which {held_back:g} are held back", hint="take more records")
    training, validation = ClickTable(law, records - count, part=0), ClickTable(law, count, part=1)
    best = validation.best()
    origin = (
        f"a planted model over {NUMBER_FEATURES} numbers and {ID_FEATURES} ids; the best AUC on test/ is"
        f" {best['auc']:.4f}"
    )
    return GeneratedDataset(training, validation, origin, {"law": law.told(), "test": best})


def _check_validation_share(held_back: float) -> None:
    if not 0 < held_back < 1:
        raise BadInputError(f"--validation {held_back}", hint="a share between 0 and 1, such as 0.2")

"""A click log from a planted model: clicks are drawn with known probabilities, so the best possible AUC is known.

A record has 13 numbers and 26 ids, like logs of display advertising. Each categorical feature has its own ids; a few
are frequent and most are rare (Zipf's law). The probability of a click is the logistic function of a bias, a weight
for each number, an effect for each id and, for each pair of features, the product of two small vectors of their ids.
Factorization machines and DeepFM can learn this, and a linear model can learn it only in part. Effects are hashes of
ids, so they need no memory, however large the vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from edl.api.errors import BadInputError
from edl.core.partition import splitmix64
from edl.data.tf_example import FeatureValue

NUMBER_FEATURES, ID_FEATURES = 13, 26
"""Number of numeric and of categorical features of a record."""
BATCH_RECORDS = 8192
"""Records that are drawn at once. The number must not change, because a seed would then give other records."""

FloatArray: TypeAlias = npt.NDArray[np.float64]
IdArray: TypeAlias = npt.NDArray[np.int64]

_BIAS, _NUMBERS_SD, _EFFECT, _PAIR = -1.3, 0.7, 0.35, 0.3
_BITS = 21  # an id needs three hashed numbers, and a 64-bit hash has room for three times 21 bits


@dataclass(frozen=True)
class ClickModel:
    """The distribution of ids, and the probability of a click.

    Args:
        vocabulary: number of ids of all categorical features; each feature has an equal share, one after the other.
        exponent: exponent of Zipf's law: the k-th most frequent id of a feature has a frequency proportional to
            ``k ** -exponent``.
        seed: seed of the model; the same seed gives the same probabilities for the same features.

    Raises:
        BadInputError: there are fewer than two ids per feature, or the exponent is out of range.
    """

    vocabulary: int = 1_000_000
    exponent: float = 1.05
    seed: int = 0

    def __post_init__(self) -> None:
        if self.vocabulary < 2 * ID_FEATURES:
            raise BadInputError(
                f"--vocabulary {self.vocabulary}", hint=f"at least {2 * ID_FEATURES}: two ids for each feature"
            )
        if not 0 < self.exponent < 10:
            raise BadInputError(f"--exponent {self.exponent:g}", hint="above 0 and below 10; logs have about 1")

    def to_json(self) -> Mapping[str, Any]:
        """The parameters as JSON."""
        return {"numbers": NUMBER_FEATURES, "categories": ID_FEATURES, **asdict(self)}

    @property
    def ids_per_feature(self) -> int:
        """Number of ids of one feature. Those of feature f are ``f * share`` to ``(f + 1) * share``."""
        return self.vocabulary // ID_FEATURES

    @cached_property
    def _cumulative_frequency(self) -> FloatArray:
        """Cumulative frequency of the ids of a feature, the most frequent first; the last value is 1."""
        total = np.cumsum(np.arange(1, self.ids_per_feature + 1, dtype=np.float64) ** -self.exponent)
        reach: FloatArray = total / total[-1]
        return reach

    @cached_property
    def _id_of_rank(self) -> IdArray:
        """The id of each rank, in random order, so that frequent ids are not adjacent."""
        return np.random.default_rng([self.seed, 1]).permutation(self.ids_per_feature).astype(np.int64)

    @cached_property
    def _number_weights(self) -> FloatArray:
        weights = np.random.default_rng([self.seed, 2]).normal(size=NUMBER_FEATURES)
        scaled: FloatArray = weights * (_NUMBERS_SD / np.linalg.norm(weights))
        return scaled

    def draw_ids(self, count: int, rng: np.random.Generator) -> IdArray:
        """Random ids: ``[count, ID_FEATURES]``."""
        ranks = np.searchsorted(self._cumulative_frequency, rng.random((count, ID_FEATURES)), side="right")
        ids: IdArray = (
            self._id_of_rank[np.minimum(ranks, self.ids_per_feature - 1)]
            + np.arange(ID_FEATURES) * self.ids_per_feature
        )
        return ids

    def click_probabilities(self, numbers: npt.NDArray[np.float32], ids: IdArray) -> FloatArray:
        """Probability of a click, for numbers ``[n, NUMBER_FEATURES]`` and ids ``[n, ID_FEATURES]``."""
        hashes = splitmix64(ids.astype(np.uint64) ^ np.uint64(splitmix64(self.seed)))
        effects, *vectors = (
            _EFFECT * _to_unit_interval(hashes),
            *(_PAIR * _to_unit_interval(hashes >> (_BITS * i)) for i in (1, 2)),
        )
        # the sum over pairs in linear time, as in factorization machines: ((sum v)^2 - sum v^2) / 2
        pairs = sum((np.square(v.sum(1)) - np.square(v).sum(1)) / 2 for v in vectors)
        chances: FloatArray = 1 / (1 + np.exp(-(_BIAS + numbers @ self._number_weights + effects.sum(1) + pairs)))
        return chances


def _to_unit_interval(hashes: npt.NDArray[np.uint64]) -> FloatArray:
    """The lowest bits as numbers from -1 to 1."""
    return (hashes & np.uint64((1 << _BITS) - 1)).astype(np.float64) / (1 << (_BITS - 1)) - 1


@dataclass(frozen=True)
class ClickBatch:
    """Records: numbers ``[n, NUMBER_FEATURES]``, ids ``[n, ID_FEATURES]``, labels ``[n]`` (0 or 1), probabilities."""

    numbers: npt.NDArray[np.float32]
    ids: IdArray
    labels: IdArray
    probabilities: FloatArray


@dataclass(frozen=True)
class ClickTable:
    """A part of a log. Records are drawn again in each iteration, so only one batch is in memory.

    Args:
        click_model: the distribution of ids and clicks.
        records: number of records.
        part_number: distinguishes parts of one model, such as training and test.
    """

    click_model: ClickModel
    records: int
    part_number: int
    columns: Sequence[str] = (
        "label",
        *(f"i{n}" for n in range(1, NUMBER_FEATURES + 1)),
        *(f"c{n}" for n in range(1, ID_FEATURES + 1)),
    )

    def __len__(self) -> int:
        return self.records

    def batches(self) -> Iterator[ClickBatch]:
        """All records in order."""
        # a generator per batch: batch n is the same, whatever was drawn before it
        for number, start in enumerate(range(0, self.records, BATCH_RECORDS)):
            rng = np.random.default_rng([self.click_model.seed, 3, self.part_number, number])
            count = min(BATCH_RECORDS, self.records - start)
            numbers = rng.standard_normal((count, NUMBER_FEATURES), np.float32)
            ids = self.click_model.draw_ids(count, rng)
            chances = self.click_model.click_probabilities(numbers, ids)
            yield ClickBatch(numbers, ids, (rng.random(count) < chances).astype(np.int64), chances)

    def features(self) -> Iterator[dict[str, FeatureValue]]:
        """``numbers``: 13 floats; ``ids``: 26 int64; ``label``: 0 or 1 as int64."""
        for batch in self.batches():
            for numbers, ids, label in _iter_lists(batch):
                yield {"numbers": numbers, "ids": ids, "label": label}

    def rows(self) -> Iterator[Sequence[object]]:
        """The label, the numbers, the ids."""
        for batch in self.batches():
            for numbers, ids, label in _iter_lists(batch):
                yield [label, *numbers, *ids]

    def best_scores(self) -> Mapping[str, Any]:
        """Scores of a model that knows the probabilities, as JSON.

        ``auc`` is for the drawn labels; ``auc_expected`` is its mean over all labels that could have been drawn.
        """
        batches = list(self.batches())
        labels = np.concatenate([batch.labels for batch in batches])
        chances = np.concatenate([batch.probabilities for batch in batches])
        return {
            "records": self.records,
            "clicked": float(labels.mean()),
            "auc": roc_auc(chances, labels),
            "auc_expected": roc_auc(chances, chances),
        }


def _iter_lists(batch: ClickBatch) -> Iterator[tuple[list[float], list[int], int]]:
    return zip(batch.numbers.tolist(), batch.ids.tolist(), batch.labels.tolist(), strict=True)


def roc_auc(scores: npt.NDArray[np.floating[Any]], clicked: npt.NDArray[Any]) -> float:
    """Area under the ROC curve: the probability that a click has a higher score than a non-click; a tie counts half.

    Args:
        scores: ``[n]``.
        clicked: ``[n]``, 0 or 1; with probabilities, the result is the expectation.

    Returns:
        NaN if all or none were clicked.
    """
    # Equal scores form one group: a click in it is counted above half of the group's non-clicks.
    _, group = np.unique(scores, return_inverse=True)
    clicks, others = (np.bincount(group, weights=weights) for weights in (clicked, 1.0 - clicked))
    lower_ranks = np.cumsum(others) - others / 2
    pairs = clicks.sum() * others.sum()
    return float((clicks * lower_ranks).sum() / pairs) if pairs else float("nan")

"""The generated click log: chances that are really followed, the AUC that is told, ids of a Zipf law, equal bytes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from edl.api.errors import BadInputError
from edl.cli.data import app
from edl.data import sample_datasets, synthetic_clicks
from edl.data.reader_factory import open_reader
from edl.data.synthetic_clicks import ID_FEATURES, NUMBER_FEATURES, ClickBatch, ClickModel, ClickTable, roc_auc

LAW = ClickModel(2600)


def draw_clicks(law: ClickModel = LAW, records: int = 20_000, part: int = 0) -> ClickBatch:
    batches = list(ClickTable(law, records, part).batches())
    return ClickBatch(
        *(np.concatenate([getattr(b, name) for b in batches]) for name in ("numbers", "ids", "labels", "probabilities"))
    )


def run(out: Path, *options: object) -> str:
    arguments = ["clicks", str(out), *map(str, options)]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_labels_follow_the_chances() -> None:
    """In each tenth of the records by chance, as many clicks as the chances add up to, within four deviations."""
    log = draw_clicks()
    for tenth in np.array_split(np.argsort(log.probabilities), 10):
        chances = log.probabilities[tenth]
        deviation = np.sqrt((chances * (1 - chances)).sum())
        assert abs(log.labels[tenth].sum() - chances.sum()) < 4 * deviation


def test_each_feature_has_ids_of_its_own_and_few_are_frequent() -> None:
    log = draw_clicks(replace(LAW, exponent=1.0))
    assert (log.ids // LAW.ids_per_feature == np.arange(ID_FEATURES)).all()
    counts = np.sort(np.unique(log.ids[:, 0], return_counts=True)[1])[::-1]
    harmonic = (1 / np.arange(1, LAW.ids_per_feature + 1)).sum()
    assert counts[0] == pytest.approx(20_000 / harmonic, rel=0.1)
    assert counts[3] == pytest.approx(counts[0] / 4, rel=0.2)


def test_numbers_ids_and_their_pairs_all_matter() -> None:
    """No part of the planted model is for nothing: chances change with each, and pairs are not a sum of effects."""
    log = draw_clicks(records=2)
    numbers, ids = log.numbers[:1], log.ids[:1]

    def logit(numbers: np.ndarray, ids: np.ndarray) -> float:
        chance = LAW.click_probabilities(numbers, ids)[0]
        return float(np.log(chance / (1 - chance)))

    first, second = ids.copy(), ids.copy()
    first[0, 0], second[0, 1] = log.ids[1, 0] ^ 1, log.ids[1, 1] ^ 1
    both = np.where(first != ids, first, second)
    base = logit(numbers, ids)
    assert logit(numbers + 1, ids) != base
    apart = (logit(numbers, first) - base) + (logit(numbers, second) - base)
    assert logit(numbers, both) - base != pytest.approx(apart, abs=1e-4)


def test_parts_differ_and_a_part_is_the_same_again() -> None:
    one, again, other = (draw_clicks(records=9000, part=part) for part in (0, 0, 1))
    assert np.array_equal(one.ids, again.ids)
    assert np.array_equal(one.labels, again.labels)
    assert not np.array_equal(one.ids, other.ids)


def test_the_same_features_have_the_same_chances_in_every_part() -> None:
    log = draw_clicks(records=100)
    assert np.array_equal(LAW.click_probabilities(log.numbers, log.ids), log.probabilities)
    assert not np.array_equal(replace(LAW, seed=1).click_probabilities(log.numbers, log.ids), log.probabilities)


def test_no_model_beats_the_chances() -> None:
    table = ClickTable(LAW, 20_000, 0)
    log, best = draw_clicks(), table.best_scores()
    assert best["auc"] == roc_auc(log.probabilities, log.labels)
    assert abs(best["auc"] - best["auc_expected"]) < 0.02
    assert 0.7 < best["auc"] < 0.9, "something to learn, and something that cannot be"
    noisy = log.probabilities + np.random.default_rng(0).normal(0, 0.2, len(log.probabilities))
    assert roc_auc(noisy, log.labels) < best["auc"]


@given(
    st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=2, max_size=40).filter(
        lambda pairs: len({clicked for _, clicked in pairs}) == 2
    )
)
@settings(deadline=None)
def test_auc_is_the_share_of_pairs_in_order(pairs: list[tuple[int, bool]]) -> None:
    won = [
        1.0 if score > lower else 0.5 if score == lower else 0.0
        for score, clicked in pairs
        if clicked
        for lower, other in pairs
        if not other
    ]
    scores, labels = np.array([score for score, _ in pairs], float), np.array([clicked for _, clicked in pairs], int)
    assert roc_auc(scores, labels) == pytest.approx(sum(won) / len(won))


def test_auc_of_one_class_is_not_a_number() -> None:
    assert np.isnan(roc_auc(np.array([0.1, 0.2]), np.array([1, 1])))


def test_the_command_writes_both_parts_and_the_best_auc(tmp_path: Path) -> None:
    output = run(tmp_path / "log", "--records", 3000, "--vocabulary", 2600)
    about = json.loads((tmp_path / "log" / "about.json").read_text())
    assert about["law"] == {
        "numbers": NUMBER_FEATURES,
        "categories": ID_FEATURES,
        "vocabulary": 2600,
        "exponent": 1.05,
        "seed": 0,
    }
    assert about["test"]["records"] == 300
    assert f"{about['test']['auc']:.4f}" in output
    assert [source.records for source in open_reader(tmp_path / "log" / "train").sources()] == [2700]
    run(tmp_path / "again", "--records", 3000, "--vocabulary", 2600)
    for name in ("about.json", "train/data-00000.recordio", "test/data-00000.recordio"):
        assert (tmp_path / "log" / name).read_bytes() == (tmp_path / "again" / name).read_bytes()


def test_rows_are_the_same_records(tmp_path: Path) -> None:
    run(tmp_path, "--records", 50, "--vocabulary", 2600, "--format", "csv")
    reader = open_reader(tmp_path / "train")
    assert reader.metadata.column_names == ClickTable(LAW, 1, 0).columns
    (source,) = reader.sources()
    log = draw_clicks(records=45)
    for row, label, numbers, ids in zip(reader.read(source.name, 0, 45), log.labels, log.numbers, log.ids, strict=True):
        assert not isinstance(row, bytes)
        assert [int(row[0]), *map(int, row[14:])] == [label, *ids]
        assert np.array_equal(np.array(row[1:14], np.float32), numbers)


def test_a_log_is_drawn_batch_by_batch() -> None:
    """A part that is longer has the records of a shorter one first: nothing depends on how many there are."""
    short, long = (
        draw_clicks(records=synthetic_clicks.BATCH_RECORDS + 10),
        draw_clicks(records=2 * synthetic_clicks.BATCH_RECORDS),
    )
    assert np.array_equal(short.ids[: synthetic_clicks.BATCH_RECORDS], long.ids[: synthetic_clicks.BATCH_RECORDS])


@pytest.mark.parametrize(
    "options", [("--vocabulary", 51), ("--validation", 0), ("--exponent", 10), ("--records", 3, "--validation", 0.01)]
)
def test_impossible_logs_are_bad_input(tmp_path: Path, options: tuple[object, ...]) -> None:
    with pytest.raises(BadInputError):
        run(tmp_path / "out", *options)
    assert not (tmp_path / "out").exists()


def test_a_set_that_says_nothing_of_itself_has_no_about(tmp_path: Path) -> None:
    assert CliRunner().invoke(app, ["iris", str(tmp_path)]).exit_code == 0
    assert not (tmp_path / "about.json").exists()
    assert not sample_datasets.make_iris_dataset(validation_share=0.2, seed=0).about

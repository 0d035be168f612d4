"""Validation data of another schema ends a job before its first step."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from support.text_keys import missing_keys

pytestmark = pytest.mark.tensorflow

import tensorflow as tf  # noqa: E402

from edl.api.errors import BadInputError  # noqa: E402
from edl.data.reader_factory import open_reader  # noqa: E402
from edl.data.recordio.writer import Writer  # noqa: E402
from edl.worker.feed_pipeline import FeedFunction, find_first_minibatch  # noqa: E402
from edl.worker.record_stream import CorruptRecordSkipper  # noqa: E402
from edl.worker.validation_check import check_validation_data  # noqa: E402

TRAINING = "a,b,y\n" + "1,2,3\n" * 8


def by_position(dataset: Any, mode: str, metadata: Any) -> Any:
    return dataset.map(lambda row: (tf.strings.to_number(row[:2]), tf.strings.to_number(row[2])))


def by_slices(dataset: Any, mode: str, metadata: Any) -> Any:
    return dataset.map(lambda row: tf.strings.to_number(row)).map(lambda row: (row[:2], row[2:3]))


def by_name(dataset: Any, mode: str, metadata: Any) -> Any:
    label = metadata.column_names.index("y")
    return dataset.map(lambda row: ({"a": tf.strings.to_number(row[0])}, tf.strings.to_number(row[label])))


def all_columns(dataset: Any, mode: str, metadata: Any) -> Any:
    names = metadata.column_names
    return dataset.map(lambda row: ({name: tf.strings.to_number(row[at]) for at, name in enumerate(names)}, row[0]))


def text_in_evaluation(dataset: Any, mode: str, metadata: Any) -> Any:
    return dataset.map(lambda row: (row if mode == "evaluation" else tf.strings.to_number(row), row[0]))


def randomly_by_position(dataset: Any, mode: str, metadata: Any) -> Any:
    return by_position(dataset, mode, metadata).map(lambda x, y: (x + tf.random.uniform([2]), y))


def check(folder: Path, feed: Any, validation: str, file: str = "test.csv") -> None:
    (folder / "train.csv").write_text(TRAINING)
    (folder / "test.csv").write_text(validation)
    readers = [open_reader((str(folder / name),), {}) for name in ("train.csv", file)]
    feeds = [
        FeedFunction(feed, mode, reader.metadata, zoo=folder)
        for mode, reader in zip(("training", "evaluation"), readers, strict=True)
    ]
    first = find_first_minibatch(readers[0], feeds[0], CorruptRecordSkipper(0), size=4)
    assert first is not None
    check_validation_data(readers[1], feeds[1], readers[0], first[1], max_corrupt_records=0, size=4)


@pytest.mark.parametrize("feed", [by_position, by_name, all_columns])
def test_the_same_schema_is_accepted_in_silence(tmp_path: Path, feed: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        check(tmp_path, feed, TRAINING)
    assert not caplog.messages


def test_records_that_were_taken_for_headers_are_not_compared(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "TRAINING", "0.5,1,0\n" * 2)
    check(tmp_path, by_slices, "0.25,3,1\n" * 2)
    assert ["the first row" in text for text in caplog.messages] == [True]


@pytest.mark.parametrize(
    ("feed", "validation", "keys"),
    [
        (by_position, "a,b\n1,2\n1,2\n", ["no column y"]),
        (by_position, "a,b,y\n1,2,red\n", ["red", "record 0"]),
        (all_columns, "a,c,y\n1,2,3\n", ["no column b", "data.training has no column c", "features['b']"]),
        (by_slices, "a,y\n1,3\n", ["no column b", "labels has no values", "test.csv"]),
        (text_in_evaluation, TRAINING, ["features is string", "float32"]),
    ],
)
def test_another_schema_is_refused_with_data_set_file_and_column(
    tmp_path: Path, feed: Any, validation: str, keys: list[str]
) -> None:
    with pytest.raises(BadInputError) as refused:
        check(tmp_path, feed, validation)
    assert not missing_keys(str(refused.value), "data.validation", *keys)


def test_files_of_another_format_are_named_with_both_formats(tmp_path: Path) -> None:
    with Writer(tmp_path / "test.recordio") as writer:
        for _ in range(8):
            writer.write(b"1,2,3")
    with pytest.raises(BadInputError) as caught:
        check(tmp_path, by_position, TRAINING, "test.recordio")
    keys = ["data.validation", f"{tmp_path}/test.recordio has the format recordio", "data.training the format csv"]
    assert not missing_keys(str(caught.value), *keys)


def test_a_difference_that_feed_can_take_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        check(tmp_path, by_name, "a,y,b\n1,3,2\n")
    (message,) = caplog.messages
    assert not missing_keys(message, "data.validation", "another order", "test.csv")


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("validation", ["b,a,y\n2,1,3\n", "id,a,b,y\n7,1,2,3\n"], ids=["swapped", "shifted"])
@pytest.mark.parametrize("feed", [by_position, by_slices])
def test_a_feed_that_takes_the_cells_of_other_columns_is_refused(tmp_path: Path, feed: Any, validation: str) -> None:
    with pytest.raises(BadInputError) as refused:
        check(tmp_path, feed, validation)
    assert not missing_keys(str(refused.value), "data.validation", "test.csv")


# Another test of this process may have set a seed for all random operations.
@pytest.mark.filterwarnings("ignore:Seed .* from outer graph:UserWarning")
def test_cells_that_feed_does_not_take_may_stand_anywhere(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        check(tmp_path, by_position, "a,b,y,id\n1,2,3,7\n")
        check(tmp_path, randomly_by_position, "b,a,y\n2,1,3\n")
    assert len(caplog.messages) == 2

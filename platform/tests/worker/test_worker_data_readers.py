"""What a worker tells the master about the data of a job with its own reader."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.text_keys import missing_keys

import edl.data
from edl.api.errors import BadInputError
from edl.api.job_spec import DataSpec
from edl.core.record_ranges import RecordSource
from edl.data.reader import BlockSizes, Source
from edl.data.record_columns import ColumnRecords
from edl.keras.user_code import UserCodeError
from edl.worker.data_readers import GuardedReader, describe_data_sets, open_data_set

ZOO = Path(__file__).parent
DATA = DataSpec(training=("a",), validation=("b",), prediction=("c",))


def opened(name: str) -> Any:
    return SimpleNamespace(sources=lambda: [RecordSource(f"{name}-0", 5), RecordSource(f"{name}-1", 7)])


@pytest.mark.parametrize(
    ("task", "used"),
    [("train", ["training", "validation"]), ("evaluate", ["validation"]), ("predict", ["prediction"])],
)
def test_only_the_sets_that_a_run_uses_are_opened_and_described(task: str, used: list[str]) -> None:
    names: list[str] = []

    def open_named(name: str) -> Any:
        names.append(name)
        return opened(name)

    described = json.loads(describe_data_sets(DATA, open_named, task=task))
    assert described == {name: [[f"{name}-0", 5], [f"{name}-1", 7]] for name in used}
    assert set(names) == set(used)


def test_the_blocks_of_the_training_records_are_told_where_they_may_be_shuffled() -> None:
    reader = SimpleNamespace(sources=lambda: [RecordSource("s", 12)], blocks=lambda source: BlockSizes([5, 5, 2], 1200))
    described = json.loads(describe_data_sets(DATA, lambda name: reader, task="train"))  # type: ignore[arg-type, return-value]
    assert described["blocks"] == {"runs": [[[5, 2], [2, 1]]], "record_bytes": 100}
    for other in ({"task": "train", "shuffle_window": 0}, {"task": "predict"}, {"task": "evaluate"}):
        assert "blocks" not in json.loads(describe_data_sets(DATA, lambda name: reader, **other))  # type: ignore[arg-type, return-value]


def test_a_custom_reader_has_random_access_only_if_it_says_so() -> None:
    plain = SimpleNamespace(metadata=None, sources=None, read=None)
    assert GuardedReader(plain, Path()).blocks is None
    reader = GuardedReader(SimpleNamespace(metadata=None, sources=None, read=None, blocks=lambda source: 1 / 0), Path())
    assert reader.blocks is not None
    with pytest.raises(UserCodeError, match=r"blocks\(\) of the custom reader"):
        reader.blocks("s")


# ------------------------------------------------------------------------------------------------ what a user returns


class RowReader:
    """A reader as the documentation says; tests break one part of it."""

    metadata = None

    def sources(self) -> Any:
        return [edl.data.Source("a", 10)]

    def read(self, source: str, start: int, end: int, on_corrupt: Any = None) -> Any:
        return [b"row"] * (end - start)


def guarded(**parts: Any) -> GuardedReader:
    return GuardedReader(type("Mine", (RowReader,), {name: staticmethod(part) for name, part in parts.items()})(), ZOO)


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        ([("a", 10)], ("source 0", "('a', 10)", "tuple", "edl.data.Source")),
        ([edl.data.Source("a", 1), None], ("source 1", "NoneType")),
        ([edl.data.Source("a", "10")], ("source 0", "Source")),  # type: ignore[arg-type]
        ([edl.data.Source("a", -1)], ("source 'a'", "-1 records")),
        ([edl.data.Source("a", 1), edl.data.Source("a", 2)], ("2 sources", "'a'")),
        (None, ("sources()", "None", "list")),
        ("a", ("sources()", "str", "list")),
        (10, ("sources()", "int", "list")),
    ],
)
def test_sources_that_are_none_are_the_users_error(returned: Any, said: tuple[str, ...]) -> None:
    with pytest.raises(BadInputError) as error:
        guarded(sources=lambda: returned).sources()
    assert not missing_keys(error.value.message, *said)
    assert error.value.hint


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (None, ("None", "list")),
        (b"rowrow", ("bytes", "list")),
        ((row for row in [b"row"] * 4), ("generator", "list")),
        ([b"row"] * 3, ("3 records", "4")),
        ([b"row"] * 5, ("5 records", "4")),
        ([{"x": 1}] * 4, ("record", "dict")),
        ([None] * 4, ("record", "None")),
    ],
)
def test_records_that_are_none_are_the_users_error(returned: Any, said: tuple[str, ...]) -> None:
    with pytest.raises(BadInputError) as error:
        guarded(read=lambda source, start, end: returned).read("a", 2, 6)
    assert not missing_keys(error.value.message, "read('a', 2, 6)", *said)
    assert error.value.hint


class Shards:
    """By ElasticDL's contract, and without its base class."""

    def create_shards(self) -> dict[str, Any]:
        return {"low": (0, 4), "high": (100, 6), "all": 3}

    def read_records(self, task: Any) -> Iterator[bytes]:
        assert (task.shard.name, task.shard.start, task.shard.end) == (task.shard_name, task.start, task.end)
        yield from (f"{task.shard_name} {number}".encode() for number in range(task.start, task.end))


def test_a_reader_that_lists_shards_is_adapted(tmp_path: Path) -> None:
    reader = open_data_set(DataSpec(training=("/nowhere",)), "training", lambda origin: Shards(), tmp_path)
    assert reader.sources() == [Source("low", 4), Source("high", 6), Source("all", 3)]
    assert reader.read("high", 4, 6) == [b"high 104", b"high 105"]
    assert reader.read("all", 1, 3) == [b"all 1", b"all 2"]
    assert reader.metadata.format == "custom"


def test_errors_of_a_reader_that_lists_shards_are_the_users(tmp_path: Path) -> None:
    class Broken(Shards):
        def create_shards(self) -> dict[str, Any]:
            raise KeyError("no such table")

    reader = open_data_set(DataSpec(training=("/nowhere",)), "training", lambda origin: Broken(), tmp_path)
    with pytest.raises(UserCodeError, match="no such table"):
        reader.sources()


def test_records_that_are_reported_as_corrupt_may_be_missing() -> None:
    def read(source: str, start: int, end: int, on_corrupt: Any) -> Any:
        on_corrupt(edl.data.CorruptRange(source, start, start + 1, None, 0, "broken"))
        return [b"row"] * (end - start - 1)

    reported: list[edl.data.CorruptRange] = []
    assert len(guarded(read=read).read("a", 0, 4, reported.append)) == 3
    assert [(each.start, each.end) for each in reported] == [(0, 1)]


@pytest.mark.parametrize(
    "returned", [[b"row"] * 4, ([["x", "y"]] * 4), np.zeros((4, 2)), (1, 2, 3, 4), ColumnRecords({"age": np.zeros(4)})]
)
def test_lists_tuples_arrays_and_columns_are_records(returned: Any) -> None:
    assert guarded(read=lambda source, start, end: returned).read("a", 0, 4) is returned


@pytest.mark.parametrize("made", [None, 5, object()])
def test_what_is_no_reader_is_named(made: Any) -> None:
    with pytest.raises(BadInputError, match="which has no metadata, sources, read"):
        GuardedReader(made, ZOO)

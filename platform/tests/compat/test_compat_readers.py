"""Data readers by ElasticDL's contract are readers of a job."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import recordio
from edl.api.errors import BadInputError
from edl.api.job_spec import DataSpec, TrainSpec
from edl.data import Source
from edl.data.reader_factory import read_reader_blocks
from edl.worker.data_readers import open_data_set
from elasticdl.python.data.reader.data_reader import AbstractDataReader, Metadata, check_required_kwargs
from elasticdl.python.data.reader.recordio_reader import RecordIODataReader

pytestmark = pytest.mark.tensorflow  # edl.worker imports it


class CompatNumbers(AbstractDataReader):
    """Ten numbers in two shards, one of which does not begin at 0."""

    def __init__(self, **kwargs: Any) -> None:  # does not call its base class, as users' readers may
        self.listed = 0

    def create_shards(self) -> dict[str, Any]:
        self.listed += 1
        return {"low": (0, 4), "high": (100, 6)}

    def read_records(self, task: Any) -> Iterator[bytes]:
        for number in range(task.shard.start, task.shard.end):
            yield f"{task.shard.name} {number}".encode()

    @property
    def metadata(self) -> Metadata:
        return Metadata(column_names=["number"])


class OlderNumbers(AbstractDataReader):
    """The forms of older modules: shards as counts, and a task with the name and range itself."""

    def create_shards(self) -> dict[str, int]:
        return {"all": 3}

    def read_records(self, task: Any) -> Iterator[bytes]:
        yield from (b"%d" % number for number in range(task.start, task.end) if task.shard_name == "all")


def test_shards_are_sources_and_are_read_by_range() -> None:
    reader = CompatNumbers()
    assert reader.sources() == [Source("low", 4), Source("high", 6)]
    assert reader.read("low", 1, 3) == [b"low 1", b"low 2"]
    assert reader.read("high", 0, 2) == [b"high 100", b"high 101"]
    assert reader.listed == 1


def test_a_job_compares_the_formats_of_two_data_sets() -> None:
    assert CompatNumbers().metadata.format == OlderNumbers().metadata.format == "custom"


def test_older_forms_work() -> None:
    reader = OlderNumbers()
    assert reader.sources() == [Source("all", 3)]
    assert reader.read("all", 1, 3) == [b"1", b"2"]
    assert reader.metadata.column_names == ()


def test_a_job_reads_with_it(tmp_path: Path) -> None:
    def custom_data_reader(data_origin: str, records_per_task: int | None = None, **kwargs: Any) -> AbstractDataReader:
        assert kwargs == {"kind": "numbers"}
        return CompatNumbers(data_dir=data_origin)

    data = DataSpec(training=("/nowhere",), reader={"kind": "numbers"})
    reader = open_data_set(data, "training", custom_data_reader, tmp_path)
    assert reader.read("high", 4, 6) == [b"high 104", b"high 105"]
    assert reader.metadata.column_names == ("number",)
    assert read_reader_blocks(reader) is None


def test_it_gets_the_records_of_a_task_if_it_has_that_argument(tmp_path: Path) -> None:
    def custom_data_reader(data_origin: str, records_per_task: int, **kwargs: Any) -> AbstractDataReader:
        arguments.append(records_per_task)
        return CompatNumbers(data_dir=data_origin)

    def other_reader(origin: str, **kwargs: Any) -> AbstractDataReader:
        arguments.append(kwargs)
        return CompatNumbers(data_dir=origin)

    arguments: list[Any] = []
    train = TrainSpec(minibatch_size=32, minibatches_per_task=4)
    data = DataSpec(training=("/nowhere",))
    open_data_set(data, "training", custom_data_reader, tmp_path, train)
    open_data_set(replace(data, reader={"records_per_task": 7}), "training", custom_data_reader, tmp_path, train)
    open_data_set(data, "training", other_reader, tmp_path, train)
    assert arguments == [128, 7, {}]


def test_the_recordio_reader_lists_a_directory(tmp_path: Path) -> None:
    for number in range(2):
        with closing(recordio.Writer(str(tmp_path / f"data-{number:05}"))) as writer:
            for record in range(3):
                writer.write(b"%d %d" % (number, record))
    reader = RecordIODataReader(data_dir=str(tmp_path))
    first, second = str(tmp_path / "data-00000"), str(tmp_path / "data-00001")
    assert reader.create_shards() == {first: (0, 3), second: (0, 3)}
    assert reader.sources() == [Source(first, 3), Source(second, 3)]
    assert reader.read(second, 1, 3) == [b"1 1", b"1 2"]
    older = SimpleNamespace(shard_name=first, start=0, end=2)
    assert list(reader.read_records(older)) == [b"0 0", b"0 1"]  # type: ignore[arg-type]
    assert list(reader.read_records(SimpleNamespace(shard=SimpleNamespace(name=first, start=2, end=3)))) == [b"0 2"]  # type: ignore[arg-type]
    assert list(reader.blocks(first).records) == [3]
    assert reader.records_output_types.name == "string"


def test_the_recordio_reader_names_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="data_dir"):
        RecordIODataReader()
    with pytest.raises(BadInputError, match="nowhere"):
        RecordIODataReader(data_dir=str(tmp_path / "nowhere"))
    with pytest.raises(ValueError, match="b, c"):
        check_required_kwargs(["a", "b", "c"], {"a": 1})

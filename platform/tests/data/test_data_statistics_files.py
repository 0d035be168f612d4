"""Files of workers that summarize a table: they say what the worker knew, and merge with each record once."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples

from edl.api.errors import BadInputError
from edl.data import sketches
from edl.data.statistics_files import (
    RangeStatistics,
    SourceRange,
    WorkerStatistics,
    decode_worker,
    encode_worker,
    merge_workers,
    read_worker_files,
    write_worker_file,
)
from edl.data.table_statistics import TableStatistics

RECORDS = 1000
TABLE = pa.table({"n": np.arange(RECORDS) % 37, "t": [f"t{number % 11}" for number in range(RECORDS)]})


def part_of(start: int, end: int, source: str = "a") -> RangeStatistics:
    statistics = TableStatistics()
    statistics.add(TABLE.slice(start, end - start))
    return RangeStatistics(SourceRange(source, start, end), statistics)


def worker_with(done: list[tuple[int, int]], unconfirmed: list[tuple[int, int]] | None = None) -> WorkerStatistics:
    worker = WorkerStatistics({"a": RECORDS})
    for start, end in done:
        worker.unconfirmed.append(part_of(start, end))
        worker.confirm(worker.unconfirmed[-1])
    worker.unconfirmed += [part_of(start, end) for start, end in unconfirmed or ()]
    return worker


def whole() -> dict[str, Any]:
    return part_of(0, RECORDS).statistics.to_json(100)


@pytest.fixture
def small_sketches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sketches, "LEVEL_VALUES", 16)
    monkeypatch.setattr(sketches, "HASHES", 64)
    monkeypatch.setattr(sketches, "COUNTERS", 8)


columns = st.fixed_dictionaries(
    {
        "i": st.lists(st.none() | st.integers(-(2**63), 2**63 - 1) | st.integers(-20, 20), min_size=60, max_size=60),
        "x": st.lists(st.none() | st.floats(width=64), min_size=60, max_size=60),
        "t": st.lists(st.none() | st.text(max_size=5), min_size=60, max_size=60),
        "b": st.lists(st.none() | st.booleans(), min_size=60, max_size=60),
        "r": st.lists(st.none() | st.binary(max_size=5), min_size=60, max_size=60),
        "l": st.lists(st.none() | st.lists(st.integers(0, 3), max_size=3), min_size=60, max_size=60),
    }
)
TYPES = {"i": pa.int64(), "x": pa.float64(), "t": pa.string(), "b": pa.bool_(), "r": pa.binary()}


@pytest.mark.usefixtures("small_sketches")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # sums of the largest numbers
@settings(max_examples=examples(30), deadline=None)
@given(rows=columns, repeats=st.integers(1, 9))
def test_a_file_says_what_its_worker_knew(rows: dict[str, list[Any]], repeats: int) -> None:
    table = pa.table({name: pa.array(values, TYPES.get(name, pa.list_(pa.int8()))) for name, values in rows.items()})
    worker = WorkerStatistics({"a": 60 * repeats, "\udcff": 0}, [SourceRange("a", 0, 60)])
    for _ in range(repeats):
        worker.statistics.add(table)
    worker.statistics.add_damage("somewhere", 3)
    other = TableStatistics()
    other.add(table.slice(0, 7))
    worker.unconfirmed.append(RangeStatistics(SourceRange("a", 60, 67), other))
    content = encode_worker(worker)
    decoded = decode_worker(content, "file")
    assert encode_worker(decoded) == content
    assert decoded.done == worker.done
    assert decoded.sources == worker.sources
    for again, before in ((decoded.statistics, worker.statistics), (decoded.unconfirmed[0].statistics, other)):
        assert repr(again.to_json(100)) == repr(before.to_json(100))
    # What goes on from a file goes on as if there had been none.
    decoded.statistics.merge(decoded.unconfirmed[0].statistics)
    worker.statistics.merge(other)
    assert repr(decoded.statistics.to_json(100)) == repr(worker.statistics.to_json(100))


@pytest.mark.parametrize(
    "workers",
    [
        [worker_with([(0, 1000)])],
        [worker_with([(0, 300), (600, 1000)]), worker_with([(300, 600)])],
        # Killed before the report, or after it: nobody else has the range.
        [worker_with([(0, 300)], [(300, 600)]), worker_with([(600, 1000)])],
        # The master has given the range away: others have it, whole or in pieces.
        [worker_with([(0, 300)], [(300, 600)]), worker_with([(300, 1000)])],
        [worker_with([(0, 300)], [(300, 600)]), worker_with([(300, 450)]), worker_with([(450, 1000)])],
        # Two workers were killed in the same range, one after the other.
        [worker_with([(0, 300)], [(300, 600)]), worker_with([(600, 1000)], [(300, 600)])],
        [worker_with([(0, 300)], [(300, 600), (600, 700)]), worker_with([(700, 1000)], [(300, 450), (450, 600)])],
        [worker_with([], [(0, 1000)]), worker_with([])],
    ],
)
def test_each_record_counts_once(workers: list[WorkerStatistics]) -> None:
    # Through files: merging changes what it merges.
    copies = [decode_worker(encode_worker(worker), "file") for worker in workers]
    merged = merge_workers(copies).to_json(100)
    expected = whole()
    assert merged["records"] == RECORDS
    for column, wanted in zip(merged["columns"], expected["columns"], strict=True):
        for name, value in wanted.items():
            assert column[name] == (pytest.approx(value) if name in ("mean", "std") else value)


@pytest.mark.parametrize(
    ("workers", "said"),
    [
        ([worker_with([(0, 300)]), worker_with([(400, 1000)])], "records 300 to 399 of a"),
        ([worker_with([(0, 300)]), worker_with([(500, 1000)], [(250, 500)])], "records 300 to 499 of a"),
        ([worker_with([(0, 600)]), worker_with([(500, 1000)])], "two workers"),
        ([worker_with([(0, 1000)]), WorkerStatistics({"b": 1})], "several data sets"),
        ([WorkerStatistics({"a": 500}, [SourceRange("a", 0, 1000)])], "which has 500 records"),
        ([], "no worker"),
    ],
)
def test_what_is_missing_or_twice_is_named(workers: list[WorkerStatistics], said: str, tmp_path: Path) -> None:
    for number, worker in enumerate(workers):
        write_worker_file(tmp_path / f"worker-{number}.npz", worker)
    with pytest.raises(BadInputError, match=said):
        merge_workers(read_worker_files(tmp_path))


def test_files_are_found_in_the_run_directory_and_half_written_ones_are_none(tmp_path: Path) -> None:
    write_worker_file(tmp_path / "statistics" / "worker-a.npz", worker_with([(0, 1000)]))
    (tmp_path / "statistics" / ".worker-b.npz.7.tmp").write_bytes(b"half")
    assert merge_workers(read_worker_files(tmp_path)).records == RECORDS
    with pytest.raises(BadInputError, match="No such file"):
        read_worker_files(tmp_path / "other")


@pytest.mark.parametrize("place", range(0, 100, 7))
def test_a_damaged_file_is_named(place: int) -> None:
    content = bytearray(encode_worker(worker_with([(0, 500)], [(500, 1000)])))
    content[len(content) * place // 100] ^= 255
    try:
        decoded = decode_worker(bytes(content), "worker-0.npz")
    except BadInputError as error:
        assert "worker-0.npz" in str(error)  # noqa: PT017 - a byte of a time stamp changes nothing
    else:
        assert merge_workers([decoded]).to_json(100)["records"] == RECORDS
    with pytest.raises(BadInputError, match=r"worker-0\.npz"):
        decode_worker(bytes(content[: len(content) * place // 100]), "worker-0.npz")


def changed_description(old: bytes, new: bytes) -> bytes:
    with np.load(io.BytesIO(encode_worker(worker_with([(0, 1000)])))) as arrays:
        members = dict(arrays)
    text = members["description"].tobytes()
    assert old in text
    members["description"] = np.frombuffer(text.replace(old, new, 1), np.uint8)
    stream = io.BytesIO()
    np.savez(stream, **members)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (b'"version": 1', b'"version": 2', "format 2"),
        (b'"levels": [1000]', b'"levels": [999]', "do not add up"),
        (b'"levels": [1000]', b'"levels": [-1]', "no number of records"),
        (b'"hashes": "a1"', b'"hashes": "a0"', "has type float64"),
        (b'"hashes": "a1"', b'"hashes": "a99"', "a99"),
        (b'"done": [["a", 0, 1000]]', b'"done": [["a", 5, 1]]', "no range"),
        (b'"kind": "number"', b'"kind": "other"', "kind 'other'"),
    ],
)
def test_sizes_and_types_are_checked(old: bytes, new: bytes, said: str) -> None:
    with pytest.raises(BadInputError, match=said):
        decode_worker(changed_description(old, new), "file")


def test_pickled_objects_are_refused() -> None:
    stream = io.BytesIO()
    np.savez(stream, description=np.array([{"version": 1}], dtype=object))
    with pytest.raises(BadInputError, match="damaged"):
        decode_worker(stream.getvalue(), "file")

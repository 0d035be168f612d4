"""What every reader of records guarantees. A format's tests make a data set of it and run all of this."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edl.api.errors import BadInputError
from edl.data.file_digests import FileCheck, digest_sources
from edl.data.reader import Reader
from edl.data.reader_factory import describe_order, open_reader
from edl.data.record_columns import ColumnRecords
from edl.data.shuffled_reader import ShuffledReader

RECORDS = 700
"""Of a data set's first source, so that it has several blocks; the second has a few."""
FEW_RECORDS = 3


@dataclass(frozen=True)
class ReaderCase:
    """A data set of one format.

    Args:
        paths: what a job file names.
        options: its ``data.reader``.
        key: a record's number, which records carry: from 0, and in the second source from ``RECORDS``.
        rewrite: writes the first source again, with other records.
        text_types: of columns of text.
    """

    paths: Sequence[Path | str]
    options: dict[str, object]
    key: Callable[[Any], int]
    rewrite: Callable[[], None]
    text_types: Mapping[str, str] | None = None

    def open(self) -> Reader:
        """The reader, as a worker opens it."""
        return open_reader([str(path) for path in self.paths], self.options, text_types=self.text_types)


WriteOnce = Callable[[str, Callable[[Path], ReaderCase]], ReaderCase]


class ReaderContract:
    """Derive a class, and define a fixture ``local_case``. Another class may move the files elsewhere with ``case``."""

    @pytest.fixture(scope="class")
    @classmethod
    def write_once(cls, tmp_path_factory: pytest.TempPathFactory) -> WriteOnce:
        """Gives the case of a name, whose files tests share until one of them writes them again.

        For formats of which a data set takes long to write, such as a file for each record.
        """
        cases: dict[str, ReaderCase] = {}

        def take(name: str, write: Callable[[Path], ReaderCase]) -> ReaderCase:
            if name not in cases:
                case = write(tmp_path_factory.mktemp("data"))

                def rewrite() -> None:
                    cases.pop(name, None)
                    case.rewrite()

                cases[name] = replace(case, rewrite=rewrite)
            return cases[name]

        return take

    @pytest.fixture
    def local_case(self, tmp_path: Path) -> ReaderCase:
        """The data set, in files below ``tmp_path``."""
        raise NotImplementedError

    @pytest.fixture
    def case(self, local_case: ReaderCase) -> ReaderCase:
        """The data set, where it is read."""
        return local_case

    def test_sources_are_counted_and_named_in_the_same_order_by_every_process(self, case: ReaderCase) -> None:
        first, second = case.open(), case.open()
        assert [source.records for source in first.sources()] == [RECORDS, FEW_RECORDS]
        assert first.sources() == second.sources()
        assert len({source.name for source in first.sources()}) == 2

    def test_any_range_in_any_order_has_exactly_its_records(self, case: ReaderCase) -> None:
        reader = case.open()
        name = reader.sources()[0].name
        ranges = [tuple(sorted(random.Random(seed).choices(range(RECORDS + 1), k=2))) for seed in range(40)]
        for start, end in [(0, RECORDS), (0, 0), (RECORDS, RECORDS), (RECORDS - 1, RECORDS), *ranges]:
            records = reader.read(name, start, end)
            assert len(records) == end - start
            assert [case.key(record) for record in records] == list(range(start, end))

    def test_each_source_has_its_own_records(self, case: ReaderCase) -> None:
        reader = case.open()
        records = reader.read(reader.sources()[1].name, 0, FEW_RECORDS)
        assert [case.key(record) for record in records] == list(range(RECORDS, RECORDS + FEW_RECORDS))

    def test_reports_of_damage_are_not_made_without_damage(self, case: ReaderCase) -> None:
        reader, corrupt = case.open(), []
        assert len(reader.read(reader.sources()[0].name, 0, RECORDS, corrupt.append)) == RECORDS
        assert corrupt == []

    def test_a_range_or_a_source_that_is_not_there_is_refused(self, case: ReaderCase) -> None:
        reader = case.open()
        name = reader.sources()[0].name
        for start, end in ((0, RECORDS + 1), (-1, 2), (2, 1)):
            with pytest.raises(BadInputError, match="were requested"):
                reader.read(name, start, end)
        with pytest.raises(BadInputError, match="no such source"):
            reader.read("other", 0, 1)

    def test_blocks_add_up_and_have_a_size(self, case: ReaderCase) -> None:
        reader: Any = case.open()
        for source in reader.sources():
            sizes = reader.blocks(source.name)
            assert sum(sizes.records) == source.records
            assert sizes.bytes >= source.records, "the memory of a window is planned with it"
        assert len(reader.blocks(reader.sources()[0].name).records) > 1

    def test_files_that_were_written_again_have_other_digests(self, case: ReaderCase) -> None:
        digests = digest_sources(case.open())
        FileCheck(case.open).check(digests)
        first, second = (source.name for source in case.open().sources())
        if not digests:
            pytest.skip("a reader without digests")
        case.rewrite()
        FileCheck(case.open).check(digests, second)
        for source in ("", first):
            with pytest.raises(BadInputError, match="the data has changed since this run started") as raised:
                FileCheck(case.open).check(digests, source)
            assert first in str(raised.value)

    def test_a_shuffled_epoch_has_every_record_once_whoever_reads_which_positions(self, case: ReaderCase) -> None:
        reader = case.open()
        total, step = RECORDS + FEW_RECORDS, 64
        keys = []
        for start in range(0, total, step):
            # Another worker for each range.
            other = case.open() if start % (2 * step) else reader
            shuffled = ShuffledReader(other, describe_order(other, 256, seed=7))
            records = shuffled.read(0, start, min(total, start + step))
            assert type(records) is type(reader.read(reader.sources()[0].name, 0, 2))
            keys += [case.key(record) for record in records]
        assert sorted(keys) == list(range(total))
        assert keys != sorted(keys)

    def test_a_position_of_a_shuffled_epoch_is_one_record_however_many_are_read_at_once(self, case: ReaderCase) -> None:
        reader = case.open()
        together = ShuffledReader(reader, describe_order(reader, 256, seed=7))
        alone = ShuffledReader(reader, describe_order(reader, 256, seed=7))
        keys = [case.key(record) for record in together.read(1, 200, 330)]
        assert keys == [case.key(alone.read(1, at, at + 1)[0]) for at in range(200, 330)]

    def test_threads_may_share_a_reader(self, case: ReaderCase) -> None:
        reader = case.open()
        name = reader.sources()[0].name
        ranges = [(start * 7 % (RECORDS - 20), start * 7 % (RECORDS - 20) + 20) for start in range(60)]
        with ThreadPoolExecutor(4) as pool:
            keys = list(pool.map(lambda span: [case.key(each) for each in reader.read(name, *span)], ranges))
        assert keys == [list(range(*span)) for span in ranges]

    def test_a_file_that_changes_while_it_is_in_use_is_refused(self, case: ReaderCase) -> None:
        reader = case.open()
        name = reader.sources()[0].name
        assert len(reader.read(name, RECORDS - 1, RECORDS)) == 1
        case.rewrite()
        with pytest.raises(BadInputError, match=r"changed while it was in use|No such file|no such object"):
            reader.read(name, 0, 1)

    def test_records_are_such_that_tensorflow_takes_them(self, case: ReaderCase) -> None:
        reader = case.open()
        records = reader.read(reader.sources()[0].name, 0, 5)
        if isinstance(records, ColumnRecords):
            assert tuple(records.columns) == reader.metadata.column_names
        else:
            assert isinstance(records[0], bytes | list | np.ndarray | np.generic)

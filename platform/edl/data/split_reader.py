"""One of two sets, into which the hash of a key divides the records of a data set.

One pass over all records finds out which ones belong to the set; it takes 8 bytes for each of them. The first process
of a run that makes the pass keeps a bit for each record in a file of the run, and the others read that.
"""

from __future__ import annotations

import io
import json
import logging
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edl.api.errors import BadInputError
from edl.data.file_digests import SourceDigests, digest_sources, source_digests
from edl.data.reader import BlockSizes, CorruptRange, Metadata, OnCorrupt, Reader, Record, Source
from edl.data.record_columns import ColumnRecords, RaggedColumn, join_records, take_records
from edl.data.temporary_names import temporary_path

_LOG = logging.getLogger(__name__)
_WHERE = "data.split.key"
_PART_RECORDS = 4096
"""Records that the pass reads at once, of a reader without blocks."""


def is_validation(value: bytes, share: float) -> bool:
    """Whether the records with this value of the key are for validation: a function of the value and the share alone.

    A larger share has the values of a smaller one, too.
    """
    digest = blake2b(value, digest_size=8, person=b"edl split").digest()
    return int.from_bytes(digest, "big") < share * 2**64


class SplitReader:
    """The records of a reader that are for validation, or the others.

    Args:
        reader: of all records.
        key: column whose values decide.
        share: of the values whose records are for validation.
        validation: whether this is the set for validation. Records whose key cannot be read are in the other.
        key_reader: reads the same records for their keys; by default ``reader``.
        saved: a file for what the pass finds out, for other processes; None: none. It is used only for the same data,
            by the digests of their files, so readers without digests make the pass in each process.
    """

    def __init__(
        self,
        reader: Reader,
        key: str,
        share: float,
        *,
        validation: bool,
        key_reader: Reader | None = None,
        saved: Path | None = None,
    ) -> None:
        self._reader = reader
        self._key_reader = key_reader or reader
        self._key = key
        self._share = share
        self._validation = validation
        self._saved = saved

    @property
    def metadata(self) -> Metadata:
        """That of all records."""
        return self._reader.metadata

    def sources(self) -> tuple[Source, ...]:
        """Each source with the number of its records in this set; the first call reads all of them.

        Raises:
            BadInputError: the records have no such column.
        """
        return tuple(Source(name, len(numbers)) for name, numbers in self._numbers.items())

    def source_digests(self) -> SourceDigests:
        """Those of all records of each source."""
        return source_digests(self._reader)

    def read(self, source: str, start: int, end: int, on_corrupt: OnCorrupt | None = None) -> Sequence[Record]:
        """Records ``[start, end)`` of this set in one source; see ``Reader.read``."""
        numbers = self._numbers[source]
        if not 0 <= start <= end <= len(numbers):
            raise BadInputError(f"records {start} to {end} were requested, the set has {len(numbers)}", where=source)
        wanted = numbers[start:end]
        if not len(wanted):
            return []
        parts = [
            self._read_run(source, run, start + at, on_corrupt) for at, run in _split_runs(wanted, self._ends[source])
        ]
        return join_records(parts)

    def blocks(self, source: str) -> BlockSizes:
        """The blocks of the source, with the records of this set only."""
        ends = self._ends[source]
        counts = np.diff(np.searchsorted(self._numbers[source], ends), prepend=0).tolist()
        # A block is read as a whole, with the records of the other set.
        total = self._reader.blocks(source).bytes  # type: ignore[attr-defined]
        share = len(self._numbers[source]) / max(1, int(ends[-1]) if len(ends) else 0)
        return BlockSizes(counts, int(total * share))

    @property
    def fetch_ahead(self) -> Callable[[Sequence[tuple[str, int]]], None] | None:
        """``fetch_ahead`` of the reader of all records; None if it has no such method."""
        fetch_ahead = getattr(self._reader, "fetch_ahead", None)
        if fetch_ahead is None:
            return None
        return lambda blocks: fetch_ahead([(source, int(self._numbers[source][at])) for source, at in blocks])

    def _read_run(
        self, source: str, run: npt.NDArray[np.int64], position: int, on_corrupt: OnCorrupt | None
    ) -> Sequence[Record]:
        """Records with these numbers of one block, of which the first has this position in the set."""
        first, after = int(run[0]), int(run[-1]) + 1
        corrupt: list[CorruptRange] = []
        records = (
            self._reader.read(source, first, after)
            if on_corrupt is None
            else self._reader.read(source, first, after, corrupt.append)
        )
        bad = {number: each for each in corrupt for number in range(each.start, each.end)}
        readable = np.array([number for number in range(first, after) if number not in bad], np.int64)
        chosen = run[~np.isin(run, list(bad))] if bad else run
        for at, number in enumerate(run.tolist(), position):
            if number in bad and on_corrupt is not None:
                each = bad[number]
                reason = f"{each.reason} (record {number} of the file)"
                on_corrupt(CorruptRange(source, at, at + 1, each.chunk, each.offset, reason))
        return take_records(records, np.searchsorted(readable, chosen))

    @cached_property
    def _ends(self) -> dict[str, npt.NDArray[np.int64]]:
        """Number after the last record of each block, by source."""
        read_blocks = getattr(self._reader, "blocks", None)
        ends = {}
        for source in self._reader.sources():
            sizes = [_PART_RECORDS] * -(-source.records // _PART_RECORDS)
            if read_blocks is not None:
                sizes = list(read_blocks(source.name).records)
            ends[source.name] = np.minimum(np.cumsum(np.array(sizes, np.int64)), source.records)
        return ends

    @cached_property
    def _numbers(self) -> dict[str, npt.NDArray[np.int64]]:
        """Numbers of the records of this set, by source."""
        self._check_key()
        digests = digest_sources(self._reader) if self._saved is not None else ""
        chosen = self._load(digests) if digests else None
        if chosen is None:
            chosen = {source.name: self._choose_all(source) for source in self._reader.sources()}
            if digests:
                self._save(digests, chosen)
        return {
            name: np.flatnonzero(is_chosen if self._validation else ~is_chosen) for name, is_chosen in chosen.items()
        }

    def _choose_all(self, source: Source) -> npt.NDArray[np.bool_]:
        parts, start = [np.empty(0, bool)], 0
        for end in self._ends[source.name].tolist():
            parts.append(self._choose(source.name, start, end))
            start = end
        return np.concatenate(parts)

    def _choose(self, source: str, start: int, end: int) -> npt.NDArray[np.bool_]:
        """Which of records ``[start, end)`` are for validation."""
        corrupt: list[CorruptRange] = []
        records = self._key_reader.read(source, start, end, corrupt.append)
        is_bad = np.zeros(end - start, bool)
        for each in corrupt:
            is_bad[each.start - start : each.end - start] = True
        chosen: list[bool] = []
        try:
            for value in self._key_values(records):
                chosen.append(value is not None and is_validation(value, self._share))  # noqa: PERF401  counted below
        except _NoValueError as error:
            number = start + int(np.flatnonzero(~is_bad)[len(chosen)])
            raise BadInputError(
                f"record {number} has no value '{self._key}': {error}",
                where=source,
                hint=f"mend the line, or name in {_WHERE} what all lines have",
            ) from error
        is_chosen = np.zeros(end - start, bool)
        is_chosen[~is_bad] = chosen
        return is_chosen

    def _load(self, digests: str) -> dict[str, npt.NDArray[np.bool_]] | None:
        """What another process has found out; None: there is nothing of these data."""
        assert self._saved is not None
        sources = self._reader.sources()
        try:
            with self._saved.open("rb") as stream, np.load(io.BytesIO(stream.read()), allow_pickle=False) as saved:
                if str(saved["digests"]) != digests:
                    return None
                bits = [saved[f"source_{number}"] for number in range(len(sources))]
        except FileNotFoundError:
            return None
        except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile) as error:
            _LOG.info("%s cannot be used, and the pass is made again: %s", self._saved, error)
            return None
        if any(
            each.dtype != np.uint8 or len(each) != -(-source.records // 8)
            for each, source in zip(bits, sources, strict=True)
        ):
            return None
        return {
            source.name: np.unpackbits(each, count=source.records).astype(bool)
            for each, source in zip(bits, sources, strict=True)
        }

    def _save(self, digests: str, chosen: Mapping[str, npt.NDArray[np.bool_]]) -> None:
        """Keep it for others. If that fails, they make the pass too; that is no error."""
        assert self._saved is not None
        bits: dict[str, Any] = {f"source_{number}": np.packbits(each) for number, each in enumerate(chosen.values())}
        temporary = temporary_path(self._saved)
        try:
            with temporary.open("wb") as stream:
                np.savez(stream, digests=np.array(digests), **bits)
            temporary.replace(self._saved)
        except OSError as error:
            _LOG.info("the split is kept in memory only: %s", error)
            with suppress(OSError):
                temporary.unlink(missing_ok=True)

    def _check_key(self) -> None:
        metadata = self._key_reader.metadata
        if metadata.format == "jsonl":
            return
        if not metadata.column_names:
            raise BadInputError(
                f"records of {metadata.format} have no columns", where=_WHERE, hint="split the files themselves"
            )
        if self._key not in metadata.column_names:
            raise BadInputError(
                f"found '{self._key}', which is no column",
                where=_WHERE,
                hint=f"the columns are {', '.join(metadata.column_names)}; one that the model does not get must be in "
                "data.reader.columns, if these are named",
            )

    def _key_values(self, records: Sequence[Any]) -> Iterable[bytes | None]:
        """The value of each record; None: it cannot be read."""
        metadata = self._key_reader.metadata
        if isinstance(records, ColumnRecords):
            column = records.columns[self._key]
            if isinstance(column, RaggedColumn) or column.ndim != 1:
                raise BadInputError(
                    f"column '{self._key}' has lists", where=_WHERE, hint="name a column of single values"
                )
            return map(_to_bytes, column.tolist())
        if metadata.format == "jsonl":
            return map(self._json_value, records)
        place = metadata.column_names.index(self._key)
        return (_to_bytes(row[place]) for row in records)

    def _json_value(self, line: bytes) -> bytes | None:
        try:
            record = json.loads(line)
        except ValueError:
            return None  # whoever reads the record reports it
        if not isinstance(record, dict) or record.get(self._key) is None:
            raise _NoValueError(line[:80].decode(errors="replace"))
        return _to_bytes(record[self._key])


class _NoValueError(Exception):
    """A line of JSON lacks the key; the message has its beginning."""


def _to_bytes(value: Any) -> bytes:
    """The same for a number in all formats: text of CSV is the number's text."""
    return value if isinstance(value, bytes) else str(value).encode()


def _split_runs(
    numbers: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]
) -> Iterable[tuple[int, npt.NDArray[np.int64]]]:
    """The numbers of each block, with the place of the first in ``numbers``."""
    blocks = np.searchsorted(ends, numbers, side="right")
    edges = [0, *(np.flatnonzero(np.diff(blocks)) + 1).tolist(), len(numbers)]
    return [(start, numbers[start:end]) for start, end in pairwise(edges)]

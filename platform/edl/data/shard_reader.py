"""Readers that list shards, as those of ElasticDL do: ``create_shards()`` and ``read_records(task)``.

A class that has only these two methods is adapted here, and so is the base class in ``elasticdl-compat``.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral
from typing import Any

from edl.data.reader import Metadata, Source

_ONE_READ_AT_A_TIME = threading.Lock()
"""Such a reader is called from one thread. EDL reads in several."""


@dataclass(frozen=True, slots=True)
class Shard:
    """Records ``[start, end)`` of a named part of the data."""

    name: str
    start: int
    end: int
    record_indices: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ShardTask:
    """What ``read_records`` gets. Older modules take the name and the range from the task itself."""

    shard: Shard

    @property
    def shard_name(self) -> str:
        return self.shard.name

    @property
    def start(self) -> int:
        """The index of the first record."""
        return self.shard.start

    @property
    def end(self) -> int:
        """The index after the last record."""
        return self.shard.end


def lists_shards(reader: Any) -> bool:
    """Whether a reader has only the methods of a reader of shards."""
    return not hasattr(reader, "sources") and hasattr(reader, "create_shards") and hasattr(reader, "read_records")


class ShardReader:
    """The reader of EDL's contract for one that lists shards. Exceptions are the user's."""

    def __init__(self, reader: Any) -> None:
        self._reader = reader
        self._shards: Mapping[str, tuple[int, int]] | None = None

    @property
    def metadata(self) -> Any:
        """That of the reader; without one, the records have no columns."""
        return getattr(self._reader, "metadata", None) or Metadata("custom")

    def sources(self) -> list[Source]:
        """Name and record count of every shard."""
        return [Source(name, count) for name, (_, count) in self._shards_by_name().items()]

    def read(self, source: str, start: int, end: int) -> list[Any]:
        """Records ``[start, end)`` of one shard, counted from its first record."""
        first, _ = self._shards_by_name()[source]
        with _ONE_READ_AT_A_TIME:
            return list(self._reader.read_records(ShardTask(Shard(source, first + start, first + end))))

    def _shards_by_name(self) -> Mapping[str, tuple[int, int]]:
        # Once, because it may open every file.
        if self._shards is None:
            self._shards = {
                str(name): (0, int(shard)) if isinstance(shard, Integral) else (int(shard[0]), int(shard[1]))
                for name, shard in self._reader.create_shards().items()
            }
        return self._shards

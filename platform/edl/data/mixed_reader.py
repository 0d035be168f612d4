"""Several data sets as one: repeated, and with weights for the order in which their records come."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from edl.api.errors import BadInputError
from edl.data.file_digests import SourceDigests, source_digests
from edl.data.reader import BlockSizes, Metadata, OnCorrupt, PackedRecords, Reader, Record, Source


@dataclass(frozen=True)
class MixedPart:
    """One of several data sets.

    Args:
        path: as the job file names it, for messages.
        reader: of its records.
        repeat: how often its records are there.
        weight: how many of its records come for those of the others; None: the order has no weights.
    """

    path: str
    reader: Reader
    repeat: int = 1
    weight: int | None = None


class MixedReader:
    """The sources of all parts, one after another; those of a repeated part several times, with other names."""

    def __init__(self, parts: Sequence[MixedPart]) -> None:
        self._parts = tuple(parts)

    @cached_property
    def metadata(self) -> Metadata:
        """That of all parts.

        Raises:
            BadInputError: the parts differ.
        """
        first, *others = self._parts
        expected = first.reader.metadata
        for part in others:
            actual = part.reader.metadata
            for name in ("format", "column_names", "column_dtypes", "class_names"):
                if getattr(actual, name) != getattr(expected, name):
                    raise BadInputError(
                        f"{name} is {_describe(getattr(actual, name))}, and {_describe(getattr(expected, name))} in "
                        f"{first.path}",
                        where=part.path,
                        hint="all paths of data.training need the same format and columns: convert one of them, or "
                        "select columns in data.schema.features",
                    )
        return expected

    def sources(self) -> tuple[Source, ...]:
        """Name and record count of every source.

        Raises:
            BadInputError: parts differ, or have the same file.
        """
        _ = self.metadata  # refuses parts that differ before any record is counted
        return tuple(source for source, _, _ in self._places.values())

    def source_digests(self) -> SourceDigests:
        """Those of all parts; none if a part has none."""
        all_digests: dict[str, Callable[[], bytes]] = {}
        for part in self._parts:
            digests = source_digests(part.reader)
            if not digests:
                return {}
            for turn in range(1, part.repeat + 1):
                all_digests |= {_name_in_turn(name, turn): digest for name, digest in digests.items()}
        return all_digests

    def read(self, source: str, start: int, end: int, on_corrupt: OnCorrupt | None = None) -> Sequence[Record]:
        """Records ``[start, end)`` of one source; see ``Reader.read``."""
        _, reader, name = self._places[source]
        return reader.read(name, start, end) if on_corrupt is None else reader.read(name, start, end, on_corrupt)

    def blocks(self, source: str) -> BlockSizes:
        _, reader, name = self._places[source]
        return reader.blocks(name)  # type: ignore[attr-defined,no-any-return]

    @property
    def fetch_ahead(self) -> Callable[[Sequence[tuple[str, int]]], None] | None:
        """``fetch_ahead`` of the parts; None if none has such a method."""
        return self._fetch_ahead if any(getattr(part.reader, "fetch_ahead", None) for part in self._parts) else None

    def _fetch_ahead(self, blocks: Sequence[tuple[str, int]]) -> None:
        blocks_by_reader: dict[int, list[tuple[str, int]]] = {id(part.reader): [] for part in self._parts}
        for source, row in blocks:
            _, reader, name = self._places[source]
            blocks_by_reader[id(reader)].append((name, row))
        # With weights each part has an order of its own, whose blocks come in calls of their own. In one order, what
        # is not named is not expected any more.
        weighted = bool(self.source_weights)
        for part in self._parts:
            fetch_ahead, named = getattr(part.reader, "fetch_ahead", None), blocks_by_reader[id(part.reader)]
            if fetch_ahead is not None and (named or not weighted):
                fetch_ahead(named)

    @property
    def packed_records(self) -> Callable[[str, int, int], PackedRecords | None] | None:
        """``packed_records`` of the parts; None if one has no such method."""
        if not all(getattr(part.reader, "packed_records", None) for part in self._parts):
            return None
        return self._read_packed

    @property
    def source_weights(self) -> tuple[tuple[int, int], ...]:
        """Weight and number of sources of each part; none without weights."""
        if any(part.weight is None for part in self._parts):
            return ()
        return tuple((part.weight or 1, part.repeat * len(part.reader.sources())) for part in self._parts)

    def _read_packed(self, source: str, start: int, end: int) -> PackedRecords | None:
        _, reader, name = self._places[source]
        return reader.packed_records(name, start, end)  # type: ignore[attr-defined,no-any-return]

    @cached_property
    def _places(self) -> dict[str, tuple[Source, Reader, str]]:
        """Each source with its part's reader and its name there."""
        places: dict[str, tuple[Source, Reader, str]] = {}
        for part in self._parts:
            for turn in range(1, part.repeat + 1):
                for source in part.reader.sources():
                    name = _name_in_turn(source.name, turn)
                    if name in places:
                        raise BadInputError(
                            "is in two paths of data.training", where=name, hint="name it once, with data.repeat"
                        )
                    places[name] = (Source(name, source.records), part.reader, source.name)
        return places


def _describe(value: Any) -> str:
    text = ", ".join(f"{name}: {kind}" for name, kind in value.items()) if isinstance(value, dict) else value
    return ", ".join(text) if isinstance(text, tuple) else str(text) or "nothing"


def _name_in_turn(name: str, turn: int) -> str:
    return name if turn == 1 else f"{name} (repeat {turn})"

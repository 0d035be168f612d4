"""The records of one minibatch, as a program gets them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class RecordBatch(Sequence[Any]):
    """The records of one minibatch.

    Attributes:
        records: in the form in which the reader has them: a list, a NumPy array (records first), or
            ``edl.data.ColumnRecords``.
        epoch: from 0.
        source: the file; empty if the records of all files are shuffled.
        start: index of the first record in the source, or its position in the epoch's shuffled order.
        skipped: corrupt records of this minibatch that were left out.
    """

    records: Sequence[Any]
    epoch: int
    source: str
    start: int
    skipped: int = 0

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: Any) -> Any:
        return self.records[index]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.records)

"""Recomputes which records a shuffled epoch visits, and in which order.

It uses only the journal's entry and docs/design/0002 (*Shuffled records*), and none of the
product's arithmetic, so that both cannot have the same error. Each window is computed as a complete
list.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

_WORD = 1 << 64
_EPOCHS = int.from_bytes(b"SHUFFLE")


def mix_bits(number: int) -> int:
    """Output of SplitMix64 (Steele, Lea, Flood 2014) in the state ``number``."""
    z = (number + 0x9E3779B97F4A7C15) % _WORD
    z = (z ^ z // 2**30) * 0xBF58476D1CE4E5B9 % _WORD
    z = (z ^ z // 2**27) * 0x94D049BB133111EB % _WORD
    return z ^ z // 2**31


def keyed_permutation(count: int, key: int) -> Iterator[int]:
    """A keyed permutation of 0 to ``count`` - 1."""
    bits = 1
    while 4**bits < count:
        bits += 1
    half = 2**bits
    turn_keys = [mix_bits(8 * key + turn) for turn in range(4)]
    for start in range(count):
        position = start
        while True:
            high, low = divmod(position, half)
            for turn_key in turn_keys:
                high, low = low, high ^ mix_bits(low ^ turn_key) % half
            position = high * half + low
            if position < count:
                break
        yield position


@dataclass(frozen=True, slots=True)
class RecordedOrder:
    """The order described by a ``dataset`` entry.

    Attributes:
        blocks: source, first record and number of records of each.
        window: number of records that are shuffled together.
        seed: seed of the job.
    """

    blocks: tuple[tuple[str, int, int], ...]
    window: int
    seed: int

    @classmethod
    def from_entry(cls, training: Sequence[Sequence[Any]], order: Mapping[str, Any]) -> RecordedOrder:
        """From the entry's ``training`` and ``order`` fields."""
        blocks: list[tuple[str, int, int]] = []
        sources = [(name, records) for name, records in training if records]
        for (name, records), runs in zip(sources, order["blocks"], strict=True):
            first = 0
            for size, times in runs:
                blocks += [(name, first + i * size, size) for i in range(times)]
                first += size * times
            if first != records:
                raise ValueError(f"blocks of {first} records for the {records} of {name}")
        return cls(tuple(blocks), order["window"], order["seed"])

    @property
    def records(self) -> int:
        """Records per epoch."""
        return sum(size for _, _, size in self.blocks)

    def epoch(self, number: int) -> RecordedEpoch:
        return RecordedEpoch(self, mix_bits(mix_bits(mix_bits(self.seed % _WORD) ^ _EPOCHS) + number))


@dataclass(slots=True)
class RecordedEpoch:
    """One epoch: its blocks in random order, and its records mixed within windows."""

    order: RecordedOrder
    permutation_key: int
    _cached_window: tuple[int, list[tuple[str, int]]] = field(default=(-1, []), repr=False)

    def records_between(self, start: int, end: int) -> list[tuple[str, int]]:
        """Source and number of the records at the positions ``[start, end)``."""
        records: list[tuple[str, int]] = []
        while start < end:
            number, offset = divmod(start, self.order.window)
            after = min(end, (number + 1) * self.order.window)
            records += self._records_of(number)[offset : offset + after - start]
            start = after
        return records

    def _records_of(self, number: int) -> list[tuple[str, int]]:
        if self._cached_window[0] != number:
            first = number * self.order.window
            unmixed = list(islice(self._records_in_blocks(), first, first + self.order.window))
            mixed = [
                unmixed[at] for at in keyed_permutation(len(unmixed), mix_bits(self.permutation_key ^ mix_bits(number)))
            ]
            self._cached_window = number, mixed
        return self._cached_window[1]

    def _records_in_blocks(self) -> Iterator[tuple[str, int]]:
        for at in keyed_permutation(len(self.order.blocks), self.permutation_key):
            source, first, size = self.order.blocks[at]
            yield from ((source, record) for record in range(first, first + size))

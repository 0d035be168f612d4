"""The blocks of a data set and the shuffled order over them, as its reader tells."""

from __future__ import annotations

from edl.api.errors import BadInputError
from edl.core.shuffle import BlockLayout, ShuffleOrder, choose_window
from edl.data.reader import Reader


def read_reader_blocks(reader: Reader) -> BlockLayout | None:
    """The blocks of all sources of a reader; None: it has no random access.

    Raises:
        BadInputError: the reader's blocks do not add up to its records.
    """
    found = getattr(reader, "blocks", None)
    if found is None:
        return None
    sizes, taken, records = [], 0, 0
    for source in reader.sources():
        told = found(source.name)
        counts = [int(count) for count in told.records]
        if sum(counts) != source.records or any(count < 0 for count in counts):
            raise BadInputError(
                f"blocks() of the data reader tells of {sum(counts)} records, sources() of {source.records}",
                where=source.name,
                hint="the records of all blocks of a source add up to its records",
            )
        sizes.append(counts)
        taken, records = taken + int(told.bytes), records + source.records
    return BlockLayout.of(sizes, -(-taken // max(1, records)))


def choose_reader_window(reader: Reader, wanted: int | None, records: int, portion: int) -> int:
    """The window of a run over a reader's records, as ``core.shuffle.choose_window`` has it.

    Args:
        reader: of the training records; its blocks are asked for only where they may be shuffled.
        wanted: ``train.shuffle.window``; None: as large as memory allows.
        records: of an epoch.
        portion: records of a lease.

    Raises:
        BadInputError: a window is wanted and the reader has no random access, or its blocks do not add up.
    """
    return choose_window(wanted, records, portion, None if wanted == 0 else read_reader_blocks(reader))


def shuffled_order(reader: Reader, window: int, seed: int) -> ShuffleOrder:
    """The shuffled order of a reader's records.

    Raises:
        BadInputError: the reader has no random access.
    """
    blocks = read_reader_blocks(reader)
    if blocks is None:
        raise BadInputError("the data reader has no random access: its records cannot be shuffled")
    return ShuffleOrder.of([(source.name, source.records) for source in reader.sources()], blocks.runs, window, seed)

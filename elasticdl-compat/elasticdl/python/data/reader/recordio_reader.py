"""The reader of RecordIO files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from edl.data import BlockSizes, open_reader
from elasticdl.python.data.reader.data_reader import AbstractDataReader, Task, check_required_kwargs
from elasticdl_compat.missing_names import explain_missing_names


class RecordIODataReader(AbstractDataReader):
    """Reads RecordIO files. As a data reader of a job it does what EDL's own does: random access, one chunk in memory.

    Args:
        data_dir: a directory, or a file.

    Raises:
        ValueError: there is no ``data_dir``.
        BadInputError: the files cannot be read.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_required_kwargs(["data_dir"], kwargs)
        self._reader = open_reader(kwargs["data_dir"], {"format": "recordio"})

    def create_shards(self) -> Mapping[str, tuple[int, int]]:
        return {source.name: (0, source.records) for source in self._reader.sources()}

    def read_records(self, task: Task) -> Iterator[Any]:
        shard = getattr(task, "shard", None)
        name = task.shard_name if shard is None else shard.name
        start, end = (task.start, task.end) if shard is None else (shard.start, shard.end)
        yield from self._reader.read(name, start, end)

    @property
    def records_output_types(self) -> Any:
        """Records are bytes."""
        import tensorflow as tf

        return tf.string

    def read(self, source: str, start: int, end: int, on_corrupt: Any = None) -> Any:
        """Records ``[start, end)`` of one file; see ``edl.data.Reader``."""
        return self._reader.read(source, start, end, on_corrupt)

    def blocks(self, source: str) -> BlockSizes:
        """The chunks of one file, so that training records are shuffled."""
        sizes: BlockSizes = self._reader.blocks(source)  # type: ignore[attr-defined]
        return sizes


__getattr__ = explain_missing_names(__name__)

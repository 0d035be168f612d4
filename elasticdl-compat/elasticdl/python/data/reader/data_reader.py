"""The base class of data readers. It makes a reader by ElasticDL's contract one by EDL's."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from edl.data import Source
from edl.data.shard_reader import Shard, ShardReader
from edl.data.shard_reader import ShardTask as Task
from elasticdl_compat.missing_names import explain_missing_names

__all__ = ["AbstractDataReader", "Metadata", "Shard", "Task", "check_required_kwargs"]


class Metadata:
    """What ``feed`` gets as ``metadata``: the columns of a table; none for other data.

    Args:
        column_names: the columns in the order of a record's values.
        column_dtypes: the TensorFlow type of each column, by name.
    """

    def __init__(
        self, column_names: Sequence[str] | None = None, column_dtypes: Mapping[str, Any] | None = None
    ) -> None:
        self.format = "custom"  # EDL compares those of two data sets
        self.column_names = tuple(column_names or ())
        self.column_dtypes = dict(column_dtypes or {})


class AbstractDataReader(ABC):
    """A reader by ElasticDL's contract: a subclass has ``create_shards`` and ``read_records``.

    ``sources`` and ``read`` are EDL's contract, in terms of those two.
    """

    def __init__(self, **kwargs: Any) -> None:
        del kwargs  # a subclass's own

    @abstractmethod
    def read_records(self, task: Task) -> Iterable[Any]:
        """The records of ``task.shard``, in order, usually as a generator."""

    @abstractmethod
    def create_shards(self) -> Mapping[str, tuple[int, int] | int]:
        """The parts of the data by name: index of the first record and number of records, or only the number."""

    @property
    def records_output_types(self) -> Any:
        """Types of a record for TensorFlow. EDL takes them from the records instead."""
        return None

    @property
    def metadata(self) -> Any:
        """The ``metadata`` argument of ``feed``."""
        return Metadata()

    def sources(self) -> list[Source]:
        """Name and record count of every shard; see ``edl.data.Reader``."""
        return self._shard_reader().sources()

    def read(self, source: str, start: int, end: int) -> list[Any]:
        """Records ``[start, end)`` of one shard, counted from its first record; see ``edl.data.Reader``."""
        return self._shard_reader().read(source, start, end)

    def _shard_reader(self) -> ShardReader:
        # It lists the shards once. Not made in __init__, which a subclass need not call.
        known: ShardReader | None = getattr(self, "_edl_reader", None)
        if known is None:
            known = self._edl_reader = ShardReader(self)
        return known


def check_required_kwargs(required_args: Iterable[str], kwargs: Mapping[str, Any]) -> None:
    """Raise for arguments that are missing.

    Raises:
        ValueError: names them.
    """
    missing = [name for name in required_args if name not in kwargs]
    if missing:
        raise ValueError(f"these arguments are required and missing: {', '.join(missing)}")


__getattr__ = explain_missing_names(__name__)

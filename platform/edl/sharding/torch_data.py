"""Minibatches of a job's records as PyTorch tensors, and a loader of a data set of the program's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch  # type: ignore[import-not-found]  # a package of the program
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info  # type: ignore[import-not-found]

from edl.api.errors import BadInputError
from edl.data.record_columns import ColumnRecords, RaggedColumn
from edl.sharding.batches_ahead import BatchesAhead
from edl.sharding.client import Client

Collate = Callable[[Sequence[Any]], Any]
"""Makes tensors of the records of a minibatch."""


def collate_records(records: Sequence[Any]) -> Any:
    """Tensors of records that are arrays or columns of numbers.

    Returns:
        A tensor, records first; or a dictionary with one for each column.

    Raises:
        BadInputError: the records are bytes or texts, or a column has lists or texts.
    """
    if isinstance(records, ColumnRecords):
        return {name: _to_tensor(name, column) for name, column in records.columns.items()}
    if isinstance(records, np.ndarray):
        return _to_tensor("", records)
    raise BadInputError(
        f"a record is {type(records[0]).__name__}, of which nothing says how it becomes a tensor",
        where="ShardedDataset",
        hint="give collate=: a function that makes tensors of a list of records",
    )


def _to_tensor(name: str, values: Any) -> Any:
    if isinstance(values, RaggedColumn) or values.dtype.kind not in "biuf":
        what = "lists of different lengths" if isinstance(values, RaggedColumn) else f"values of type {values.dtype}"
        raise BadInputError(
            f"the column {name!r} has {what}",
            where="ShardedDataset",
            hint="give collate=: a function that makes tensors of the records, or choose columns with data.reader",
        )
    # A copy: the array may be a view of a mapped file, which must not be written to.
    return torch.from_numpy(np.array(values))


class ShardedDataset(IterableDataset):  # type: ignore[misc]  # torch has no types here
    """The minibatches that this worker gets from its master; each is done when the next one is taken.

    Iterate over it, or give it to ``DataLoader(dataset, batch_size=None)``. A loader with worker processes would take
    minibatches ahead of the training step, and they would count as done before they are.

    Args:
        client: the connection to the master.
        collate: makes tensors of the records of a minibatch.
    """

    def __init__(self, client: Client, collate: Collate = collate_records) -> None:
        super().__init__()
        self._client = client
        self._collate = collate

    def __iter__(self) -> Iterator[Any]:
        if get_worker_info() is not None:
            raise BadInputError(
                "worker processes of a DataLoader cannot share the connection to the master",
                where="ShardedDataset",
                hint="use num_workers=0: records are read ahead anyway; ShardedLoader loads items of your own",
            )
        for batch in self._client.batches():
            yield self._collate(batch.records)


class ShardedLoader:
    """A ``DataLoader`` of a map-style data set of the program's own, whose indices come from the master.

    The records of the job are numbers: an ``.npy`` file of ``numpy.arange(len(dataset))``, say. Iterate over it once:
    it has the minibatches of all epochs that this worker gets. Each is done when the next one is asked for, also with
    processes that load ahead.

    Args:
        client: the connection to the master.
        dataset: has ``__getitem__`` and ``__len__``.
        options: of ``DataLoader``, such as ``num_workers`` and ``collate_fn``. What a minibatch is made of is said by
            the job: ``train.minibatch_size`` and ``train.shuffle``.

    Raises:
        BadInputError: an option says what a minibatch is made of.
    """

    def __init__(self, client: Client, dataset: Dataset, **options: Any) -> None:
        decided = sorted({"batch_size", "shuffle", "sampler", "batch_sampler", "drop_last"} & options.keys())
        if decided:
            raise BadInputError(
                f"{', '.join(decided)} of a DataLoader: the master says which records a minibatch has",
                where="ShardedLoader",
                hint="set train.minibatch_size and train.shuffle in the job file",
            )
        if options.get("num_workers"):
            # The loader is iterated again whenever this worker had to wait for records.
            options.setdefault("persistent_workers", True)
        self._ahead = client.batches_ahead()
        self._loader = DataLoader(dataset, batch_sampler=_LeasedIndices(self._ahead, len(dataset)), **options)

    def __iter__(self) -> Iterator[Any]:
        return self._ahead.follow_all(self._loader)


class _LeasedIndices:
    """The batch sampler of a ``DataLoader``: it ends where this worker has to wait for records."""

    def __init__(self, ahead: BatchesAhead, size: int) -> None:
        self._ahead, self._size = ahead, size

    def __iter__(self) -> Iterator[list[int]]:
        while (batch := self._ahead.take()) is not None:
            yield record_numbers(batch.records, self._size)


def record_numbers(records: Sequence[Any], size: int) -> list[int]:
    """The numbers that records are.

    Args:
        records: of a minibatch.
        size: numbers are below it.

    Raises:
        BadInputError: they are no numbers, or are not in ``range(size)``.
    """
    values: Any = records
    if isinstance(records, ColumnRecords) and len(records.columns) == 1:
        (values,) = records.columns.values()
    if not isinstance(values, np.ndarray) or values.dtype.kind not in "iu" or values.ndim != 1:
        raise BadInputError(
            "the records of the job are no numbers, which the loader could use as indices",
            where="data.training",
            hint="write them with numpy.save('numbers.npy', numpy.arange(len(dataset)))",
        )
    if values.min() < 0 or values.max() >= size:
        least, most = values.min(), values.max()
        raise BadInputError(
            f"the records of the job are numbers from {least} to {most}, and the data set has {size} items",
            where="data.training",
            hint="write the numbers of this data set: numpy.save('numbers.npy', numpy.arange(len(dataset)))",
        )
    numbers: list[int] = values.tolist()
    return numbers

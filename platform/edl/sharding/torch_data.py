"""Minibatches of a job's records as PyTorch tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch  # type: ignore[import-not-found]  # a package of the program
from torch.utils.data import IterableDataset, get_worker_info  # type: ignore[import-not-found]

from edl.api.errors import BadInputError
from edl.data.record_columns import ColumnRecords, RaggedColumn
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
                hint="use DataLoader(dataset, batch_size=None, num_workers=0); records are read ahead anyway",
            )
        for batch in self._client.batches():
            yield self._collate(batch.records)

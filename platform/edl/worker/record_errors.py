"""Which records an error is of."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from edl.api.errors import BadInputError
from edl.worker.lease_client import LeasedTask


@contextmanager
def add_record_range(task: LeasedTask, step: int) -> Iterator[None]:
    """Say of input that cannot be used, and has no other place, which records of a task's source it is of."""
    try:
        yield
    except BadInputError as error:
        if error.where is None:
            source, records = task.records(step)
            error.where = records if source is None else f"{source}, {records}"
        raise

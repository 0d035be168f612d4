"""A worker's share of a global batch as one minibatch: a program calls ``allreduce`` once in a step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from edl.data.record_columns import join_records
from edl.sharding.record_prefetch import PrefetchedBatch, WindowRecords
from edl.worker.allreduce.share_source import BatchShareSource
from edl.worker.lease_client import LeasedTask
from edl.worker.record_stream import LoadedStep


class ProgramShareSource(BatchShareSource):
    """Joins the records of a share, which may be of several leases and are read in parts."""

    def _load(self, ranges: Iterable[LeasedTask]) -> Iterator[tuple[LeasedTask, LoadedStep]]:
        parts = list(super()._load(ranges))
        batches = [loaded.minibatch for _, loaded in parts if isinstance(loaded.minibatch, PrefetchedBatch)]
        if not batches:
            return
        window = batches[0].features.window._replace(
            records=join_records([batch.records for batch in batches]),
            skipped_records=sum(loaded.skipped_records for _, loaded in parts),
        )
        task, first = parts[0]
        joined = PrefetchedBatch(batches[0].tag, WindowRecords(window))
        yield task, LoadedStep(first.step, joined, len(window.records), window.skipped_records)

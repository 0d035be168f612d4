"""Reads minibatches of records on a thread of its own, a few ahead of the program that takes them."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from edl.worker.record_stream import RecordWindow, TaggedWindows

WINDOWS_AHEAD = 4
"""Minibatches that are read ahead: enough for the jitter of reads, and little memory."""


@dataclass(frozen=True, slots=True)
class WindowRecords:
    """Records of one minibatch, with the shape that ``RecordStream`` counts them by."""

    window: RecordWindow

    @property
    def shape(self) -> tuple[int]:
        """The number of records."""
        return (len(self.window.records),)


@dataclass(frozen=True, slots=True)
class PrefetchedBatch:
    """What the pipeline of a ``RecordStream`` makes of one window: the records as they are."""

    tag: int
    features: WindowRecords
    labels: None = None
    weights: None = None
    skipped_images: int = 0

    @property
    def records(self) -> Sequence[Any]:
        """The records, without corrupt ones."""
        return self.features.window.records


def prefetch_records(windows: TaggedWindows) -> Iterator[PrefetchedBatch]:
    """Take windows on a daemon thread, at most :data:`WINDOWS_AHEAD` ahead of the caller.

    The thread ends with the windows. It is a daemon: the windows wait for leases, of which none may come any more.
    """
    ready: queue.Queue[PrefetchedBatch | None] = queue.Queue(WINDOWS_AHEAD)

    def read() -> None:
        try:
            for tag, window in windows:
                ready.put(PrefetchedBatch(tag, WindowRecords(window)))
        finally:
            ready.put(None)  # the stream has the error, if there was one

    threading.Thread(target=read, name="records", daemon=True).start()
    while (batch := ready.get()) is not None:
        yield batch

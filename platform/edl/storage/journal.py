"""The journal: acknowledged entries survive the process and the machine (format: docs/design/0003).

Callers append entries and wait until they are durable; one thread writes. While it waits for the disk, entries of
other callers accumulate, and the next write and fdatasync cover all of them (group commit).
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from edl.api.errors import EdlError, RetryableError, StorageError
from edl.storage.durable_files import FileLock
from edl.storage.journal_reader import JournalContent, read_journal
from edl.storage.segment_chain import SegmentChain, encode_record, remove_unfinished_segments

# --------------------------------------------------------------------------------------------------
# The position up to which the journal is durable, and the threads that wait for it.


@dataclass(frozen=True)
class _LsnWaiter:
    """A caller that waits for ``lsn``. ``callback`` is called once, when it is reached or can never be reached."""

    lsn: int
    callback: Callable[[], object]


class DurablePosition:
    """A log sequence number (LSN) that increases until it fails for good."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._waiters: list[_LsnWaiter] = []
        self._lsn = 0
        self._failure: EdlError | None = None

    @property
    def failure(self) -> EdlError | None:
        """Why it will never increase again; None while the journal works."""
        return self._failure

    def advance(self, entry_count: int) -> None:
        """``entry_count`` more entries are durable: call their waiters back."""
        with self._mutex:
            self._lsn += entry_count
            done = [waiter for waiter in self._waiters if waiter.lsn <= self._lsn]
            self._waiters = [waiter for waiter in self._waiters if waiter.lsn > self._lsn]
        # outside of the mutex, so that a callback may use this object
        for waiter in done:
            waiter.callback()

    def fail(self, error: EdlError) -> None:
        """Nothing more will become durable: every current and later waiter gets ``error``."""
        with self._mutex:
            self._failure = error
            waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            waiter.callback()

    def wait(self, lsn: int, timeout: float | None) -> None:
        """Block until ``lsn`` is reached.

        Raises:
            EdlError: the error that was passed to ``fail``.
            RetryableError: ``timeout`` seconds have passed.
        """
        if lsn <= self._lsn:
            return
        # A lock for each waiter: a commit wakes only the threads that it covers. With a shared
        # Condition, all of them would wake and contend for its lock.
        gate = threading.Lock()
        gate.acquire()
        if self.call_when_reached(lsn, gate.release) and not gate.acquire(timeout=-1 if timeout is None else timeout):
            raise RetryableError(f"the journal was not synced within {timeout} s")
        if lsn > self._lsn and self._failure is not None:
            raise self._failure

    def call_when_reached(self, lsn: int, callback: Callable[[], object]) -> bool:
        """Call ``callback`` once, on the writer's thread, when ``lsn`` is reached or can never be; it must not block.

        Returns:
            Whether it will be called: not if ``lsn`` is reached already, or can never be.
        """
        with self._mutex:
            if lsn <= self._lsn or self._failure is not None:
                return False
            self._waiters.append(_LsnWaiter(lsn, callback))
        return True


_MAX_FSYNC_SAMPLES = 1024
_LOCK_HELD_HINT = "A journal has one writer. Stop the other process, or wait until it has ended."


@dataclass(frozen=True)
class FsyncLatency:
    """Latency of the last fdatasync calls in seconds; zeros before the first call."""

    count: int
    median: float
    p99: float


@dataclass(frozen=True)
class _SegmentStart:
    """Marks in the queue where a new segment begins; ``opening`` is its encoded opening record."""

    opening: bytes


class Journal:
    """An open journal. Methods may be called from any thread."""

    def __init__(self, directory: Path, lock: FileLock | None, chain: SegmentChain, size_bytes: int) -> None:
        """Called by ``open`` only."""
        self._directory = directory
        self._lock = lock
        self._chain = chain
        self._mutex = threading.Lock()  # guards _queue, _next_lsn, _size and _closing; never held during I/O
        self._queue: list[bytes | _SegmentStart] = []
        self._next_lsn = 1
        self._size_bytes = size_bytes
        self._closing = False
        # One item for each time that ``_queue`` becomes non-empty, and one from ``close``. An Event would
        # take its lock four times in Python for each entry.
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._durable_position = DurablePosition()
        self._fsync_seconds: deque[float] = deque(maxlen=_MAX_FSYNC_SAMPLES)
        self._thread = threading.Thread(target=self._run_writer, name="journal-writer", daemon=True)
        self._thread.start()

    @classmethod
    def open(
        cls,
        directory: Path,
        *,
        holder: str,
        exclusive: bool = True,
        minimum_incarnation: int = 0,
        validate_content: Callable[[JournalContent], object] = lambda content: None,
    ) -> tuple[Journal, JournalContent]:
        """Lock the journal, read it, and begin a new incarnation.

        The new segment counts exactly what was read, so anything that an earlier incarnation writes later
        does not count.

        Args:
            directory: the journal's folder; created if it does not exist.
            holder: name of the new holder of the lock, one line of text.
            exclusive: take the folder's lock. A volume that several machines share may not support locks. There the
                Lease excludes a second master, and the counted lengths exclude one that has lost its Lease without
                noticing.
            minimum_incarnation: lower bound of the new incarnation's number.
            validate_content: raises if the journal is incomplete; then nothing is written.

        Raises:
            RefusedError: another process has the journal open; the message has the name of the holder.
            StorageError: it cannot be read or written.
        """
        lock = (
            FileLock(directory / "LOCK", holder, protected_thing="the journal", hint=_LOCK_HELD_HINT)
            if exclusive
            else None
        )
        try:
            journal_content = read_journal(directory)
            # before anything is written: a new segment's counted lengths would make a lost end of the journal
            # permanent
            validate_content(journal_content)
            remove_unfinished_segments(directory)
            incarnation = max(journal_content.incarnation + 1, minimum_incarnation)
            chain = SegmentChain(directory, incarnation, journal_content.counted_lengths, holder)
        except BaseException:
            if lock is not None:
                lock.close()
            raise
        return cls(directory, lock, chain, journal_content.size_bytes), journal_content

    @property
    def incarnation(self) -> int:
        """Number of this writer, higher than that of all earlier ones in this folder."""
        return self._chain.incarnation

    @property
    def failure(self) -> EdlError | None:
        """Why the journal is not written any more; None while it works."""
        return self._durable_position.failure

    @property
    def size_bytes(self) -> int:
        """Bytes of all entries since the last snapshot, including replayed ones; ``compact`` resets it."""
        return self._size_bytes

    @property
    def fsync_latency(self) -> FsyncLatency:
        """The latency of fdatasync over the last thousand groups."""
        syncs = sorted(self._fsync_seconds.copy())
        if not syncs:
            return FsyncLatency(0, 0.0, 0.0)
        return FsyncLatency(len(syncs), median(syncs), syncs[len(syncs) * 99 // 100])

    def append(self, entry: Mapping[str, Any]) -> int:
        """Queue ``entry`` and return its LSN. It is durable when ``wait_until_durable`` has returned.

        Entries are written in the order of their LSNs.

        Raises:
            StorageError, RefusedError: the journal has failed earlier, as ``wait_until_durable`` reports it.
            TypeError, ValueError: ``entry`` is not JSON (NaN is not), or too large.
        """
        return self._enqueue(encode_record(entry))

    def compact(self, snapshot: Mapping[str, Any]) -> int:
        """Replace all entries that were appended before this call by ``snapshot``.

        Returns its LSN, for ``wait_until_durable``. The caller must hold the lock under which it also appends, so that
        the snapshot is the state after exactly those entries. The writer begins a new segment with the snapshot, makes
        it durable and only then removes the older ones: a crash in between leaves the old journal or the new one. The
        snapshot is encoded before this returns, and written later by the writer.

        Raises:
            StorageError, RefusedError: the journal has failed earlier.
            TypeError, ValueError: ``snapshot`` is not JSON, or too large.
        """
        return self._enqueue(_SegmentStart(encode_record({"fence": {}, "snapshot": snapshot})))

    def wait_until_durable(self, lsn: int, timeout: float | None = None) -> None:
        """Block until everything up to ``lsn`` is written and synced.

        Args:
            lsn: a result of ``append`` or ``compact``.
            timeout: seconds; None: no limit.

        Raises:
            StorageError: it could not be written, and nothing is written any more.
            RefusedError: a newer incarnation has opened the journal.
            RetryableError: the time has passed; the entry may still become durable.
        """
        if lsn >= self._next_lsn:
            raise ValueError(f"lsn {lsn} was never given out; the last one is {self._next_lsn - 1}")
        self._durable_position.wait(lsn, timeout)

    def call_when_durable(self, lsn: int, callback: Callable[[], object]) -> bool:
        """Call back once, on the writer's thread, when everything up to ``lsn`` is durable or can never be.

        Returns:
            Whether it will be called. If not, ``wait_until_durable`` returns or raises at once.
        """
        return self._durable_position.call_when_reached(lsn, callback)

    def close(self) -> None:
        """Write what is queued and release the lock. Does not raise; ``failure`` is None if everything was written."""
        with self._mutex:
            self._closing = True
        self._wake.put(None)
        self._thread.join()
        self._chain.close()
        if self._lock is not None:
            self._lock.close()

    def _enqueue(self, item: bytes | _SegmentStart) -> int:
        with self._mutex:
            if self.failure is not None:
                raise self.failure
            if self._closing:
                raise StorageError("the journal is closed", where=str(self._directory))
            lsn = self._next_lsn
            self._next_lsn += 1
            self._size_bytes = self._size_bytes + len(item) if isinstance(item, bytes) else 0
            self._queue.append(item)
            # with more items in the queue, the writer has been woken already
            must_wake = len(self._queue) == 1
        if must_wake:
            self._wake.put(None)
        return lsn

    def _run_writer(self) -> None:
        """The writer thread: commit queued items until the journal is closed or fails."""
        try:
            while (items := self._take_queued_items()) is not None:
                self._commit_items(items)
        except EdlError as error:
            self._durable_position.fail(error)
        except Exception as error:  # noqa: BLE001 - waiters must get an error, whatever it is
            self._durable_position.fail(
                StorageError(f"the journal's writer failed: {error!r}", where=str(self._directory))
            )

    def _take_queued_items(self) -> list[bytes | _SegmentStart] | None:
        """Wait for items and take all of them; None if the journal is closed and everything is written."""
        self._wake.get()
        with self._mutex:
            items, self._queue = self._queue, []
            return None if self._closing and not items else items

    def _commit_items(self, items: list[bytes | _SegmentStart]) -> None:
        group: list[bytes] = []
        for item in items:
            if isinstance(item, bytes):
                group.append(item)
            else:
                # entries before the snapshot belong to the old segment, which must be complete
                # first
                self._commit_group(group)
                self._chain.compact(item.opening)
                self._durable_position.advance(1)
                group = []
        self._commit_group(group)

    def _commit_group(self, group: list[bytes]) -> None:
        if group:
            self._fsync_seconds.append(self._chain.append(b"".join(group)))
            self._durable_position.advance(len(group))

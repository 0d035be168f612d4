"""The journal: what was acknowledged survives the process and the machine (format: docs/design/0003).

Callers append entries and wait until they are durable; one thread writes. While it waits for the disk, the entries of
other callers gather, and the next write and fdatasync carry them all: group commit.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from edl.api.errors import EdlError, RetryableError, StorageError
from edl.storage.durable_files import FileLock
from edl.storage.journal_replay import JournalReplay, replay_journal
from edl.storage.segment_chain import SegmentChain, encode_record, remove_unfinished_segments

# --------------------------------------------------------------------------------------------------
# How far the journal is durable, and the threads that wait until it has come further.


@dataclass(frozen=True)
class _LsnWaiter:
    """Somebody who waits for ``lsn``; ``callback`` is called once, when it is reached or never will be."""

    lsn: int
    callback: Callable[[], object]


class DurablePosition:
    """An lsn that only grows, until it fails for good."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._waiters: list[_LsnWaiter] = []
        self._lsn = 0
        self._failure: EdlError | None = None

    @property
    def failure(self) -> EdlError | None:
        """Why it will never move again; None while all is well."""
        return self._failure

    def advance(self, entry_count: int) -> None:
        """``entry_count`` more entries are durable: let their threads go."""
        with self._mutex:
            self._lsn += entry_count
            done = [waiter for waiter in self._waiters if waiter.lsn <= self._lsn]
            self._waiters = [waiter for waiter in self._waiters if waiter.lsn > self._lsn]
        for waiter in done:
            waiter.callback()

    def fail(self, error: EdlError) -> None:
        """Nothing more will become durable: every thread that waits, now or later, gets ``error``."""
        with self._mutex:
            self._failure = error
            waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            waiter.callback()

    def wait(self, lsn: int, timeout: float | None) -> None:
        """Block until ``lsn`` is reached.

        Raises:
            EdlError: what ``fail`` was given.
            RetryableError: ``timeout`` seconds are over.
        """
        if lsn <= self._lsn:
            return
        gate = threading.Lock()  # a bare lock wakes just this thread, without a shared one to pass on
        gate.acquire()
        if self.call_when_reached(lsn, gate.release) and not gate.acquire(timeout=-1 if timeout is None else timeout):
            raise RetryableError(f"the journal was not synced within {timeout} s")
        if lsn > self._lsn and self._failure is not None:
            raise self._failure

    def call_when_reached(self, lsn: int, callback: Callable[[], object]) -> bool:
        """Call ``callback`` once, on the writer's thread, when ``lsn`` is reached or never will be; it must not block.

        Returns:
            Whether it will be called: not if ``lsn`` is reached already, or never will be.
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
    """How long the last fdatasync calls took, in seconds; zeros when there was none yet."""

    count: int
    median: float
    p99: float


@dataclass(frozen=True)
class _SegmentStart:
    """A place in the queue where a segment begins; ``opening`` is its encoded opening record."""

    opening: bytes


class Journal:
    """An open journal. Every method may be called from every thread."""

    def __init__(self, directory: Path, lock: FileLock | None, chain: SegmentChain, size_bytes: int) -> None:
        """For ``open`` only."""
        self._directory = directory
        self._lock = lock
        self._chain = chain
        self._mutex = threading.Lock()  # guards _queue, _next_lsn, _size and _closing; never held during I/O
        self._queue: list[bytes | _SegmentStart] = []
        self._next_lsn = 1
        self._size_bytes = size_bytes
        self._closing = False
        self._wake = threading.Event()
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
        validate_replay: Callable[[JournalReplay], object] = lambda found: None,
    ) -> tuple[Journal, JournalReplay]:
        """Lock the journal, read it, and begin a new incarnation of it.

        The new segment's fence notes exactly what was read, so nothing that an earlier incarnation still writes counts.

        Args:
            directory: the journal's folder; created when it is missing.
            holder: who opens it, one line of text for whoever comes second.
            exclusive: take the folder's lock. A volume shared by several machines may not support locks; there the
                Lease excludes a second master, and the segments' fence excludes a master that has lost its Lease
                without noticing.
            minimum_incarnation: lower bound of the new incarnation's number.
            validate_replay: raises if the journal is incomplete; then nothing is written.

        Raises:
            RefusedError: another process has it open; its holder is named.
            StorageError: it cannot be read or written.
        """
        lock = (
            FileLock(directory / "LOCK", holder, protected_thing="the journal", hint=_LOCK_HELD_HINT)
            if exclusive
            else None
        )
        try:
            journal_replay = replay_journal(directory)
            validate_replay(journal_replay)
            remove_unfinished_segments(directory)
            incarnation = max(journal_replay.incarnation + 1, minimum_incarnation)
            chain = SegmentChain(directory, incarnation, journal_replay.fence, holder)
        except BaseException:
            if lock is not None:
                lock.close()
            raise
        return cls(directory, lock, chain, journal_replay.size_bytes), journal_replay

    @property
    def incarnation(self) -> int:
        """This writer's number: above any before it in this folder."""
        return self._chain.incarnation

    @property
    def failure(self) -> EdlError | None:
        """Why nothing is written any more; None while the journal works."""
        return self._durable_position.failure

    @property
    def size_bytes(self) -> int:
        """Bytes of the entries behind the last snapshot, with those that were replayed; grows until ``compact``."""
        return self._size_bytes

    @property
    def fsync_latency(self) -> FsyncLatency:
        """The latency of fdatasync over the last thousand groups."""
        syncs = sorted(self._fsync_seconds.copy())
        if not syncs:
            return FsyncLatency(0, 0.0, 0.0)
        return FsyncLatency(len(syncs), median(syncs), syncs[len(syncs) * 99 // 100])

    def append(self, entry: Mapping[str, Any]) -> int:
        """Queue ``entry`` and return its lsn; it is durable when ``wait_until_durable`` has returned.

        Entries keep the order of lsn.

        Raises:
            StorageError, RefusedError: the journal has failed earlier, as ``wait_until_durable`` told.
            TypeError, ValueError: ``entry`` is not JSON (NaN is not), or too large.
        """
        return self._enqueue(encode_record(entry))

    def compact(self, snapshot: Mapping[str, Any]) -> int:
        """Let ``snapshot`` stand for every entry appended before this call.

        Returns its lsn, for ``wait_until_durable``. The caller makes sure, by the lock under which it also appends,
        that the snapshot is the state after exactly those entries. Entries appended later follow it. The writer begins
        a new segment with the snapshot, makes it durable and only then removes the older ones: a crash in between
        leaves the old journal or the new one. The snapshot is encoded before this returns; the disk is left to the
        writer.

        Raises:
            StorageError, RefusedError: the journal has failed earlier.
            TypeError, ValueError: ``snapshot`` is not JSON, or too large.
        """
        return self._enqueue(_SegmentStart(encode_record({"fence": {}, "snapshot": snapshot})))

    def wait_until_durable(self, lsn: int, timeout: float | None = None) -> None:
        """Block until everything up to ``lsn`` is written and synced.

        Args:
            lsn: what ``append`` or ``compact`` returned.
            timeout: seconds; None waits as long as it takes.

        Raises:
            StorageError: it could not be written, and nothing is written any more.
            RefusedError: a newer incarnation has opened the journal.
            RetryableError: the time is over; the entry may still become durable.
        """
        if lsn >= self._next_lsn:
            raise ValueError(f"lsn {lsn} was never given out; the last one is {self._next_lsn - 1}")
        self._durable_position.wait(lsn, timeout)

    def call_when_durable(self, lsn: int, callback: Callable[[], object]) -> bool:
        """Call once, on the writer's thread, when everything up to ``lsn`` is durable or never will be.

        Returns:
            Whether it will be called; if not, ``wait_until_durable`` returns or raises at once.
        """
        return self._durable_position.call_when_reached(lsn, callback)

    def close(self) -> None:
        """Write what is queued, then release the lock. Does not raise: ``failure`` says whether all was written."""
        with self._mutex:
            self._closing = True
            self._wake.set()
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
            if len(self._queue) == 1:
                self._wake.set()
        return lsn

    def _run_writer(self) -> None:
        """The writer thread: commit what has gathered, until the journal is closed or fails."""
        try:
            while (items := self._take_queued_items()) is not None:
                self._commit_items(items)
        except EdlError as error:
            self._durable_position.fail(error)
        except Exception as error:  # noqa: BLE001 - whoever waits must learn of it, whatever it is
            self._durable_position.fail(
                StorageError(f"the journal's writer failed: {error!r}", where=str(self._directory))
            )

    def _take_queued_items(self) -> list[bytes | _SegmentStart] | None:
        """Wait for items and take them; None when the journal is closed and all is written."""
        self._wake.wait()
        with self._mutex:
            items, self._queue = self._queue, []
            if not self._closing:
                self._wake.clear()
            return None if self._closing and not items else items

    def _commit_items(self, items: list[bytes | _SegmentStart]) -> None:
        group: list[bytes] = []
        for item in items:
            if isinstance(item, bytes):
                group.append(item)
            else:
                self._commit_group(group)
                self._chain.compact(item.opening)
                self._durable_position.advance(1)
                group = []
        self._commit_group(group)

    def _commit_group(self, group: list[bytes]) -> None:
        if group:
            self._fsync_seconds.append(self._chain.append(b"".join(group)))
            self._durable_position.advance(len(group))

"""Writes copies of a rank's state as checkpoints, on a thread of its own, and reads checkpoints."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from edl.api.errors import EdlError, StorageError
from edl.storage.checkpoint_manifest import CheckpointManifest, cut_directory, load_manifest
from edl.storage.checkpoint_shards import read_shard, write_shard
from edl.transport import edl_pb2 as pb

Arrays = Mapping[str, np.ndarray[Any, Any]]

_LOG = logging.getLogger(__name__)
_DECLARATION_KEY = "declaration"
"""Only shards of parameter servers have one."""


class CheckpointWriter:
    """Writes the newest copy, when the one before is on disk; thread-safe.

    Args:
        checkpoints_dir: ``<run>/checkpoints``.
        metadata: the strings that are stored with the arrays.
        convert: reads a checkpoint that parameter servers wrote, from its folder. None: there are none.
    """

    def __init__(
        self,
        checkpoints_dir: Path,
        metadata: Mapping[str, str] | None = None,
        convert: Callable[[Path], Arrays] | None = None,
    ) -> None:
        self._checkpoints_dir = checkpoints_dir
        self._metadata = metadata or {}
        self._convert = convert
        self._on_written: Callable[[], None] = lambda: None
        self._lock = threading.Lock()
        self._is_copying = False
        self._progress: pb.CopiedState | None = None
        self._thread: threading.Thread | None = None

    def call_when_written(self, callback: Callable[[], None]) -> None:
        """Call this on the writer's thread when a file is on disk, or could not be written; before the first copy."""
        self._on_written = callback

    @property
    def progress(self) -> pb.CopiedState | None:
        """The newest copy, with its file once that is on disk; None before the first one."""
        with self._lock:
            return self._progress

    @property
    def is_busy(self) -> bool:
        """Whether a copy is being made or written."""
        with self._lock:
            return self._is_copying or (self._thread is not None and self._thread.is_alive())

    @contextmanager
    def copying(self) -> Iterator[None]:
        """The state is copied, and ``begin`` is called with the copy, within this context."""
        self._is_copying = True
        try:
            yield
        finally:
            self._is_copying = False

    def has_begun(self, cut: int) -> bool:
        """Whether this worker has copied its state, or its share, for this checkpoint."""
        with self._lock:
            return self._progress is not None and self._progress.cut == cut

    def accepts(self, cut: int) -> bool:
        """Whether this checkpoint can begin: it has not, and no other one is being written."""
        with self._lock:
            is_new = self._progress is None or self._progress.cut != cut
            return is_new and (self._thread is None or not self._thread.is_alive())

    def begin(
        self,
        cut: int,
        step: int,
        done: Mapping[int, int],
        arrays: Arrays,
        pause_seconds: float,
        *,
        shard_index: int = 0,
        writers: Sequence[str] = (),
    ) -> None:
        """Begin to write a copy, which must not change any more.

        Args:
            done: by lease, the done records of its steps that no master has acknowledged.
            shard_index: which shard of the checkpoint it is.
            writers: the workers that write the shards, in their order; empty if this one is the only one.
        """
        records = [pb.LeaseRecords(lease=lease, end=end) for lease, end in done.items()]
        copied = pb.CopiedState(cut=cut, step=step, done=records, pause_seconds=pause_seconds, writers=writers)
        with self._lock:
            arguments = (copied, arrays, shard_index, self._thread)
            self._progress = copied
            self._thread = threading.Thread(target=self._write, args=arguments, name=f"checkpoint-{cut}", daemon=True)
            self._thread.start()

    def _write(
        self, copied: pb.CopiedState, arrays: Arrays, shard_index: int, previous: threading.Thread | None
    ) -> None:
        # Another rank may have been faster with a checkpoint that was called off since.
        if previous is not None:
            previous.join()
        with self._lock:
            if self._progress is not copied:
                return
        directory = self.directory(copied.cut)
        try:
            written = write_shard(directory, shard_index, arrays, self._metadata)
            shard = pb.WrittenShard(file=written.file, size=written.size, crc32=written.crc32)
        except Exception as error:  # noqa: BLE001  the master decides what a failed checkpoint means; training goes on
            if not isinstance(error, EdlError):
                _LOG.exception("checkpoint %d cannot be written", copied.cut)
            shard = pb.WrittenShard(error=str(error) or type(error).__name__)
        with self._lock:
            # The message may be in use: a new one, and no change.
            written_state = pb.CopiedState(shard=shard)
            written_state.MergeFrom(copied)
            if self._progress is copied:
                self._progress = written_state
        self._on_written()

    def directory(self, cut: int) -> Path:
        """The folder of a checkpoint."""
        return cut_directory(self._checkpoints_dir, cut)

    def read(self, cut: int) -> Arrays:
        """The arrays of a checkpoint.

        Raises:
            StorageError: it is damaged or cannot be read.
            BadInputError: parameter servers wrote it, and this model cannot continue with their state.
        """
        directory = self.directory(cut)
        manifest = load_manifest(directory)
        if not isinstance(manifest, CheckpointManifest):
            raise StorageError(f"cannot be used: {manifest.reason}", where=str(directory))
        arrays: dict[str, np.ndarray[Any, Any]] = {}
        for shard in manifest.shards:
            shard_arrays, metadata = read_shard(directory / shard.file)
            if _DECLARATION_KEY in metadata and self._convert is not None:
                return self._convert(directory)
            arrays |= shard_arrays
        return arrays

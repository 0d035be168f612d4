"""Writing checkpoint shards in the background, while training goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from edl.api.errors import RetryableError, StorageError
from edl.ps.shard_content import make_shard_content
from edl.ps.shard_restore import CutSnapshot
from edl.transport.peer_errors import PeerRefusedError

_KEPT_RESULTS = 8
"""Results of how many cuts are kept for a question that is asked again."""


@dataclass(frozen=True, slots=True)
class SavedShard:
    """What became of a shard: its file's name, size in bytes and crc32 as eight hex digits, or why there is none."""

    file: str = ""
    size: int = 0
    checksum: str = ""
    error: str = ""


class ShardWriter:
    """Writes the shards of one PS, each in a thread of its own that dies with the process.

    Args:
        index: of this PS.
        write: writes one cut to a directory; only tests give another one.
    """

    def __init__(self, index: int, write: Callable[[Path, int, CutSnapshot], SavedShard] | None = None) -> None:
        self._ps_index = index
        self._write_cut = write or write_cut_shard
        self._results: dict[int, Future[SavedShard]] = {}
        self._lock = threading.Lock()

    def begin(self, directory: Path, cut: CutSnapshot) -> None:
        """Start to write a cut, whose snapshot is held until that is done."""
        cut.snapshot.hold()
        result: Future[SavedShard] = Future()
        with self._lock:
            self._results[cut.number] = result
            for number in sorted(self._results)[:-_KEPT_RESULTS]:
                del self._results[number]
        threading.Thread(target=self._run, args=(directory, cut, result), name="shard-writer", daemon=True).start()

    def wait(self, cut: int, timeout: float) -> SavedShard:
        """Wait until the shard is on disk, or is known not to be.

        Raises:
            Refused: no shard of that cut was ever begun here (kind ``cut``).
            RetryableError: it takes longer than ``timeout`` seconds.
        """
        with self._lock:
            result = self._results.get(cut)
        if result is None:
            raise PeerRefusedError(f"no shard of cut {cut} was begun here", kind="cut")
        try:
            return result.result(timeout)
        except TimeoutError as error:
            raise RetryableError(f"the shard of cut {cut} is still being written after {timeout:.0f} s") from error

    def _run(self, directory: Path, cut: CutSnapshot, result: Future[SavedShard]) -> None:
        try:
            with cut.snapshot:
                saved = self._write_cut(directory, self._ps_index, cut)
            result.set_result(saved)
        except StorageError as error:
            result.set_result(SavedShard(error=str(error)))
        except BaseException as error:
            result.set_exception(error)
            raise


def write_cut_shard(directory: Path, index: int, cut: CutSnapshot) -> SavedShard:
    """Write the shard of PS ``index``, a piece at a time; raises StorageError if the disk does not take it."""
    from edl.storage import checkpoint_shards  # loads safetensors, which an idle PS does not need

    content = make_shard_content(cut)
    arrays = [checkpoint_shards.ArrayShape(*array) for array in content.array_shapes]
    shard = checkpoint_shards.write_shard_parts(directory, index, arrays, content.parts, content.meta)
    return SavedShard(shard.file, shard.size, f"{shard.crc32:08x}")

"""Writing checkpoint shards in the background, while training goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from edl.api.errors import RetryableError, StorageError
from edl.ps.shard_content import to_shard
from edl.ps.shard_restore import Cut
from edl.transport.peer_errors import Refused

_REMEMBERED = 8
"""Results of how many cuts are kept for a question that is asked again."""


@dataclass(frozen=True, slots=True)
class Saved:
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

    def __init__(self, index: int, write: Callable[[Path, int, Cut], Saved] | None = None) -> None:
        self._index = index
        self._write = write or write_cut
        self._results: dict[int, Future[Saved]] = {}
        self._lock = threading.Lock()

    def begin(self, directory: Path, cut: Cut) -> None:
        """Start to write a cut, whose snapshot is held until that is done."""
        cut.snapshot.hold()
        result: Future[Saved] = Future()
        with self._lock:
            self._results[cut.number] = result
            for number in sorted(self._results)[:-_REMEMBERED]:
                del self._results[number]
        threading.Thread(target=self._run, args=(directory, cut, result), name="shard-writer", daemon=True).start()

    def wait(self, cut: int, timeout: float) -> Saved:
        """Wait until the shard is on disk, or is known not to be.

        Raises:
            Refused: no shard of that cut was ever begun here (kind ``cut``).
            RetryableError: it takes longer than ``timeout`` seconds.
        """
        with self._lock:
            result = self._results.get(cut)
        if result is None:
            raise Refused(f"no shard of cut {cut} was begun here", kind="cut")
        try:
            return result.result(timeout)
        except TimeoutError as error:
            raise RetryableError(f"the shard of cut {cut} is still being written after {timeout:.0f} s") from error

    def _run(self, directory: Path, cut: Cut, result: Future[Saved]) -> None:
        try:
            with cut.snapshot:
                saved = self._write(directory, self._index, cut)
            result.set_result(saved)
        except StorageError as error:
            result.set_result(Saved(error=str(error)))
        except BaseException as error:
            result.set_exception(error)
            raise


def write_cut(directory: Path, index: int, cut: Cut) -> Saved:
    """Write the shard of PS ``index``, a piece at a time; raises StorageError if the disk does not take it."""
    from edl.storage import checkpoint_shards  # loads safetensors, which an idle PS does not need

    content = to_shard(cut)
    arrays = [checkpoint_shards.ArrayShape(*array) for array in content.arrays]
    shard = checkpoint_shards.write_shard_parts(directory, index, arrays, content.parts, content.meta)
    return Saved(shard.file, shard.size, f"{shard.crc32:08x}")

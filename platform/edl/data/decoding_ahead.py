"""Decodes blocks by threads before they are read, in bounded memory.

Whoever reads in an order that is known, such as that of leases, says which blocks come next.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Generic, TypeVar

Block = TypeVar("Block", bound=Hashable)
Decoded = TypeVar("Decoded")

_THREADS = 2
_MOST_BYTES = 64 << 20
"""Memory of all blocks that were decoded and are not read yet."""


class DecodingAhead(Generic[Block, Decoded]):
    """Blocks that are decoded ahead. Threads may share an instance, and a forked process starts without any block.

    Args:
        decode: decodes a block; what it raises is raised again, by a second attempt, where the block is taken.
        size_of: approximate memory of a decoded block in bytes.
    """

    def __init__(self, decode: Callable[[Block], Decoded], size_of: Callable[[Block], int]) -> None:
        self._decode = decode
        self._size_of = size_of
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._pool: ThreadPoolExecutor | None = None
        self._expected: deque[Block] = deque()
        self._begun: dict[Block, Future[Decoded]] = {}

    def expect(self, blocks: Iterable[Block]) -> None:
        """Begin to decode the first of ``blocks``, which are read next, in this order; others are no longer expected.

        The next ones follow when blocks are taken.
        """
        expected = deque(blocks)
        if not expected and not self._expected:
            return
        with self._lock:
            self._forget_other_process()
            self._expected = expected
            for block in [each for each in self._begun if each not in expected]:
                self._begun.pop(block).cancel()
            self._begin()

    def take(self, block: Block) -> Decoded:
        """A decoded block. It is decoded now if it was not expected or does not fit into memory."""
        with self._lock:
            self._forget_other_process()
            future = self._begun.pop(block, None)
            with suppress(ValueError):
                self._expected.remove(block)
            self._begin()
        if future is None or future.cancel():  # a thread that has not begun would only be waited for
            return self._decode(block)
        with suppress(Exception):
            return future.result()
        return self._decode(block)

    def _begin(self) -> None:
        used = sum(map(self._size_of, self._begun))
        for block in self._expected:
            if len(self._begun) == _THREADS:
                break
            if block in self._begun:
                continue
            used += self._size_of(block)
            if used > _MOST_BYTES:
                break
            self._pool = self._pool or ThreadPoolExecutor(_THREADS, thread_name_prefix="edl-decode")
            self._begun[block] = self._pool.submit(self._decode, block)

    def _forget_other_process(self) -> None:
        """A forked process has no threads, so that it would wait for ever."""
        if self._process != os.getpid():
            self._process, self._pool = os.getpid(), None
            self._expected, self._begun = deque(), {}

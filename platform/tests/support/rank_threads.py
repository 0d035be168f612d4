"""Ranks of a round as threads of one process, each with its own listener."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from edl.api.round_id import RoundId
from edl.collective.collective_listener import CollectiveListener
from edl.collective.communicator import Communicator

TOKEN = "the-token-of-these-tests"
BOUND = 20.0
"""Seconds after which a test fails that should have ended long before."""
T = TypeVar("T")


@dataclass(frozen=True)
class Variant:
    """One implementation.

    Attributes:
        native: of even and of odd ranks.
        unix: ranks meet on Unix sockets; native ones then share memory.
    """

    name: str
    native: tuple[bool, bool]
    unix: bool


NUMPY = (Variant("numpy-tcp", (False, False), False), Variant("numpy-unix", (False, False), True))
NATIVE = (
    Variant("native-tcp", (True, True), False),
    Variant("shared-memory", (True, True), True),
    Variant("mixed-tcp", (True, False), False),
    Variant("mixed-unix", (True, False), True),
)


class RankThreads:
    """Listeners of several ranks, and a thread for each; a context manager."""

    def __init__(self, variant: Variant, folder: Path, most: int = 7) -> None:
        self._variant = variant
        self._numbers = itertools.count(1)
        self._stack = ExitStack()
        self.listeners = [self._make_listener(folder, rank) for rank in range(most)]
        self._threads = ThreadPoolExecutor(2 * most)

    def _make_listener(self, folder: Path, rank: int) -> CollectiveListener:
        address = f"unix:{folder}/{rank}" if self._variant.unix else "127.0.0.1:0"
        listener = CollectiveListener(address, TOKEN, shared_memory=self._variant.native[rank % 2])
        return self._stack.enter_context(listener)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
        self._threads.shutdown()

    def connect(self, size: int, *, late: Mapping[int, float] | None = None, **options: Any) -> list[Communicator]:
        """Begin a new round among the first ranks.

        Args:
            late: by rank, the seconds after which it hears of the round.
        """
        round_id = RoundId(1, next(self._numbers))
        members = [listener.address for listener in self.listeners[:size]]

        def connect(rank: int) -> Communicator:
            native = self._variant.native[rank % 2]
            listener = self.listeners[rank]
            time.sleep((late or {}).get(rank, 0.0))
            return Communicator.connect(listener, round_id, rank, members, native=native, timeout=BOUND, **options)

        return self.each(connect, range(size))

    @contextmanager
    def round(self, size: int, **options: Any) -> Iterator[list[Communicator]]:
        """A round for the time of a block."""
        ranks = self.connect(size, **options)
        try:
            yield ranks
        finally:
            self.each(Communicator.close, ranks)

    def each(self, do: Callable[[Any], T], arguments: Sequence[Any]) -> list[T]:
        """Do something in one thread for each; raises what the first raises, when all are done."""
        futures = [self._threads.submit(do, argument) for argument in arguments]
        for future in futures:
            future.exception(BOUND)
        return [future.result() for future in futures]

    def outcomes(self, do: Callable[[Any], T], arguments: Sequence[Any]) -> list[T | BaseException]:
        """The same, with what each raises in the place of its result."""
        futures = [self._threads.submit(do, argument) for argument in arguments]
        return [future.exception(BOUND) or future.result() for future in futures]

"""What a test sets for all loggers ends with the test."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


@contextmanager
def restored_logging(handlers: Iterable[logging.Handler]) -> Iterator[None]:
    """Put back the level of the root logger, and levels and filters of these handlers.

    A process of EDL sets those of all handlers that it finds. In a process that runs many tests pytest's own are of
    them, and stay the same objects from one test to the next.
    """
    root_level = logging.root.level
    before = [(handler, handler.level, handler.filters[:]) for handler in handlers]
    try:
        yield
    finally:
        logging.root.setLevel(root_level)
        for handler, level, filters in before:
            handler.setLevel(level)
            handler.filters[:] = filters

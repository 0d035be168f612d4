"""Sets what a process prints: ``log.level``."""

from __future__ import annotations

import logging


def set_printed_level(level: str) -> None:
    """Let the handlers that exist print records of a level and above.

    Warnings reach other handlers at any level: those that a worker reports to its master are of them.

    Args:
        level: ``debug``, ``info``, ``warning`` or ``error``.
    """
    least = logging.getLevelNamesMapping()[level.upper()]
    root = logging.getLogger()
    root.setLevel(min(least, logging.WARNING))
    for handler in root.handlers:
        handler.setLevel(least)

"""Warnings about the user's model and data, which users must see although they are logged in a worker."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Self

_COLLECTED = ("edl.keras", "edl.worker.feed_pipeline", "edl.worker.not_finite", "edl.worker.validation_check")
"""The loggers whose warnings are about the user's model, its export, skipped updates and the data."""
MAX_WARNINGS_OF_TOPIC = 3
"""A warning about each minibatch stays in the log after so many."""
_MARK = "edl_collected"


class WarningCollector(logging.Handler):
    """Passes warnings on; each text once, and a few of each topic: the message before its values are filled in.

    Args:
        pass_on: called with topic and text, on the thread that warns; must not block.
    """

    def __init__(self, pass_on: Callable[[str, str], None]) -> None:
        super().__init__(logging.WARNING)
        self._pass_on = pass_on
        self._texts: dict[str, set[str]] = {}

    def __enter__(self) -> Self:
        """Collect the warnings of this process from now on."""
        for name in _COLLECTED:
            logging.getLogger(name).addHandler(self)
        return self

    def __exit__(self, *error: object) -> None:
        for name in _COLLECTED:
            logging.getLogger(name).removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        topic, text = str(record.msg), record.getMessage()
        texts = self._texts.setdefault(topic, set())
        if text in texts or len(texts) >= MAX_WARNINGS_OF_TOPIC:
            return
        texts.add(text)
        setattr(record, _MARK, True)
        self._pass_on(topic, text)


def is_not_collected(record: logging.LogRecord) -> bool:
    """A filter for a handler that would show warnings again which a collector has passed on."""
    return not getattr(record, _MARK, False)

"""Tries a request to a store or a database again after a temporary error."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from edl.api.errors import RetryableError
from edl.core.backoff import ExponentialBackoff
from edl.retry.attempts import Retry

ResultT = TypeVar("ResultT")
_log = logging.getLogger(__name__)

TRIES = 4
_BACKOFF = ExponentialBackoff(first_seconds=0.4, max_seconds=5.0)
pause = time.sleep


def retry_temporary(
    action: Callable[[], ResultT],
    translate: Callable[[Exception], Exception],
    *,
    errors: type[Exception] | tuple[type[Exception], ...] = Exception,
    tries: int = TRIES,
    hides_cause: bool = False,
) -> ResultT:
    """The result of an action, which is tried again after a temporary error.

    Args:
        action: what is tried.
        translate: the error that the caller gets, of one that the action raised. A RetryableError is temporary.
        errors: those that are translated; others pass.
        tries: how often the action is tried.
        hides_cause: the original error is no cause of the translated one: its text may have a password.
    """
    retry = Retry(_BACKOFF, pause, tries=tries)
    while True:
        try:
            return action()
        except errors as error:
            translated = translate(error)
            if not isinstance(translated, RetryableError) or retry.is_last:
                raise translated from (None if hides_cause else error)
            _log.info("%s; trying again", translated)
            retry.wait()

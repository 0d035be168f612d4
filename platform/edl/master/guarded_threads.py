"""Threads of the master whose failure ends the process; without one of them the job would wait forever."""

from __future__ import annotations

import threading
from collections.abc import Callable

FailureHandler = Callable[[Exception], None]
"""Called with the exception that stopped a part of the master; ends the master."""


def start_guarded_thread(name: str, run: Callable[[], None], on_failure: FailureHandler) -> threading.Thread:
    """Run a function on a thread of its own; an exception ends the master.

    Args:
        name: for logs and debuggers.
        run: returns when the thread is no longer needed.
        on_failure: called with the exception.
    """

    def guarded() -> None:
        try:
            run()
        except Exception as error:  # noqa: BLE001 - any error ends the master
            on_failure(error)

    thread = threading.Thread(target=guarded, name=name, daemon=True)
    thread.start()
    return thread

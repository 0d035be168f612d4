"""Threads of the master: none dies unnoticed, because a job whose master lacks one waits forever."""

from __future__ import annotations

import threading
from collections.abc import Callable

FailureHandler = Callable[[Exception], None]
"""Told what a part of the master cannot go on for; ends the master."""


def start_guarded_thread(name: str, run: Callable[[], None], on_failure: FailureHandler) -> threading.Thread:
    """Run something on a thread of its own; whatever it raises ends the master.

    Args:
        name: for logs and debuggers.
        run: returns when the thread is no longer needed.
        failed: told what it raised.
    """

    def guarded() -> None:
        try:
            run()
        except Exception as error:  # noqa: BLE001 - the master ends by it, whatever it is
            on_failure(error)

    thread = threading.Thread(target=guarded, name=name, daemon=True)
    thread.start()
    return thread

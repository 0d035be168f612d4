"""One thread beside the one that computes: it does what it is given, in the order in which it was given."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, TypeVar

JobResult = TypeVar("JobResult")


class SerialExecutor:
    """Jobs one after another. Its thread begins with the first job and is a daemon: it keeps no process alive.

    Args:
        name: of the thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._job_queue: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._newest_future: Future[Any] | None = None

    def submit(self, job: Callable[[], JobResult]) -> Future[JobResult]:
        """Do ``job`` after all that were given before; what it returns or raises comes out of the future.

        To be called by one thread.
        """
        if self._newest_future is None:
            threading.Thread(target=self._run, name=self._name, daemon=True).start()
        future: Future[JobResult] = Future()
        self._newest_future = future
        self._job_queue.put((future, job))
        return future

    def drain(self) -> None:
        """Wait until nothing is under way, however it ends."""
        if self._newest_future is not None:
            wait((self._newest_future,))

    def close(self) -> None:
        """End the thread once it has done what it was given. No job may follow."""
        self._job_queue.put(None)

    def _run(self) -> None:
        while (given := self._job_queue.get()) is not None:
            future, job = given
            try:
                future.set_result(job())
            except BaseException as error:  # noqa: BLE001  raised again where the result is wanted
                future.set_exception(error)
            del future, job, given  # a gradient or rows, which nobody needs until the next job comes

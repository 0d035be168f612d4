"""The way to one parameter server: questions go there one after the other, each until it is answered."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable

from edl.api.errors import RefusedError, RetryableError
from edl.master.ps_requests import ControlRequest
from edl.transport.control_client import open_control_channel
from edl.transport.peer_errors import refusal_kind

ANSWER_TIMEOUT_SECONDS = 60.0
"""How long a PS whose pod lives may leave a question without an answer before the core is told."""
_PAUSE_SECONDS = 0.2


class PsGoneError(RetryableError):
    """The pod has ended: there will be no answer."""


class PsConnection:
    """One PS, as this master reaches it.

    Args:
        uid: of the pod.
        index: of the PS.
        control_address: where it answers the master.
        bulk_address: where it answers workers.
        token: of the job.
        patience: seconds without an answer after which ``silent`` is called, again and again.
        clock: monotonic seconds.

    Raises:
        BadInputError: the control address is none.
    """

    def __init__(
        self,
        uid: str,
        index: int,
        control_address: str,
        bulk_address: str,
        token: str,
        *,
        patience: float = ANSWER_TIMEOUT_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.uid, self.index = uid, index
        self.control_address, self.bulk_address = control_address, bulk_address
        self._channel = open_control_channel(control_address, token)
        self._answer_timeout, self._clock = patience, clock
        self._requests: queue.SimpleQueue[ControlRequest | None] = queue.SimpleQueue()
        self._gone = threading.Event()

    def put(self, question: ControlRequest) -> None:
        """Ask, after what was asked before."""
        self._requests.put(question)

    def end(self) -> None:
        """The pod is gone: nothing is asked any more, and a call on its way ends."""
        self._gone.set()
        self._requests.put(None)
        self._channel.close()

    @property
    def gone(self) -> bool:
        """Whether the pod has ended."""
        return self._gone.is_set()

    def next(self) -> ControlRequest | None:
        """The next question, once there is one; None when the pod is gone."""
        question = self._requests.get()
        return None if self.gone else question

    def ask(self, question: ControlRequest, silent: Callable[[float], None]) -> object:
        """The answer, however long it takes as long as the pod lives.

        Args:
            question: what is asked.
            silent: told the seconds for which there was no answer, each time that patience ends.

        Raises:
            GoneError: the pod ended.
            RefusedError: the PS will not do it.
        """
        since = self._clock()
        while not self.gone:
            try:
                return self._send_once(question)
            except RetryableError:
                waited = self._clock() - since
                if waited >= self._answer_timeout and not self.gone:
                    silent(waited)
                    since = self._clock()
            self._gone.wait(_PAUSE_SECONDS)
        raise PsGoneError(f"ps-{self.index} is gone", where=self.control_address)

    def _send_once(self, question: ControlRequest) -> object:
        try:
            return self._channel.call(question.method, question.request, deadline=question.deadline)
        except RefusedError as error:
            if self.gone or refusal_kind(error) == "busy":
                raise RetryableError(str(error)) from error
            raise

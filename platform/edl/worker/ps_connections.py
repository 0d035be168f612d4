"""Sends requests to all parameter servers in parallel and retries those that did not answer.

All requests are sent before the first answer is awaited, so that the PS work at the same time. The loss
of a PS costs no step: the worker requests the placement again and repeats the same request to the PS
that did not answer. A PS answers DUPLICATE to a push that it has already applied.
docs/design/0002-record-accounting.md has the rules.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from google.protobuf.message import Message

from edl.api.errors import BadInputError, JobFailedError, RetryableError
from edl.core.backoff import ExponentialBackoff
from edl.retry.attempts import Retry, draw_jitter
from edl.transport import edl_pb2 as pb
from edl.transport.bulk_client import BulkClient
from edl.transport.bulk_connection import FrameKind, ReceivedFrame
from edl.transport.peer_errors import BulkRefusedError
from edl.worker.master_session import PsPlacement

_LOG = logging.getLogger(__name__)

_BACKOFF = ExponentialBackoff(first_seconds=0.02, max_seconds=0.3)
"""Short, because every step waits for the slowest PS."""
# In this order: the PS has no model, which the next attempt declares; the master that granted the lease
# has not attached to it yet; a cut, a round or a restore is in progress.
_RETRYABLE_KINDS = frozenset({"uninitialized", "incarnation", "busy"})


class ModelMismatchError(BulkRefusedError, BadInputError):
    """A PS cannot hold this model, or holds a different one, such as that of the resumed checkpoint."""


class PsDirectory(Protocol):
    """Knows the addresses of the PS and the leading master; implemented by the session."""

    @property
    def incarnation(self) -> int:
        """The incarnation of the leading master."""

    @property
    def placement(self) -> PsPlacement:
        """The newest known placement."""

    def register(self) -> PsPlacement:
        """Ask the master for the newest placement."""


@dataclass(frozen=True, slots=True)
class PsRequest:
    """A request to one PS.

    Attributes:
        head: the head of the frame; that of a push is updated for each attempt.
        receive_into: memory for the body of the answer.
    """

    kind: FrameKind
    head: Message
    buffers: Sequence[memoryview] = ()
    receive_into: memoryview | None = None


class PsBulkConnections:
    """The connections to all parameter servers; used by one thread.

    Args:
        directory: the placement of the PS.
        connect: opens a connection to an address.
        make_declaration: returns the declaration for a PS that has no model.
        answer_timeout: seconds without an answer of a PS after which the worker fails.
        clock: returns monotonic seconds.
        pause: waits for the given seconds.
        jitter: returns a random number, uniform in 0-1.
    """

    def __init__(
        self,
        directory: PsDirectory,
        connect: Callable[[str], BulkClient],
        make_declaration: Callable[[int], PsRequest],
        *,
        answer_timeout: float,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
        jitter: Callable[[], float] = draw_jitter,
    ) -> None:
        self._directory = directory
        self._connect = connect
        self._make_declaration = make_declaration
        self._answer_timeout = answer_timeout
        self._clock = clock
        self._pause = pause
        self._jitter = jitter
        self._clients: dict[int, tuple[str, BulkClient]] = {}
        self._undeclared_ps: set[int] = set()
        self._answered_uids: dict[int, str] = {}

    def find_replaced_ps(self) -> set[int]:
        """PS of the current placement whose process has never answered here: it may be empty."""
        placement = self._directory.placement
        self._drop_replaced(placement)
        return {part for part, uid in placement.uids.items() if self._answered_uids.get(part) != uid}

    def exchange(self, requests: Mapping[int, PsRequest]) -> dict[int, ReceivedFrame]:
        """Send to all, receive from all, and retry those that did not answer.

        Bodies are valid until the next exchange.

        Raises:
            JobFailedError: a PS did not answer for longer than ``answer_timeout``.
            RefusedError: a PS refused permanently; ModelMismatchError if it refused the model.
        """
        answers: dict[int, ReceivedFrame] = {}
        started_at, retry = self._clock(), Retry(_BACKOFF, self._pause, jitter=self._jitter)
        while problem := self._try_once({p: r for p, r in requests.items() if p not in answers}, answers):
            if self._clock() - started_at >= self._answer_timeout:
                raise JobFailedError(f"a parameter server does not answer: {problem.message}", where=problem.where)
            if not retry.failures:
                _LOG.info("a parameter server does not answer (%s): retrying", problem.message)
            retry.wait()
            # The PS may have been replaced, and only the master knows where its successor is.
            self._drop_replaced(self._directory.register())
        return answers

    def _try_once(self, requests: Mapping[int, PsRequest], answers: dict[int, ReceivedFrame]) -> RetryableError | None:
        """One attempt; returns a problem that is worth a retry."""
        # Receive every answer before a refusal is raised: an unread one would be taken for the answer to
        # the next request on its connection.
        problem: RetryableError | None = None
        refusal: BulkRefusedError | None = None
        for phase in (self._send_request, self._receive_answer):
            for ps_index, request in list(requests.items()):
                try:
                    phase(ps_index, request, answers)
                except RetryableError as error:
                    # An answer that comes late would be taken for the one to the next request.
                    self._disconnect(ps_index)
                    requests, problem = (
                        _requests_without(requests, ps_index),
                        RetryableError(error.message, where=f"ps-{ps_index}"),
                    )
                except BulkRefusedError as error:
                    requests = _requests_without(requests, ps_index)
                    if error.kind not in _RETRYABLE_KINDS:
                        _LOG.warning("ps-%d refused the request: %s", ps_index, error)
                        # The log has the address; the error names the PS instead, which helps users.
                        error_class = ModelMismatchError if error.kind == "model" else BulkRefusedError
                        refusal = error_class(error.message, kind=error.kind, where=f"ps-{ps_index}", hint=error.hint)
                    else:
                        problem = RetryableError(error.message, where=f"ps-{ps_index}")
                        if error.kind == "uninitialized":
                            self._undeclared_ps.add(ps_index)
        if refusal is not None:
            raise refusal
        return problem

    def _send_request(self, ps_index: int, request: PsRequest, _: dict[int, ReceivedFrame]) -> None:
        client = self._get_client(ps_index)
        if ps_index in self._undeclared_ps and request.kind is not FrameKind.DECLARE:
            declaration = self._make_declaration(ps_index)
            client.request(declaration.kind, declaration.head.SerializeToString(), declaration.buffers)
            self._undeclared_ps.discard(ps_index)
        head = request.head
        if isinstance(head, pb.Push):
            # Another master may lead since the last attempt.
            head.incarnation = self._directory.incarnation
        meta = head.SerializeToString()
        if isinstance(head, pb.Push):
            # For the next attempt: whatever the result of this one, the push may have been applied.
            head.again = True
        client.send(request.kind, meta, request.buffers)

    def _receive_answer(self, ps_index: int, request: PsRequest, answers: dict[int, ReceivedFrame]) -> None:
        client = self._get_client(ps_index)
        answers[ps_index] = _check_body_size(
            request, client.check_reply_kind(request.kind, client.receive(request.receive_into))
        )
        # The process and not the index: a successor may be empty.
        self._answered_uids[ps_index] = self._clients[ps_index][0]

    def _get_client(self, ps_index: int) -> BulkClient:
        connected = self._clients.get(ps_index)
        if connected is not None:
            return connected[1]
        placement = self._directory.placement
        address = placement.addresses.get(ps_index)
        if not address:
            raise RetryableError(f"parameter server {ps_index} has no address yet")
        client = self._connect(address)
        self._clients[ps_index] = (placement.uids.get(ps_index, ""), client)
        return client

    def _drop_replaced(self, placement: PsPlacement) -> None:
        """Close connections to processes that were replaced."""
        for part, (uid, _) in list(self._clients.items()):
            if placement.uids.get(part, "") != uid:
                self._disconnect(part)

    def _disconnect(self, ps_index: int) -> None:
        connected = self._clients.pop(ps_index, None)
        if connected is not None:
            connected[1].close()

    def close(self) -> None:
        for part in list(self._clients):
            self._disconnect(part)


def _check_body_size(request: PsRequest, frame: ReceivedFrame) -> ReceivedFrame:
    """Check that the answer has all requested values; the answer to a push of a lost lease may have none.

    Raises:
        BulkRefusedError: it has fewer or more values.
    """
    expected_bytes = request.receive_into.nbytes if request.receive_into is not None else frame.body.nbytes
    if frame.body.nbytes != expected_bytes and (frame.body.nbytes or request.kind is not FrameKind.PUSH):
        raise BulkRefusedError(
            f"the {frame.kind.name} answer has {frame.body.nbytes} bytes of values; requested were {expected_bytes}",
            kind="bad",
        )
    return frame


def _requests_without(requests: Mapping[int, PsRequest], ps_index: int) -> dict[int, PsRequest]:
    return {other: request for other, request in requests.items() if other != ps_index}

"""What the master asks of parameter servers: one thread a PS keeps the order, answers come back as events.

A question is never dropped while the pod of its PS lives: a revocation that nobody answers holds records back, and a
cut that is off and not released holds workers up. The core judges a PS that lives and is silent, and one that refuses.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

from edl.api.errors import RefusedError
from edl.core.events import (
    AttachPs,
    CopyCheckpoint,
    CoreCommand,
    CoreEvent,
    PsRefused,
    PsSilent,
    RevokeLeases,
    SaveCheckpoint,
)
from edl.master import guarded_threads
from edl.master.checkpoint_coordinator import CheckpointCoordinator
from edl.master.ps_connection import ANSWER_TIMEOUT_SECONDS, PsConnection, PsGoneError
from edl.master.ps_requests import ControlRequest, ControlRequestBuilder
from edl.transport.control_client import open_control_channel
from edl.transport.peer_errors import refusal_kind

log = logging.getLogger(__name__)


class PsControlClient:
    """Carries out what the core wants of PS.

    Args:
        token: of the job.
        incarnation: of this master; PS refuse lower ones.
        count: how many PS the job has.
        checkpoints: writes manifests.
        patience: seconds without an answer after which the core is told.
    """

    def __init__(
        self,
        token: str,
        incarnation: int,
        count: int,
        checkpoints: CheckpointCoordinator,
        *,
        patience: float = ANSWER_TIMEOUT_SECONDS,
    ) -> None:
        self._token, self._incarnation, self._count = token, incarnation, count
        self._checkpoints, self._answer_timeout = checkpoints, patience
        self._request_builder = ControlRequestBuilder(incarnation, count, checkpoints.directory)
        self._connections: dict[str, PsConnection] = {}
        self._lock = threading.Lock()
        self._handle: Callable[[CoreEvent], Any] = lambda event: None
        self._on_failure: guarded_threads.FailureHandler = lambda error: None

    def start(self, handle: Callable[[CoreEvent], Any], failed: guarded_threads.FailureHandler) -> None:
        """Where answers go, and who is told that this master has been replaced; before anything else."""
        self._handle, self._on_failure = handle, failed

    # ------------------------------------------------------------------ who there is

    def registered(self, uid: str, index: int, control_address: str, bulk_address: str) -> bool:
        """Remember where a PS listens; whether it is to be attached (it is new here).

        Raises:
            BadInputError: the control address is none.
        """
        with self._lock:
            if uid in self._connections:
                return False
            link = PsConnection(uid, index, control_address, bulk_address, self._token, patience=self._answer_timeout)
            self._connections[uid] = link
        guarded_threads.start_guarded_thread(f"ps-{index}", lambda: self._serve(link), self._on_failure)
        return True

    def ended(self, uid: str) -> None:
        """A PS is gone: nothing is asked of it any more."""
        with self._lock:
            link = self._connections.pop(uid, None)
        if link is not None:
            link.end()

    def addresses(self) -> Mapping[str, PsConnection]:
        """Links by uid."""
        with self._lock:
            return dict(self._connections)

    def close(self) -> None:
        """Forget all of them."""
        for uid in self.addresses():
            self.ended(uid)

    # ------------------------------------------------------------------ asking

    def do(self, command: CoreCommand) -> None:
        """Queue what a command asks of one PS, or of all."""
        if isinstance(command, SaveCheckpoint):
            guarded_threads.start_guarded_thread(f"save-{command.cut}", lambda: self._save(command), self._on_failure)
            return
        if isinstance(command, CopyCheckpoint):
            guarded_threads.start_guarded_thread(f"copy-{command.cut}", lambda: self._copy(command), self._on_failure)
            return
        links = self.addresses()
        match command:
            case AttachPs(uid=one) | RevokeLeases(ps=one):
                asked = {one} & links.keys()  # else its pod has ended, and the core will hear of that
            case _:
                asked = set(links)
        for uid in sorted(asked):
            links[uid].put(self._request_builder.build_request(command, uid))

    def _serve(self, link: PsConnection) -> None:
        while (question := link.next()) is not None:
            try:
                reply = link.ask(question, lambda seconds: self._handle(PsSilent(link.uid, seconds)))
            except PsGoneError:
                return
            except RefusedError as error:
                self._handle_refusal(link, question, error)
            else:
                self._handle_answer(link, question, reply)

    def _handle_answer(self, link: PsConnection, question: ControlRequest, reply: Any) -> None:
        if question.waits(reply):
            link.put(question)
            return
        event = question.event(reply)
        if event is not None:
            self._handle(event)

    def _handle_refusal(self, link: PsConnection, question: ControlRequest, error: RefusedError) -> None:
        method, kind = question.method.name, refusal_kind(error)
        what = f"ps-{link.index} refuses {method}: {error.message.removeprefix(f'{method}: ')}"
        log.warning("%s (%s)", what, error.where)
        if kind == "incarnation":
            self._on_failure(error)
        elif question.restore and kind == "storage":
            self._handle(self._checkpoints.refused(link.uid, question.restore, what))
        elif question.is_required or question.cut:
            self._handle(PsRefused(link.uid, kind, what, question.cut))

    def _copy(self, command: CopyCheckpoint) -> None:
        self._handle(self._checkpoints.copy(command))

    def _save(self, command: SaveCheckpoint) -> None:
        addresses = {link.index: link.control_address for link in self.addresses().values()}
        channels = {index: open_control_channel(address, self._token) for index, address in addresses.items()}
        try:
            event = self._checkpoints.save(command, channels, self._count, self._incarnation)
        finally:
            for channel in channels.values():
                channel.close()
        self._handle(event)

"""Pods, as the master sees them: watching the cluster, and asking it for changes, each on a thread of its own."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from typing import Any

from edl.core.cluster import Cluster, Synced
from edl.core.errors import BadInputError, EdlError, RetryableError
from edl.core.events import Command, DeletePod, Event, PodChanged, PodsSynced, StartPod, StartRefused

log = logging.getLogger(__name__)


class Pods:
    """Carries out StartPod and DeletePod, and turns what the cluster says into events."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._wishes: queue.Queue[StartPod | DeletePod | None] = queue.Queue()
        self._threads: list[threading.Thread] = []

    def start(self, handle: Callable[[Event], Any], lost: Callable[[EdlError], None]) -> None:
        """Begin to watch and to serve wishes; ``lost`` is called when the cluster is gone for good."""
        for name, target in (("watch", self._watch), ("wishes", self._serve)):
            thread = threading.Thread(target=target, args=(handle, lost), name=f"pods-{name}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def do(self, command: Command) -> None:
        """Queue a wish."""
        assert isinstance(command, StartPod | DeletePod)
        self._wishes.put(command)

    def close(self) -> None:
        """Stop watching; pods stay as they are."""
        self._wishes.put(None)
        self._cluster.close()

    def _watch(self, handle: Callable[[Event], Any], lost: Callable[[EdlError], None]) -> None:
        try:
            for seen in self._cluster.watch():
                handle(PodsSynced() if isinstance(seen, Synced) else PodChanged(seen))
        except EdlError as error:
            lost(error)

    def _serve(self, handle: Callable[[Event], Any], lost: Callable[[EdlError], None]) -> None:
        try:
            while (wish := self._wishes.get()) is not None:
                refusal = self._carry_out(wish)
                if refusal is not None:
                    handle(refusal)
        except EdlError as error:
            lost(error)

    def _carry_out(self, wish: StartPod | DeletePod) -> StartRefused | None:
        try:
            if isinstance(wish, DeletePod):
                self._cluster.delete(wish.uid, grace=wish.grace)
            else:
                self._cluster.start(wish.role, wish.index)
        except (RetryableError, BadInputError) as error:
            if isinstance(wish, StartPod):
                return StartRefused(wish.role, wish.index, str(error), isinstance(error, RetryableError))
            log.warning("pod %s was not deleted: %s", wish.uid, error)
        return None

"""What the master asks of parameter servers: one thread a PS keeps the order, answers come back as events."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from edl.core.errors import EdlError, RetryableError
from edl.core.events import (
    AnnounceCut,
    AttachPs,
    Command,
    Event,
    PsAttached,
    ReleaseCut,
    Revoked,
    RevokeLeases,
    SaveCheckpoint,
    SnapshotTaken,
    TakeSnapshot,
    Unpin,
)
from edl.core.partition import placement
from edl.master.checkpoints import Checkpoints
from edl.rpc import edl_pb2 as pb
from edl.rpc.channels import Channel, Retry, connect
from edl.rpc.methods import PsControl
from edl.store.manifest import cut_directory

log = logging.getLogger(__name__)

_DEADLINE = 30.0
"""Seconds for one call: a snapshot copies all parameters, a restore reads them from disk."""
_RETRY = Retry(within=60.0)
Job = Callable[[Channel], None]


@dataclass(slots=True)
class Link:
    """The way to one PS."""

    uid: str
    index: int
    control_address: str
    bulk_address: str
    channel: Channel
    jobs: queue.Queue[Job | None] = field(default_factory=queue.Queue)


class ParameterServers:
    """Carries out what the core wants of PS.

    Args:
        token: of the job.
        incarnation: of this master; PS refuse lower ones.
        count: how many PS the job has.
        checkpoints: writes manifests.
        floor: every lease below is closed; asked when a snapshot is taken.
    """

    def __init__(
        self, token: str, incarnation: int, count: int, checkpoints: Checkpoints, floor: Callable[[], int]
    ) -> None:
        self._token, self._incarnation, self._count = token, incarnation, count
        self._checkpoints, self._floor = checkpoints, floor
        self._links: dict[str, Link] = {}
        self._lock = threading.Lock()
        self._handle: Callable[[Event], Any] = lambda event: None
        self._lost: Callable[[EdlError], None] = lambda error: None

    def start(self, handle: Callable[[Event], Any], lost: Callable[[EdlError], None]) -> None:
        """Where answers go, and who is told that this master has been replaced."""
        self._handle, self._lost = handle, lost

    # ------------------------------------------------------------------ who there is

    def registered(self, uid: str, index: int, control_address: str, bulk_address: str) -> bool:
        """Remember where a PS listens; whether it is to be attached (it is new here)."""
        with self._lock:
            if uid in self._links:
                return False
            link = Link(uid, index, control_address, bulk_address, connect(control_address, self._token))
            self._links[uid] = link
        threading.Thread(target=self._serve, args=(link,), name=f"ps-{index}", daemon=True).start()
        return True

    def ended(self, uid: str) -> None:
        """A PS is gone: nothing is asked of it any more."""
        with self._lock:
            link = self._links.pop(uid, None)
        if link is not None:
            link.jobs.put(None)
            link.channel.close()

    def addresses(self) -> Mapping[str, Link]:
        """Links by uid."""
        with self._lock:
            return dict(self._links)

    def close(self) -> None:
        """Forget all of them."""
        for uid in self.addresses():
            self.ended(uid)

    def _serve(self, link: Link) -> None:
        while (job := link.jobs.get()) is not None:
            try:
                job(link.channel)
            except RetryableError as error:
                log.warning("ps-%d (%s) does not answer: %s", link.index, link.uid, error)
            except EdlError as error:
                self._refused(link, error)

    def _refused(self, link: Link, error: EdlError) -> None:
        if link.uid not in self.addresses():
            return  # it ended while it was asked
        if getattr(error, "kind", "") == "incarnation":
            self._lost(error)
        else:
            log.error("ps-%d refuses: %s", link.index, error)

    # ------------------------------------------------------------------ commands

    def do(self, command: Command) -> None:
        """Queue what a command asks of one PS, or of all."""
        if isinstance(command, AttachPs):
            self._queue(command.uid, self._attach(command))
        elif isinstance(command, RevokeLeases):
            self._queue(command.ps, self._revoke(command))
        elif isinstance(command, SaveCheckpoint):
            self._save(command)
        else:
            for uid in self.addresses():
                self._queue(uid, self._for_all(command, uid))

    def _queue(self, uid: str, job: Job) -> None:
        link = self.addresses().get(uid)
        if link is not None:
            link.jobs.put(job)

    def _attach(self, command: AttachPs) -> Job:
        request = pb.AttachRequest(
            incarnation=self._incarnation,
            floor=command.floor,
            revoked=command.revoked,
            live=command.live,
            cut=command.cut,
            slots=placement(self._count),
        )
        if command.restore is not None:
            request.restore = str(cut_directory(self._checkpoints.directory, command.restore))

        def job(channel: Channel) -> None:
            reply = channel.call(PsControl.Attach, request, deadline=_DEADLINE, retry=_RETRY)
            self._handle(PsAttached(command.uid, reply.initialized, reply.version, tuple(reply.pins)))

        return job

    def _revoke(self, command: RevokeLeases) -> Job:
        request = pb.RevokeRequest(incarnation=self._incarnation, leases=command.leases, floor=command.floor)

        def job(channel: Channel) -> None:
            reply = channel.call(PsControl.Revoke, request, deadline=_DEADLINE, retry=_RETRY)
            self._handle(Revoked(command.ps, {step.lease: step.through for step in reply.applied}))

        return job

    def _for_all(self, command: Command, uid: str) -> Job:
        if isinstance(command, TakeSnapshot):
            return self._snapshot(command, uid)

        def job(channel: Channel) -> None:
            match command:
                case AnnounceCut(cut):
                    announce = pb.AnnounceRequest(incarnation=self._incarnation, cut=cut)
                    channel.call(PsControl.Announce, announce, deadline=_DEADLINE, retry=_RETRY)
                case ReleaseCut(cut):
                    release = pb.ReleaseRequest(incarnation=self._incarnation, cut=cut)
                    channel.call(PsControl.Release, release, deadline=_DEADLINE, retry=_RETRY)
                case Unpin(cut):
                    unpin = pb.UnpinRequest(incarnation=self._incarnation, cut=cut)
                    channel.call(PsControl.Unpin, unpin, deadline=_DEADLINE, retry=_RETRY)
                case _:
                    raise TypeError(f"not a command for parameter servers: {command}")

        return job

    def _snapshot(self, command: TakeSnapshot, uid: str) -> Job:
        directory = str(cut_directory(self._checkpoints.directory, command.cut)) if command.checkpoint else ""
        request = pb.SnapshotRequest(
            incarnation=self._incarnation,
            cut=command.cut,
            checkpoint=directory,
            pin=command.pin,
            floor=self._floor(),
        )

        def job(channel: Channel) -> None:
            reply = channel.call(PsControl.Snapshot, request, deadline=_DEADLINE, retry=_RETRY)
            applied = {step.lease: step.through for step in reply.applied}
            self._handle(SnapshotTaken(uid, command.cut, reply.version, applied))

        return job

    def _save(self, command: SaveCheckpoint) -> None:
        links = self.addresses()
        channels = {link.index: connect(link.control_address, self._token) for link in links.values()}

        def save() -> None:
            try:
                self._handle(self._checkpoints.save(command, channels, self._incarnation))
            finally:
                for channel in channels.values():
                    channel.close()

        threading.Thread(target=save, name=f"save-{command.cut}", daemon=True).start()

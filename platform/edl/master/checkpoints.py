"""Checkpoints, the master's half: waiting for the shards, writing the manifest, removing old ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from edl.core.errors import EdlError, StorageError
from edl.core.events import CheckpointSaved, SaveCheckpoint
from edl.rpc import edl_pb2 as pb
from edl.rpc.channels import Channel, Retry
from edl.rpc.methods import PsControl
from edl.store.checkpoint import commit, prune
from edl.store.manifest import Manifest, ShardInfo

_DEADLINE = 300.0
_RETRY = Retry(within=30.0)


class Checkpoints:
    """The checkpoints of a run.

    Args:
        directory: ``<run>/checkpoints``.
        keep: newest ones that are kept.
        protected: cuts that must not be removed, asked each time.
    """

    def __init__(self, directory: Path, keep: int, protected: Callable[[], set[int]]) -> None:
        self.directory = directory
        self._keep = keep
        self._protected = protected

    def save(self, command: SaveCheckpoint, channels: Mapping[int, Channel], incarnation: int) -> CheckpointSaved:
        """Wait until every PS has its shard on disk, then make the checkpoint real."""
        from edl.store.manifest import cut_directory

        directory = cut_directory(self.directory, command.cut)
        try:
            shards = [self._shard(channels[index], command.cut, incarnation) for index in sorted(channels)]
            created = datetime.now(UTC).isoformat(timespec="seconds")
            commit(directory, Manifest(command.cut, command.version, created, tuple(shards), dict(command.ledger)))
        except EdlError as error:
            return CheckpointSaved(command.cut, str(error))
        prune(self.directory, self._keep, self._protected() | {command.cut})
        return CheckpointSaved(command.cut)

    def _shard(self, channel: Channel, cut: int, incarnation: int) -> ShardInfo:
        request = pb.SavedRequest(incarnation=incarnation, cut=cut)
        reply = channel.call(PsControl.Saved, request, deadline=_DEADLINE, retry=_RETRY)
        if reply.error:
            raise StorageError(reply.error, where=channel.address)
        return ShardInfo(reply.file, reply.size, int(reply.checksum, 16))

"""The master's part of checkpoints: collecting shards, committing, pruning, and falling back to an older one."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from edl.api.errors import EdlError, RetryableError, StorageError
from edl.core.cuts import SavedCheckpoint
from edl.core.events import (
    CheckpointCopyFinished,
    CheckpointRefused,
    CheckpointSaveFinished,
    CopyCheckpoint,
    SaveCheckpoint,
)
from edl.storage.checkpoint_manifest import (
    DATASET_KEY,
    CheckpointManifest,
    ShardInfo,
    SkippedCheckpoint,
    check_shard_size,
    commit_checkpoint,
    cut_directory,
    load_manifest,
    newest_intact_checkpoint,
    prune_checkpoints,
    prune_for_full_disk,
    shard_name,
)
from edl.storage.durable_files import sync_directory, sync_file, translate_os_errors
from edl.storage.safetensors_header import read_safetensors_header
from edl.transport import edl_pb2 as pb
from edl.transport.control_client import ControlChannel, RetryPolicy
from edl.transport.control_methods import PsControlMethods

log = logging.getLogger(__name__)

_DEADLINE = 300.0
"""Seconds to wait for one shard: a large one takes minutes on a slow disk."""
_RETRY = RetryPolicy(timeout_seconds=30.0)


class CheckpointCoordinator:
    """The checkpoints of a run.

    Args:
        directory: ``<run>/checkpoints``.
        keep: number of newest checkpoints to keep.
        protected: returns the cuts that must not be removed; called each time.
        wait_for_fence: called before a checkpoint is committed and before others are removed, because
            writing shards takes minutes and another master may have started meanwhile. It returns when
            this master may decide, and raises RetryableError if it never may again.
    """

    def __init__(
        self,
        directory: Path,
        keep: int,
        protected: Callable[[], set[int]],
        wait_for_fence: Callable[[], None] = lambda: None,
    ) -> None:
        self.directory = directory
        self._keep = keep
        self._protected = protected
        self._wait_for_fence = wait_for_fence

    def save(
        self, command: SaveCheckpoint, channels: Mapping[int, ControlChannel], count: int, incarnation: int
    ) -> CheckpointSaveFinished:
        """Wait until every PS has its shard on disk, then commit the checkpoint.

        Args:
            command: the cut and its ledger position.
            channels: channels to the live PS, by index.
            count: number of PS of the job.
            incarnation: incarnation of this master.

        Returns:
            Whether the checkpoint is committed. A failure to remove older ones is only logged.
        """
        directory = cut_directory(self.directory, command.cut)
        try:
            shards = _written_shards(command, directory) or self._collect_shards(
                command.cut, channels, count, incarnation
            )
            self._wait_for_fence()
            created = datetime.now(UTC).isoformat(timespec="seconds")
            ledger = {**command.ledger, DATASET_KEY: dict(command.dataset)}
            commit_checkpoint(
                directory, CheckpointManifest(command.cut, command.version, created, tuple(shards), ledger)
            )
        except EdlError as error:
            # Remove what this attempt left, so that the next one has space.
            self._make_room(command.cut)
            return CheckpointSaveFinished(command.cut, str(error))
        self._prune(command.cut)
        return CheckpointSaveFinished(command.cut)

    def _collect_shards(
        self, cut: int, channels: Mapping[int, ControlChannel], count: int, incarnation: int
    ) -> list[ShardInfo]:
        """Collect the shard of every PS."""
        # Wait for all of them before an error is raised: the leftovers can be removed only when no PS
        # is writing any more.
        shards, errors = [], []
        for index in range(count):
            try:
                shards.append(self._wait_for_shard(_channel_of_ps(channels, index), cut, incarnation))
            except EdlError as error:
                errors.append(error)
        if errors:
            raise errors[0]
        return shards

    def copy(self, command: CopyCheckpoint) -> CheckpointCopyFinished:
        """Make a checkpoint the newest one: its shards under a new number, with another ledger position.

        Shards never change once they are written, so hard links suffice.
        """
        source = cut_directory(self.directory, command.source)
        target = cut_directory(self.directory, command.cut)
        try:
            manifest = load_manifest(source)
            if isinstance(manifest, SkippedCheckpoint):
                raise StorageError(f"checkpoint {command.source} cannot be used: {manifest.reason}", where=str(source))
            with translate_os_errors(target, "copy the best checkpoint"):
                target.mkdir(parents=True, exist_ok=True)
                for shard in manifest.shards:
                    _link_or_copy(source / shard.file, target / shard.file)
                # The manifest is written last, and must not be on the disk before the shards that
                # it names.
                sync_directory(target)
            self._wait_for_fence()
            created = datetime.now(UTC).isoformat(timespec="seconds")
            # The description of the data set is the same for every checkpoint of a run.
            ledger = {
                **command.ledger,
                **{key: manifest.ledger[key] for key in (DATASET_KEY,) if key in manifest.ledger},
            }
            commit_checkpoint(
                target, CheckpointManifest(command.cut, command.version, created, manifest.shards, ledger)
            )
        except EdlError as error:
            return CheckpointCopyFinished(command.source, command.cut, str(error))
        return CheckpointCopyFinished(command.source, command.cut)

    def _wait_for_shard(self, channel: ControlChannel, cut: int, incarnation: int) -> ShardInfo:
        request = pb.SavedRequest(incarnation=incarnation, cut=cut)
        reply = channel.call(PsControlMethods.Saved, request, timeout=_DEADLINE, retry=_RETRY)
        if reply.error:
            raise StorageError(reply.error, where=channel.address)
        return ShardInfo(reply.file, reply.size, int(reply.checksum, 16))

    def find_fallback(self, uid: str, cut: int, message: str) -> CheckpointRefused:
        """Find the newest older checkpoint that is intact, after a pod could not load one; reads every byte.

        Args:
            uid: uid of the PS, or of the worker under AllReduce.
            cut: the checkpoint that it cannot load.
            message: its error.
        """
        skipped: list[SkippedCheckpoint] = []
        try:
            manifest = newest_intact_checkpoint(self.directory, skipped.append, below_cut=cut)
        except StorageError as error:
            return CheckpointRefused(uid, cut, message, skipped_reasons=str(error))
        reasons = "; ".join(f"checkpoint {one.cut} cannot be used either: {one.reason}" for one in skipped)
        if manifest is None:
            reasons = reasons or f"there is no older one in {self.directory}"
            # There may be a newer one, whose master died before it could journal it.
            newer = newest_intact_checkpoint(self.directory)
            reasons += (
                f"; checkpoint {newer.cut} is intact: --resume RUN --from-checkpoint continues from it"
                if newer is not None
                else "; restore the files from a backup, or start a new run"
            )
            return CheckpointRefused(uid, cut, message, skipped_reasons=reasons)
        older = SavedCheckpoint(manifest.cut, manifest.step, manifest.version, manifest.ledger)
        return CheckpointRefused(uid, cut, message, older, reasons)

    def _make_room(self, failed: int) -> None:
        try:
            self._wait_for_fence()
            removed = prune_for_full_disk(self.directory, self._keep, self._protected(), failed_cut=failed)
        except (StorageError, RetryableError) as error:
            log.warning("could not free space for the next checkpoint: %s", error)
        else:
            log.info("checkpoint %d was not written; removed to make room for the next: %s", failed, removed)

    def _prune(self, newest: int) -> None:
        """Remove old checkpoints; the ones in use stay until the core has recorded the newest."""
        try:
            self._wait_for_fence()
            prune_checkpoints(self.directory, self._keep, self._protected() | {newest})
        except (StorageError, RetryableError) as error:
            log.warning("could not remove old checkpoints: %s", error)


def _written_shards(command: SaveCheckpoint, directory: Path) -> list[ShardInfo]:
    """The files that workers have written already.

    Raises:
        StorageError: a worker could not write its file, or has not written what it says.
    """
    for shard in command.shards:
        if shard.error:
            # It names the file. What users read of it is one line.
            raise StorageError("; ".join(line.strip() for line in shard.error.splitlines()))
    shards = [ShardInfo(shard.file, shard.size, shard.crc32) for shard in command.shards]
    _check_written(directory, shards)
    return shards


def _check_written(directory: Path, shards: Sequence[ShardInfo]) -> None:
    """Check what workers say of their files as far as that takes no time: the arrays are not read.

    Whoever loads the checkpoint compares the checksums. An older checkpoint stands in if one is wrong.

    Raises:
        StorageError: a file is missing, has another size or name, is no safetensors file, or has an array of another.
    """
    owners: dict[str, str] = {}
    for index, shard in enumerate(shards):
        path = directory / shard.file
        if shard.file != shard_name(index):
            raise StorageError(
                f"was reported as written by the worker that writes {shard_name(index)}", where=str(path)
            )
        check_shard_size(directory, shard)
        for array in read_safetensors_header(path).arrays:
            if (other := owners.setdefault(array, shard.file)) != shard.file:
                raise StorageError(f"has the array {array}, which {other} has as well", where=str(path))


def _link_or_copy(source: Path, target: Path) -> None:
    # An earlier attempt may have left the target.
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:
        # The file system has no hard links. Imported here: shutil loads three compressors, and few masters copy.
        import shutil

        shutil.copyfile(source, target)
        sync_file(target)


def _channel_of_ps(channels: Mapping[int, ControlChannel], index: int) -> ControlChannel:
    if index not in channels:
        raise RetryableError(f"ps-{index} was lost")
    return channels[index]

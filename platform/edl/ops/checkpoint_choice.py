"""The checkpoint that is read: the one that was asked for or the newest, and only if it is intact."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from edl.api.errors import BadInputError, StorageError
from edl.ops.checkpoint_lookup import CheckpointLocation
from edl.storage.checkpoint_manifest import (
    CheckpointManifest,
    SkippedCheckpoint,
    cut_directory,
    list_cuts,
    load_manifest,
)
from edl.storage.checkpoint_verification import newest_intact_checkpoint, verify_checkpoint


@contextmanager
def storage_errors_as_bad_input() -> Iterator[None]:
    """What is wrong with files of a checkpoint is bad input: the command ends with 2.

    Raises:
        BadInputError: instead of a StorageError.
    """
    try:
        yield
    except StorageError as error:
        hint = error.hint or "edl checkpoint ls --verify says which checkpoints of the run are intact."
        raise BadInputError(error.message, where=error.where, hint=hint) from error


def choose_checkpoint(
    place: CheckpointLocation, number: int | None, skipped: list[SkippedCheckpoint]
) -> CheckpointManifest:
    """The intact checkpoint ``number``, or the one that the place names, or the newest.

    Args:
        place: of the checkpoints.
        number: of the one that is wanted; None for the newest.
        skipped: gets newer ones that cannot be used, when the newest is wanted.

    Raises:
        BadInputError: there is none, or it cannot be used; says which can.
    """
    wanted = place.cut if number is None else number
    with storage_errors_as_bad_input():
        if wanted is not None:
            return _require_intact(place, wanted)
        found = newest_intact_checkpoint(place.directory, skipped.append)
    if found is not None:
        return found
    if not skipped:
        hint = "A run writes one when it starts, and every checkpoint.every_steps steps."
        raise BadInputError(f"{place.name} has no checkpoint", where=str(place.directory), hint=hint)
    told = "\n  ".join(f"checkpoint {each.cut}: {each.reason}" for each in skipped)
    raise BadInputError(
        f"{place.name} has no checkpoint that can be used\n  {told}",
        where=str(place.directory),
        hint="Copy the run from a backup of its volume, or start a new run.",
    )


def _require_intact(place: CheckpointLocation, number: int) -> CheckpointManifest:
    directory = cut_directory(place.directory, number)
    if not directory.is_dir():
        known = ", ".join(map(str, list_cuts(place.directory)))
        hint = f"Its checkpoints are: {known}." if known else "It has none."
        raise BadInputError(f"{place.name} has no checkpoint {number}", where=str(place.directory), hint=hint)
    found = load_manifest(directory)
    reason = found.reason if isinstance(found, SkippedCheckpoint) else verify_checkpoint(directory, found)
    if isinstance(found, CheckpointManifest) and reason is None:
        return found
    raise BadInputError(f"cannot be used: {reason}", where=str(directory), hint=_suggest_intact(place, number))


def _suggest_intact(place: CheckpointLocation, number: int) -> str:
    other = newest_intact_checkpoint(place.directory)
    if other is None:
        return f"No other checkpoint of {place.name} is intact."
    return f"Checkpoint {other.cut} is the newest that is intact: --checkpoint {other.cut}."

"""What the paths of a JobSpec mean on this machine, under ``edl run``."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path, PurePosixPath

from edl.spec.job import JobSpec
from edl.spec.placement import Volume

DEFAULT_STORAGE = ".edl"


def resolve_local(spec: JobSpec, base_dir: Path, cwd: Path | None = None) -> JobSpec:
    """The spec with absolute paths of this machine.

    A path at or below a volume's mount means the same place in that volume's ``local`` folder; a volume without one
    is used where it is mounted. Other relative paths start at the file's directory. Data that is named by a URL
    (``scheme://…``, for a user's own reader) stays as written. ``storage.path`` is ``.edl`` in ``cwd`` by default.

    Args:
        spec: as loaded.
        base_dir: the directory of the job file.
        cwd: where the command was called; the current directory by default.
    """
    base = Path(os.path.abspath(base_dir))
    volumes = tuple(
        replace(volume, local=_absolute(volume.local, base)) if volume.local is not None else volume
        for volume in spec.volumes
    )

    def here(path: str) -> str:
        return _absolute(_mapped(path, volumes), base)

    def all_here(paths: Iterable[str]) -> tuple[str, ...]:
        return tuple(path if "://" in path else here(path) for path in paths)

    data = spec.data
    storage = here(spec.storage.path) if spec.storage.path is not None else str((cwd or Path.cwd()) / DEFAULT_STORAGE)
    return replace(
        spec,
        model=replace(spec.model, zoo=here(spec.model.zoo)),
        data=replace(
            data,
            training=all_here(data.training),
            validation=all_here(data.validation),
            prediction=all_here(data.prediction),
        ),
        export=spec.export and replace(spec.export, path=spec.export.path and here(spec.export.path)),
        storage=replace(spec.storage, path=storage),
        volumes=volumes,
    )


def _mapped(path: str, volumes: tuple[Volume, ...]) -> str:
    """The path in the local folder of the innermost volume that it lies in."""
    wanted = PurePosixPath(os.path.normpath(path))
    inside = [volume for volume in volumes if wanted.is_relative_to(volume.mount)]
    volume = max(inside, key=lambda candidate: len(PurePosixPath(candidate.mount).parts), default=None)
    if volume is None or volume.local is None:
        return path
    return str(Path(volume.local) / wanted.relative_to(volume.mount))


def _absolute(path: str, base: Path) -> str:
    return os.path.normpath(base / path)

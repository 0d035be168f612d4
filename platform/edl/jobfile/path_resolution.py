"""Resolves the paths of a JobSpec: for this machine, under ``edl run``, and for the pods of a cluster."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path, PurePosixPath

from edl.api.errors import BadInputError
from edl.api.job_spec import JobSpec
from edl.api.pod_spec import VolumeSpec
from edl.jobfile.database_address import database_file, path_of_data, with_database_file

JOB_FILE_SUFFIXES = (".yaml", ".yml", ".json")
DEFAULT_STORAGE_DIR = ".edl"
UNSHARED_STORAGE_DIR = "/edl"
"""Storage of a job without a volume: a directory inside each pod, which is lost with the pod."""


def resolve_local_paths(spec: JobSpec, base_dir: Path, cwd: Path | None = None) -> JobSpec:
    """The spec with absolute paths of this machine.

    A path at or below a volume's mount is mapped to the volume's ``local`` folder; without such a folder it is kept.
    Other relative paths start at the job file's directory. Data that is named by a URL (``scheme://…``) is kept, but
    that of a file of a database is resolved, too. The default of ``storage.path`` is ``.edl`` in ``cwd``.

    Args:
        spec: as loaded.
        base_dir: the directory of the job file.
        cwd: the directory in which the command was called; by default the current directory.
    """
    base = Path(os.path.abspath(base_dir))
    volumes = tuple(
        replace(volume, local=_absolute_path(volume.local, base)) if volume.local is not None else volume
        for volume in spec.volumes
    )

    def to_local_path(path: str) -> str:
        return _absolute_path(_map_to_volume(path, volumes), base)

    def to_local_weights(weights: str | None) -> str | None:
        return to_local_path(weights) if weights and names_path(weights) else weights

    def to_local_paths(paths: Iterable[str]) -> tuple[str, ...]:
        return tuple(to_local_data(path) for path in paths)

    def to_local_data(path: str) -> str:
        if file := database_file(path):
            return with_database_file(path, to_local_path(file))
        return path if "://" in path else to_local_path(path)

    data = spec.data
    storage = (
        to_local_path(spec.storage.path)
        if spec.storage.path is not None
        else str((cwd or Path.cwd()) / DEFAULT_STORAGE_DIR)
    )
    return replace(
        spec,
        model=replace(
            spec.model,
            zoo=to_local_path(spec.model.zoo),
            weights=to_local_weights(spec.model.weights),
            init_from=to_local_weights(spec.model.init_from),
        ),
        data=replace(
            data,
            training=to_local_paths(data.training),
            validation=to_local_paths(data.validation),
            prediction=to_local_paths(data.prediction),
        ),
        export=spec.export and replace(spec.export, path=spec.export.path and to_local_path(spec.export.path)),
        storage=replace(spec.storage, path=storage),
        volumes=volumes,
    )


def names_path(weights: str) -> bool:
    """Whether this names weights by a path, and not by the name of a run, such as ``r3`` or ``mnist/r3``."""
    return weights.startswith(("/", "./", "../")) or weights.endswith(".keras")


def pod_storage_path(spec: JobSpec) -> str:
    """Directory of runs in every pod: by default ``edl/`` on the volume of ``storage.claim``, or the first volume."""
    if spec.storage.path is not None:
        return spec.storage.path
    claim = spec.storage.claim
    mounts = [volume.mount for volume in spec.volumes if claim is None or volume.claim == claim]
    return posixpath.join(mounts[0], "edl") if mounts else UNSHARED_STORAGE_DIR


def has_shared_storage(spec: JobSpec) -> bool:
    """Whether the job's storage is a volume: shared by all pods, and kept when they end."""
    return bool(spec.volumes or spec.storage.claim)


def find_volume(path: str, volumes: Iterable[VolumeSpec]) -> VolumeSpec | None:
    """The innermost volume that contains a path; None if no volume does."""
    wanted = PurePosixPath(os.path.normpath(path))
    inside = [volume for volume in volumes if wanted.is_relative_to(volume.mount)]
    return max(inside, key=lambda candidate: len(PurePosixPath(candidate.mount).parts), default=None)


def _map_to_volume(path: str, volumes: tuple[VolumeSpec, ...]) -> str:
    """The path in the local folder of the innermost volume that contains it."""
    volume = find_volume(path, volumes)
    if volume is None or volume.local is None:
        return path
    return str(Path(volume.local) / PurePosixPath(os.path.normpath(path)).relative_to(volume.mount))


def _absolute_path(path: str, base: Path) -> str:
    return os.path.normpath(base / path)


# --------------------------------------------------------------------------------------------------
# Paths in a pod, under ``edl submit``.


POD_ZOO_DIR = "/model_zoo"
"""Where an image has its zoo, and what a relative ``model.zoo`` means in a pod."""


def resolve_pod_paths(spec: JobSpec, storage: str | None = None) -> JobSpec:
    """The spec with absolute paths of a pod.

    Args:
        spec: as loaded.
        storage: directory of runs, if the pod's environment names one.

    Raises:
        BadInputError: a path of data or of the export is relative; a pod has no directory to resolve it against.
    """
    relative = list(find_relative_paths(spec))
    if relative:
        listed = "\n".join(f"  {field}: {path}" for field, path in relative)
        raise BadInputError(
            f"paths of data must be absolute in a pod\n{listed}",
            hint="Name a folder below the mount of one of the job's volumes, such as /data/train.",
        )
    return replace(
        spec,
        model=replace(spec.model, zoo=pod_zoo_path(spec)),
        storage=replace(spec.storage, path=storage or pod_storage_path(spec)),
    )


def pod_zoo_path(spec: JobSpec) -> str:
    """The folder of the model's modules in a pod."""
    return spec.model.zoo if spec.model.zoo.startswith("/") else POD_ZOO_DIR


def find_relative_paths(spec: JobSpec) -> Iterator[tuple[str, str]]:
    """Relative paths of data and of the export, by field. A job with one cannot run in a pod."""
    for name in ("training", "validation", "prediction"):
        paths: tuple[str, ...] = getattr(spec.data, name)
        files = [(path, path_of_data(path)) for path in paths]
        yield from ((f"data.{name}", path) for path, file in files if file and not file.startswith("/"))
    if spec.export is not None and spec.export.path is not None and not spec.export.path.startswith("/"):
        yield "export.path", spec.export.path

"""What the paths of a JobSpec mean in a pod, under ``edl submit``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from edl.api.errors import BadInputError
from edl.jobfile.job_spec import JobSpec
from edl.jobfile.path_resolution import pod_storage_path

POD_ZOO_DIR = "/model_zoo"
"""Where an image has its zoo: what a relative ``model.zoo`` means."""


def resolve_pod_paths(spec: JobSpec, storage: str | None = None) -> JobSpec:
    """The spec with absolute paths of a pod.

    Args:
        spec: as loaded.
        storage: where runs go, if the pod says so.

    Raises:
        BadInputError: a path of data or of the export is relative: a pod has no folder that it could begin at.
    """
    relative = list(_find_relative_paths(spec))
    if relative:
        told = "\n".join(f"  {field}: {path}" for field, path in relative)
        raise BadInputError(
            f"paths of data must be absolute in a pod\n{told}",
            hint="Name a folder below the mount of one of the job's volumes, such as /data/train.",
        )
    zoo = spec.model.zoo if spec.model.zoo.startswith("/") else POD_ZOO_DIR
    return replace(
        spec,
        model=replace(spec.model, zoo=zoo),
        storage=replace(spec.storage, path=storage or pod_storage_path(spec)),
    )


def _find_relative_paths(spec: JobSpec) -> Iterator[tuple[str, str]]:
    for name in ("training", "validation", "prediction"):
        paths: tuple[str, ...] = getattr(spec.data, name)
        yield from ((f"data.{name}", path) for path in paths if "://" not in path and not path.startswith("/"))
    if spec.export is not None and spec.export.path is not None and not spec.export.path.startswith("/"):
        yield "export.path", spec.export.path

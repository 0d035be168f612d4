"""Is an image one that a job's pods can run?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from posixpath import basename
from typing import Any

from edl.api.errors import BadInputError
from edl.ops.docker_engine import DockerEngine
from edl.ops.docker_errors import translate_docker_errors

ENTRY_POINT = "edl-role"
IMAGE_LABEL = "dev.edl.image"
"""Label of EDL's own images, which images made from them inherit: ``training`` or ``submitter``."""


def inspect_image(engine: DockerEngine, image: str) -> dict[str, Any]:
    """The engine's description of an image: ``Config``, ``Size`` (bytes) and more.

    Raises:
        EngineError: there is no such image, or the engine went away.
    """
    with translate_docker_errors(engine.address):
        found: dict[str, Any] = engine.client.inspect_image(image)
        return found


def image_faults(config: Mapping[str, Any]) -> Iterator[str]:
    """Why pods could not run an image of this ``Config``; nothing if they can."""
    kind = (config.get("Labels") or {}).get(IMAGE_LABEL)
    if kind is None:
        yield "it has no EDL inside: start FROM the training image edl/edl"
    elif kind != "training":
        yield f"it is made from the {kind} image, which cannot train: start FROM edl/edl"
    entry = config.get("Entrypoint") or []
    if not entry or basename(entry[0]) != ENTRY_POINT:
        yield f"its entry point is {entry or 'empty'}: leave out ENTRYPOINT, pods need {ENTRY_POINT}"


def require_runnable_image(image: str, config: Mapping[str, Any]) -> None:
    """Raise what keeps pods from running the image.

    Raises:
        BadInputError: with every reason.
    """
    if reasons := list(image_faults(config)):
        raise BadInputError("the image was built, but no job can run it", where=image, hint="\n  ".join(reasons))

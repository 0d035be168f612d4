"""Building an image: a context in, the engine's own words out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import IO, Any

from docker.utils import match_tag

from edl.api.errors import BadInputError
from edl.ops.docker_engine import DockerEngine
from edl.ops.docker_errors import BuildFailedError, translate_docker_errors
from edl.ops.image_context import DOCKERFILE

_BASE_IMAGE_MISSING = re.compile(
    r"pull access denied|manifest (for .* )?(unknown|not found)|repository .* not found|no such host|"
    r"failed to resolve|lookup .* on|connection refused|i/o timeout",
    re.IGNORECASE,
)


def require_image_name(image: str) -> str:
    """The image's name, with a tag.

    Raises:
        BadInputError: this is no name of an image.
    """
    if not match_tag(image):
        raise BadInputError(
            "this is no name of an image",
            where=image,
            hint="write [REGISTRY/]NAME[:TAG] in lower case, as in registry.example.com/team/mnist:1",
        )
    return image if ":" in image.rpartition("/")[2] else f"{image}:latest"


def build_image(engine: DockerEngine, context: IO[bytes], image: str, arguments: Mapping[str, str]) -> Iterator[str]:
    """Build the image; what the engine says meanwhile, line by line.

    Args:
        engine: from :func:`edl.ops.docker_engine.connect_engine`.
        context: a tar archive from :func:`edl.ops.image_context.pack_context`.
        image: the name to give to the image.
        arguments: build arguments.

    Raises:
        BuildFailedError: a step failed, or the base image cannot be had.
        EngineError: the engine went away.
    """
    with translate_docker_errors(engine.address):
        told = engine.client.build(
            fileobj=context,
            custom_context=True,
            dockerfile=DOCKERFILE,
            tag=image,
            buildargs=dict(arguments),
            rm=True,
            forcerm=True,
            decode=True,
        )
        yield from build_lines(told)


def build_lines(told: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """The lines of a build, from the engine's messages: fragments joined, progress bars left out.

    Raises:
        BuildFailedError: the messages say that the build failed.
    """
    rest, step, error = "", "", ""
    for message in told:  # to its end, error or not: the connection is free then
        error = error or str(message.get("error", ""))
        *whole, rest = (rest + _message_text(message)).split("\n")
        for line in (found.rstrip() for found in whole if found.strip()):
            step = line if line.startswith("Step ") else step
            yield line
    if rest.strip():
        yield rest.rstrip()
    if error:
        raise build_error(error, step)


def build_error(reason: str, step: str) -> BuildFailedError:
    """The error for a build that failed at a step, such as ``Step 2/3 : FROM edl/edl:1``."""
    if _BASE_IMAGE_MISSING.search(reason) and " FROM " in f"{step} ":
        hint = (
            "build the base image first (`make images` in EDL's repository: edl/edl, tagged dev and with the version) "
            "and name it with --base, or log in to its registry"
        )
        return BuildFailedError(f"the base image cannot be had: {reason}", where=step, hint=hint)
    return BuildFailedError(reason.strip(), where=step or None, hint="the lines above say what the step printed")


def _message_text(message: Mapping[str, Any]) -> str:
    if "stream" in message:
        return str(message["stream"])
    if "status" in message and "progressDetail" not in message:
        return f"{message['status']}\n"
    return ""

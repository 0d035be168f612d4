"""Builds an image from a context and yields the engine's output."""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from posixpath import basename
from typing import IO, Any

from docker.utils import match_tag
from docker.utils.build import exclude_paths

from edl.api.errors import BadInputError
from edl.jobfile.elasticdl_imports import find_compat_import
from edl.ops.docker_engine import BuildFailedError, DockerEngine, translate_docker_errors

# --------------------------------------------------------------------------------------------------
# The files that a build sends to the engine: the zoo without ignored files, readable by any uid.


DOCKERFILE = ".edl.Dockerfile"
"""The Dockerfile's name in the context. It must differ from every file of a zoo."""
IGNORE_FILE = ".dockerignore"
ALWAYS_IGNORED = (".git", ".edl", ".venv", "**/__pycache__", "**/*.pyc")


def ignore_patterns(zoo: Path) -> list[str]:
    """Patterns of excluded files: the zoo's ``.dockerignore``, and files that no model needs."""
    file = zoo / IGNORE_FILE
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    return [*ALWAYS_IGNORED, *(line.strip() for line in lines if line.strip() and not line.startswith("#"))]


def pack_context(zoo: Path, dockerfile: str, archive_file: IO[bytes]) -> int:
    """Write the context as a tar archive; returns its size in bytes.

    The engine reads the Dockerfile from it and, because the context's ``.dockerignore`` names it,
    does not copy it.

    Args:
        zoo: the folder whose content becomes the context.
        dockerfile: text of the Dockerfile.
        archive_file: a binary file; left open, positioned at its start.

    Raises:
        BadInputError: the zoo is not a folder, has no Python file, or a file cannot be read.
    """
    _require_models(zoo)
    patterns = ignore_patterns(zoo)
    added = {DOCKERFILE: dockerfile, IGNORE_FILE: "\n".join([*patterns, DOCKERFILE, IGNORE_FILE]) + "\n"}
    with tarfile.open(fileobj=archive_file, mode="w") as archive:
        for path in _included_paths(zoo, patterns, added):
            _add_file(archive, zoo, path)
        for name, text in added.items():
            content = text.encode()
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    size = archive_file.tell()
    archive_file.seek(0)
    return size


def make_readable(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """The entry with owner root, readable by all: a job's uid is not that of the image's builder."""
    runs = entry.isdir() or entry.mode & 0o100
    entry.mode = 0o755 if runs else 0o644
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


def _included_paths(zoo: Path, patterns: Sequence[str], added: Mapping[str, str]) -> Iterator[str]:
    # exclude_paths appends to the given list: pass a copy.
    return (path for path in sorted(exclude_paths(str(zoo), list(patterns), DOCKERFILE)) if path not in added)


def _add_file(archive: tarfile.TarFile, zoo: Path, path: str) -> None:
    try:
        entry = archive.gettarinfo(str(zoo / path), arcname=path)
        if entry is None:
            return  # a socket
        if entry.isfile():
            with (zoo / path).open("rb") as file:
                archive.addfile(make_readable(entry), file)
        else:
            archive.addfile(make_readable(entry))
    except OSError as error:
        raise BadInputError(f"cannot be read: {error.strerror}", where=str(zoo / path)) from error


def _require_models(zoo: Path) -> None:
    if not zoo.is_dir():
        raise BadInputError("the model zoo is not a directory", where=str(zoo), hint="`edl zoo init DIR` creates one")
    if not any(zoo.rglob("*.py")):
        raise BadInputError(
            "there is no Python file in this folder", where=str(zoo), hint="`edl zoo init DIR` creates a zoo"
        )


_BASE_IMAGE_MISSING = re.compile(
    r"pull access denied|manifest (for .* )?(unknown|not found)|repository .* not found|no such host|"
    r"failed to resolve|lookup .* on|connection refused|i/o timeout",
    re.IGNORECASE,
)


def require_image_name(image: str) -> str:
    """The image's name, with a tag.

    Raises:
        BadInputError: this is not an image name.
    """
    if not match_tag(image):
        raise BadInputError(
            "this is not an image name",
            where=image,
            hint="write [REGISTRY/]NAME[:TAG] in lower case, as in registry.example.com/team/mnist:1",
        )
    return image if ":" in image.rpartition("/")[2] else f"{image}:latest"


def build_image(engine: DockerEngine, context: IO[bytes], image: str, arguments: Mapping[str, str]) -> Iterator[str]:
    """Build the image; yields the engine's output line by line.

    Args:
        engine: from :func:`edl.ops.docker_engine.connect_engine`.
        context: a tar archive from :func:`edl.ops.image_build.pack_context`.
        image: the name to give to the image.
        arguments: build arguments.

    Raises:
        BuildFailedError: a step failed, or the base image cannot be pulled.
        EngineError: the connection to the engine broke.
    """
    with translate_docker_errors(engine.address):
        messages = engine.client.build(
            fileobj=context,
            custom_context=True,
            dockerfile=DOCKERFILE,
            tag=image,
            buildargs=dict(arguments),
            rm=True,
            forcerm=True,
            decode=True,
        )
        yield from build_lines(messages)


def build_lines(messages: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """The lines of a build, from the engine's messages: fragments joined, progress bars left out.

    Raises:
        BuildFailedError: the messages say that the build failed.
    """
    rest, step, error = "", "", ""
    for message in messages:  # read to the end even after an error: this frees the connection
        error = error or str(message.get("error", ""))
        *whole, rest = (rest + _message_text(message)).split("\n")
        for line in (part.rstrip() for part in whole if part.strip()):
            step = line if line.startswith("Step ") else step
            yield line
    if rest.strip():
        yield rest.rstrip()
    if error:
        raise build_error(error, step)


def build_error(reason: str, step: str) -> BuildFailedError:
    """The error of a build that failed at a step, such as ``Step 2/3 : FROM edl/edl:1``."""
    if _BASE_IMAGE_MISSING.search(reason) and " FROM " in f"{step} ":
        hint = (
            "build the base image first (`make images` in EDL's repository: edl/edl, tagged dev and with the version) "
            "and name it with --base, or log in to its registry"
        )
        return BuildFailedError(f"the base image cannot be pulled: {reason}", where=step, hint=hint)
    return BuildFailedError(reason.strip(), where=step or None, hint="the output of the step is above")


def _message_text(message: Mapping[str, Any]) -> str:
    if "stream" in message:
        return str(message["stream"])
    if "status" in message and "progressDetail" not in message:
        return f"{message['status']}\n"
    return ""


# --------------------------------------------------------------------------------------------------
# The Dockerfile that makes an image of a model zoo.


REQUIREMENTS_FILE = "requirements.txt"
"""File of a zoo that lists the packages its models need besides those of the base image."""
_ARG_BASE = re.compile(r"^\s*ARG\s+BASE\b", re.MULTILINE | re.IGNORECASE)

_FROM_BASE = """\
ARG BASE={base}
FROM ${{BASE}}
"""
_INSTALL_PACKAGES = """\
USER root
COPY requirements.txt /model_zoo/
RUN pip install -r /model_zoo/requirements.txt
"""
INSTALL_COMPAT = "RUN pip install --no-deps --no-index /opt/edl/wheels/elasticdl_compat-*.whl"
"""Installs the packages that models of ElasticDL import; EDL's training image has the wheel."""
_INSTALL_COMPAT = f"""\
USER root
{INSTALL_COMPAT}
"""
_COPY_ZOO = """\
COPY . /model_zoo
USER 1000:1000
"""


def default_base_image() -> str:
    """The training image of this version of EDL."""
    return f"edl/edl:{version('edl-platform')}"


def render_dockerfile(base: str, *, packages: bool, compat: bool = False) -> str:
    """A Dockerfile that puts the context at /model_zoo.

    Args:
        base: the image to start from.
        packages: whether to install what the zoo's requirements.txt lists.
        compat: whether to install the distribution elasticdl-compat.
    """
    installed = (_INSTALL_COMPAT if compat else "") + (_INSTALL_PACKAGES if packages else "")
    return _FROM_BASE.format(base=base) + installed + _COPY_ZOO


def choose_dockerfile(zoo: Path, base: str | None, file: Path | None) -> tuple[str, dict[str, str]]:
    """The text of the Dockerfile to build, and its build arguments.

    It is ``file``, else the zoo's own Dockerfile, else a generated one.

    Args:
        zoo: the folder of models.
        base: the image to start from; None leaves it to the Dockerfile.
        file: a Dockerfile to use instead of the zoo's own.

    Raises:
        BadInputError: the Dockerfile cannot be read, or has no argument for the base image.
    """
    own = zoo / "Dockerfile"
    chosen = file or (own if own.exists() else None)
    if chosen is None:
        has_packages, has_compat = (zoo / REQUIREMENTS_FILE).is_file(), find_compat_import(zoo) is not None
        return render_dockerfile(base or default_base_image(), packages=has_packages, compat=has_compat), {}
    text = _read_dockerfile(chosen)
    if base is None:
        return text, {}
    if not _ARG_BASE.search(text):
        raise BadInputError(
            "this Dockerfile has a fixed base image",
            where=str(chosen),
            hint="use ARG BASE and FROM ${BASE} to make --base work",
        )
    return text, {"BASE": base}


def leaves_requirements_out(zoo: Path, dockerfile: str) -> bool:
    """Whether a zoo lists packages, and the text of its Dockerfile never names the list."""
    lines = (line for line in dockerfile.splitlines() if not line.lstrip().startswith("#"))
    return (zoo / REQUIREMENTS_FILE).is_file() and not any(REQUIREMENTS_FILE in line for line in lines)


def _read_dockerfile(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise BadInputError(f"the Dockerfile cannot be read: {reason}", where=str(file)) from error


# --------------------------------------------------------------------------------------------------
# Checks whether a job's pods can run an image.


ENTRY_POINT = "edl-role"
IMAGE_LABEL = "dev.edl.image"
"""Label of EDL's own images, which images made from them inherit: ``training`` or ``submitter``."""


def inspect_image(engine: DockerEngine, image: str) -> dict[str, Any]:
    """The engine's description of an image: ``Config``, ``Size`` (bytes) and more.

    Raises:
        EngineError: there is no such image, or the connection to the engine broke.
    """
    with translate_docker_errors(engine.address):
        description: dict[str, Any] = engine.client.inspect_image(image)
        return description


def image_faults(config: Mapping[str, Any]) -> Iterator[str]:
    """The reasons why pods cannot run an image of this ``Config``."""
    kind = (config.get("Labels") or {}).get(IMAGE_LABEL)
    if kind is None:
        yield "it does not contain EDL: use FROM edl/edl, the training image"
    elif kind != "training":
        yield f"it is built from the {kind} image, which cannot train: use FROM edl/edl, the training image"
    entry = config.get("Entrypoint") or []
    if not entry or basename(entry[0]) != ENTRY_POINT:
        yield f"its entry point is {entry or 'empty'}, but pods need {ENTRY_POINT}: remove ENTRYPOINT"


def require_runnable_image(image: str, config: Mapping[str, Any]) -> None:
    """Refuse an image that pods cannot run.

    Raises:
        BadInputError: pods cannot run the image; the message has every reason.
    """
    if reasons := list(image_faults(config)):
        raise BadInputError("the image was built, but no job can run it", where=image, hint="\n  ".join(reasons))

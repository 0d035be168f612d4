"""The Dockerfile that makes an image of a model zoo."""

from __future__ import annotations

import re
from importlib.metadata import version
from pathlib import Path

from edl.api.errors import BadInputError

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
_COPY_ZOO = """\
COPY . /model_zoo
USER 1000:1000
"""


def default_base_image() -> str:
    """The training image of this version of EDL."""
    return f"edl/edl:{version('edl-platform')}"


def render_dockerfile(base: str, *, packages: bool) -> str:
    """A Dockerfile that puts the context at /model_zoo.

    Args:
        base: the image to start from.
        packages: whether to install what the zoo's requirements.txt lists.
    """
    return _FROM_BASE.format(base=base) + (_INSTALL_PACKAGES if packages else "") + _COPY_ZOO


def choose_dockerfile(zoo: Path, base: str | None, file: Path | None) -> tuple[str, dict[str, str]]:
    """The text of the Dockerfile to build, and its build arguments.

    It is ``file``, else the zoo's own Dockerfile, else one that is made here.

    Args:
        zoo: the folder of models.
        base: the image to start from; None leaves it to the Dockerfile.
        file: a Dockerfile to use instead of the zoo's own.

    Raises:
        BadInputError: the Dockerfile cannot be read, or lets nobody choose its base.
    """
    own = zoo / "Dockerfile"
    chosen = file or (own if own.exists() else None)
    if chosen is None:
        return render_dockerfile(base or default_base_image(), packages=(zoo / REQUIREMENTS_FILE).is_file()), {}
    text = _read_dockerfile(chosen)
    if base is None:
        return text, {}
    if not _ARG_BASE.search(text):
        raise BadInputError(
            "this Dockerfile decides on its base itself",
            where=str(chosen),
            hint="ARG BASE, then FROM ${BASE}, obeys --base",
        )
    return text, {"BASE": base}


def _read_dockerfile(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise BadInputError(f"the Dockerfile cannot be read: {reason}", where=str(file)) from error

"""The files that a build sends to the engine: the zoo without what no image needs, readable by any uid."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from docker.utils.build import exclude_paths

from edl.api.errors import BadInputError

DOCKERFILE = ".edl.Dockerfile"
"""The Dockerfile's name in the context: one that no zoo has."""
IGNORE_FILE = ".dockerignore"
ALWAYS_IGNORED = (".git", ".edl", ".venv", "**/__pycache__", "**/*.pyc")


def ignore_patterns(zoo: Path) -> list[str]:
    """Patterns of what stays out: the zoo's ``.dockerignore``, and what is never part of a model."""
    file = zoo / IGNORE_FILE
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    return [*ALWAYS_IGNORED, *(line.strip() for line in lines if line.strip() and not line.startswith("#"))]


def pack_context(zoo: Path, dockerfile: str, into: IO[bytes]) -> int:
    """Write the context as a tar archive; its size in bytes.

    The engine reads the Dockerfile from it and, because the context's ``.dockerignore`` names it, does not copy it.

    Args:
        zoo: the folder whose content becomes the context.
        dockerfile: text of the Dockerfile.
        into: a binary file, left open at its beginning.

    Raises:
        BadInputError: the zoo is no folder, holds no Python file, or one of its files cannot be read.
    """
    _require_models(zoo)
    patterns = ignore_patterns(zoo)
    added = {DOCKERFILE: dockerfile, IGNORE_FILE: "\n".join([*patterns, DOCKERFILE, IGNORE_FILE]) + "\n"}
    with tarfile.open(fileobj=into, mode="w") as archive:
        for path in _included_paths(zoo, patterns, added):
            _add_file(archive, zoo, path)
        for name, text in added.items():
            content = text.encode()
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    size = into.tell()
    into.seek(0)
    return size


def make_readable(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """The entry as root's, readable by everybody: a job's uid is not the uid of who built the image."""
    runs = entry.isdir() or entry.mode & 0o100
    entry.mode = 0o755 if runs else 0o644
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


def _included_paths(zoo: Path, patterns: Sequence[str], added: Mapping[str, str]) -> Iterator[str]:
    # the library appends to the list it is given
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
        raise BadInputError("the model zoo is not a directory", where=str(zoo), hint="`edl zoo init DIR` makes one")
    if not any(zoo.rglob("*.py")):
        raise BadInputError(
            "there is no Python file in this folder", where=str(zoo), hint="`edl zoo init DIR` makes a zoo"
        )

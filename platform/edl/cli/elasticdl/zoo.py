"""``elasticdl zoo init``, ``build`` and ``push``: a Dockerfile for models, its image, and the registry."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from itertools import chain, count
from pathlib import Path

from edl.api.errors import BadInputError, StorageError
from edl.cli.elasticdl.flags import ZOO_BUILD, ZOO_INIT, NoEffect, flags_of
from edl.cli.elasticdl.parser import CommandLine
from edl.jobfile.elasticdl_imports import find_compat_import
from edl.reporting.unit_formats import join_words

DOCKERFILE = Path("Dockerfile")
_WITHOUT_EDL = re.compile(r"(.*/)?(python|tensorflow|ubuntu|debian|elasticdl)(/tensorflow)?([:@].*)?")
"""Names of base images in ElasticDL's tutorials: none of them contains EDL."""
_NOT_ON_THE_INDEX = re.compile(r"^\s*(elasticdl[-_\w]*|recordio|pyrecordio)\b", re.IGNORECASE | re.MULTILINE)


def run_command(line: CommandLine) -> int:
    """Run one of the commands; returns the exit code."""
    for note in _notes(line):
        print(note, file=sys.stderr)
    if line.command == ZOO_INIT:
        write_dockerfile(line)
    elif line.command == ZOO_BUILD:
        from edl.cli.zoo import build_zoo_image

        name = build_zoo_image(Path(line.values["path"]), line.values["image"])
        print(f"Next: elasticdl zoo push {name}, then elasticdl train --image_name={name} ...")
    else:
        from edl.cli.zoo import push

        push(line.values["image"])
    return 0


def _notes(line: CommandLine) -> Iterator[str]:
    yield from line.notes
    for name, flag in flags_of(line.command).items():
        if name in line.given and isinstance(flag.effect, NoEffect):
            yield f"{line.given[name]}: no effect: {flag.effect.reason}"


def write_dockerfile(line: CommandLine) -> None:
    """Write ``Dockerfile`` into the current folder, as ElasticDL does; one of before is kept beside it.

    Raises:
        BadInputError: the zoo or the folder of wheels is missing, or is not below the current folder.
    """
    zoo = _folder_below(line, "model_zoo")
    wheels = _folder_below(line, "local_pkg_dir") if line.values["local_pkg_dir"] else None
    text = dockerfile_text(_base_image(line), zoo, wheels, line.values["extra_pypi_index"])
    try:
        if DOCKERFILE.exists() and DOCKERFILE.read_bytes() != text.encode():
            kept = DOCKERFILE.rename(_free_name())
            print(f"{DOCKERFILE} is replaced; the one of before is {kept}", file=sys.stderr)
        DOCKERFILE.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StorageError(f"cannot be written: {error.strerror}", where=str(DOCKERFILE)) from error
    if line.values["extra_pypi_index"] and "RUN pip install --extra-index-url" not in text:
        where = line.given["extra_pypi_index"]
        print(f"{where}: no effect: there is no {zoo / 'requirements.txt'} and no --local_pkg_dir", file=sys.stderr)
    for note in zoo_notes(zoo):
        print(note, file=sys.stderr)
    print(f"wrote {DOCKERFILE}")
    print("Next: elasticdl zoo build --image=NAME .")


def _free_name() -> Path:
    """``Dockerfile.old``, or with the first number of which there is no file: a call never overwrites what one kept."""
    names = chain([f"{DOCKERFILE}.old"], (f"{DOCKERFILE}.old.{number}" for number in count(2)))
    return next(path for path in map(Path, names) if not path.exists())


def dockerfile_text(base: str, zoo: Path, wheels: Path | None, index: str) -> str:
    """The Dockerfile of an image with a zoo at /model_zoo. Its context is the current folder."""
    option = f" --extra-index-url={index}" if index else ""
    lines = [f"ARG BASE={base}", "FROM ${BASE}", "USER root"]
    if find_compat_import(zoo) is not None:
        from edl.ops.image_build import INSTALL_COMPAT

        lines.append(INSTALL_COMPAT)
    if wheels is not None:
        lines += [
            f"COPY {wheels}/*.whl /tmp/wheels/",
            f"RUN pip install{option} /tmp/wheels/*.whl && rm -r /tmp/wheels",
        ]
    if (zoo / "requirements.txt").is_file():
        lines += [
            f"COPY {zoo / 'requirements.txt'} /model_zoo/requirements.txt",
            f"RUN pip install{option} -r /model_zoo/requirements.txt",
        ]
    return "\n".join([*lines, f"COPY {zoo} /model_zoo", "USER 1000:1000", ""])


def zoo_notes(zoo: Path) -> Iterator[str]:
    """Packages that the zoo lists and no index has."""
    requirements = zoo / "requirements.txt"
    if requirements.is_file() and (names := _NOT_ON_THE_INDEX.findall(requirements.read_text(encoding="utf-8"))):
        yield f"{requirements}: pip will not find {join_words(names)}; remove the lines: elasticdl-compat has the names"


def _base_image(line: CommandLine) -> str:
    from edl.ops.image_build import default_base_image

    own = default_base_image()
    base: str = line.values["base_image"]
    if not _WITHOUT_EDL.fullmatch(base):
        return base
    if "base_image" in line.given:
        print(f"{line.given['base_image']}: does not contain EDL; the image starts from {own}", file=sys.stderr)
    return own


def _folder_below(line: CommandLine, flag: str) -> Path:
    folder = Path(line.values[flag])
    where = line.given.get(flag, f"--{flag}={folder}")
    if not folder.is_dir():
        raise BadInputError("there is no such folder", where=where)
    if not folder.resolve().is_relative_to(Path.cwd()):
        raise BadInputError(
            "is not below the current folder, which is what the Docker engine gets",
            where=where,
            hint="call the command in a folder that contains it",
        )
    return Path(folder.resolve().relative_to(Path.cwd()))

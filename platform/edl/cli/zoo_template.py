"""The model zoo that ``edl zoo init`` writes, and what a zoo defines."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from string import Template

from edl.api.errors import BadInputError, StorageError
from edl.jobfile.zoo_lookup import defined_names

TEMPLATE_DIRECTORY = files("edl.cli").joinpath("templates", "zoo")
TEMPLATE_FILES = {
    "Dockerfile": "Dockerfile",
    "dockerignore": ".dockerignore",
    "digits.py": "digits.py",
    "job.yaml": "job.yaml",
    "README.md": "README.md",
}
"""The template's files, and their names in a zoo."""


def write_zoo(directory: Path, base: str) -> list[Path]:
    """Write the template; the files, in the order of :data:`TEMPLATE_FILES`.

    Args:
        directory: made if it is not there.
        base: the training image that the Dockerfile starts from.

    Raises:
        BadInputError: one of the files exists; nothing was written.
        StorageError: the directory cannot be written.
    """
    targets = {source: directory / name for source, name in TEMPLATE_FILES.items()}
    if taken := [path for path in targets.values() if path.exists()]:
        hint = "nothing was written; choose another directory, or move these files away"
        raise BadInputError(
            f"exists already: {', '.join(path.name for path in taken)}", where=str(directory), hint=hint
        )
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for source, path in targets.items():
            text = TEMPLATE_DIRECTORY.joinpath(source).read_text(encoding="utf-8")
            path.write_text(Template(text).safe_substitute(EDL_BASE=base), encoding="utf-8")
    except OSError as error:
        raise StorageError(
            f"the zoo cannot be written: {error.strerror}", where=str(error.filename or directory)
        ) from error
    return list(targets.values())


def model_definitions(zoo: Path) -> list[str]:
    """Values for ``model.definition``: the functions ``custom_model`` below a zoo, with their modules, in order."""
    found = []
    for path in sorted(zoo.rglob("*.py")):
        module = path.relative_to(zoo).with_suffix("")
        if all(part.isidentifier() for part in module.parts) and "custom_model" in defined_names(path):
            found.append(".".join([*module.parts, "custom_model"]))
    return found

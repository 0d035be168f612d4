"""``edl zoo``: create a model zoo; build and push its image."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import Progress, TaskID

from edl.api.errors import BadInputError, StorageError
from edl.jobfile.zoo_lookup import defined_names
from edl.reporting.progress_bars import byte_progress
from edl.reporting.unit_formats import format_bytes

if TYPE_CHECKING:
    from edl.ops.image_push import PushProgress


def show_push(states: Iterable[PushProgress], console: Console) -> PushProgress:
    """Show the progress of a push and return its last state.

    A terminal gets a bar; other outputs get one line per layer.
    """
    from edl.ops.image_push import PushProgress

    last = PushProgress()
    with byte_progress(console, disable=not console.is_terminal) as progress:
        task = progress.add_task("Pushing", total=None)
        for state in states:
            if not console.is_terminal:
                _print_finished_layers(state, last, console)
            _update_bar(state, progress, task)
            last = state
    return last


def _update_bar(state: PushProgress, progress: Progress, task: TaskID) -> None:
    layers = (
        len(state.finished_layers) + len(state.waiting_layers) + len(state.total_bytes.keys() - state.finished_layers)
    )
    progress.update(
        task,
        description=f"Pushing, {len(state.finished_layers)} of {layers} layers done",
        completed=sum(state.sent_bytes.values()),
        total=sum(state.total_bytes.values()) or None,
    )


def _print_finished_layers(state: PushProgress, before: PushProgress, console: Console) -> None:
    for layer in sorted(state.finished_layers - before.finished_layers):
        console.print(f"{layer}: done", highlight=False)


app = typer.Typer(
    help="Create a model zoo; build and push its image.",
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
)

ImageName = Annotated[
    str, typer.Argument(metavar="IMAGE", help="Name of the image, with its registry.", show_default=False)
]


@app.command()
def init(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Directory of the new zoo.")] = Path(),
) -> None:
    """Create a model zoo with a sample model and its job file.

    It has a Dockerfile, a list of packages and a README, too. An existing requirements.txt is kept.
    """
    from edl.ops.image_build import default_base_image

    written = write_zoo(directory, base=default_base_image())
    typer.echo("\n".join(f"wrote {path}" for path in written))
    typer.echo(f"Next, in {directory.resolve()}:\n  edl data mnist data/mnist && edl run job.yaml")


@app.command()
def build(
    path: Annotated[
        Path, typer.Argument(metavar="DIR", help="The zoo: the folder that model.zoo names.", show_default=False)
    ],
    image: Annotated[str, typer.Option(help="Name for the image: [REGISTRY/]NAME[:TAG].", show_default=False)],
    base: Annotated[
        str | None, typer.Option(help="Base image; EDL's training image of this version by default.")
    ] = None,
    file: Annotated[Path | None, typer.Option(help="A Dockerfile to use instead of the zoo's own.")] = None,
) -> None:
    """Build an image of a model zoo with the Docker engine.

    The zoo is copied to /model_zoo. If it has no Dockerfile, one is generated that also installs its requirements.txt.
    A Dockerfile of your own must do that itself, as that of edl zoo init does. A warning says so if it does not.
    """
    name = build_zoo_image(path, image, base, file)
    typer.echo(_job_file_hint(path, name))


def build_zoo_image(path: Path, image: str, base: str | None = None, file: Path | None = None) -> str:
    """Build the image as ``build`` does, and print its progress; returns its name, with a tag."""
    from edl.ops.docker_engine import connect_engine
    from edl.ops.image_build import build_image as built
    from edl.ops.image_build import (
        choose_dockerfile,
        inspect_image,
        leaves_requirements_out,
        pack_context,
        require_image_name,
        require_runnable_image,
    )

    name = require_image_name(image)
    dockerfile, arguments = choose_dockerfile(path, base, file)
    if leaves_requirements_out(path, dockerfile):
        print(
            f"warning: {path / 'requirements.txt'} is not installed, because the Dockerfile does not name it; "
            "add COPY and RUN pip install -r",
            file=sys.stderr,
        )
    with tempfile.TemporaryFile() as context:
        size = pack_context(path, dockerfile, context)
        with connect_engine() as engine:
            typer.echo(f"Sending {format_bytes(size)} of {path} to {engine.address}")
            for line in built(engine, context, name, arguments):
                typer.echo(line)
            about = inspect_image(engine, name)
    require_runnable_image(name, about["Config"])
    typer.echo(f"Built {name} ({format_bytes(about['Size'])}).")
    return name


@app.command()
def push(image: ImageName) -> None:
    """Push an image to its registry.

    It needs the credentials of docker login.
    """
    from edl.ops.docker_engine import connect_engine
    from edl.ops.image_build import require_image_name
    from edl.ops.image_push import push_image as pushed
    from edl.reporting.rich_console import make_console

    name = require_image_name(image)
    with connect_engine() as engine:
        last = show_push(pushed(engine, name), make_console(sys.stderr))
    typer.echo(f"Pushed {name}, {last.digest}." if last.digest else f"Pushed {name}.")


def _job_file_hint(zoo: Path, image: str) -> str:
    definitions = model_definitions(zoo)
    lines = [
        "In job.yaml (where a relative zoo is /model_zoo in the image):",
        f"  image: {image}",
        f"  model: {{zoo: ., definition: {definitions[0] if definitions else '<module>.<function>'}}}",
    ]
    more = f"Other definitions: {', '.join(definitions[1:])}." if definitions[1:] else None
    return "\n".join([*lines, *([more] if more else []), f"Next: edl zoo push {image}"])


# --------------------------------------------------------------------------------------------------
# The model zoo that ``edl zoo init`` writes, and the model definitions of a zoo.


TEMPLATE_DIRECTORY = files("edl.cli").joinpath("templates", "zoo")
TEMPLATE_FILES = {
    "Dockerfile": "Dockerfile",
    "dockerignore": ".dockerignore",
    "digits.py": "digits.py",
    "job.yaml": "job.yaml",
    "requirements.txt": "requirements.txt",
    "README.md": "README.md",
}
"""The template's files and their names in a zoo.

The template has no dot files; ``.dockerignore`` gets its dot when it is written.
"""
KEPT_FILES = ("requirements.txt",)
"""Files that may exist before: a folder of models often has its list of packages already."""


def write_zoo(directory: Path, base: str) -> list[Path]:
    """Write the template; return the written files in the order of :data:`TEMPLATE_FILES`.

    An existing file of :data:`KEPT_FILES` stays as it is.

    Args:
        directory: the zoo's folder. It is created if it does not exist.
        base: the training image that the Dockerfile is based on.

    Raises:
        BadInputError: one of the other files exists already; nothing was written.
        StorageError: the directory cannot be written.
    """
    targets = {
        source: directory / name
        for source, name in TEMPLATE_FILES.items()
        if not (name in KEPT_FILES and (directory / name).exists())
    }
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
    definitions = []
    for path in sorted(zoo.rglob("*.py")):
        module = path.relative_to(zoo).with_suffix("")
        if all(part.isidentifier() for part in module.parts) and "custom_model" in defined_names(path):
            definitions.append(".".join([*module.parts, "custom_model"]))
    return definitions

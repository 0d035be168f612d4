"""``edl zoo``: a folder of models becomes an image that jobs run."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.filesize import decimal

app = typer.Typer(help="Make, build and push images of model code.", no_args_is_help=True, add_completion=False)

ImageName = Annotated[str, typer.Argument(help="Name of the image, with its registry.", show_default=False)]


@app.command()
def init(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where to write the zoo.")] = Path(),
) -> None:
    """Write a model zoo to start from: a sample model, its job file, a Dockerfile and a README."""
    from edl.cli.zoo_template import write_zoo
    from edl.ops.image_dockerfile import default_base_image

    written = write_zoo(directory, base=default_base_image())
    typer.echo("\n".join(f"wrote {path}" for path in written))
    typer.echo(f"Next, in {directory.resolve()}:\n  edl data mnist data/mnist && edl run job.yaml")


@app.command()
def build(
    path: Annotated[Path, typer.Argument(help="The zoo: the folder that model.zoo names.", show_default=False)],
    image: Annotated[str, typer.Option(help="Name for the image: [REGISTRY/]NAME[:TAG].", show_default=False)],
    base: Annotated[
        str | None, typer.Option(help="Image to start from: EDL's training image of this version by default.")
    ] = None,
    file: Annotated[Path | None, typer.Option(help="A Dockerfile to use instead of the zoo's own.")] = None,
) -> None:
    """Build an image of a model zoo with the Docker engine.

    The zoo is copied to /model_zoo. Its own Dockerfile is used if it has one, and else one is made that also installs
    what its requirements.txt lists.
    """
    from edl.ops.docker_engine import connect_engine
    from edl.ops.image_build import build_image as built
    from edl.ops.image_build import require_image_name
    from edl.ops.image_check import inspect_image, require_runnable_image
    from edl.ops.image_context import pack_context
    from edl.ops.image_dockerfile import choose_dockerfile

    name = require_image_name(image)
    dockerfile, arguments = choose_dockerfile(path, base, file)
    with tempfile.TemporaryFile() as context:
        size = pack_context(path, dockerfile, context)
        with connect_engine() as engine:
            typer.echo(f"Sending {decimal(size)} of {path} to {engine.address}")
            for line in built(engine, context, name, arguments):
                typer.echo(line)
            about = inspect_image(engine, name)
    require_runnable_image(name, about["Config"])
    typer.echo(f"Built {name} ({decimal(about['Size'])}).\n{_job_file_hint(path, name)}")


@app.command()
def push(image: ImageName) -> None:
    """Push an image to its registry, with the credentials of ``docker login``."""
    from edl.cli.image_push_progress import show_push
    from edl.ops.docker_engine import connect_engine
    from edl.ops.image_build import require_image_name
    from edl.ops.image_push import push_image as pushed
    from edl.reporting.rich_console import make_console

    name = require_image_name(image)
    with connect_engine() as engine:
        last = show_push(pushed(engine, name), make_console(sys.stderr))
    typer.echo(f"Pushed {name}, {last.digest}." if last.digest else f"Pushed {name}.")


def _job_file_hint(zoo: Path, image: str) -> str:
    from edl.cli.zoo_template import model_definitions

    found = model_definitions(zoo)
    lines = [
        "In job.yaml (where a relative zoo is /model_zoo in the image):",
        f"  image: {image}",
        f"  model: {{zoo: ., definition: {found[0] if found else '<module>.<function>'}}}",
    ]
    more = f"Other definitions: {', '.join(found[1:])}." if found[1:] else None
    return "\n".join([*lines, *([more] if more else []), f"Next: edl zoo push {image}"])

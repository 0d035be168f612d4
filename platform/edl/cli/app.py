"""The command ``edl``: which commands there are, and how it ends.

Each command lives in a module of its own that is imported when the command is called, never before: ``edl --help``
answers within 200 ms. To add one, write ``edl/cli/<name>.py`` with a ``typer.Typer`` called ``app`` (one command, or
several as subcommands) and give it a line in COMMANDS.
"""

from __future__ import annotations

import atexit
import gc
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any

import typer
import typer.main
from typer.core import TyperCommand

from edl.api.errors import EdlError
from edl.api.exit_codes import INTERRUPTED_EXIT
from edl.reporting.terminal_text import sanitize_standard_streams

COMMANDS = {
    "run": "Train a job on this machine.",
    "submit": "Train a job on a Kubernetes cluster.",
    "list": "List the jobs of a namespace and the runs of this machine.",
    "status": "Show the progress and the pods of a job.",
    "logs": "Show the output of a job's pods or processes.",
    "events": "Show the events of a job.",
    "why": "Explain why a job waits, is slow or has failed.",
    "wait": "Wait until a job is done, has started, or has N workers.",
    "scale": "Change the number of workers of a job.",
    "stop": "Stop a job so that it can be resumed.",
    "delete": "Remove a job from a cluster.",
    "clean": "Remove ended runs from this machine.",
    "top": "Show CPU and memory of the pods of a job.",
    "doctor": "Check that a cluster is ready for jobs.",
    "inject": "Run a job on this machine and send signals to its processes.",
    "evaluate": "Evaluate a trained model.",
    "predict": "Predict with a trained model.",
    "sql": "Train, evaluate and use models by SQL statements.",
    "render": "Print the Kubernetes manifests of a job.",
    "validate": "Check a job file and show what it would run.",
    "schema": "Print the JSON Schema of job files.",
    "checkpoint": "List, inspect and export the checkpoints of runs.",
    "data": "Describe, convert and copy data; write example data sets.",
    "zoo": "Create a model zoo; build and push its image.",
}
"""The commands in the order of the help, each with its line there."""
_ALLOCATIONS = 20_000
"""Between two collections of the youngest objects; Python's default is 700."""


class DeferredCommand(TyperCommand):
    """A command known by name and help only: its module is imported when it is called."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """The context of the real command, which takes over from here."""
        module = import_module(f"edl.cli.{self.name}")
        return typer.main.get_command(module.app).make_context(info_name, args, parent, **extra)


# plain help: importing rich to draw frames around it costs more than everything else together
app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, no_args_is_help=True)


def main(args: Sequence[str] | None = None) -> None:
    """Run the command line ``args`` (those of the process by default), then exit.

    Exit codes: 0 done, 1 job failed, 2 bad input or usage, 130 interrupted.
    """
    if args is None:  # the process is this command's
        _relax_garbage_collection()
    with sanitize_standard_streams():
        try:
            typer.main.get_command(app).main(None if args is None else list(args), prog_name="edl")
        except EdlError as error:
            print(error, file=sys.stderr)
            sys.exit(error.exit_code)
        except KeyboardInterrupt:
            sys.exit(INTERRUPTED_EXIT)


def _relax_garbage_collection() -> None:
    """Imports make no garbage, and the end of a process needs none collected: 0.2 s of `edl sql` and `edl run`."""
    gc.set_threshold(_ALLOCATIONS, 10, 10)
    atexit.register(gc.freeze)


@app.callback()
def edl(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version and exit.", callback=lambda wanted: _print_version(wanted)),
    ] = False,
) -> None:
    """Train Keras models with a varying number of workers, on this machine and on Kubernetes."""


def _print_version(requested: bool) -> None:
    if requested:
        from importlib.metadata import version  # costs 20 ms, and only this option needs it

        typer.echo(f"edl {version('edl-platform')}")
        raise typer.Exit


def _fail_without_context() -> None:
    raise AssertionError("a deferred command was called without its context")


for _name, _help in COMMANDS.items():
    app.command(_name, cls=DeferredCommand, help=_help)(_fail_without_context)

if __name__ == "__main__":
    main()

"""The command ``elasticdl``: which commands there are, and how it ends."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

from edl.api.errors import BadInputError, EdlError
from edl.api.exit_codes import ELASTICDL_USAGE_EXIT, INTERRUPTED_EXIT
from edl.cli.elasticdl.flags import COMMANDS, JOB_COMMANDS
from edl.cli.elasticdl.parser import parse_command_line
from edl.jobfile.document_tree import closest_match
from edl.jobfile.elasticdl_imports import MIGRATION_PAGE
from edl.reporting.terminal_text import sanitize_standard_streams

_HELP = f"""\
usage: elasticdl COMMAND [FLAGS]

Command lines of ElasticDL, run by EDL. Every flag of elasticdl-client 1.0.0 is taken: it becomes a field of a job file,
has no effect, which a line says, or is refused with what to write instead.

  train        train a model: on this machine, or with --image_name on a cluster
  evaluate     evaluate a trained model
  predict      predict with a trained model
  zoo init     write a Dockerfile for a model zoo
  zoo build    build the image of a model zoo
  zoo push     push an image to its registry

--dry-run prints the job file, and --yaml=FILE writes it; edl run and edl submit read it.
elasticdl COMMAND -h lists the flags. The page for ElasticDL's users: {MIGRATION_PAGE}
"""
_OTHER_COMMANDS = {"clean": "edl delete JOB removes a job; the Docker engine removes images"}


def main(args: Sequence[str] | None = None) -> None:
    """Run the command line ``args`` (those of the process by default), then exit.

    Exit codes: 0 done, 1 job failed or no command, 2 bad input or usage, 130 interrupted.
    """
    words = list(sys.argv[1:] if args is None else args)
    with sanitize_standard_streams():
        try:
            sys.exit(_run(words))
        except EdlError as error:
            print(error, file=sys.stderr)
            sys.exit(error.exit_code)
        except KeyboardInterrupt:
            sys.exit(INTERRUPTED_EXIT)


def _run(words: Sequence[str]) -> int:
    if not words or list(words) == ["zoo"]:
        print(_HELP, file=sys.stderr, end="")
        return ELASTICDL_USAGE_EXIT
    if words[0] in ("-h", "--help") or (words[0] == "zoo" and words[1] in ("-h", "--help")):
        print(_HELP, end="")
        return 0
    if words[0] == "--version":
        from importlib.metadata import version  # costs 20 ms, and only this option needs it

        print(f"elasticdl of edl {version('edl-platform')}")
        return 0
    line = parse_command_line(*split_command(words))
    module = "commands" if line.command in JOB_COMMANDS else "zoo"
    code: int = import_module(f"edl.cli.elasticdl.{module}").run_command(line)
    return code


def split_command(words: Sequence[str]) -> tuple[str, Sequence[str]]:
    """The command, such as ``zoo init``, and the words after it.

    Raises:
        BadInputError: there is no such command.
    """
    command, rest = (" ".join(words[:2]), words[2:]) if words[0] == "zoo" else (words[0], words[1:])
    if command not in COMMANDS:
        close = closest_match(command, COMMANDS)
        hint = _OTHER_COMMANDS.get(command) or (f"did you mean {close}?" if close else f"known: {', '.join(COMMANDS)}")
        raise BadInputError("there is no such command", where=f"elasticdl {command}", hint=hint)
    return command, rest


if __name__ == "__main__":
    main()

"""The reference of the command ``elasticdl``: its flags, older spellings, and documented command lines with results.

The flags come from the command's own table. The command lines are those that a test runs, and the results are what the
command says about them now.
"""

from __future__ import annotations

import shlex
import sys
import tempfile
import textwrap
from collections.abc import Iterable, Iterator
from contextlib import chdir
from pathlib import Path

from edl.api.errors import BadInputError
from edl.api.job_spec import JobSpec
from edl.cli.elasticdl.app import split_command
from edl.cli.elasticdl.flags import (
    EXTRA_FLAGS,
    JOB_FLAGS,
    RETIRED_FLAGS,
    ZOO_FLAGS,
    BecomesFields,
    DirectsCommand,
    Flag,
    NoEffect,
    RefusedFlag,
    Renamed,
)
from edl.cli.elasticdl.job_translation import translate_job
from edl.cli.elasticdl.parser import parse_command_line
from edl.cluster.kubernetes.spec_validation import find_submission_problems
from edl.reporting.unit_formats import pluralize

TESTS = Path(__file__).resolve().parents[2] / "platform/tests"
_HEAD = """<!-- Written by `make reference` from the command's own table of flags; do not edit. -->

# Command lines of ElasticDL

The command `elasticdl` takes the flags of `elasticdl-client` 1.0.0, and some of other versions. A
flag becomes fields of the [job file](jobspec.md), says what the command does, has no effect, which
a line says, or is refused. [Migrating from ElasticDL](../migrating-from-elasticdl.md) says how the
two systems differ."""
_LINES = """## Documented command lines

They have the forms and flags of ElasticDL's tutorials, README and CI. A test runs each of them."""


def page() -> str:
    """The whole page."""
    parts = [
        _HEAD,
        "## `train`, `evaluate` and `predict`",
        _flag_table((*JOB_FLAGS, *EXTRA_FLAGS)),
        "## `zoo`",
        _flag_table(ZOO_FLAGS),
        "## Spellings of older versions",
        _table(
            ("flag", "what becomes of it"), ((f"`--{each.name}`", _describe(each.effect)) for each in RETIRED_FLAGS)
        ),
        _LINES,
        *_documented_lines(),
    ]
    return "\n\n".join(parts) + "\n"


def _flag_table(flags: Iterable[Flag]) -> str:
    head = ("flag", "commands", "default", "what becomes of it")
    rows = ((f"`{f.option}`", ", ".join(f.commands), _default(f), _describe(f.effect)) for f in flags)
    return _table(head, rows)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in lines)


def _default(flag: Flag) -> str:
    if flag.default is None:
        return "required" if flag.required else ""
    return "" if flag.default == "" else f"`{flag.default}`"


def _describe(effect: BecomesFields | DirectsCommand | NoEffect | RefusedFlag | Renamed) -> str:
    match effect:
        case BecomesFields(fields, remark):
            return ", ".join(f"`{name}`" for name in fields) + (f": {remark}" if remark else "")
        case DirectsCommand(purpose):
            return purpose
        case NoEffect(reason):
            return f"*no effect*: {reason}"
        case RefusedFlag(reason, instead):
            return f"*refused*: {reason}; {instead}"
        case Renamed(name):
            return f"taken as `--{name}`"


def _documented_lines() -> Iterator[str]:
    sys.path.insert(0, str(TESTS))
    try:
        from cli.elasticdl.documented_lines import LINES
    finally:
        sys.path.remove(str(TESTS))
    # an empty folder: whether a module is on this machine makes a difference
    with tempfile.TemporaryDirectory() as empty, chdir(empty):
        for line in LINES:
            name = line.name[:1].upper() + line.name[1:]
            yield f"### {name}\n\n```text\n{_wrap(line.text)}\n```\n\n{_result(line.text)}"


def _wrap(text: str) -> str:
    """The command line as one would type it, with a flag or a few on each line."""
    words = [shlex.quote(word) for word in shlex.split(text)]
    lines = textwrap.wrap("\0".join(words).replace(" ", "\1").replace("\0", " "), 92, break_long_words=False,
                          break_on_hyphens=False, subsequent_indent="  ")  # fmt: skip
    return " \\\n".join(lines).replace("\1", " ")


def _result(text: str) -> str:
    try:
        line = parse_command_line(*split_command(shlex.split(text)[1:]))
        job = translate_job(line, Path(), find_submission_problems)
    except BadInputError as error:
        return f"Refused:\n\n```text\n{error}\n```"
    said = "\n\n```text\n" + "\n".join(job.notes) + "\n```" if job.notes else ""
    return f"Becomes {_summary(line.command, job.spec)}." + (f" It says:{said}" if said else "")


def _summary(command: str, spec: JobSpec) -> str:
    place = "a job on a cluster" if spec.image is not None else "a run on this machine"
    if command != "train":
        return f"{place} that only {command}s, with {pluralize(spec.workers.max, 'worker')}"
    roles = [f"strategy {spec.strategy.name}"]
    if spec.strategy.name != "Local":
        roles.append(pluralize(spec.workers.max, "worker"))
    if spec.strategy.name == "ParameterServer":
        roles += [pluralize(spec.ps.count, "parameter server"), spec.strategy.mode]
    return f"{place}: {', '.join(roles)}"

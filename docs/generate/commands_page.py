"""The reference of the command line: every command with its options, exit codes and examples, as the help has them."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import typer.main
from commands_examples import EXAMPLES

from edl.cli import app as program

_HEAD = """<!-- Written by `make reference` from the commands' own help; do not edit. -->

# The command line

`edl COMMAND --help` prints the same. Options may be anywhere after the command. Commands about jobs
on a cluster use the kubeconfig as `kubectl` does: `KUBECONFIG`, else `~/.kube/config`, else, in a
pod, the pod's own account.

Exit codes, unless a command lists its own:
{codes}.
"""
_CODES = re.compile(r"Exit codes: ([^.]*)\.")


@dataclass(frozen=True, slots=True)
class Entry:
    """A command: its full name, such as ``zoo build``, and what typer made of it."""

    name: str
    command: Any

    @property
    def subcommands(self) -> dict[str, Any]:
        """By their names; empty for what is not a group."""
        found: dict[str, Any] = getattr(self.command, "commands", {})
        return found


def page() -> str:
    """The whole page."""
    found = list(entries())
    codes = _CODES.search(inspect.getdoc(program.main) or "")
    assert codes is not None
    parts = [_HEAD.format(codes=codes[1]), _overview(found), *(_section(entry) for entry in found)]
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def entries() -> Iterator[Entry]:
    """All commands, subcommands after their group, in the order of the help."""
    for name in program.COMMANDS:
        command = typer.main.get_command(import_module(f"edl.cli.{name}").app)
        entry = Entry(name, command)
        yield entry
        for inner, subcommand in entry.subcommands.items():
            yield Entry(f"{name} {inner}", subcommand)


def options(entry: Entry) -> Iterator[tuple[str, str]]:
    """Each argument and option with its sentence, as the help writes them; without ``--help``."""
    context = entry.command.context_class(entry.command, info_name=f"edl {entry.name}")
    for parameter in entry.command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None and "--help" not in parameter.opts:
            yield record


def _overview(found: list[Entry]) -> str:
    head = "| command | |\n|---|---|\n"
    lines = [
        f"| [`edl {entry.name}`](#{_anchor(entry)}) | {_summary(entry)} |" for entry in found if not entry.subcommands
    ]
    return head + "\n".join(lines)


def _anchor(entry: Entry) -> str:
    return f"edl-{entry.name.replace(' ', '-')}"


def _summary(entry: Entry) -> str:
    return _plain(entry.command.help or "").partition("\n\n")[0]


def _section(entry: Entry) -> str:
    level = "###" if " " in entry.name else "##"
    parts = [f"{level} edl {entry.name}", _wrap(_plain(entry.command.help or ""))]
    if not entry.subcommands:
        parts.append(f"```text\n{_usage(entry)}\n```")
        parts.append("\n".join(_item(*record) for record in options(entry)))
        parts.extend(_examples(entry))
    return "\n\n".join(part for part in parts if part)


def _usage(entry: Entry) -> str:
    context = entry.command.context_class(entry.command, info_name=f"edl {entry.name}")
    return " ".join([context.command_path, *entry.command.collect_usage_pieces(context)])


def _item(usage: str, text: str) -> str:
    return _wrap(f"- `{usage.strip()}`: {_plain(text)}" if text else f"- `{usage.strip()}`", indent="  ")


def _examples(entry: Entry) -> Iterator[str]:
    lines = EXAMPLES.get(entry.name, ())
    if lines:
        width = max(len(line) for line, _ in lines)
        yield "```bash\n" + "\n".join(f"{line:<{width}}  # {why}" for line, why in lines) + "\n```"


def _wrap(text: str, indent: str = "") -> str:
    """Paragraphs in lines of at most 100 columns; lines after the first begin with ``indent``."""
    wrapper = textwrap.TextWrapper(100, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return "\n\n".join(wrapper.fill(paragraph) for paragraph in text.split("\n\n"))


def _plain(text: str) -> str:
    """Help text as Markdown: double backticks, as docstrings have them, are code; lines of a paragraph are one."""
    paragraphs = re.split(r"\n\s*\n", text.replace("``", "`").replace("\b", "").strip())
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)

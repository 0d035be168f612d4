"""The documentation's commands, as tests read and run them.

Commands stand in fences marked ``sh``, one logical command each; in the README also behind ``$`` in ``console``. A
comment before a fence says what a test must know: ``<!-- test: exits 124 -->``, ``<!-- test: not run: why -->``.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
PAGES = (ROOT / "README.md", *sorted(DOCS.rglob("*.md")))
PROGRAMS = ("edl", "helm", "kubectl")

_FENCE = re.compile(
    r"(?:<!-- test: (?P<told>.*?) -->\n)?^```(?P<kind>sh|console)[^\n]*\n(?P<text>.*?)^```", re.MULTILINE | re.DOTALL
)
_PUNCTUATION = "();<>|&"
_BEFORE = ("timeout", "python", "exec", "time")
"""Programs that start another one."""


@dataclass(frozen=True)
class DocCommand:
    """A logical command of a page.

    Attributes:
        page: the file.
        line: of the command, from 1.
        text: as a shell takes it.
        exits: the exit code that it ends with.
        not_run: why a test must not run it; empty: it may.
    """

    page: Path
    line: int
    text: str
    exits: int = 0
    not_run: str = ""

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def program(self) -> str:
        """What the command begins with."""
        return self.text.split(maxsplit=1)[0]


def blocks(page: Path) -> list[DocCommand]:
    """All commands of a page, in its order."""
    return list(_blocks(page))


def _blocks(page: Path) -> Iterator[DocCommand]:
    content = page.read_text(encoding="utf-8")
    for fence in _FENCE.finditer(content):
        line = content.count("\n", 0, fence.start("text")) + 1
        note = fence["told"] or ""
        exits = int(note.removeprefix("exits ")) if note.startswith("exits ") else 0
        not_run = note.removeprefix("not run: ") if note.startswith("not run: ") else ""
        if fence["kind"] == "sh":
            yield DocCommand(page, line, fence["text"].strip(), exits, not_run)
            continue
        for number, text in enumerate(fence["text"].splitlines()):
            if text.startswith("$ "):
                yield DocCommand(page, line + number, text[2:])


def calls(text: str, variables: Mapping[str, str]) -> list[list[str]]:
    """The words of every call of ``edl``, ``helm`` and ``kubectl`` in a command, without redirections.

    Args:
        text: for a shell.
        variables: what ``$NAME`` stands for; a name that is not there becomes ``sample``.
    """
    lexer = shlex.shlex(text.replace("\\\n", " "), posix=True, punctuation_chars=_PUNCTUATION)
    lexer.whitespace_split = True
    lexer.commenters = "#" if "#" in text.partition("'")[0] else ""
    called: list[list[str]] = []
    words: list[str] = []
    for token in [*lexer, ";"]:
        if token and set(token) <= set(_PUNCTUATION):
            called += _called(words)
            words = []
        else:
            words.append(re.sub(r"\$\{?(\w+)\}?", lambda match: variables.get(match[1], "sample"), token))
    return called


def _called(words: Sequence[str]) -> list[list[str]]:
    at = next((i for i, word in enumerate(words) if word in PROGRAMS), None)
    return [] if at is None or (at and words[0] not in _BEFORE) else [list(words[at:])]


def exported(page: Path) -> set[str]:
    """Names of the variables that a page sets."""
    return {name for block in blocks(page) for name in re.findall(r"^export (.*)", block.text) for name in _names(name)}


def copies(page: Path) -> dict[str, str]:
    """The files of its reader's own that a page makes, each with the example of the repository that it is a copy of."""
    matches = (re.fullmatch(r"(?:cp|sed) .*?(docs/examples/\S+) (?:> )?(\S+)", block.text) for block in blocks(page))
    return {copy[2]: copy[1] for copy in matches if copy}


def _names(assignments: str) -> list[str]:
    return re.findall(r"(?:^|\s)(\w+)=", assignments)


def script(commands: Sequence[DocCommand], *, prelude: str = "") -> str:
    """One bash program that runs these commands and ends with the first that does not exit as it should."""
    lines = ["set -u", prelude]
    for block in commands:
        if block.not_run:
            continue
        wrong = f'echo "### {block}: exit code $code, not {block.exits}"; exit 1'
        lines += [
            f"echo {shlex.quote(f'### {block}')}",
            block.text,
            f'code=$?; [ "$code" = {block.exits} ] || {{ {wrong}; }}',
        ]
    return "\n".join(lines) + "\n"


def run(text: str, *, folder: Path, env: Mapping[str, str], seconds: float) -> str:
    """Run a script in a folder; what it printed.

    Raises:
        AssertionError: it failed; with the end of what it printed.
    """
    done = subprocess.run(
        ["bash", "-c", text],
        cwd=folder,
        env=dict(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:]
    return done.stdout

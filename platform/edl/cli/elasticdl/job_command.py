"""Reads ``--job_command``: the words of a program that workers run without a shell, and a name for its job."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

_OPERATORS = "();<>|&"
_VARIABLE = re.compile(r"\$[A-Za-z_({]|`")
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_SHELLS = ("sh", "bash", "dash", "zsh")
_TRAINING_DATA = re.compile(r"--training_data(?:_dir)?[= ](\S+)")


def read_command(text: str) -> tuple[str, ...]:
    """The words of a command line.

    Raises:
        ValueError: the text has none, cannot be split, or needs a shell. Its message is for people.
    """
    try:
        words = shlex.split(text)
        parts = list(shlex.shlex(text, posix=False, punctuation_chars=_OPERATORS))
    except ValueError as error:
        raise ValueError(f"cannot be read: {str(error).lower()}") from None
    if not words:
        raise ValueError("has no program; write such as python train.py")
    operator = next((part for part in parts if set(part) <= set(_OPERATORS)), None)
    if operator is not None:
        raise ValueError(f"no shell runs it, so {operator} has no meaning; write sh -c '...', or quote {operator}")
    if _ASSIGNMENT.match(words[0]):
        raise ValueError(f"begins with {words[0]}, which is no program; give variables to --envs, such as {words[0]}")
    return tuple(words)


def find_shell_word(command: Sequence[str]) -> str | None:
    """A word that a shell would replace; none runs the command, so the program gets it as it is."""
    if command[0].rpartition("/")[2] in _SHELLS:
        return None
    return next((word for word in command if _VARIABLE.search(word)), None)


def find_training_data(text: str) -> str | None:
    """The files that the program itself is told, if it has a flag that is called like ElasticDL's."""
    match = _TRAINING_DATA.search(text)
    return match[1].strip("'\"") if match else None


def program_name(command: Sequence[str]) -> str:
    """The module or file that runs, without folders and ending: ``train`` of ``python -m code.train``."""
    arguments = [word for word in command[1:] if not word.startswith("-")]
    is_interpreter = command[0].rpartition("/")[2].startswith("python") and bool(arguments)
    program = arguments[0] if is_interpreter else command[0]
    return program.rpartition("/")[2].removesuffix(".py").removesuffix(".sh").rpartition(".")[2]

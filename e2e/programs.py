"""The programs that a user calls: `edl`, `kubectl`, `docker`. Their output stands in the error when they fail."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

Done = subprocess.CompletedProcess[str]

EDL = Path(sys.executable).with_name("edl")
ROOT = Path(__file__).parents[1]


class ProgramError(AssertionError):
    """A program failed, or did what it must not."""


def call(
    *command: str | Path,
    stdin: str | None = None,
    seconds: float = 120.0,
    env: dict[str, str] | None = None,
    cwd: Path | None = None,
) -> Done:
    """Run a program to its end, whatever its exit code."""
    return subprocess.run(
        [str(part) for part in command],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
        env={**os.environ, **(env or {})},
        cwd=cwd,
    )


def run_program(
    *command: str | Path, stdin: str | None = None, seconds: float = 120.0, env: dict[str, str] | None = None
) -> str:
    """Run a program that must succeed; its standard output."""
    done = call(*command, stdin=stdin, seconds=seconds, env=env)
    if done.returncode:
        raise ProgramError(
            f"{command_text(command)}: exit code {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        )
    return done.stdout


def edl(*arguments: str | Path, seconds: float = 120.0, env: dict[str, str] | None = None) -> Done:
    """``edl`` with its arguments, whatever its exit code."""
    return call(EDL, *arguments, seconds=seconds, env=env)


def kubectl(*arguments: str, stdin: str | None = None, seconds: float = 120.0) -> str:
    """``kubectl`` with its arguments; its standard output."""
    return run_program("kubectl", *arguments, stdin=stdin, seconds=seconds)


def apply(manifest: dict[str, Any] | str, *options: str) -> str:
    """``kubectl apply -f -`` of an object or of YAML."""
    text = manifest if isinstance(manifest, str) else json.dumps(manifest)
    return kubectl("apply", *options, "-f", "-", stdin=text)


def command_text(command: tuple[str | Path, ...]) -> str:
    """The command as people write it."""
    return " ".join(str(part) for part in command)

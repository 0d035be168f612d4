"""Runs ``edl run``, ``edl evaluate`` and ``edl predict`` on an exported folder, as processes.

So a statement trains exactly what the folder trains by itself, and this process never imports TensorFlow.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from edl.api.errors import BadInputError, EdlError, JobFailedError, StorageError
from edl.jobfile.database_address import CREDENTIAL_VARIABLES

OnEvent = Callable[[Mapping[str, Any]], object]
LOG_FILE = "edl.log"
_LAST_LINES = 8


class KeptFolderError(EdlError):
    """An error that names the folder of a statement, which stays: what is in it says why, or is of use."""


class StatementJobError(KeptFolderError, JobFailedError):
    """A job of a statement failed."""


class StatementInputError(KeptFolderError, BadInputError):
    """A job of a statement cannot run."""


class UnstoredResultError(KeptFolderError, StorageError):
    """What a job of a statement wrote is incomplete, or cannot be stored."""


def run_edl(
    verb: str,
    folder: Path,
    arguments: Sequence[str] = (),
    on_event: OnEvent | None = None,
    *,
    needs_database: bool = False,
    job: str = "job.yaml",
    environment: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Run a command of EDL on a job file of a folder, and follow it; returns its last line, the summary.

    Args:
        verb: ``run``, ``evaluate`` or ``predict``.
        folder: the working folder, in which the run and the log are kept, too.
        arguments: more of them.
        on_event: gets each line as it comes. What it raises ends the job.
        needs_database: the job reads the database, whose address and credentials may be in the environment.
        job: name of the job file.
        environment: of the process; None: that of this one.

    Raises:
        StatementInputError: the job cannot run.
        StatementJobError: it failed.
    """
    command = [sys.executable, "-P", "-m", "edl.cli.app", verb, job, "--json", *arguments]
    # Another job has no use for the credentials of the database.
    environment = {
        name: value
        for name, value in (os.environ if environment is None else environment).items()
        if needs_database or name not in CREDENTIAL_VARIABLES
    }
    last: dict[str, Any] = {}
    reason = ""
    with (folder / LOG_FILE).open("ab") as log:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=log)
        assert process.stdout is not None
        try:
            for line in process.stdout:
                with suppress(ValueError):
                    event = json.loads(line)
                    last = event if isinstance(event, dict) else last
                    reason = last.get("reason") or reason
                    if on_event is not None:
                        on_event(last)
            code = process.wait()
        except BaseException:
            # Ctrl-C reaches the process, too, which then writes its checkpoint.
            with suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
                process.terminate()
                process.wait(20)
            process.kill()
            process.wait()
            raise
        finally:
            process.stdout.close()
    if code:
        raise _failure(verb, folder, job, code, reason)
    return last


def _failure(verb: str, folder: Path, job: str, code: int, reason: str) -> EdlError:
    lines = (folder / LOG_FILE).read_text(encoding="utf-8", errors="replace").splitlines()
    text = reason or "\n".join(lines[-_LAST_LINES:]) or f"it ended with exit code {code}"
    kind = StatementInputError if code == BadInputError.exit_code else StatementJobError
    more = f"cd {shlex.quote(str(folder))} && edl why {name}" if (name := _job_name(folder / job)) else ""
    hint = f"the log is {folder / LOG_FILE}" + (f"; or: {more}" if more else "")
    return kind(f"edl {verb} failed: {text}", where=str(folder), hint=hint)


def _job_name(file: Path) -> str:
    """The name in a job file that EDL wrote; empty: there is none."""
    with suppress(OSError, YAMLError):
        content = YAML(typ="safe", pure=True).load(file.read_text(encoding="utf-8"))
        return str(content.get("name", "")) if isinstance(content, dict) else ""
    return ""

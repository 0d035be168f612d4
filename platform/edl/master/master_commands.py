"""The commands of a job that its master runs: ``master.prepare`` at the beginning, ``master.finish`` at the end.

Their output becomes a part of the master's log, and its last lines the reason if one fails.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from edl.api.errors import BadInputError, EdlError, JobFailedError, StorageError
from edl.api.job_spec import JobSpec
from edl.jobfile.command_rules import program_path
from edl.jobfile.document_tree import SpecError
from edl.jobfile.loader import load_job_file
from edl.storage.durable_files import write_json
from edl.storage.run_directory import RunDirectory

_PREPARED_FILE = "prepared.json"
_LAST_LINES = 3
OnProgress = Callable[[str], object]
_POLL_SECONDS, _LEAVE_SECONDS = 0.05, 5.0


@dataclass(frozen=True, slots=True)
class CommandEnd:
    """How a command ended.

    Attributes:
        problem: why it failed; None: it did not.
        was_stopped: the master was told to go meanwhile, and stopped the command.
    """

    problem: EdlError | None = None
    was_stopped: bool = False


def prepare_run(
    run: RunDirectory, spec: JobSpec, stopping: threading.Event, on_progress: OnProgress = lambda line: None
) -> tuple[JobSpec, CommandEnd]:
    """Run ``master.prepare`` unless it has succeeded in this run; returns the spec as it is afterwards."""
    marker = run.path / _PREPARED_FILE
    if not spec.master.prepare or marker.exists():
        return spec, CommandEnd()
    end = run_command("master.prepare", spec.master.prepare, run, stopping, on_progress=on_progress)
    if end.was_stopped or end.problem is not None:
        return spec, end
    try:
        prepared = load_job_file(run.spec)
        write_json(marker, {"command": list(spec.master.prepare)}, fsync=True)
    except SpecError as error:
        return spec, CommandEnd(BadInputError(f"the command left a spec.json that is no job: {error}"))
    except StorageError as error:
        return spec, CommandEnd(error)
    return prepared, end


def run_command(
    field: str,
    command: Sequence[str],
    run: RunDirectory,
    stopping: threading.Event,
    text: str = "",
    on_progress: OnProgress = lambda line: None,
) -> CommandEnd:
    """Run a command until its end, in the directory of the run.

    Args:
        field: that has it.
        command: its words; ``python`` is the interpreter of this process.
        run: of the job.
        stopping: set when this master must go.
        text: its standard input.
        on_progress: hears, many times a second, the last line that the command wrote.
    """
    environment = {**os.environ, "EDL_RUN_DIR": str(run.path), "PATH": program_path(os.environ)}
    last: deque[str] = deque(maxlen=_LAST_LINES)
    try:
        process = subprocess.Popen(
            list(command),
            cwd=run.path,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
    except OSError as error:
        return CommandEnd(BadInputError(f"{field}: {command[0]} cannot be run: {error.strerror or error}"))
    assert process.stdin is not None
    assert process.stdout is not None
    copying = threading.Thread(target=_copy_lines, args=(process.stdout, last), name=field, daemon=True)
    copying.start()
    with suppress(BrokenPipeError), process.stdin:
        process.stdin.write(text)
    while process.poll() is None:
        if stopping.wait(_POLL_SECONDS):
            _end_process(process)
            return CommandEnd(was_stopped=True)
        on_progress(last[-1] if last else "")
    copying.join(_LEAVE_SECONDS)
    if process.returncode == 0:
        return CommandEnd()
    kind = BadInputError if process.returncode == BadInputError.exit_code else JobFailedError
    said = "\n".join(last).removeprefix("edl: ") or "it said nothing"
    name = Path(command[0]).name
    return CommandEnd(kind(f"{field} ({name}) ended with exit code {process.returncode}: {said}"))


def _copy_lines(source: IO[str], last: deque[str]) -> None:
    with source:
        for line in source:
            sys.stderr.write(line)
            sys.stderr.flush()
            if line.strip():
                last.append(line.rstrip())


def _end_process(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(_LEAVE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()

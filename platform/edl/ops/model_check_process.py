"""Runs the check of a job's model in a process of its own: the command line never imports TensorFlow, nor user code."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from edl.jobfile.job_spec import JobSpec
from edl.jobfile.loader import dump_job_spec

_CHECK_PROGRAM = ("-P", "-m", "edl.worker.model_check")
_LAST_LINES = 12
"""How much of what it printed is shown of a process that ended without a result."""


@dataclass(frozen=True, slots=True)
class ModelCheckResult:
    """What was found.

    Attributes:
        lines: about the model and its first minibatch, for people.
        failure: why a run would fail before its first update; empty: it would not.
        detail: the traceback for people, or the last lines that were printed; may be empty.
        exit_code: of the run.
    """

    lines: tuple[str, ...]
    failure: str = ""
    detail: str = ""
    exit_code: int = 0


def check_model(spec: JobSpec) -> ModelCheckResult:
    """Import the model's module, make the model, and feed it the first minibatch, as a run does.

    Args:
        spec: with the paths of this machine.
    """
    with tempfile.TemporaryDirectory(prefix="edl-check-") as folder:
        spec_file, result_file = Path(folder, "spec.json"), Path(folder, "result.json")
        spec_file.write_text(json.dumps(dump_job_spec(spec)), encoding="utf-8")
        done = subprocess.run(
            [sys.executable, *_CHECK_PROGRAM, str(spec_file), str(result_file)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={"TF_CPP_MIN_LOG_LEVEL": "1", **os.environ},
            text=True,
            errors="replace",
            check=False,
        )
        if not result_file.exists():
            return _result_of_crash(done.returncode, done.stdout)
        result = json.loads(result_file.read_text(encoding="utf-8"))
    return ModelCheckResult(tuple(result["lines"]), result["failure"], result["detail"], result["exit_code"])


def _result_of_crash(code: int, printed: str) -> ModelCheckResult:
    """The user's code ended the process, or the kernel did."""
    how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    failure = f"the process that tried the model ended before it was through: {how}"
    hint = "the model's code must not end its process" if code >= 0 else "SIGKILL is mostly too little memory"
    last = "".join(f"{line}\n" for line in printed.splitlines()[-_LAST_LINES:])
    return ModelCheckResult((), f"{failure}\n  {hint}", last, exit_code=1)

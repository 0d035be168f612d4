"""Starts the supervisor so that it cannot outlive its caller."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path


def start_supervisor(
    run_dir: Path, program: Sequence[str] = ("-P", "-m", "edl.cluster.local")
) -> subprocess.Popen[bytes]:
    """Start ``python -m edl.cluster.local RUN_DIR`` in its own session and return at once.

    The supervisor and all roles are killed when the calling *thread* ends, so call this in the main thread. Keep the
    returned object and its ``stdin`` open. SIGINT and SIGTERM stop the job; ``wait`` returns an exit code of
    ``edl.cluster.local.__main__``. Output of the supervisor goes to ``logs/supervisor.log``, like its log lines.

    Args:
        run_dir: an existing run directory with ``spec.json``.
        program: arguments of Python; tests use a supervisor of fake roles.

    Raises:
        OSError: the run directory does not exist, or no process can be started.
    """
    command = [sys.executable, *program, str(run_dir), "--parent", str(os.getpid())]
    log_path = run_dir / "logs" / "supervisor.log"
    log_path.parent.mkdir(exist_ok=True)
    with log_path.open("ab") as log:
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )

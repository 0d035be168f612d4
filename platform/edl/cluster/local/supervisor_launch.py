"""Starts the supervisor such that it cannot outlive who started it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path


def start_supervisor(
    run_dir: Path, program: Sequence[str] = ("-P", "-m", "edl.cluster.local")
) -> subprocess.Popen[bytes]:
    """Start ``python -m edl.cluster.local RUN_DIR`` in a session of its own and return it at once.

    The supervisor and all roles are killed when the calling *thread* ends, so this belongs in the main thread. Keep
    the returned object and its ``stdin`` open. SIGINT and SIGTERM stop the job; ``wait`` returns the exit code of
    ``edl.cluster.local.__main__``. What the supervisor prints goes to ``logs/supervisor.log``, with what it logs.

    Args:
        run_dir: an existing run directory with ``spec.json``.
        program: what Python runs; tests put a supervisor of fake roles here.

    Raises:
        OSError: the run directory is missing, or no process can be started.
    """
    command = [sys.executable, *program, str(run_dir), "--parent", str(os.getpid())]
    log_path = run_dir / "logs" / "supervisor.log"
    log_path.parent.mkdir(exist_ok=True)
    with log_path.open("ab") as log:
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )

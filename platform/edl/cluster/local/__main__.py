"""``python -m edl.cluster.local RUN_DIR``: supervise the job of a run directory.

Exit codes: 0 the master ended the job, 1 the master keeps crashing, 2 there is no such run directory, 130 interrupted,
143 terminated.
"""

from __future__ import annotations

import argparse
import os
import selectors
import sys
from collections.abc import Sequence
from pathlib import Path

from edl.cluster.local.parent_death import die_with_parent
from edl.cluster.local.role_process import RoleCommand, role_command
from edl.cluster.local.supervisor import RuntimeDirectory, Supervisor
from edl.cluster.local.supervisor_server import EventLoop
from edl.transport.open_files import raise_open_files_limit


def main(arguments: Sequence[str], command: RoleCommand = role_command) -> int:
    """Supervise one run and return the exit code."""
    options = _parser().parse_args(arguments)
    if not options.run_dir.is_dir():
        print(f"{options.run_dir}: there is no such run directory", file=sys.stderr)
        return 2
    if options.parent is not None:
        die_with_parent(options.parent)
    raise_open_files_limit()
    run_dir = options.run_dir.resolve()
    loop = EventLoop()
    runtime = RuntimeDirectory()
    try:
        supervisor = Supervisor(loop, run_dir, runtime, command)
        if options.parent is not None:
            # the pipe ends when the parent dies, also where the kernel sends no signal for that
            loop.watch(sys.stdin.fileno(), selectors.EVENT_READ, lambda _: _abandon_without_parent(supervisor))
        return supervisor.run()
    finally:
        runtime.close()
        loop.close()


def _abandon_without_parent(supervisor: Supervisor) -> None:
    if not os.read(sys.stdin.fileno(), 4096):
        supervisor.abandon()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m edl.cluster.local", description="Supervise the processes of one job."
    )
    parser.add_argument("run_dir", type=Path, help="the run directory, which holds spec.json")
    parser.add_argument(
        "--parent",
        type=int,
        metavar="PID",
        help="kill all roles when this parent dies; its standard input must be a pipe that the parent holds open",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

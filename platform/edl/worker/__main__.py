"""``python -m edl.worker``: one worker, configured by its environment. Without a master's address it trains alone.

This module imports little, because the import of TensorFlow is the longest part of a start and must
begin immediately.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
from concurrent.futures import Future
from pathlib import Path

from edl.api.errors import EdlError
from edl.api.exit_codes import INTERRUPTED_EXIT
from edl.worker.command_program import read_command, run_program
from edl.worker.graceful_shutdown import end_process


def main() -> int:
    """Run the worker until there is no more work; returns the exit code."""
    # 1 hides notes about CPU features and the like, and keeps warnings; the user's own value wins.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    try:
        if not os.environ.get("EDL_MASTER_ADDRESS"):
            return _run_local_strategy()
        if read_command(Path(os.environ.get("EDL_RUN_DIR", ""))):
            run_program(os.environ)
        return _run_worker()
    except EdlError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED_EXIT


def _run_local_strategy() -> int:
    from edl.worker.local_strategy.local_main import main as local_main

    return local_main(os.environ)


def _run_worker() -> int:
    from edl.worker.graceful_shutdown import GracefulShutdown, ShutdownGate, on_sigterm

    # Before the slow imports: SIGTERM may arrive at any time.
    shutdown = GracefulShutdown(ShutdownGate(), Future(), end_process)
    on_sigterm(shutdown.shut_down)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    from edl.transport.open_files import raise_open_files_limit
    from edl.transport.process_identity import ProcessIdentity
    from edl.worker.worker_process import run_worker

    raise_open_files_limit()
    return run_worker(ProcessIdentity.from_environment(), shutdown)


class ProcessExit:
    """Ends this process promptly when its work is done, after all other exit hooks.

    The regular shutdown of an interpreter with TensorFlow takes seconds, frees only memory that the system
    frees anyway, and can crash while daemon threads are still in C++. Exit hooks run in reverse order. This
    one is registered before anything else is imported, so the hooks of the user and of libraries (atexit,
    logging, multiprocessing) run before it.
    """

    def __init__(self) -> None:
        self.exit_code = 1
        atexit.register(self._flush_and_exit)

    def _flush_and_exit(self) -> None:
        logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        end_process(self.exit_code)


if __name__ == "__main__":
    ending = ProcessExit()
    ending.exit_code = main()
    sys.exit(ending.exit_code)

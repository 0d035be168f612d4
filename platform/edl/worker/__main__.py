"""``python -m edl.worker``: one worker; its environment says which. Without a master's address it trains alone.

Little is imported here: importing TensorFlow is the longest part of a start and has to begin at once.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys

from edl.api.errors import EdlError
from edl.worker.graceful_shutdown import end_process

INTERRUPTED_EXIT_CODE = 130


def main() -> int:
    """Work until there is no more to do; returns the exit code."""
    # 1 hides notes about CPU features and the like, and keeps warnings; a user's own choice wins.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    try:
        return _run_worker() if os.environ.get("EDL_MASTER_ADDRESS") else _run_local_strategy()
    except EdlError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED_EXIT_CODE


def _run_local_strategy() -> int:
    from edl.worker.local_strategy.local_main import main as local_main

    return local_main(os.environ)


def _run_worker() -> int:
    from edl.worker.graceful_shutdown import GracefulShutdown, ShutdownGate, on_sigterm

    shutdown = GracefulShutdown(ShutdownGate(), end_process)
    on_sigterm(shutdown.shut_down)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    from edl.transport.open_files import raise_open_files_limit
    from edl.transport.process_identity import ProcessIdentity
    from edl.worker.worker_process import run_worker

    raise_open_files_limit()
    return run_worker(ProcessIdentity.from_environment(), shutdown)


class ProcessExit:
    """The end of this process once its work is done: prompt, and after everything that others do at exit.

    Taking the interpreter apart with TensorFlow in it takes seconds, frees what the system frees anyway, and can crash
    where daemon threads are still in C++. Hooks run in reverse order and this one is registered before anything is
    imported, so that those of the user and of libraries (atexit, logging, multiprocessing) have all run before it.
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

"""``python -m edl.worker``: one worker; its environment says which. Without a master's address it trains alone.

Little is imported here: importing TensorFlow is the longest part of a start and has to begin at once.
"""

from __future__ import annotations

import logging
import os
import sys

from edl.core.errors import EdlError


def main() -> int:
    """Work until there is no more to do; returns the exit code."""
    # 1 hides notes about CPU features and the like, and keeps warnings; a user's own choice wins.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    try:
        return _serve() if os.environ.get("EDL_MASTER_ADDRESS") else _train_alone()
    except EdlError as error:
        print(error, file=sys.stderr)
        return error.exit_code


def _train_alone() -> int:
    from edl.worker.local import main as local_main

    return local_main(os.environ)


def _serve() -> int:
    from edl.worker.departure import Departure
    from edl.worker.gate import Gate
    from edl.worker.signals import end_process, on_sigterm

    departure = Departure(Gate(), end_process)
    on_sigterm(departure.go)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    from edl.rpc.identity import Identity
    from edl.worker.process import run

    return run(Identity.from_environment(), departure)


if __name__ == "__main__":
    sys.exit(main())

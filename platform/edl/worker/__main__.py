"""``python -m edl.worker``: one worker; its environment says which. ``--local RUN_DIR`` trains alone, without a master.

Little is imported here: importing TensorFlow is the longest part of a start and has to begin at once.
"""

from __future__ import annotations

import logging
import os
import sys

from edl.core.errors import EdlError


def main(arguments: list[str] | None = None) -> int:
    """Work until there is no more to do; returns the exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    # 1 hides notes about CPU features and the like, and keeps warnings; a user's own choice wins.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    if "--local" in arguments:
        from edl.worker import local

        return local.main(arguments)
    return _serve()


def _serve() -> int:
    from edl.worker.departure import Departure
    from edl.worker.gate import Gate
    from edl.worker.signals import end_process, on_sigterm

    departure = Departure(Gate(), end_process)
    on_sigterm(departure.go)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    from edl.rpc.identity import Identity
    from edl.worker.process import run

    try:
        return run(Identity.from_environment(), departure)
    except EdlError as error:
        logging.getLogger("edl.worker").error("%s", error)  # noqa: TRY400  a sentence for people, no traceback
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())

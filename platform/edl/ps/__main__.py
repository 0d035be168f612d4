"""``python -m edl.ps``: one parameter server, configured by its environment. Exits with 0 on SIGTERM."""

from __future__ import annotations

import logging
import sys

from edl.api.errors import EdlError
from edl.jobfile.loader import load_job_file
from edl.jobfile.log_level import set_printed_level
from edl.ps.server_process import run_server, stop_on_signals
from edl.transport.open_files import raise_open_files_limit
from edl.transport.process_identity import ProcessIdentity


def main() -> int:
    """Run until SIGTERM or a fatal error; returns the exit code."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    raise_open_files_limit()
    # Before the job is read: SIGTERM may arrive at any time.
    stopping = stop_on_signals()
    try:
        identity = ProcessIdentity.from_environment()
        spec = load_job_file(identity.run_dir / "spec.json")
        set_printed_level(spec.log.level)
        run_server(identity, spec, stopping)
    except EdlError as error:
        logging.getLogger("edl.ps").error("%s", error)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())

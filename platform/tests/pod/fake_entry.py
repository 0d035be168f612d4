"""What a test of process 1 starts: an Init whose child becomes a shell that does what the test says.

    python fake_entry.py LOG_FILE SCRIPT

Where LOG_FILE is empty, the child says nothing of a log. The process is a child subreaper, as process 1 of a container
is: orphans become its own.
"""

from __future__ import annotations

import ctypes
import os
import sys

from edl.pod.init_process import AnnounceLog, InitProcess

PR_SET_CHILD_SUBREAPER = 36


def main() -> int:
    log, script = sys.argv[1:]
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def become(say: AnnounceLog) -> None:
        if log:
            say(log, "--- here ---")
        os.execv("/bin/bash", ["bash", "-c", script])

    return InitProcess(become).run()


if __name__ == "__main__":
    sys.exit(main())

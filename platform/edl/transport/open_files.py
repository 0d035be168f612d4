"""How many files and connections a role may have open."""

from __future__ import annotations

import resource
import sys

MAX_CONTROL_CONNECTIONS = 4096
"""Connections of the control plane that a role keeps; those of the bulk plane are counted by ``BulkServer``."""
_MAX_OPEN_FILES = 1 << 20  # where the hard limit is infinite: some programs close every number up to the limit
_FEW_OPEN_FILES = 4096


def raise_open_files_limit() -> None:
    """Raise the soft limit of open files to the hard one, for this process and those that it starts.

    Many systems set the soft limit to 1,024 for programs that call ``select``; peers that only
    connect would use that up.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _MAX_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    if wanted < _FEW_OPEN_FILES:
        # Not by `logging`: the supervisor runs without it, and stderr is every role's log.
        print(
            f"this process may have only {wanted} files and connections open (hard limit, ulimit -Hn); "
            f"{_FEW_OPEN_FILES} or more are better",
            file=sys.stderr,
            flush=True,
        )


def control_connection_limit() -> int:
    """Connections that a control server takes: half of the limit of open files, so that the rest stays for files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_CONTROL_CONNECTIONS if soft == resource.RLIM_INFINITY else min(MAX_CONTROL_CONNECTIONS, soft // 2)

"""Limits of open files and connections of a role."""

from __future__ import annotations

import resource
import sys

MAX_CONTROL_CONNECTIONS = 4096
"""Maximum connections of a role's control server; ``BulkServer`` limits those of the bulk plane."""
_MAX_OPEN_FILES = 1 << 20  # if the hard limit is infinite: some programs close all descriptors up to the limit
_FEW_OPEN_FILES = 4096


def raise_open_files_limit() -> None:
    """Raise the soft limit of open files to the hard limit, for this process and its children.

    Many systems set the soft limit to 1,024 for the sake of programs that call ``select``. Peers that only connect
    could use that up.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _MAX_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    if wanted < _FEW_OPEN_FILES:
        # Not by `logging`: the supervisor does not import it, and stderr is the log of every role.
        print(
            f"this process may open only {wanted} files and connections (hard limit, ulimit -Hn); "
            f"{_FEW_OPEN_FILES} or more are recommended",
            file=sys.stderr,
            flush=True,
        )


def control_connection_limit() -> int:
    """Maximum connections of a control server: half of the limit of open files, so that the rest is left for files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_CONTROL_CONNECTIONS if soft == resource.RLIM_INFINITY else min(MAX_CONTROL_CONNECTIONS, soft // 2)

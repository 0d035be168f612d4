"""How a role process is started: its command line and the environment that tells it who it is.

Every role is ``python -m edl.<role>`` with the variables below and no arguments; what the job is stands in
``<run>/spec.json``. The token is a file that only the user can read: it is never in argv or in the environment.

====================== ========================================================================================
``EDL_RUN_DIR``        the run directory: ``spec.json``, ``journal/``, ``logs/``, ``events.jsonl``
``EDL_ROLE``           ``master``, ``ps`` or ``worker``
``EDL_INDEX``          the pod's index within its role, from 0
``EDL_UID``            this incarnation's uid, unique over the run
``EDL_RUNTIME_DIR``    a short private folder for Unix sockets; it vanishes with the supervisor
``EDL_TOKEN_FILE``     the file that holds the job's token (hex, mode 0600)
``EDL_CLUSTER_SOCKET`` the supervisor's socket, read by ``edl.cluster.local.local_cluster``
``EDL_MASTER_ADDRESS`` where the master listens: ``unix:<path>``
====================== ========================================================================================

All but ``EDL_CLUSTER_SOCKET`` are the same for pods; roles read them with ``edl.transport.process_identity``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from edl.api.cluster_port import Role

RoleCommand = Callable[[Role, int], Sequence[str]]
"""Builds the argument list that starts a role; tests put small fake roles here."""


def role_command(role: Role, index: int) -> Sequence[str]:
    """Return the command of a real role; ``index`` travels in the environment.

    ``-P`` keeps the current folder from the front of ``sys.path``: its modules must not stand for EDL's.
    """
    del index
    return [sys.executable, "-P", "-m", f"edl.{role}"]


@dataclass(frozen=True, slots=True)
class RoleEnvironment:
    """Who a role process is and where it finds what it needs."""

    role: Role
    index: int
    uid: str
    run_dir: Path
    runtime_dir: Path
    token_file: Path
    cluster_socket: Path
    master_address: str

    def to_variables(self) -> dict[str, str]:
        """Return the environment variables that carry these values."""
        return {
            "EDL_ROLE": self.role.value,
            "EDL_INDEX": str(self.index),
            "EDL_UID": self.uid,
            "EDL_RUN_DIR": str(self.run_dir),
            "EDL_RUNTIME_DIR": str(self.runtime_dir),
            "EDL_TOKEN_FILE": str(self.token_file),
            "EDL_CLUSTER_SOCKET": str(self.cluster_socket),
            "EDL_MASTER_ADDRESS": self.master_address,
        }

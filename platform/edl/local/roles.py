"""How a role process is started: its command line and the environment that tells it who it is.

Every role is ``python -m edl.<role>`` with the variables below and no arguments; what the job is stands in
``<run>/spec.json``. The token is a file that only the user can read: it is never in argv or in the environment.

=================== ============================================================================================
``EDL_RUN_DIR``      the run directory: ``spec.json``, ``journal/``, ``logs/``, ``events.jsonl``
``EDL_ROLE``         ``master``, ``ps`` or ``worker``
``EDL_INDEX``        the pod's index within its role, from 0
``EDL_UID``          this incarnation's uid, unique over the run
``EDL_RUNTIME_DIR``  a short private folder for Unix sockets; it vanishes with the supervisor
``EDL_TOKEN_FILE``   the file that holds the job's token (hex, mode 0600)
``EDL_CLUSTER_SOCKET`` the supervisor's socket, see ``edl.local.client``
``EDL_MASTER_ADDRESS`` the address the master listens on, in gRPC's notation
=================== ============================================================================================
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from edl.core.cluster import Role
from edl.core.errors import BadInputError

RoleCommand = Callable[[Role, int], Sequence[str]]
"""Builds the argument list that starts a role; tests put small fake roles here."""


def role_command(role: Role, index: int) -> Sequence[str]:
    """Return the command of a real role; ``index`` travels in the environment."""
    del index
    return [sys.executable, "-m", f"edl.{role}"]


@dataclass(frozen=True, slots=True)
class RoleEnvironment:
    """Who a role process is and where it finds what it needs; written by the supervisor, read by the role."""

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

    @classmethod
    def from_variables(cls, variables: Mapping[str, str]) -> RoleEnvironment:
        """Read the values back from ``os.environ`` or the like.

        Raises:
            BadInputError: a variable is missing or does not mean anything.
        """
        return cls(
            role=_role(_variable(variables, "EDL_ROLE")),
            index=_index(_variable(variables, "EDL_INDEX")),
            uid=_variable(variables, "EDL_UID"),
            run_dir=Path(_variable(variables, "EDL_RUN_DIR")),
            runtime_dir=Path(_variable(variables, "EDL_RUNTIME_DIR")),
            token_file=Path(_variable(variables, "EDL_TOKEN_FILE")),
            cluster_socket=Path(_variable(variables, "EDL_CLUSTER_SOCKET")),
            master_address=_variable(variables, "EDL_MASTER_ADDRESS"),
        )

    def read_token(self) -> str:
        """Return the job's token.

        Raises:
            BadInputError: the token file cannot be read or is empty.
        """
        try:
            token = self.token_file.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise BadInputError(f"The job's token cannot be read: {error}", where=str(self.token_file)) from error
        if not token:
            raise BadInputError("The job's token is empty", where=str(self.token_file))
        return token


def _variable(variables: Mapping[str, str], name: str) -> str:
    try:
        return variables[name]
    except KeyError:
        raise BadInputError(
            f"The environment variable {name} is not set", hint="Roles are started by `edl run`, not by hand."
        ) from None


def _role(text: str) -> Role:
    try:
        return Role(text)
    except ValueError:
        raise BadInputError(f"EDL_ROLE is {text!r}, not one of {', '.join(Role)}") from None


def _index(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise BadInputError(f"EDL_INDEX is {text!r}, not a number from 0")
    return int(text)

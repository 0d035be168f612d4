"""The identity of a role process, from the environment that its supervisor or its pod has set, and its cores."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from edl.api.cluster_port import Role
from edl.api.errors import BadInputError

REQUIRED_VARIABLES = (
    "EDL_RUN_DIR",
    "EDL_ROLE",
    "EDL_INDEX",
    "EDL_UID",
    "EDL_TOKEN_FILE",
    "EDL_RUNTIME_DIR",
    "EDL_MASTER_ADDRESS",
)
_MISSING_IDENTITY_HINT = (
    "On a cluster, it is the key 'token' of the job's Secret: delete the job and submit it again, or correct the "
    "Secret that was given with --token-secret."
)


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """Identity of one process of a job.

    Attributes:
        run_dir: the run directory; its ``spec.json`` is the JobSpec.
        role: role of this process.
        index: number of the pod within its role, from 0.
        uid: unique in the run, never reused.
        token: the job's token; not part of ``repr``, so that no log contains it.
        runtime_dir: private folder with a short path, for Unix sockets.
        master_address: address of the master, ``unix:<path>`` or ``host:port``.
        pod_host: network address of this pod; None on one machine, where Unix sockets are used.
    """

    run_dir: Path
    role: Role
    index: int
    uid: str
    token: str = field(repr=False)
    runtime_dir: Path
    master_address: str
    pod_host: str | None = None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> ProcessIdentity:
        """Read the variables of every role (by default from ``os.environ``), and the token from its file.

        Raises:
            BadInputError: a variable is missing or invalid, or the token cannot be read.
        """
        variables = os.environ if environment is None else environment
        missing = [name for name in REQUIRED_VARIABLES if not variables.get(name)]
        if missing:
            raise BadInputError(
                f"The environment has no {', '.join(missing)}",
                hint="Roles are started by `edl run` and `edl submit`, not by hand.",
            )
        return cls(
            run_dir=Path(variables["EDL_RUN_DIR"]),
            role=_parse_role(variables["EDL_ROLE"]),
            index=_parse_index(variables["EDL_INDEX"]),
            uid=variables["EDL_UID"],
            token=read_token_file(Path(variables["EDL_TOKEN_FILE"])),
            runtime_dir=Path(variables["EDL_RUNTIME_DIR"]),
            master_address=variables["EDL_MASTER_ADDRESS"],
            pod_host=variables.get("EDL_HOST") or None,
        )

    def socket_name(self, kind: str) -> str:
        """Name of a Unix socket of this process in ``runtime_dir``.

        A successor may start before this process has ended, so the end of the uid is part of the name; only the end,
        because the system limits paths of sockets to about 100 characters.
        """
        return f"{kind}-{self.index}-{self.uid[-8:]}"


def read_token_file(path: Path) -> str:
    """Return the token in a file. It must be visible ASCII, because it is sent in headers.

    Raises:
        BadInputError: the file cannot be read, or has no valid token.
    """
    try:
        token = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInputError(
            f"The job's token cannot be read: {error}", where=str(path), hint=_MISSING_IDENTITY_HINT
        ) from error
    if not token or not token.isprintable() or " " in token:
        what = "The file has no valid token: it must be one word of visible ASCII"
        raise BadInputError(what, where=str(path), hint=_MISSING_IDENTITY_HINT)
    return token


def _parse_role(text: str) -> Role:
    try:
        return Role(text)
    except ValueError:
        raise BadInputError(f"EDL_ROLE is {text!r}, not one of {', '.join(Role)}") from None


def _parse_index(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise BadInputError(f"EDL_INDEX is {text!r}, not a number from 0")
    return int(text)


def count_available_cores() -> int:
    """Cores that this process may use; a cpuset or ``taskset`` can restrict it to fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

"""The private folder of a running job: its sockets and its token.

It lies under the system's temporary folder because the path of a Unix socket has at most 103 bytes. A supervisor that
was killed leaves its folder behind; the next one of the same user sweeps those whose lock nobody holds.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import tempfile
from pathlib import Path

MAX_SOCKET_PATH = 103
_LONGEST_NAME = len("/worker-0000000.sock")
_PREFIX = "edl-"
_LOCK = "lock"


class RuntimeDirectory:
    """A fresh folder (mode 0700) with a fresh token; removed by ``close``."""

    def __init__(self) -> None:
        parent = _short_parent()
        _remove_abandoned(parent)
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        self._lock = _hold_lock(self.path)
        self.token = secrets.token_hex(32)
        self.token_file = self.path / "token"
        self.cluster_socket = self.path / "cluster.sock"
        self.master_socket = self.path / "master.sock"
        descriptor = os.open(self.token_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "w", encoding="ascii") as file:
            file.write(self.token)

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _short_parent() -> Path:
    parent = Path(tempfile.gettempdir())
    longest = len(os.fsencode(parent)) + len(f"/{_PREFIX}12345678") + _LONGEST_NAME
    return parent if longest <= MAX_SOCKET_PATH else Path("/tmp")  # noqa: S108 - mkdtemp makes it private


def _hold_lock(folder: Path) -> int:
    # Locked before it has its name, so that no other supervisor can find it unlocked.
    unnamed = folder / f"{_LOCK}.new"
    descriptor = os.open(unnamed, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    unnamed.rename(folder / _LOCK)
    return descriptor


def _remove_abandoned(parent: Path) -> None:
    for lock in parent.glob(f"{_PREFIX}*/{_LOCK}"):
        if _is_abandoned(lock):
            shutil.rmtree(lock.parent, ignore_errors=True)


def _is_abandoned(lock: Path) -> bool:
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_NOFOLLOW)
    except OSError:  # another user's, or just swept
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # its supervisor lives
        return False
    else:
        return os.fstat(descriptor).st_uid == os.getuid()
    finally:
        os.close(descriptor)

"""Kills a process when its parent dies, so that a SIGKILL of any process leaves no other behind.

On Linux the kernel does it (``PR_SET_PDEATHSIG``): a child gets SIGKILL when the *thread* that forked it ends, even if
the child is stopped. Therefore all forks happen in the main thread. For other systems see
``edl.cluster.local.orphan_reaper``.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable

HAS_PARENT_DEATH_SIGNAL = sys.platform == "linux"
"""Whether the kernel kills a child when its parent dies."""

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True) if HAS_PARENT_DEATH_SIGNAL else None


def die_with_parent(parent: int) -> None:
    """Have the kernel SIGKILL this process when the process ``parent`` dies; does nothing on systems without that.

    If the parent has died already, this process kills itself.

    Raises:
        OSError: the kernel refuses.
    """
    if _LIBC is None or not HAS_PARENT_DEATH_SIGNAL:
        return
    if _LIBC.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:  # it died before prctl, so no signal will come
        os.kill(os.getpid(), signal.SIGKILL)


def parent_death_hook() -> Callable[[], None] | None:
    """Return a ``preexec_fn`` that ties a child to the calling process; None on systems without that.

    A ``preexec_fn`` is safe only in a process without other threads. The supervisor has none.
    """
    if not HAS_PARENT_DEATH_SIGNAL:
        return None
    parent = os.getpid()
    return lambda: die_with_parent(parent)

"""How a process ended, in the words that users and the master read."""

from __future__ import annotations

import signal
from dataclasses import dataclass

from edl.api.cluster_port import Phase

_SIGNALLED = 128


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of a process: its exit code as a shell reports it (0-255; 128 + n for signal n) and the reason."""

    exit_code: int
    reason: str

    @property
    def phase(self) -> Phase:
        """The pod phase that the ending means."""
        return Phase.SUCCEEDED if self.exit_code == 0 else Phase.FAILED

    @classmethod
    def of(cls, returncode: int) -> Ending:
        """Describe a return code of ``subprocess``, in which a signal is negative.

        A role that catches SIGTERM and exits 143 itself was terminated just the same.
        """
        exit_code = _SIGNALLED - returncode if returncode < 0 else returncode
        return cls(exit_code, _reason(exit_code))


def _reason(exit_code: int) -> str:
    if exit_code == 0:
        return "Completed"
    if exit_code <= _SIGNALLED:
        return "Error"
    try:
        name = signal.Signals(exit_code - _SIGNALLED).name
    except ValueError:
        return "Error"
    return f"{'Terminated' if name == 'SIGTERM' else 'Killed'} ({name})"

"""How a process ended, in the words that users and the master read."""

from __future__ import annotations

import signal
from dataclasses import dataclass

from edl.api.cluster_port import PodPhase

_SIGNAL_BASE = 128


@dataclass(frozen=True, slots=True)
class ExitStatus:
    """The end of a process: its exit code as a shell reports it (0-255; 128 + n for signal n) and the reason."""

    exit_code: int
    reason: str

    @property
    def phase(self) -> PodPhase:
        """The pod phase that the ending means."""
        return PodPhase.SUCCEEDED if self.exit_code == 0 else PodPhase.FAILED

    @classmethod
    def of(cls, returncode: int) -> ExitStatus:
        """Describe a return code of ``subprocess``, in which a signal is negative.

        A role that catches SIGTERM and exits 143 itself was terminated just the same.
        """
        exit_code = _SIGNAL_BASE - returncode if returncode < 0 else returncode
        return cls(exit_code, _exit_reason(exit_code))


def _exit_reason(exit_code: int) -> str:
    if exit_code == 0:
        return "Completed"
    if exit_code <= _SIGNAL_BASE:
        return "Error"
    try:
        name = signal.Signals(exit_code - _SIGNAL_BASE).name
    except ValueError:
        return "Error"
    return f"{'Terminated' if name == 'SIGTERM' else 'Killed'} ({name})"

"""One root for every error that EDL raises on purpose.

An error says what happened, where, and what the user can do. Errors of libraries are translated into one of
these at the border where they appear. ``exit_code`` is what the command line ends with.
"""

from __future__ import annotations

from typing import ClassVar

INTERRUPTED_EXIT = 130
"""After Ctrl-C (SIGINT)."""
SIGKILL_EXIT = 137
"""Nobody can answer SIGKILL: it came from the kernel, which had no memory left, from the kubelet or from a person."""
OUTPUT_CLOSED_EXIT = 141
"""After the reader of the output left (SIGPIPE)."""
SIGTERM_EXIT = 143
"""After SIGTERM. A role that flushes what it has and ends by itself returns it, too: it was told to go, and did not
fail."""


class EdlError(Exception):
    """Root of EDL's errors.

    Args:
        message: what happened, in one sentence, without a trailing full stop.
        where: the file, line, address or object it happened at.
        hint: what the user can do about it.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, where: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        text = f"{self.where}: {self.message}" if self.where else self.message
        return f"{text}\n  {self.hint}" if self.hint else text


class BadInputError(EdlError):
    """The user's file, model or data cannot be used as it is (exit code 2)."""

    exit_code = 2


class JobFailedError(EdlError):
    """The job ran and failed (exit code 1)."""


class RetryableError(EdlError):
    """Trying again later may succeed: a peer is away, a server is busy."""


class RefusedError(EdlError):
    """A peer refused for good: wrong token, wrong protocol version, a revoked lease, a newer incarnation."""


class StorageError(EdlError):
    """A journal, checkpoint or export could not be written or read; the previous one stays valid."""

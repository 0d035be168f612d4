"""One root for every error that EDL raises on purpose.

An error says what happened, where, and what the user can do. The module that calls a library translates the
library's errors into one of these. ``exit_code`` is the exit code of the command line.
"""

from __future__ import annotations

from typing import ClassVar

from edl.api.exit_codes import BAD_INPUT_EXIT, FAILED_EXIT


class EdlError(Exception):
    """Root of EDL's errors.

    Args:
        message: what happened, in one sentence, without a trailing full stop.
        where: the file, line, address or object that is affected.
        hint: what the user can do about it.
    """

    exit_code: ClassVar[int] = FAILED_EXIT

    def __init__(self, message: str, *, where: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        text = f"{self.where}: {self.message}" if self.where else self.message
        return f"{text}\n  {self.hint}" if self.hint else text


class BadInputError(EdlError):
    """The user's job file, model or data is invalid (exit code 2)."""

    exit_code = BAD_INPUT_EXIT


class JobFailedError(EdlError):
    """The job ran and failed (exit code 1)."""


class RetryableError(EdlError):
    """A later attempt may succeed: a peer is unreachable, or a server is busy."""


class RefusedError(EdlError):
    """A peer refused, and would refuse again: wrong token, other protocol version, revoked lease, newer incarnation."""


class StorageError(EdlError):
    """A journal, checkpoint or export could not be written or read; the previous one stays valid."""

"""What goes wrong in a worker, as the master and people are told."""

from __future__ import annotations

import traceback
from dataclasses import dataclass

from edl.core.errors import BadInputError, EdlError, RefusedError
from edl.worker.training import NotFiniteError


@dataclass(frozen=True, slots=True)
class Failure:
    """The content of ``Fail`` and the exit code that goes with it.

    Attributes:
        kind: ``input``, ``nan``, ``refused`` or ``crash``.
        message: the first line, for people.
        detail: the traceback; of the user's own frames first where the user's code raised.
        exit_code: of the worker if the master says that it should end.
    """

    kind: str
    message: str
    detail: str
    exit_code: int


def describe(error: BaseException) -> Failure:
    """What an error means."""
    # ModuleError, the error of the user's code, has its own detail; found by attribute: it is not imported for this.
    detail = getattr(error, "detail", "") or "".join(traceback.format_exception(error))
    if isinstance(error, EdlError):
        return Failure(_kind(error), str(error), detail, error.exit_code)
    first = (str(error).strip().splitlines() or [""])[0]
    return Failure("crash", f"{type(error).__name__}: {first}", detail, 1)


def _kind(error: EdlError) -> str:
    if isinstance(error, NotFiniteError):
        return "nan"
    if isinstance(error, BadInputError):
        return "input"
    return "refused" if isinstance(error, RefusedError) else "crash"

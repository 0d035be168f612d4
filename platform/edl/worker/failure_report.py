"""What goes wrong in a worker, as the master and people are told."""

from __future__ import annotations

import traceback
from dataclasses import dataclass

from edl.api.errors import BadInputError, EdlError, RefusedError, StorageError
from edl.worker.finite_check import NotFiniteError


@dataclass(frozen=True, slots=True)
class WorkerFailure:
    """The content of ``Fail`` and the exit code that goes with it.

    Attributes:
        kind: ``input``, ``nan``, ``refused``, ``storage`` or ``crash``; all but the last end the job.
        message: for people: what, where, and what to do about it.
        detail: a traceback, where it tells people more than the message: the user's own frames where the user's code
            raised, all frames of an error that nobody foresaw.
        exit_code: of the worker if the master says that it should end.
    """

    kind: str
    message: str
    detail: str
    exit_code: int


def describe_failure(error: BaseException) -> WorkerFailure:
    """What an error means."""
    if isinstance(error, EdlError):
        # UserCodeError, the error of the user's code, has a detail; found by attribute: it is not imported for this.
        return WorkerFailure(_failure_kind(error), str(error), getattr(error, "detail", ""), error.exit_code)
    detail = "".join(traceback.format_exception(error))
    first = (str(error).strip().splitlines() or [""])[0]
    return WorkerFailure("crash", f"{type(error).__name__}: {first}", detail, 1)


def _failure_kind(error: EdlError) -> str:
    kinds = {NotFiniteError: "nan", BadInputError: "input", StorageError: "storage", RefusedError: "refused"}
    return next((kind for of, kind in kinds.items() if isinstance(error, of)), "crash")

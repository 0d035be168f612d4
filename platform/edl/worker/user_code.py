"""The border between EDL and the user's model module: what raises in there is the user's to repair.

The user's own frames come first in the report; those of Keras, TensorFlow and EDL follow for whoever needs them.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from edl.core.errors import BadInputError, EdlError


class ModuleError(BadInputError):
    """The user's model module raised, or does what it must not.

    Attributes:
        detail: the traceback for people: the user's frames and the error, then all frames.
    """

    def __init__(self, message: str, *, where: str | None = None, hint: str | None = None, detail: str = "") -> None:
        super().__init__(message, where=where, hint=hint)
        self.detail = detail


@contextmanager
def user_code(zoo: Path, doing: str) -> Iterator[None]:
    """Translate whatever the user's code raises into a :class:`ModuleError`.

    Args:
        zoo: the model zoo: frames of files below it are the user's.
        doing: what was going on, to stand before the error: ``custom_model()``.

    Raises:
        ModuleError: for every exception but EDL's own and KeyboardInterrupt. SystemExit counts as an error: a model
            module must not end the worker.
    """
    try:
        yield
    except EdlError:
        raise
    except (Exception, SystemExit) as error:
        raise _translated(error, zoo, doing) from error


def _translated(error: BaseException, zoo: Path, doing: str) -> ModuleError:
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if Path(frame.filename).is_relative_to(zoo)]
    where = f"{own[-1].filename}:{own[-1].lineno}" if own else None
    if isinstance(error, SyntaxError) and error.filename:
        where = f"{error.filename}:{error.lineno}"
    text = str(error).strip()
    first = text.splitlines()[0] if text else ""
    return ModuleError(
        f"{doing} raised {type(error).__name__}: {first}", where=where, detail=_detail(error, own, frames)
    )


def _detail(error: BaseException, own: list[traceback.FrameSummary], frames: traceback.StackSummary) -> str:
    raised = "".join(traceback.format_exception_only(error))
    lines = ["Traceback (most recent call last), your code:\n", *traceback.format_list(own or frames), raised]
    if own and len(own) < len(frames):
        lines += ["\nAll frames:\n", *traceback.format_list(frames)]
    return "".join(lines)

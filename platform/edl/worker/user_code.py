"""The border between EDL and the user's model module: what raises in there is the user's to repair.

The user's own frames come first in the report; those of Keras, TensorFlow and EDL follow for whoever needs them.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from edl.core.errors import BadInputError, EdlError

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


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
    first = _headline(str(error))
    return ModuleError(
        f"{doing} raised {type(error).__name__}: {first}", where=where, detail=_detail(error, own, frames)
    )


def _headline(text: str) -> str:
    """What went wrong in one line; Keras puts its own line before and colours around."""
    lines = [line for line in _COLOUR.sub("", text).splitlines() if line.strip()]
    if len(lines) > 1 and lines[0].startswith("Exception encountered when calling"):
        del lines[0]
    return lines[0].strip() if lines else ""


def _detail(error: BaseException, own: list[traceback.FrameSummary], frames: traceback.StackSummary) -> str:
    raised = "".join(traceback.format_exception_only(error))
    lines = ["Traceback (most recent call last), your code:\n", *traceback.format_list(own or frames), raised]
    if own and len(own) < len(frames):
        lines += ["\nAll frames:\n", *traceback.format_list(frames)]
    return _COLOUR.sub("", "".join(lines))

"""The boundary to the user's model module: reports its exceptions as errors of the user's code.

Users see the frames of their own code and the error. The log has all frames, including those of Keras, TensorFlow and
EDL, through the error's cause.
"""

from __future__ import annotations

import inspect
import re
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from edl.api.errors import BadInputError, EdlError
from edl.jobfile.elasticdl_imports import explain_missing_package
from edl.jobfile.keras_version import uses_keras2

_COLOUR_CODE = re.compile(r"\x1b\[[0-9;]*m")
_GRAPH_ERROR_PREFIX = "Graph execution error:"
"""The prefix of errors that TensorFlow raises in a traced function; the actual error follows some lines later."""
_GRAPH_ERROR_NOISE = re.compile(r"Graph execution error:|Detected at node |<stack traces unavailable>|\s")
_OPERATION_PREFIX = re.compile(
    r"^(\{\{function_node [^}]*\}\} |Error in user-defined function passed to .*?: (\w+::)+\w+: )+"
)
_ASSERTION_MESSAGE = re.compile(r"^assertion failed: \[(?P<parts>.*)\]$")
"""The message of ``tf.debugging`` in a graph: each part is in brackets, with escaped quotes."""
_REMEDIES = (
    (
        re.compile(r"indices\[[\d,]*\] = (?P<id>-?\d+) is not in \[0, (?P<rows>\d+)\)"),
        "if this is an Embedding, it has {rows} rows and received the id {id}: raise its input_dim, or map ids into "
        "that range, in feed or with a layer such as Hashing",
    ),
    (
        re.compile(r"Cast string to u?int\d+ is not supported"),
        "if this is an Embedding, it received strings: put a StringLookup in front of it; if labels are strings, "
        "convert them to numbers in feed",
    ),
    (
        re.compile(r"Cast string to \w+ is not supported"),
        "an operation that needs numbers received strings: convert labels or features in feed, digits with "
        "tf.strings.to_number and names with keras.layers.StringLookup",
    ),
)
"""Hints for errors of TensorFlow that do not name a layer."""
_KERAS2_SIGNS = re.compile(
    # DenseFeatures and other names that Keras 3 does not have
    r"module '(keras\._tf_keras|tensorflow|tensorflow\.python)\.keras\b[\w.]*' has no attribute"
    r"|cannot import name '\w+' from '(keras\._tf_keras|tensorflow|tensorflow\.python)\.keras\b"
    r"|No module named '(tensorflow|tensorflow\.python)\.keras\b"
    # functions of TensorFlow on symbolic tensors
    r"|A KerasTensor cannot be used as input to a TensorFlow function"
    # arguments in the order of Keras 2
    r"|must be passed as a keyword argument\. Received: add_weight\("
)
"""Errors that models written for Keras 2 raise with Keras 3."""
_KERAS2_REMEDY = "if it is written for Keras 2, set model.keras: 2 in the job file, or TF_USE_LEGACY_KERAS=1"
_MIXED_KERAS_SIGNS = re.compile(
    r"Received: (layer=)?<.*\btf_keras\.src\."  # a layer of Keras 2 in a model of Keras 3
    r"|must be an instance of class Layer\. Received: layer=<.*'keras\.src\."
    r"|Could not interpret optimizer identifier: <(tf_)?keras\.src\."
    r"|'KerasTensor' object has no attribute 'node'"
    r"|^'tuple' object has no attribute 'rank'$"  # a layer of Keras 2 called with an Input of Keras 3
)
"""Errors of models that take parts of Keras 2 and of Keras 3: where ``tf.keras`` is Keras 2, or with ``tf_keras``."""
_MIXED_KERAS_REMEDY = (
    "the model mixes Keras 2 and Keras 3: with model.keras: 2, tf.keras is Keras 2, but `import keras` is Keras 3; "
    "write tf.keras everywhere, or `import tf_keras as keras`"
)
_TF_KERAS_REMEDY = (
    "the model mixes Keras 2 and Keras 3: tf_keras is Keras 2, but tf.keras and `import keras` are Keras 3; write "
    "tf.keras everywhere, and for Keras 2 set model.keras: 2 in the job file, or TF_USE_LEGACY_KERAS=1"
)
_GRAPH_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<name>.+)$', re.MULTILINE)

StackFrames = list[traceback.FrameSummary]


class UserCodeError(BadInputError):
    """The user's model module raised an exception or violated the contract.

    Attributes:
        detail: the traceback for users: the frames of their code, and the error.
    """

    def __init__(self, message: str, *, where: str | None = None, hint: str | None = None, detail: str = "") -> None:
        super().__init__(message, where=where, hint=hint)
        self.detail = detail


@contextmanager
def user_code(zoo: Path, action: str, *, function: Callable[..., Any] | None = None) -> Iterator[None]:
    """Convert exceptions of the user's code to :class:`UserCodeError`.

    Args:
        zoo: the model zoo; files below it are the user's code.
        action: the subject of the error message, for example ``custom_model()``.
        function: a function of the user's; the error names its file if the traceback has no frame of the user's.

    Raises:
        UserCodeError: for every exception except EDL's own. SystemExit counts as an error: a model module must not end
            the worker. So does KeyboardInterrupt where Ctrl-C does not raise it, as in a worker that has a master.
    """
    try:
        yield
    # An error of EDL already says where and why; contexts may be nested.
    except EdlError:
        raise
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        if isinstance(error, KeyboardInterrupt) and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            raise
        raise _to_user_code_error(error, zoo, action, function) from error


def source_file(function: Callable[..., Any]) -> str | None:
    """The source file of a function or class; None if there is none, as for a ``keras.losses.Loss``."""
    try:
        return inspect.getfile(inspect.unwrap(function))
    except (TypeError, OSError):
        return None


def _to_user_code_error(
    error: BaseException, zoo: Path, action: str, function: Callable[..., Any] | None
) -> UserCodeError:
    text = _COLOUR_CODE.sub("", str(error))
    user_frames = _frames_below(zoo, traceback.extract_tb(error.__traceback__))
    graph_frames = [] if user_frames else _frames_below(zoo, _graph_frames(text))
    headline = _error_headline(text)
    return UserCodeError(
        f"{action} raised {type(error).__name__}" + (f": {headline}" if headline else ""),
        where=_error_location(error, user_frames or graph_frames, function),
        hint=_find_remedy(text),
        detail=_format_detail(error, text, user_frames, graph_frames),
    )


_MISSING_MODULE = re.compile(r"No module named '(?P<package>\w+)[.']")


def _find_remedy(text: str) -> str | None:
    if _KERAS2_SIGNS.search(text) and not uses_keras2(None):
        return _KERAS2_REMEDY
    if _MIXED_KERAS_SIGNS.search(text) and (uses_keras2(None) or "tf_keras" in sys.modules):
        return _MIXED_KERAS_REMEDY if uses_keras2(None) else _TF_KERAS_REMEDY
    if missing := _MISSING_MODULE.match(text):
        return explain_missing_package(missing["package"])
    for pattern, remedy in _REMEDIES:
        if match := pattern.search(text):
            return remedy.format(**match.groupdict())
    return None


def _frames_below(zoo: Path, frames: StackFrames) -> StackFrames:
    return [frame for frame in frames if Path(frame.filename).is_relative_to(zoo)]


def _graph_frames(text: str) -> StackFrames:
    """The frames in which the failed operation was created, if TensorFlow reports them."""
    matches = _GRAPH_FRAME.finditer(text) if text.startswith(_GRAPH_ERROR_PREFIX) else ()
    return [traceback.FrameSummary(frame["file"], int(frame["line"]), frame["name"]) for frame in matches]


def _error_location(error: BaseException, user_frames: StackFrames, function: Callable[..., Any] | None) -> str | None:
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    if user_frames:
        return f"{user_frames[-1].filename}:{user_frames[-1].lineno}"
    return None if function is None else source_file(function)


def _error_headline(text: str) -> str:
    """The error in one line, without the lines that Keras and TensorFlow add before it."""
    lines = [line for line in text.splitlines() if line.strip()]
    if text.startswith(_GRAPH_ERROR_PREFIX):
        lines = [line for line in lines if not _GRAPH_ERROR_NOISE.match(line)] or lines
    elif len(lines) > 1 and lines[0].startswith("Exception encountered when calling"):
        del lines[0]
    headline = _OPERATION_PREFIX.sub("", lines[0].strip()) if lines else ""
    asserted = _ASSERTION_MESSAGE.match(headline)
    return asserted["parts"].replace("] [", " ").replace("\\'", "'") if asserted else headline


def _format_detail(error: BaseException, text: str, user_frames: StackFrames, graph_frames: StackFrames) -> str:
    heading = "Raised outside of your code:\n"
    if user_frames:
        heading = "Traceback (most recent call last), your code:\n"
    elif graph_frames:
        heading = "Raised by an operation that your code created here (most recent call last):\n"
    error_text = "".join(traceback.format_exception_only(error))
    # TensorFlow appends dozens of lines about the graph to the message.
    if text.startswith(_GRAPH_ERROR_PREFIX):
        error_text = f"{type(error).__name__}: {_error_headline(text)}\n"
    return heading + "".join(traceback.format_list(user_frames or graph_frames)) + _COLOUR_CODE.sub("", error_text)

"""What Keras gives callbacks and a job gives otherwise: the methods that it never calls, and ``params``."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterable, Mapping
from typing import Any

from edl.data.reader import Reader
from edl.jobfile.job_spec import TrainSpec
from edl.keras.user_code import source_file

_LOG = logging.getLogger(__name__)

CallbackParams = Mapping[str, Any]

_UNCALLED_METHODS = tuple(
    f"on_{kind}_{end}" for kind in ("test_batch", "predict_batch", "predict") for end in ("begin", "end")
)
"""An evaluation is one call of ``on_test_begin`` and ``on_test_end`` for each of its tasks; predictions have none."""
_UNCALLED_MONITOR_METHODS = tuple(
    f"on_{kind}_{end}" for kind in ("batch", "train_batch", "test") for end in ("begin", "end")
)
"""Callbacks that decide by evaluations hear of nothing else."""


def build_callback_params(train: TrainSpec, reader: Reader) -> CallbackParams:
    """``params`` as ``keras.fit`` sets them.

    Args:
        train: of the job.
        reader: of its training records.

    Returns:
        ``steps`` are those of an epoch, of all workers together; ``verbose`` is that of ``fit``.
    """
    counts = [source.records for source in reader.sources()]
    if train.shuffle.window != 0 and getattr(reader, "blocks", None) is not None:
        counts = [sum(counts)]  # windows reach over the ends of sources, ranges of records do not
    steps = sum(-(-count // train.minibatch_size) for count in counts)
    return {"verbose": 1, "epochs": train.epochs, "steps": steps}


def set_callback_params(callbacks: Iterable[Any], params: CallbackParams) -> None:
    """Give callbacks their ``params``, if any; a progress bar counts global steps, which do not end with an epoch."""
    import keras

    if not params:
        return
    for callback in callbacks:
        bar = isinstance(callback, keras.callbacks.ProgbarLogger)
        callback.set_params({**params, "steps": None} if bar else dict(params))


def warn_of_uncalled_methods(callbacks: Iterable[Any], monitors: Iterable[Any]) -> None:
    """Name the methods of the user's own that Keras would call and a job does not.

    Args:
        callbacks: that hear of steps, epochs and evaluation tasks.
        monitors: that are called after each evaluation.
    """
    for callback, never in (
        *((each, _UNCALLED_METHODS) for each in callbacks),
        *((each, (*_UNCALLED_METHODS, *_UNCALLED_MONITOR_METHODS)) for each in monitors),
    ):
        own = [f"{method}()" for method in never if _is_user_defined(callback, method)]
        if not own:
            continue
        kind = type(callback)
        where = "" if _is_keras_class(kind) else f" ({source_file(kind)})"
        called = f"{', '.join(own[:-1])} and {own[-1]} are" if len(own) > 1 else f"{own[0]} is"
        _LOG.warning(
            "the callback %s: %s never called%s; docs/model-contract.md, Callbacks, says what is",
            kind.__name__,
            called,
            where,
        )


def _is_user_defined(callback: Any, method: str) -> bool:
    """Whether the user wrote a method, rather than Keras."""
    if method in vars(callback):
        return True
    definer = next((base for base in type(callback).__mro__ if method in vars(base)), object)
    return definer is not object and not _is_keras_class(definer)


def _is_keras_class(kind: type) -> bool:
    module = inspect.getmodule(kind)
    return module is not None and module.__name__.partition(".")[0] in ("keras", "tf_keras")

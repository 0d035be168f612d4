"""Callbacks of Keras that could not do their work in a job: refused by name, with what does it here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from edl.api.errors import BadInputError

_NO_EPOCH_EVALUATION = "an epoch does not end with an evaluation"
_INITIAL_WEIGHTS = "a worker's model keeps its initial weights, the trained ones are on the parameter servers"
_CHECKPOINT_REMEDY = (
    "use checkpoint.every_steps and checkpoint.keep, or ModelCheckpoint(save_best_only=True); the export is the "
    "trained model as a .keras file"
)
_INSPECT_REMEDY = "leave it out; `edl checkpoint inspect` says what the weights of a checkpoint look like"

_RefusalTable = Mapping[str, tuple[str, str]]
"""By class, or class and argument: why, and what to do."""

_REFUSED_EVERYWHERE: _RefusalTable = {
    "BackupAndRestore": (
        "a job goes on from EDL's checkpoints",
        "leave it out: checkpoint.every_steps says how often they are taken",
    ),
    "OrbaxCheckpoint.save_best_only": (_NO_EPOCH_EVALUATION, "use ModelCheckpoint(save_best_only=True)"),
    "SwapEMAWeights.swap_on_epoch": ("the weights that it puts in would be kept and exported", "leave it out"),
    "TerminateOnNaN": (
        "steps whose loss is not finite do not reach callbacks",
        "use train.on_nan: stop, which is the default",
    ),
}
_REFUSED_WITH_PS: _RefusalTable = {
    "ModelCheckpoint": (_INITIAL_WEIGHTS, _CHECKPOINT_REMEDY),
    "OrbaxCheckpoint": (_INITIAL_WEIGHTS, _CHECKPOINT_REMEDY),
    "SwapEMAWeights": (_INITIAL_WEIGHTS, "leave it out, and average what the newest checkpoints hold"),
    "TensorBoard.embeddings_freq": (_INITIAL_WEIGHTS, _INSPECT_REMEDY),
    "TensorBoard.histogram_freq": (_INITIAL_WEIGHTS, _INSPECT_REMEDY),
}
"""Where parameter servers hold the weights."""


def refuse_unsupported_callbacks(callbacks: Iterable[Any], *, local: bool) -> None:
    """Look at each of ``callbacks``; a subclass counts as what it extends.

    Args:
        callbacks: of Keras, and the user's.
        local: whether the process that calls them trains the model itself.

    Raises:
        BadInputError: one of them could not do its work; why, and what to use instead.
    """
    import keras

    refused = _REFUSED_EVERYWHERE if local else {**_REFUSED_WITH_PS, **_REFUSED_EVERYWHERE}
    for callback in callbacks:
        for what, (why, instead) in refused.items():
            base, _, argument = what.partition(".")
            if not isinstance(callback, getattr(keras.callbacks, base, ())):  # older ones do not have all of them
                continue
            given = getattr(callback, argument) if argument else True
            if given:
                named = f"{argument}={given!r} of the callback" if argument else "the callback"
                raise BadInputError(f"{named} {_callback_name(callback, base)} cannot be used: {why}", hint=instead)


def _callback_name(callback: Any, base: str) -> str:
    kind = type(callback).__name__
    return kind if kind == base else f"{kind} (a keras.callbacks.{base})"

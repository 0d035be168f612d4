"""The state of a program as arrays by name: nested mappings and sequences of arrays and numbers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edl.api.errors import BadInputError

Array = NDArray[Any]

_SEPARATOR = "/"
_KINDS = "biuf"
"""Kinds of NumPy types that a state may have: booleans, integers and floats."""


def as_array(value: Any, name: str) -> Array:
    """A NumPy array with the values of any framework's array, without a copy where that is possible.

    Raises:
        BadInputError: it is no array of booleans, integers or floats in this machine's memory.
    """
    try:
        array = value if isinstance(value, np.ndarray) else _convert(value)
    except Exception as error:
        raise BadInputError(
            f"'{name}' cannot be read as a NumPy array: {error}",
            hint="give arrays in the memory of this machine, of a type that NumPy has, such as float32",
        ) from error
    if array.dtype.kind not in _KINDS or array.dtype.itemsize > 8 or not array.dtype.isnative:
        raise BadInputError(
            f"'{name}' has the type {array.dtype}, but the state of a program has booleans, integers and floats",
            hint="convert it, for example to float32",
        )
    return array


def _convert(value: Any) -> Array:
    if hasattr(value, "__array__"):
        return np.asarray(value)
    if hasattr(value, "__dlpack__"):
        return np.from_dlpack(value)
    raise TypeError(f"it is {type(value).__name__}")


class ProgramState:
    """Names, types and shapes of the arrays in a program's state, which must stay the same.

    Leaves of the state are arrays and numbers; texts and None are part of its structure. Numbers become arrays without
    dimensions, and numbers again when the state is restored.

    Args:
        state: the state when the program begins.

    Raises:
        BadInputError: a leaf is something else; the error names it.
    """

    def __init__(self, state: Any) -> None:
        self._example = state
        self._kinds = {name: _describe(array) for name, array in _flatten(state)}
        self.fingerprint = hashlib.sha256(json.dumps([_outline(state, ""), self._kinds]).encode()).hexdigest()
        """Equal for states of the same structure."""

    @property
    def kinds(self) -> Mapping[str, str]:
        """Type and shape of each array, for users."""
        return self._kinds

    def flatten(self, state: Any) -> dict[str, Array]:
        """The arrays of a state, by name; they may share memory with it.

        Raises:
            BadInputError: it has other arrays than the state when the program began.
        """
        arrays = dict(_flatten(state))
        for name in arrays.keys() | self._kinds.keys():
            before, now = self._kinds.get(name), arrays.get(name)
            if before is None or now is None or _describe(now) != before:
                was = "missing" if before is None else before
                raise BadInputError(
                    f"'{name}' of the program's state is {'missing' if now is None else _describe(now)}, and was {was} "
                    "when the steps began",
                    where="state_dict",
                    hint="create all state before the first step: optimizers of PyTorch create theirs with the first "
                    "update, and edl.sharding.torch_steps.TorchState does it at once",
                )
        return {name: arrays[name] for name in self._kinds}

    def restore(self, arrays: Mapping[str, Array]) -> Any:
        """A state with the structure of the first one and these values; its arrays are copies.

        Raises:
            BadInputError: other arrays are in it.
        """
        for name, kind in self._kinds.items():
            if name not in arrays or _describe(arrays[name]) != kind:
                actual = _describe(arrays[name]) if name in arrays else "missing"
                raise BadInputError(
                    f"the stored state was written by another program: its '{name}' is {actual}, not {kind}",
                    hint="continue with the program that the run began with, or start a new run",
                )
        return _rebuild(self._example, "", arrays)


def _describe(array: Array) -> str:
    return f"{array.dtype} of shape {array.shape}"


def _join(prefix: str, key: Any) -> str:
    return f"{prefix}{_SEPARATOR}{key}" if prefix else str(key)


def _flatten(state: Any) -> Iterator[tuple[str, Array]]:
    used_names = set()
    for name, value in _leaves(state, ""):
        if value is None or isinstance(value, str):
            continue
        if name in used_names:
            raise BadInputError(f"two parts of the program's state have the name '{name}'", where="state_dict")
        used_names.add(name)
        yield name, _leaf_array(value, name)


def _leaf_array(value: Any, name: str) -> Array:
    if isinstance(value, bool | int | float):
        try:
            return np.array(value, {bool: np.bool_, int: np.int64}.get(type(value), np.float64))
        except OverflowError as error:
            raise BadInputError(f"'{name}' of the program's state has more than 64 bits", where="state_dict") from error
    return as_array(value, name)


def _leaves(state: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    if isinstance(state, Mapping):
        for key, value in state.items():
            yield from _leaves(value, _join(prefix, key))
    elif isinstance(state, list | tuple):
        for index, value in enumerate(state):
            yield from _leaves(value, _join(prefix, index))
    else:
        yield prefix or "state", state


def _outline(state: Any, prefix: str) -> Any:
    """The structure with its texts, as JSON."""
    if isinstance(state, Mapping):
        return {str(key): _outline(value, _join(prefix, key)) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return [_outline(value, _join(prefix, index)) for index, value in enumerate(state)]
    return state if state is None or isinstance(state, str) else "array"


def _rebuild(example: Any, prefix: str, arrays: Mapping[str, Array]) -> Any:
    if isinstance(example, Mapping):
        return {key: _rebuild(value, _join(prefix, key), arrays) for key, value in example.items()}
    if isinstance(example, list | tuple):
        values: Sequence[Any] = [_rebuild(value, _join(prefix, index), arrays) for index, value in enumerate(example)]
        return values if isinstance(example, list) else tuple(values)
    if example is None or isinstance(example, str):
        return example
    array = arrays[prefix or "state"]
    return type(example)(array[()]) if isinstance(example, bool | int | float) else np.array(array)

"""Initial values of embedding rows, as a function of the table's seed and the row's id.

A row that nobody has trained yet is not stored anywhere: the PS makes it when it is first pulled, the worker makes it
when a model is exported, and both must see the same numbers. So the values are counter-based (Salmon et al.: Parallel
Random Numbers: As Easy as 1, 2, 3, SC 2011): nothing depends on the order in which rows appear, nor on the machine.

An initializer is a JSON object: ``{"name": "zeros"}``, ``{"name": "constant", "value": c}``,
``{"name": "uniform", "minval": a, "maxval": b}`` or ``{"name": "normal", "mean": m, "stddev": s}``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from edl.core.errors import BadInputError
from edl.core.partition import mix
from edl.spec.elementary import cos_of_turns, log

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

PARAMETERS: Mapping[str, tuple[str, ...]] = {
    "zeros": (),
    "constant": ("value",),
    "uniform": ("minval", "maxval"),
    "normal": ("mean", "stddev"),
}
"""Initializers that can be computed row by row, and the parameters of each."""
LARGEST = 1e37
"""Of a parameter's size: a tenth of float32's range leaves room for the rarest value of ``normal``."""


def check(initializer: Mapping[str, Any]) -> None:
    """Refuse an initializer that :func:`initial_rows` cannot compute.

    Raises:
        BadInputError: if the name is unknown or its parameters are not exactly the expected numbers.
    """
    name = str(initializer.get("name"))
    if name not in PARAMETERS:
        raise BadInputError(f"unknown row initializer {name!r}", hint=f"known: {', '.join(PARAMETERS)}")
    given = {key: value for key, value in initializer.items() if key != "name"}
    numbers = all(_is_number(value) for value in given.values())
    if set(given) != set(PARAMETERS[name]) or not numbers:
        raise BadInputError(
            f"row initializer {name} takes the numbers {PARAMETERS[name]} from {-LARGEST:g} to {LARGEST:g}, got {given}"
        )


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= LARGEST


def initial_rows(initializer: Mapping[str, Any], seed: int, ids: NDArray[np.int64], dim: int) -> NDArray[np.float32]:
    """Initial values of the rows ``ids``.

    Args:
        initializer: as described in the module's docstring.
        seed: the table's seed; two tables with different seeds have unrelated values.
        ids: int64 ``[n]``, non-negative.
        dim: length of a row.

    Returns:
        float32 ``[n, dim]``, a new array. Row i depends on ``seed`` and ``ids[i]`` only.

    Raises:
        BadInputError: as :func:`check`.
    """
    import numpy as np

    check(initializer)
    shape = (len(ids), dim)
    match initializer["name"]:
        case "zeros":
            return np.zeros(shape, np.float32)
        case "constant":
            return np.full(shape, initializer["value"], np.float32)
        case "uniform":
            low, high = initializer["minval"], initializer["maxval"]
            values = low + (high - low) * _fractions(seed, ids, dim)
        case _:
            values = initializer["mean"] + initializer["stddev"] * _gaussian(seed, ids, dim)
    return np.asarray(values, np.float32)


def _fractions(seed: int, ids: NDArray[np.int64], count: int) -> NDArray[np.float64]:
    """Uniform in (0, 1), ``[n, count]``: 53 bits of a counter-based stream for each id."""
    import numpy as np

    streams = mix(ids.astype(np.uint64) ^ np.uint64(mix(seed)))
    bits = mix(streams[:, None] + np.arange(count, dtype=np.uint64))
    fractions: NDArray[np.float64] = ((bits >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    return fractions


def _gaussian(seed: int, ids: NDArray[np.int64], dim: int) -> NDArray[np.float64]:
    """Standard normal values by the Box-Muller transform, ``[n, dim]``."""
    import numpy as np

    pairs = _fractions(seed, ids, 2 * dim)
    radius: NDArray[np.float64] = np.sqrt(-2.0 * log(pairs[:, :dim]))
    return radius * cos_of_turns(pairs[:, dim:])

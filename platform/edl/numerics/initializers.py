"""Initial values of embedding rows, as a function of the table's seed and the row's id.

Rows are lazily initialised: an untrained row is not stored. The PS computes it for each pull and
the worker computes it when it exports a model, and both must get the same numbers. So the values
come from a counter-based generator (Salmon et al.: Parallel Random Numbers: As Easy as 1, 2, 3, SC
2011). They do not depend on the order in which rows appear, nor on the machine.

An initializer is a JSON object: ``{"name": "zeros"}``, ``{"name": "constant", "value": c}``,
``{"name": "uniform", "minval": a, "maxval": b}``, ``{"name": "normal", "mean": m, "stddev": s}`` or
``{"name": "truncated_normal", "mean": m, "stddev": s}``, which contains no value more than two
deviations from the mean. The spread of the Glorot, He and LeCun initializers depends on the table's
shape. :func:`variance_scaling` replaces them by one of the above with fixed numbers, so that a
table keeps its initial values when its vocabulary grows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from edl.api.errors import BadInputError
from edl.core.partition import splitmix64
from edl.numerics.portable_math import cos_of_turns, log

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Doubles = NDArray[np.float64]
    Words = NDArray[np.uint64]

INITIALIZER_PARAMETERS: Mapping[str, tuple[str, ...]] = {
    "zeros": (),
    "constant": ("value",),
    "uniform": ("minval", "maxval"),
    "normal": ("mean", "stddev"),
    "truncated_normal": ("mean", "stddev"),
}
"""Initializers that can be computed row by row, with their parameters."""
MAX_PARAMETER = 1e37
"""Maximum absolute value of a parameter.

A tenth of float32's range leaves room for the extremes of ``normal``.
"""


_TRUNCATION_LIMIT = 2.0
_TRUNCATED_DEVIATION = 0.87962566103423978
"""Standard deviation of a standard normal distribution truncated at 2."""


def variance_scaling(
    shape: tuple[int, int],
    *,
    scale: float,
    mode: str,
    distribution: str,
    input_axes: Sequence[int] | None = None,
    output_axes: Sequence[int] | None = None,
) -> dict[str, Any]:
    """The row initializer that ``keras.initializers.VarianceScaling`` is for a table of this shape.

    Args:
        shape: rows and width of the table. Keras uses them as the numbers of inputs and outputs.
        scale: the variance, multiplied by the number that ``mode`` selects.
        mode: ``fan_in``, ``fan_out`` or ``fan_avg``.
        distribution: ``uniform``, ``truncated_normal`` or ``untruncated_normal``.
        input_axes: axes whose lengths are multiplied to the number of inputs. Used only together
            with ``output_axes``.
        output_axes: the same for the number of outputs.

    Returns:
        An initializer as described in the module's docstring. Glorot's uniform initializer is
        ``variance_scaling(shape, scale=1.0, mode="fan_avg", distribution="uniform")``.
    """
    inputs, outputs = shape
    if input_axes is not None and output_axes is not None:
        inputs, outputs = (math.prod(shape[axis] for axis in axes) for axes in (input_axes, output_axes))
    fan = {"fan_in": inputs, "fan_out": outputs, "fan_avg": (inputs + outputs) / 2}[mode]
    variance = scale / max(1.0, fan)
    match distribution:
        case "uniform":
            limit = math.sqrt(3.0 * variance)
            return {"name": "uniform", "minval": -limit, "maxval": limit}
        case "truncated_normal":
            # Truncation narrows the distribution. A wider one keeps the variance, as in Keras.
            deviation = math.sqrt(variance) / _TRUNCATED_DEVIATION
            return {"name": "truncated_normal", "mean": 0.0, "stddev": deviation}
        case "untruncated_normal":
            return {"name": "normal", "mean": 0.0, "stddev": math.sqrt(variance)}
    raise BadInputError(f"unknown distribution {distribution!r} of a row initializer")


def check_initializer(initializer: Mapping[str, Any]) -> None:
    """Refuse an initializer that :func:`initial_rows` cannot compute.

    Raises:
        BadInputError: if the name is unknown or its parameters are not exactly the expected
            numbers.
    """
    name = str(initializer.get("name"))
    if name not in INITIALIZER_PARAMETERS:
        raise BadInputError(f"unknown row initializer {name!r}", hint=f"known: {', '.join(INITIALIZER_PARAMETERS)}")
    parameters = {key: value for key, value in initializer.items() if key != "name"}
    numbers = all(_is_number(value) for value in parameters.values())
    if set(parameters) != set(INITIALIZER_PARAMETERS[name]) or not numbers:
        raise BadInputError(
            f"row initializer {name} takes the numbers {INITIALIZER_PARAMETERS[name]} from {-MAX_PARAMETER:g} to"
            f" {MAX_PARAMETER:g}, got {parameters}"
        )


def _is_number(value: object) -> bool:
    # ``True`` is an int in Python, but no number in JSON. NaN fails the comparison.
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= MAX_PARAMETER


def initial_rows(initializer: Mapping[str, Any], seed: int, ids: NDArray[np.int64], dim: int) -> NDArray[np.float32]:
    """Initial values of the rows ``ids``.

    Args:
        initializer: as described in the module's docstring.
        seed: the table's seed. Tables with different seeds have unrelated values.
        ids: int64 ``[n]``, non-negative.
        dim: length of a row.

    Returns:
        float32 ``[n, dim]``, a new array. Row i depends on ``seed`` and ``ids[i]`` only.

    Raises:
        BadInputError: as :func:`check_initializer`.
    """
    import numpy as np

    check_initializer(initializer)
    shape = (len(ids), dim)
    match initializer["name"]:
        case "zeros":
            return np.zeros(shape, np.float32)
        case "constant":
            return np.full(shape, initializer["value"], np.float32)
        case "uniform":
            low, high = initializer["minval"], initializer["maxval"]
            values = low + (high - low) * _uniform_fractions(_row_streams(seed, ids), np.arange(dim))
        case "normal":
            values = initializer["mean"] + initializer["stddev"] * _standard_normal(_row_streams(seed, ids), 0, dim)
        case _:
            values = initializer["mean"] + initializer["stddev"] * _truncated_normal(_row_streams(seed, ids), dim)
    return np.asarray(values, np.float32)


def _row_streams(seed: int, ids: NDArray[np.int64]) -> Words:
    """The start of each id's counter-based stream, ``[n, 1]``."""
    import numpy as np

    streams: Words = splitmix64(ids.astype(np.uint64) ^ np.uint64(splitmix64(seed)))[:, None]
    return streams


def _uniform_fractions(streams: Words, offsets: NDArray[np.int64]) -> Doubles:
    """Uniform values in (0, 1), from 53 bits of each stream position."""
    import numpy as np

    # A float64 has 53 bits of precision. Half a unit is added, so that no value is 0: the
    # Box-Muller transform takes the logarithm.
    bits = splitmix64(streams + offsets.astype(np.uint64))
    fractions: Doubles = ((bits >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    return fractions


def _standard_normal(streams: Words, draw: int, dim: int) -> Doubles:
    """Standard normal values by the Box-Muller transform, ``[n, dim]``.

    Each uses ``2 * dim`` stream positions.
    """
    import numpy as np

    # np.log and np.cos are not the same bits on every machine; those of portable_math are.
    offsets = np.arange(2 * dim) + draw * 2 * dim
    radius: Doubles = np.sqrt(-2.0 * log(_uniform_fractions(streams, offsets[:dim])))
    return radius * cos_of_turns(_uniform_fractions(streams, offsets[dim:]))


def _truncated_normal(streams: Words, dim: int) -> Doubles:
    """Truncated normal values. A value beyond 2 is drawn again from its next stream positions."""
    import numpy as np

    values, draw = _standard_normal(streams, 0, dim), 0
    while len(rows := np.flatnonzero((np.abs(values) > _TRUNCATION_LIMIT).any(axis=1))):
        draw += 1
        redrawn = _standard_normal(streams[rows], draw, dim)
        values[rows] = np.where(np.abs(values[rows]) > _TRUNCATION_LIMIT, redrawn, values[rows])
    return values

"""Statistics of features, from environment variables ``_<feature>_<statistic>``, or a default without one."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TypeVar

from elasticdl_compat.missing_names import explain_missing_names

ValueT = TypeVar("ValueT")


def _read(feature: str, statistic: str, default: ValueT, parse: Callable[[str], ValueT]) -> ValueT:
    text = os.environ.get(f"_{feature}_{statistic}")
    return default if text is None else parse(text)


def get_min(feature_name: str, default_value: float) -> float:
    """The smallest value."""
    return _read(feature_name, "min", default_value, float)


def get_max(feature_name: str, default_value: float) -> float:
    """The largest value."""
    return _read(feature_name, "max", default_value, float)


def get_avg(feature_name: str, default_value: float) -> float:
    """The mean."""
    return _read(feature_name, "avg", default_value, float)


def get_stddev(feature_name: str, default_value: float) -> float:
    """The standard deviation."""
    return _read(feature_name, "stddev", default_value, float)


def get_bucket_boundaries(feature_name: str, default_value: Sequence[float]) -> Sequence[float]:
    """Boundaries for Discretization, ascending and each once."""
    return _read(
        feature_name, "boundaries", default_value, lambda text: sorted({float(part) for part in text.split(",")})
    )


def get_distinct_count(feature_name: str, default_value: int) -> int:
    """The number of different values."""
    return _read(feature_name, "distinct_count", default_value, int)


def get_vocabulary(feature_name: str, default_value: Sequence[str] | str) -> Sequence[str] | str:
    """The vocabulary for IndexLookup: the environment names a file."""
    return _read(feature_name, "vocab", default_value, str)


__getattr__ = explain_missing_names(__name__)

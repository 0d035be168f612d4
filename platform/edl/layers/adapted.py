"""Keras' preprocessing layers with the state that ``adapt`` would give them, from statistics of a whole data set."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

Statistics: TypeAlias = str | os.PathLike[str] | Mapping[str, Any]
_VERSION = 1
_WHOLE_TEXT_BYTES = 252
"""Statistics cut texts at 256 bytes, and within a character: a shorter one is whole."""


def adapt_from(statistics: Statistics, column: str | Sequence[str], layer: Any) -> Any:
    """A layer like ``layer``, adapted to a column without reading the data again.

    ``Normalization`` gets mean and variance. ``StringLookup`` and ``IntegerLookup`` get the values by their frequency,
    at most ``max_tokens``. ``Discretization`` gets boundaries at equal shares of the values. Where the statistics have
    an error, ranks and counts have the same.

    Args:
        statistics: what ``edl data stats --json`` printed: a file, or its content as a mapping.
        column: its name; for ``Normalization`` also a list of names, in the order of the last axis.
        layer: a layer of Keras that has no state yet. It stays as it is.

    Raises:
        ValueError: the layer cannot be adapted, or the statistics do not have what it needs.
    """
    names = [column] if isinstance(column, str) else list(column)
    kind = type(layer).__name__
    columns = [_find_column(_load(statistics), name) for name in names]
    if kind == "Normalization":
        state = _moments(columns, layer.get_config()["axis"])
    elif len(columns) != 1:
        raise ValueError(f"{kind} is adapted to one column, and these are {len(columns)}")
    elif kind in ("StringLookup", "IntegerLookup"):
        state = _vocabulary(columns[0], kind, layer.get_config())
    elif kind == "Discretization":
        state = _boundaries(columns[0], layer.get_config())
    else:
        raise ValueError(
            f"adapt_from does not know {kind}: it adapts Normalization, StringLookup, IntegerLookup and Discretization"
        )
    return type(layer).from_config({**layer.get_config(), **state})


def _load(statistics: Statistics) -> Mapping[str, Any]:
    loaded = statistics if isinstance(statistics, Mapping) else json.loads(Path(statistics).read_text(encoding="utf-8"))
    if not isinstance(loaded, Mapping) or loaded.get("version") != _VERSION:
        raise ValueError("these are no statistics of this version of EDL: write them with `edl data stats PATH --json`")
    return loaded


def _find_column(statistics: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    columns = {column["name"]: column for column in statistics["columns"]}
    if name not in columns:
        raise ValueError(f"the statistics have no column {name}; they have {', '.join(columns)}")
    column_statistics: Mapping[str, Any] = columns[name]
    if not column_statistics["count"]:
        raise ValueError(f"column {name} has no values")
    return column_statistics


def _check_number(column: Mapping[str, Any], kind: str) -> None:
    if column["kind"] == "text":
        raise ValueError(f"{kind} needs numbers, and column {column['name']} is {column['type']}")


def _moments(columns: Sequence[Mapping[str, Any]], axis: object) -> dict[str, Any]:
    for column in columns:
        _check_number(column, "Normalization")
    means, variances = [column["mean"] for column in columns], [column["std"] ** 2 for column in columns]
    if axis in (None, [], ()):
        if len(columns) > 1:
            raise ValueError("Normalization(axis=None) has one mean for all: name one column")
        return {"mean": means[0], "variance": variances[0]}
    return {"mean": means, "variance": variances}


def _vocabulary(column: Mapping[str, Any], kind: str, config: Mapping[str, Any]) -> dict[str, Any]:
    name, special = column["name"], (config["mask_token"], config["oov_token"])
    is_fitting = column["kind"] == "text" if kind == "StringLookup" else column["type"].startswith(("int", "uint"))
    if not is_fitting:
        raise ValueError(f"{kind} does not look up values of column {name}, which are {column['type']}")
    values = [value for value, _ in column["top"] if value not in special]
    places = None
    if config["max_tokens"] is not None:
        places = config["max_tokens"] - config["num_oov_indices"] - (config["mask_token"] is not None)
    is_complete = (
        column["top_error"] == 0 and column["distinct_error"] == 0 and len(column["top"]) == column["distinct"]
    )
    if not is_complete and (places is None or places > len(values)):
        raise ValueError(
            f"the statistics list {len(column['top'])} of about {column['distinct']} values of column {name}: "
            "give the layer max_tokens, or `edl data stats` a larger --top"
        )
    vocabulary = values[:places]
    if any(isinstance(value, str) and len(value.encode()) > _WHOLE_TEXT_BYTES for value in vocabulary):
        raise ValueError(
            f"column {name} has texts of more than {_WHOLE_TEXT_BYTES} bytes, which statistics cut: "
            f"let {kind}.adapt read the data, or look up a shorter column"
        )
    return {"vocabulary": vocabulary}


def _boundaries(column: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    _check_number(column, "Discretization")
    bins = config["num_bins"]
    if bins is None:
        raise ValueError("give Discretization num_bins: with bin_boundaries it needs no data")
    quantiles = column["quantiles"]
    places = np.arange(1, bins) / bins * (len(quantiles) - 1)
    # A value of the data each, as Keras' own: between two of them there may be none.
    boundaries = [quantiles[place] for place in np.round(places).astype(int).tolist()]
    return {"num_bins": None, "bin_boundaries": [float(boundary) for boundary in sorted(set(boundaries))]}

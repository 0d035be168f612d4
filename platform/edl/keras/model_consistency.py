"""Whether the model function made the model again that was trained: by names and shapes of its variables.

Nothing else says which value belongs to which variable. A name that is another one at each call, such as one with a
counter in it, would leave that variable with what it began with.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from edl.api.errors import BadInputError

_MAX_LISTED_NAMES = 3
"""How many names an error has."""

ShapesByName = Mapping[str, tuple[int, ...]]


def check_same_model(*, trained: ShapesByName, made: ShapesByName) -> None:
    """Refuse a model that was made anew, and is another one.

    Args:
        trained: shapes of variables and tables by name.
        made: the same of the new model.

    Raises:
        BadInputError: they differ; says in what.
    """
    missing, more = sorted(trained.keys() - made.keys()), sorted(made.keys() - trained.keys())
    differing = sorted(name for name in trained.keys() & made.keys() if trained[name] != made[name])
    found = [f"missing: {_quote_names(missing)}"] if missing else []
    found += [f"new: {_quote_names(more)}"] if more else []
    found += [
        f"'{name}' is {_format_shape(made[name])} and was {_format_shape(trained[name])}"
        for name in differing[:_MAX_LISTED_NAMES]
    ]
    if found:
        again = "; once they have the names that are missing, a resumed run exports them" if missing else ""
        raise BadInputError(
            f"the model function made another model for the export than for training ({'; '.join(found)})",
            hint="it is called once for each: give layers names and sizes that are the same at each call, without a "
            f"counter that goes on or a random number{again}",
        )


def _quote_names(names: Iterable[str]) -> str:
    quoted = [f"'{name}'" for name in names]
    more = f" and {len(quoted) - _MAX_LISTED_NAMES} more" if len(quoted) > _MAX_LISTED_NAMES else ""
    return ", ".join(quoted[:_MAX_LISTED_NAMES]) + more


def _format_shape(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) or "a number"

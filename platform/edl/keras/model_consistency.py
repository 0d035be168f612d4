"""Whether the model function made the model again that was trained: by names and shapes of its variables.

Nothing else says which value belongs to which variable. A name that is another one at each call, such as one with a
counter in it, would leave that variable with what it began with.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from edl.api.errors import BadInputError

_SAID = 3
"""How many names an error has."""

Shapes = Mapping[str, tuple[int, ...]]


def check_same_model(*, trained: Shapes, made: Shapes) -> None:
    """Refuse a model that was made anew, and is another one.

    Args:
        trained: shapes of variables and tables by name.
        made: the same of the new model.

    Raises:
        BadInputError: they differ; says in what.
    """
    missing, more = sorted(trained.keys() - made.keys()), sorted(made.keys() - trained.keys())
    differing = sorted(name for name in trained.keys() & made.keys() if trained[name] != made[name])
    found = [f"missing: {_listed(missing)}"] if missing else []
    found += [f"new: {_listed(more)}"] if more else []
    found += [f"'{name}' is {_shape(made[name])} and was {_shape(trained[name])}" for name in differing[:_SAID]]
    if found:
        again = "; once they have the names that are missing, a resumed run exports them" if missing else ""
        raise BadInputError(
            f"the model function made another model for the export than for training ({'; '.join(found)})",
            hint="it is called once for each: give layers names and sizes that are the same at each call, without a "
            f"counter that goes on or a random number{again}",
        )


def _listed(names: Iterable[str]) -> str:
    quoted = [f"'{name}'" for name in names]
    more = f" and {len(quoted) - _SAID} more" if len(quoted) > _SAID else ""
    return ", ".join(quoted[:_SAID]) + more


def _shape(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) or "a number"

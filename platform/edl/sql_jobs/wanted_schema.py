"""Whether a query has the columns that a model wants; names those that changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from edl.sql_jobs.column_plan import list_names
from edl.sql_jobs.model_registry import ModelDescription
from edl.sql_jobs.row_statistics import kind_of
from edl.sql_jobs.statement_parser import statement_error
from edl.sql_jobs.statements import Place

_GROUPS = {"number": "a number", "integer": "a number", "boolean": "a number", "text": "text", "date": "a time"}


def check_schema(model: ModelDescription, columns: Sequence[Any], place: Place) -> None:
    """Refuse rows that lack a column of the model, or have it with another kind of type.

    Args:
        model: with its inputs.
        columns: ``ExtractedColumn`` of the query.
        place: of the query.

    Raises:
        BadInputError: see above.
    """
    found = {each.name: each for each in columns}
    faults = list[str]()
    for name, kind in {each.column: each.kind for each in model.inputs}.items():
        if name not in found:
            faults.append(f"{name} is missing{_guess(name, found, model.columns)}")
            continue
        now = kind_of(found[name].type)
        # A column of NULLs only has no type of its own.
        if _GROUPS.get(now) != _GROUPS.get(kind) and not _is_empty(found[name]):
            faults.append(
                f"{name} was {_GROUPS.get(kind, kind)} ({model.columns.get(name)}), and is {found[name].type}"
            )
    if faults:
        more = f"; and {len(faults) - 10} more" if len(faults) > 10 else ""
        whose = f"{model.name}@{model.version}" if model.version else "the model"
        raise statement_error(
            f"the columns are not those that {whose} wants: {'; '.join(faults[:10])}{more}",
            place,
            f"it takes {list_names(list(dict.fromkeys(each.column for each in model.inputs)))}",
        )


def _guess(name: str, found: Mapping[str, Any], known: Mapping[str, str]) -> str:
    """What a column may be called now: one that the model has not seen."""
    near = get_close_matches(name, [each for each in found if each not in known], 1)
    return f" (is it {near[0]} now?)" if near else ""


def _is_empty(column: Any) -> bool:
    return str(column.type) in ("double", "null") and column.nulls > 0

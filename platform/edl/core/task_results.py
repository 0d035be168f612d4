"""Validation of task results, before anything is decided.

Results come from the user's metrics and from other processes. A result of the wrong form is refused,
and the worker that sent it fails with that message. It must never raise in the middle of a decision,
which would end the master.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from edl.core import evaluation
from edl.core.evaluation import PinnedEvaluation
from edl.core.events import LeaseProgress
from edl.core.interleaving import MAX_WEIGHT
from edl.core.ledger import Lease
from edl.core.shuffle import MAX_BLOCKS

DATASET_PARTS = ("training", "validation", "prediction")


def find_result_error(
    kind: str,
    lease: Lease,
    last_progress: LeaseProgress | None,
    result: Any,
    pinned_evaluation: PinnedEvaluation | None,
) -> str:
    """Why the report of a task is invalid; empty if it is valid.

    Args:
        kind: the kind of task.
        lease: the task's lease.
        last_progress: the progress that the worker reports with the result, if any.
        result: decoded JSON.
        pinned_evaluation: the evaluation in progress.
    """
    if kind == "training":
        # Accepting it would enter the rest of the range as done, although its steps were not
        # pushed.
        if last_progress is not None and last_progress.done_steps < lease.step_count:
            return f"a training task was reported done after {last_progress.done_steps} of {lease.step_count} steps"
        return ""
    return _RESULT_CHECKS.get(kind, _accept_any)(result, pinned_evaluation)


def _accept_any(result: Any, pinned_evaluation: PinnedEvaluation | None) -> str:
    return ""


_MAX_DIGITS = 1024
"""Of the digests of a data set's files. They are sent with each lease."""


def _check_dataset(result: Any, pinned_evaluation: PinnedEvaluation | None) -> str:
    if not isinstance(result, dict) or not set(result) <= {*DATASET_PARTS, "blocks", "digests"}:
        return (
            f"the description of the data set is not an object of {', '.join(DATASET_PARTS)}: {_describe_value(result)}"
        )
    digests = result.get("digests", {})
    if not isinstance(digests, dict) or not all(isinstance(x, str) and len(x) <= _MAX_DIGITS for x in digests.values()):
        return f"the digests of the files are not an object of texts: {_describe_value(digests)}"
    parts = [result[name] for name in DATASET_PARTS if name in result]
    rows = [row for part in parts for row in (part if isinstance(part, list) else [part])]
    wrong = [row for row in rows if not _is_source(row)]
    if wrong:
        return f"a source is [name, records], not {_describe_value(wrong[0])}"
    fine = result.get("blocks") is None or _are_valid_blocks(result["blocks"], result.get("training"))
    return "" if fine else "the blocks of the training sources do not add up to their records"


def _are_valid_blocks(blocks: Any, rows: Any) -> bool:
    match blocks:
        case {"runs": list(runs), "record_bytes": int(record_bytes)} if isinstance(rows, list):
            # The form is checked before the numbers are read; [-1] fails the comparison below.
            numbers = [x for source in runs for run in source for x in run] if _has_run_pairs(runs) else [-1]
            return (
                record_bytes >= 0
                and len(runs) == len(rows)
                and _are_valid_weights(blocks.get("weights", []), len(rows))
                and all(x > 0 for x in numbers)
                # A run is two numbers and can claim any number of blocks. A correct description
                # merges neighbours beyond this limit.
                and sum(times for source in runs for _, times in source) <= MAX_BLOCKS + len(rows)
                and all(sum(n * t for n, t in source) == row[1] for source, row in zip(runs, rows, strict=True))
            )
    return False


def _are_valid_weights(weights: Any, sources: int) -> bool:
    """Whether the groups of sources, if there are any, have weights and add up to the sources."""
    if not isinstance(weights, list) or not _has_run_pairs([weights]):
        return False
    return not weights or (
        sum(count for _, count in weights) == sources
        and all(1 <= weight <= MAX_WEIGHT and count >= 1 for weight, count in weights)
    )


def _has_run_pairs(runs: list[Any]) -> bool:
    """Whether this is a list of pairs of integers for each source."""
    pairs = [pair for source in runs for pair in (source if isinstance(source, list) else [source])]
    # The type itself and not ``isinstance``, which also accepts true and false.
    return all(
        isinstance(pair, list) and len(pair) == 2 and all(type(number) is int for number in pair) for pair in pairs
    )


def _is_source(row: Any) -> bool:
    match row:
        case [str(), int(records)]:
            return records >= 0 and not isinstance(records, bool)
    return False


def _check_metric_states(result: Any, pinned_evaluation: PinnedEvaluation | None) -> str:
    if not isinstance(result, dict):
        return f"metric states must be an object with one entry per metric, not {_describe_value(result)}"
    wrong = [name for name, metric_state in result.items() if not _is_state(metric_state)]
    if wrong:
        return f"metric {wrong[0]!r} must have the flag 'additive' and the list 'states'"
    # Adding them to the total is the only complete check of their shapes.
    try:
        evaluation.merge_metric_states(pinned_evaluation.states if pinned_evaluation else {}, result)
    except (TypeError, ValueError) as error:
        return f"metric states do not add up: {error}"
    return ""


def _is_state(value: Any) -> bool:
    match value:
        case {"additive": True, "states": list(states)}:
            return all(_is_number(state) for state in states)
        # States that are not added may have any form: only the user's metric reads them.
        case {"additive": False, "states": list()}:
            return True
    return False


def _is_number(state: Any) -> bool:
    """Whether this is a number, None (a number that is not finite) or a nested list of these."""
    return all(_is_number(x) for x in state) if isinstance(state, list) else isinstance(state, int | float | None)


def _check_metric_values(result: Any, pinned_evaluation: PinnedEvaluation | None) -> str:
    if not isinstance(result, dict):
        return f"metrics must be an object of numbers by name, not {_describe_value(result)}"
    wrong = [name for name, value in result.items() if not isinstance(value, int | float | None)]
    return f"metric {wrong[0]!r} is {_describe_value(result[wrong[0]])}, not a number" if wrong else ""


def parse_export(result: Any) -> tuple[list[str], str]:
    """The paths of an export, and the loading code if Keras alone cannot load it."""
    if isinstance(result, dict):
        return list(result["paths"]), str(result["loading"])
    # Journal entries of earlier versions have only the paths.
    return list(result), ""


def _check_export(result: Any, pinned_evaluation: PinnedEvaluation | None) -> str:
    if isinstance(result, dict):
        if set(result) != {"paths", "loading"} or not isinstance(result["loading"], str):
            return f"the result of an export must have its paths and loading code, not {_describe_value(result)}"
        result = result["paths"]
    fine = isinstance(result, list) and bool(result) and all(isinstance(path, str) and path for path in result)
    return "" if fine else f"the paths of an export must be a list of strings, not {_describe_value(result)}"


def _check_best_model(result: Any, pinned_evaluation: PinnedEvaluation | None) -> str:
    match result:
        case {"place": int(place), "cut": int(cut), "path": str()} if 0 <= place < 1 << 16 and 0 < cut < 1 << 62:
            return ""
    return f"the result of a best model must have its place, cut and path, not {_describe_value(result)}"


def _check_model_file(result: Any, pinned_evaluation: PinnedEvaluation | None) -> str:
    match result:
        case {"written": [*written], "paths": [*paths]} if (
            len(written) == len(paths)
            and all(isinstance(path, str) for path in paths)
            and _has_run_pairs([written])
            and all(0 <= place < 1 << 16 and 0 <= mark < 1 << 62 for place, mark in written)
        ):
            return ""
    return f"the result of a model file must have what is written and its paths, not {_describe_value(result)}"


def _describe_value(value: Any) -> str:
    return "nothing" if value is None else f"{type(value).__name__} {str(value)[:60]!r}"


_RESULT_CHECKS: Mapping[str, Callable[[Any, PinnedEvaluation | None], str]] = {
    "describe": _check_dataset,
    "evaluation": _check_metric_states,
    "metrics": _check_metric_values,
    "export": _check_export,
    "best model": _check_best_model,
    "model file": _check_model_file,
}

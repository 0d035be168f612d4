"""Evaluation of one pinned version: which records are left, and the sum of what workers found.

Metric results are the metrics' state variables. ``additive`` states are added elementwise as they come; the states of
metrics that merge in their own way are kept, one set a task, and a worker merges them. A number that is not finite is
None here, as JSON has no other word for it; what is added to it stays None. A task none of whose records was kept may
give no states of a metric; what else is said of a metric is passed on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from edl.core.ledger import Ledger
from edl.core.strict_json import MAX_INTEGER

MetricStates = dict[str, Any]


def merge_metric_states(total: MetricStates, part: Mapping[str, Any]) -> MetricStates:
    """Merge one task's states into the total; neither argument is changed.

    Args:
        total: ``{metric: {"additive": bool, "states": ...}}``; of metrics that do not add up, ``states`` is a list
            with one entry a task.
        part: the same, of one task.

    Raises:
        ValueError: two tasks disagree about the metrics or the shape of a state.
    """
    if total and total.keys() != part.keys():
        raise ValueError(f"metrics differ between tasks: {sorted(total)} and {sorted(part)}")
    merged: MetricStates = {}
    for name, found in part.items():
        if not found["additive"]:
            before = total[name]["states"] if total else []
            merged[name] = {**total.get(name, {}), **found, "states": [*before, found["states"]]}
        elif total:
            before = total[name]["states"]
            states = _add_states(before, found["states"]) if before and found["states"] else before or found["states"]
            merged[name] = {**total[name], **found, "states": states}
        else:
            merged[name] = dict(found)
    return merged


def _add_states(a: Any, b: Any) -> Any:
    if isinstance(a, list) and isinstance(b, list):
        if len(a) != len(b):
            raise ValueError(f"metric states differ in shape: {len(a)} and {len(b)} values")
        return [_add_states(x, y) for x, y in zip(a, b, strict=True)]
    if a is None or b is None:
        return None
    total = a + b
    if isinstance(total, int):
        return total if abs(total) <= MAX_INTEGER else float(total)
    return total if not isinstance(total, float) or math.isfinite(total) else None


@dataclass(slots=True)
class EvaluationRound:
    """One evaluation over all validation records at one cut.

    Attributes:
        step: global step of the pinned version, for people.
        final: whether it is the one at the end of training.
        ledger: validation ranges, each done exactly once.
        saved: whether the pinned version is a checkpoint on disk, too.
    """

    pin: int
    step: int
    final: bool
    ledger: Ledger
    states: MetricStates = field(default_factory=dict)
    saved: bool = False

    def snapshot(self) -> dict[str, Any]:
        """The round as JSON, for the journal's compaction."""
        return {
            "pin": self.pin,
            "step": self.step,
            "final": self.final,
            "ledger": self.ledger.snapshot(),
            "states": self.states,
            "saved": self.saved,
        }

"""Evaluation of one pinned version: the remaining records and the merged metric states.

Metric results are the metrics' state variables. ``additive`` states are added elementwise as they
arrive. States of metrics that define their own merge are kept, one set per task, and a worker merges
them. A number that is not finite is None here, because JSON has no such numbers; a sum with None is
None. A task may have no states of a metric if none of its records was kept. Other fields of a metric
are passed on.
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
        total: ``{metric: {"additive": bool, "states": ...}}``. For metrics that are not additive, ``states``
            is a list with one entry per task.
        part: the same for one task.

    Raises:
        ValueError: two tasks have different metrics or shapes of a state.
    """
    if total and total.keys() != part.keys():
        raise ValueError(f"metrics differ between tasks: {sorted(total)} and {sorted(part)}")
    merged: MetricStates = {}
    for name, new_states in part.items():
        if not new_states["additive"]:
            before = total[name]["states"] if total else []
            merged[name] = {**total.get(name, {}), **new_states, "states": [*before, new_states["states"]]}
        elif total:
            before = total[name]["states"]
            states = (
                _add_states(before, new_states["states"])
                if before and new_states["states"]
                else before or new_states["states"]
            )
            merged[name] = {**total[name], **new_states, "states": states}
        else:
            merged[name] = dict(new_states)
    return merged


def _add_states(a: Any, b: Any) -> Any:
    if isinstance(a, list) and isinstance(b, list):
        if len(a) != len(b):
            raise ValueError(f"metric states differ in shape: {len(a)} and {len(b)} values")
        return [_add_states(x, y) for x, y in zip(a, b, strict=True)]
    if a is None or b is None:
        return None
    total = a + b
    # Keep the sum within what strict JSON allows: it goes into the journal and to a worker.
    if isinstance(total, int):
        return total if abs(total) <= MAX_INTEGER else float(total)
    return total if not isinstance(total, float) or math.isfinite(total) else None


@dataclass(slots=True)
class PinnedEvaluation:
    """One evaluation of all validation records at one cut.

    Attributes:
        step: global step of the pinned version, for users.
        final: whether this is the evaluation at the end of training.
        ledger: the validation ranges; each is done exactly once.
        saved: whether the pinned version is also a checkpoint on disk.
        of_copy: whether workers of AllReduce evaluate a copy of the variables while the others train.
    """

    pin: int
    step: int
    final: bool
    ledger: Ledger
    states: MetricStates = field(default_factory=dict)
    saved: bool = False
    of_copy: bool = False

    def to_snapshot(self) -> dict[str, Any]:
        """The evaluation as JSON, for journal compaction."""
        return {
            "pin": self.pin,
            "step": self.step,
            "final": self.final,
            "ledger": self.ledger.to_snapshot(),
            "states": self.states,
            "saved": self.saved,
            **({"of_copy": True} if self.of_copy else {}),
        }

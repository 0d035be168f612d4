"""The learning rate by the number of ranks: ``strategy.learning_rate_scaling``.

With parameter servers another scaling exists, ``strategy.staleness_aware``: a PS divides the rate of a late push by its
staleness (``edl.ps.push_updates.AsyncUpdater``).
"""

from __future__ import annotations

from collections.abc import Callable

from edl.api.strategy import Strategy


def make_rate_scaling(strategy: Strategy) -> Callable[[int], float] | None:
    """The factor of the learning rate by the number of ranks (``strategy.learning_rate_scaling``); None: no scaling."""
    reference, exponent = strategy.reference_world, {"linear": 1.0, "sqrt": 0.5}.get(strategy.learning_rate_scaling)
    if reference is None or exponent is None:
        return None
    return lambda ranks: float((ranks / reference) ** exponent)

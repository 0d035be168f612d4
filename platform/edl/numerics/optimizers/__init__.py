"""The optimizers, in place on float32 arrays, with the formulas of Keras 3.

Rules are elementwise (but for ``lamb``), so that one function serves the dense slab and the gathered rows of a table
alike. Rows that a push does not touch are left alone entirely (*lazy*): their momentum does not decay and they do not
move. For SGD and Adagrad without weight decay that equals the dense update with a zero gradient; for the others it does
not, and it is what sparse training expects. docs/reference/optimizers.md says how much it changes.

The hot path allocates nothing: intermediate values go to the two arrays of a Scratch. ``update_rule`` has
the types, ``rule_selection`` finds the rule; the formulas are in ``gradient_descent``, ``adam``, ``ftrl`` and ``lamb``.

Parameter servers apply them, and workers between two pulls. Imports NumPy, ``edl.jobfile`` and ``edl.api`` only.
"""

from edl.numerics.optimizers.rule_selection import make_blocks, make_rule
from edl.numerics.optimizers.update_rule import FlatBlock, ParameterUpdate, ScratchArrays, UpdateRule

__all__ = ["FlatBlock", "ParameterUpdate", "ScratchArrays", "UpdateRule", "make_blocks", "make_rule"]

"""Update rules of the optimizers: Keras 3's formulas, in place on float32 arrays.

All rules except ``lamb`` are elementwise. One function therefore serves both the dense slab and the
gathered rows of a table. Updates are *lazy*: a push does not change rows that it does not name, nor
their slot variables, so their momentum does not decay. For SGD and Adagrad without weight decay
this equals the dense update with a zero gradient. For the others it does not, and it is what sparse
training expects. docs/reference/optimizers.md says how much it changes.

The hot path allocates no arrays: intermediate values go to the two arrays of ScratchArrays.
``update_rule`` defines the types and ``rule_selection`` selects the rule. The formulas are in
``gradient_descent``, ``adam``, ``ftrl`` and ``lamb``.

Parameter servers apply the rules, and so do workers between two pulls. Imports NumPy,
``edl.jobfile`` and ``edl.api`` only.
"""

from edl.numerics.optimizers.rule_selection import make_blocks, make_rule
from edl.numerics.optimizers.update_rule import FlatBlock, ParameterUpdate, ScratchArrays, UpdateRule

__all__ = ["FlatBlock", "ParameterUpdate", "ScratchArrays", "UpdateRule", "make_blocks", "make_rule"]

"""What a push of this worker that is on its way will do to the dense values, where the worker can tell.

With ``strategy.overlap`` a step is computed while the push of the step before it is sent, so that the values that it is
computed from lack that push. What plain gradient descent makes of a gradient depends on nothing else, and the worker
adds it by itself. Other optimizers move values by slot variables too, which the parameter servers alone have.
"""

from __future__ import annotations

from edl.keras.flat_buffer import FlatLayout, Floats
from edl.numerics.optimizer_spec import OptimizerSpec
from edl.worker.gradient_push import GradientPush
from edl.worker.local_updater import LocalUpdater


class GradientCompensation:
    """Adds pushes to values that lack them.

    Args:
        layout: of the slab.
        optimizer: the job's.
        staleness_aware: the PS divide learning rates by what the worker does not know.
    """

    def __init__(self, layout: FlatLayout, optimizer: OptimizerSpec, *, staleness_aware: bool = False) -> None:
        knows = not optimizer.slots and not staleness_aware
        self._local_updater = LocalUpdater(layout, optimizer, between=1) if knows else None

    def add(self, values: Floats, push: GradientPush) -> bool:
        """Change ``values`` in place as ``push`` will change them; False, and no change, if that cannot be told."""
        if self._local_updater is None:
            return False
        self._local_updater.apply_push(values, values, push)
        return True

"""A worker's own copy of the dense values between two pulls (``strategy.get_model_steps``).

After a push that returns no values, the worker updates its copy as the push updates the parameters: by
the rule of the job's optimizer, with slot variables of its own. So the next gradient includes this
worker's own steps, but not those of other workers. The next pull replaces the copy. The slot variables
stay; they contain all gradients of this worker and no others.
"""

from __future__ import annotations

import numpy as np

from edl.api.errors import BadInputError
from edl.api.variables import VariableSpec
from edl.numerics.array_types import Floats
from edl.numerics.optimizer_spec import OptimizerSpec
from edl.numerics.optimizers import ParameterUpdate, ScratchArrays, make_blocks, make_rule
from edl.numerics.parameter_store import PushGradients
from edl.worker.flat_buffer import FlatLayout

_SLOT_DERIVED_RULES = ("ftrl",)
"""Rules that compute values from slot variables alone: a local step would overwrite pulled values."""


class LocalUpdater:
    """Applies a worker's own pushes to its copy of the values.

    Args:
        layout: the layout of the flat buffer.
        optimizer: the job's optimizer.
        steps_between_pulls: steps from one pull to the next; all but the last are local.

    Raises:
        BadInputError: the optimizer computes values from its slot variables, and a worker has only its own
            part of them.
    """

    def __init__(self, layout: FlatLayout, optimizer: OptimizerSpec, steps_between_pulls: int) -> None:
        if optimizer.name in _SLOT_DERIVED_RULES:
            raise BadInputError(
                f"{steps_between_pulls} is not possible with Ftrl, which computes values from all gradients so far: "
                "a worker has only its own",
                where="strategy.get_model_steps",
                hint="remove the field, or choose another optimizer",
            )
        self._steps_between_pulls = steps_between_pulls
        self._steps_since_pull = 0
        self._ps_slices = [
            _PsSlice(layout.variables_of_ps(part), layout.ps_slices[part].start, optimizer)
            for part in layout.ps_indices
        ]
        self._discarded_values = np.empty(layout.size, np.float32)

    @property
    def next_push_is_local(self) -> bool:
        """Whether the next push returns no values."""
        return self._steps_since_pull + 1 < self._steps_between_pulls

    def reset_pull_count(self) -> None:
        """Start counting again, after the values were pulled from the parameter servers."""
        self._steps_since_pull = 0

    def update_slots(self, values: Floats, gradients: PushGradients | None) -> None:
        """Update only the slot variables, from ``values``, for an applied push that returned new values."""
        self.apply_push(values, self._discarded_values, gradients)

    def apply_push(self, old_values: Floats, new_values: Floats, gradients: PushGradients | None) -> None:
        """Write to ``new_values`` the result of an applied push to ``old_values``.

        Both may be the same array.
        """
        self._steps_since_pull += 1
        if new_values is not old_values:
            np.copyto(new_values, old_values)
        if gradients is not None:
            for part in self._ps_slices:
                part.apply_push(new_values, gradients)


class _PsSlice:
    """The slice of one PS: trained variables with their slot variables, then statistics."""

    def __init__(self, variables: list[VariableSpec], start: int, optimizer: OptimizerSpec) -> None:
        places: list[tuple[VariableSpec, slice]] = []
        trained = size = 0
        for variable in variables:
            places.append((variable, slice(size, size + variable.size)))
            size = places[-1][1].stop
            trained = trained if variable.statistic else size
        self._trained_slice, self._statistics_slice = (
            slice(start, start + trained),
            slice(start + trained, start + size),
        )
        self._blocks = [(block, make_rule(optimizer, block.weight_decay)) for block in make_blocks(optimizer, places)]
        self._slot_variables = [np.full(trained, value, np.float32) for value in optimizer.slot_starts.values()]
        self._scratch = ScratchArrays.allocate_like(np.empty(trained, np.float32))
        self._step_count = 0

    def apply_push(self, values: Floats, gradients: PushGradients) -> None:
        self._step_count += 1
        update = ParameterUpdate(gradients.flat[self._trained_slice], gradients.learning_rate, self._step_count)
        for block, block_rule in self._blocks:
            block.apply_rule(block_rule, values[self._trained_slice], self._slot_variables, update, self._scratch)
        values[self._statistics_slice] += gradients.flat[self._statistics_slice] * np.float32(gradients.record_weight)


# --------------------------------------------------------------------------------------------------
# Compensation for a push in flight. With ``strategy.overlap`` a step is computed while the previous
# push is being sent, so its values lack that push. For plain gradient descent, the effect of a push
# depends on nothing else, and the worker adds it. Other optimizers also depend on slot variables,
# which only the parameter servers have.


class GradientCompensation:
    """Adds pushes in flight to values that lack them.

    Args:
        layout: the layout of the flat buffer.
        optimizer: the job's optimizer.
        staleness_aware: whether the PS divide learning rates by the staleness, which the worker does not
            know.
    """

    def __init__(self, layout: FlatLayout, optimizer: OptimizerSpec, *, staleness_aware: bool = False) -> None:
        is_exact = not optimizer.slot_starts and not staleness_aware
        self._local_updater = LocalUpdater(layout, optimizer, steps_between_pulls=1) if is_exact else None

    def add_pending_push(self, values: Floats, gradients: PushGradients | None) -> bool:
        """Change ``values`` in place as the push will change them; False, without a change, if that is unknown."""
        if self._local_updater is None:
            return False
        self._local_updater.apply_push(values, values, gradients)
        return True

"""The state of a rank: all variables of its model and its optimizers, equal on all ranks of strategy AllReduce."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from edl.api.errors import BadInputError
from edl.core.state_agreement import CODE_PREFIX
from edl.keras.all_reduce_update import SummedUpdate, byte_size
from edl.keras.evaluated_copy import CopiedValues, copy_values
from edl.keras.local_strategy_update import SingleRankUpdate
from edl.keras.model_building import is_seed_state, seed_worker_randomness
from edl.keras.model_contract import ModelModule, find_carried_states, has_own_train_step, refuse_stateful_layers
from edl.keras.model_loss import LossReduction, updating_optimizers
from edl.keras.optimizer_update import ReplicaUpdate
from edl.keras.out_of_range_ids import MODEL_LOCATION
from edl.keras.traced_function import as_tensor, host_array, read_value
from edl.keras.train_step_tracing import OWN_OPTIMIZER
from edl.keras.trainable_model import AssignValues, TrainableModel, is_rate
from edl.numerics.packed_state import array_checksum, pack_arrays, packed_size, split_packed

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class ReplicaStep:
    """One rank's result of a minibatch.

    Attributes:
        loss: the loss, including the model's own losses; may be NaN.
        weight: the weight of the minibatch. The sum over all ranks is the argument of :meth:`ModelReplica.apply`. For a
            mean loss, the weighted mean of the ranks' losses is the loss of the step.
        is_finite: whether the loss, the gradients and the statistics are finite. With dynamic loss scaling only the
            loss counts: the optimizer skips steps whose gradients are not finite, and lowers its scale.
        nonfinite_name: the first variable whose gradient or statistic is not finite, or ``loss``; empty if all are
            finite.
        common_loss: of a summed loss, the part that every rank's loss has: the regularizers. None: the loss is a mean.
    """

    loss: float
    weight: float
    is_finite: bool
    nonfinite_name: str
    common_loss: float | None = None


class ReplicaState(TrainableModel):
    """A rank's model, optimizers and metrics, and copies of their state.

    Args:
        module: the user's model module.
        seed: the seed of the initial values, equal on all ranks.
        rank_seed: as of ``ModelReplica``.
        sample: the features of a minibatch.
        begin: as of ``TrainableModel``.

    Raises:
        BadInputError: several ranks cannot train the model; the error names the layer or variable.
        UserCodeError: the user's code raised an exception.
    """

    def __init__(
        self,
        module: ModelModule,
        *,
        seed: int,
        rank_seed: int | None,
        sample: Any,
        begin: AssignValues | None = None,
    ) -> None:
        super().__init__(module, seed=seed, sample=sample, begin=begin)
        self._is_only_rank = rank_seed is None
        self._trained = tuple(self.model.trainable_variables)
        if not self._is_only_rank:
            refuse_stateful_layers(self.model)
            _refuse_synchronized_layers(self.model)
            if not self._trained:
                raise BadInputError("the model has no trained variable")
        # Keras leaves them out of ``model.variables``.
        self._carried = tuple(find_carried_states(self.model)) if self._is_only_rank else ()
        """The states that stateful layers hand on to the next minibatch."""
        self._known_variables = {id(variable) for variable in self.model.variables}
        self._seed_states = tuple(v for v in self.model.variables if is_seed_state(v))
        self._old_seed_states: Sequence[Any] = ()

    @property
    def is_random(self) -> bool:
        """Whether layers draw random numbers."""
        return bool(self._seed_states)

    def _seed_randomness(self, seed: int, rank_seed: int | None) -> None:
        if rank_seed is not None:
            seed_worker_randomness(self.variables.local_variables, seed, rank_seed)

    def _make_update(
        self, optimizer: Any, trained: Sequence[Any], statistics: Sequence[Any], max_dense_gradient: int
    ) -> ReplicaUpdate:
        own = has_own_train_step(self.model)
        if self._is_only_rank:
            return SingleRankUpdate(self.module, optimizer, trained, statistics, of_own_step=own)
        return SummedUpdate(
            self.module, self.model, optimizer, trained, statistics, max_dense_gradient, of_own_step=own
        )

    def _weigh_minibatch(
        self,
        reduction: LossReduction,
        records: Any,
        labels: Any,
        weights: Any,
        predictions: Any = None,
        loss_labels: Any = None,
        *,
        has_added_losses: bool = False,
    ) -> Any:
        """The weight of a minibatch in the sum over all ranks; the only rank sums nothing."""
        if self._is_only_rank:
            return tf.constant(1, tf.float64)
        return self._objective.minibatch_weight(
            reduction, records, labels, weights, predictions, loss_labels, has_added_losses=has_added_losses
        )

    def _describe_sums(self) -> Any:
        """What the ranks sum, as JSON: only ranks that say the same may train together."""
        raise NotImplementedError

    def metric_values(self, states: Mapping[str, Any]) -> dict[str, float]:
        """The values of states that ``edl.core.evaluation.merge_metric_states`` merged."""
        return self._compute_metrics(states)

    def pack_data(self, features: Any, labels: Any, weights: Any) -> Any:
        """What ``train_step`` gets, as in ``fit`` with the weights of ``class_weight``; its leaves are tensors."""
        weights = self._objective.training_weights(labels, weights)
        data = (features, labels) if weights is None else (features, labels, weights)
        return tf.nest.map_structure(as_tensor, data)

    def set_learning_rate(self, rate: float) -> None:
        """Set the optimizer's learning rate, which is part of the state."""
        self.optimizer.learning_rate = rate

    def restore_statistics(self) -> None:
        """Undo what a step that was not applied has changed in the model."""
        for variable, old in zip(self._seed_states, self._old_seed_states, strict=False):
            variable.assign(old)
        self._old_seed_states = ()

    def _refuse_new_variables(self) -> None:
        if self._is_only_rank:
            return
        new = next((v for v in self.model.variables if id(v) not in self._known_variables), None)
        if new is not None:
            raise BadInputError(
                f"the variable '{new.path}' was created by a training step, after the model was built",
                where=MODEL_LOCATION,
                hint="create all variables in build(), or in a call with training=False",
            )

    @property
    def uses_own_optimizer(self) -> bool:
        """Whether steps use ``model.optimizer``, whose learning rate callbacks set."""
        return True

    @property
    def averages_weights(self) -> bool:
        """Whether :meth:`finalize` changes the weights."""
        return any(optimizer.use_ema for optimizer in updating_optimizers(self.optimizer))

    def copy_final_values(self) -> CopiedValues:
        """The values of the model's variables as ``fit`` would leave them now: the averages with ``use_ema``."""
        if not self.averages_weights:
            return copy_values(self.model)
        state = self.pack_state()
        try:
            self.finalize()
            return copy_values(self.model)
        finally:
            self.unpack_state(state)

    @property
    def rate_names(self) -> frozenset[str]:
        """The learning rates among the arrays that :meth:`state_arrays` returns."""
        return frozenset(name for name, variable in self._state_variables() if is_rate(name, variable))

    def state_sizes(self) -> dict[str, int]:
        """The bytes of each array that :meth:`state_arrays` returns."""
        return {name: byte_size(variable) for name, variable in self._state_variables()}

    def state_arrays(self, names: Iterable[str] | None = None) -> dict[str, Array]:
        """Everything that must be equal on all ranks, by its name in checkpoints: see ``named_variables``.

        The states of random generators are left out, but for those of the only rank.

        Args:
            names: copy only these arrays; None: all.
        """
        wanted = None if names is None else set(names)
        return {
            name: host_array(variable).copy()
            for name, variable in self._state_variables()
            if wanted is None or name in wanted
        }

    def load_state(self, arrays: Mapping[str, Any], *, by_ranks: bool = False) -> None:
        """Assign arrays that :meth:`state_arrays` returned.

        One of several ranks ignores further ones, such as the states of random layers under strategy Local.

        Args:
            arrays: by name.
            by_ranks: several ranks wrote them. Each had random generators of its own, whose states are not among them:
                those of this model stay as they are.

        Raises:
            BadInputError: another model or optimizer has written them; nothing was assigned.
        """
        expected = {name: v for name, v in self._state_variables() if not (by_ranks and is_seed_state(v))}
        for name in (*expected, *sorted(arrays.keys() - expected.keys() if self._is_only_rank else ())):
            if name in expected and name in arrays and _describe(expected[name]) == _describe(arrays[name]):
                continue
            difference = f"they differ in {name}" if name in arrays else f"it has no {name}"
            raise BadInputError(
                f"the checkpoint was written with another model or optimizer: {difference}",
                hint="restore the model that the run started with, or start a new run, without --resume",
            )
        for name, variable in expected.items():
            if not self.keeps_value(name, variable):
                variable.assign(arrays[name])

    def pack_state(self) -> NDArray[np.uint8]:
        """A copy of the state as one array; its size is a multiple of eight bytes."""
        return pack_arrays((host_array(variable) for _, variable in self._state_variables()), self._packed_size())

    def hold_state(self) -> list[Array]:
        """The arrays of a packed state, in its order, as of now; nothing is copied, and any thread may read them.

        They do not change with the variables: TensorFlow gives a variable new memory if somebody holds the old one when
        it is assigned next. So the next step costs as much more as the allocation.
        """
        return [host_array(read_value(variable)) for _, variable in self._state_variables()]

    def unpack_state(self, packed: Array) -> None:
        """Assign a state that :meth:`pack_state` copied.

        Raises:
            BadInputError: another model or optimizer has written it; nothing was assigned.
        """
        if packed.nbytes != self._packed_size():
            raise BadInputError(
                f"the state of the other rank has {packed.nbytes:,} bytes, this rank's has {self._packed_size():,}: "
                "their models or optimizers differ",
                where=MODEL_LOCATION,
            )
        variables = [variable for _, variable in self._state_variables()]
        for variable, part in zip(variables, split_packed(packed, map(byte_size, variables)), strict=True):
            values = part.view(_numpy_type(variable)).reshape(tuple(variable.shape))
            # A copy: TensorFlow may use an aligned array without one.
            variable.assign(values.copy())

    def digest(self) -> int:
        """A digest of 64 bits of the state: names, shapes, types and values.

        The values are in it as a CRC-32 of each variable: all ranks wait for it when a round begins, and a
        cryptographic hash takes dozens of times as long.
        """
        hasher = hashlib.blake2b(digest_size=8)
        for name, variable in self._state_variables():
            hasher.update(json.dumps([name, *_describe(variable), array_checksum(host_array(variable))]).encode())
        return int.from_bytes(hasher.digest(), "big")

    def variable_digests(self) -> dict[str, int]:
        """A digest of 32 bits of each variable's values, by its name in checkpoints."""
        return {name: array_checksum(host_array(variable)) for name, variable in self._state_variables()}

    def describe_variables(self) -> dict[str, str]:
        """Type and shape of each variable of the state for users, by its name in checkpoints; then the zoo's code."""
        described = ((name, *_describe(variable)) for name, variable in self._state_variables())
        code = {CODE_PREFIX + path: digest for path, digest in self.module.code.items()}
        return {name: f"{dtype} of shape {tuple(shape)}" for name, shape, dtype in described} | code

    def fingerprint(self) -> str:
        """A digest of names, shapes and types of the state, of what is summed, and of the zoo's code.

        Only ranks with equal fingerprints may train together. Without the code, two losses would be the same model.
        """
        state = [[name, *_describe(variable)] for name, variable in self._state_variables()]
        return hashlib.sha256(json.dumps([state, self._describe_sums(), dict(self.module.code)]).encode()).hexdigest()

    def read_values(self) -> list[tuple[Any, Any]]:
        """Each variable of the state with its value; see ``edl.keras.rank_callbacks``."""
        return [(variable, read_value(variable)) for _, variable in self._state_variables()]

    def _state_variables(self) -> list[tuple[str, Any]]:
        named = [each for each in self.named_variables() if self._is_only_rank or not is_seed_state(each[1])]
        return [*named, *((f"carried/{number}", variable) for number, variable in enumerate(self._carried))]

    def _packed_size(self) -> int:
        return packed_size(byte_size(variable) for _, variable in self._state_variables())


class SeveralOptimizersState(ReplicaState):
    """The state of a rank whose ``train_step`` has optimizers of its own.

    Attributes:
        _optimizers: those that make an update, by their attribute of the model.
    """

    _optimizers: Mapping[str, Any] = MappingProxyType({})

    def _build_optimizer(self) -> None:
        """They are built when it is known which variables each of them gets."""

    @property
    def uses_own_optimizer(self) -> bool:
        """Whether ``model.optimizer`` makes an update: its learning rate is what callbacks set."""
        return OWN_OPTIMIZER in self._optimizers

    def named_variables(self) -> Iterator[tuple[str, Any]]:
        """As of ``TrainableModel``; the variables of an optimizer are ``slot/<attribute>/<n>``, such as
        ``slot/d_optimizer/0``."""
        yield from self._named_model_variables()
        for name, optimizer in self._optimizers.items():
            for number, variable in enumerate(optimizer.variables):
                yield f"slot/{name}/{number}", variable

    def finalize(self) -> bool:
        """Finalize the weights as ``keras.Model.fit`` does: with ``model.optimizer`` alone."""
        if self.averages_weights:
            inner = getattr(self.optimizer, "inner_optimizer", self.optimizer)
            inner.finalize_variable_values(list(inner._trainable_variables))
        return self.averages_weights

    @property
    def averages_weights(self) -> bool:
        """Whether :meth:`finalize` changes the weights."""
        return self.uses_own_optimizer and super().averages_weights


def _refuse_synchronized_layers(model: Any) -> None:
    for layer in model._flatten_layers():
        if getattr(layer, "synchronized", False):
            raise BadInputError(
                f"the layer '{layer.name}' ({type(layer).__name__}) has synchronized=True, but EDL does not combine "
                "the batch means of several workers within a step",
                where=MODEL_LOCATION,
                hint="remove synchronized=True: moving means and variances are combined after each step",
            )


def _numpy_type(variable: Any) -> Any:
    return np.dtype(tf.as_dtype(variable.dtype).as_numpy_dtype)


def _describe(variable: Any) -> list[Any]:
    """Shape and type of a variable or an array."""
    return [list(variable.shape), str(variable.dtype)]

"""PyTorch models in steps that all workers take together (``edl.sharding.Client.steps``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch  # type: ignore[import-not-found]  # a package of the program

from edl.api.errors import BadInputError
from edl.sharding.program_handoff import WorldChangedError
from edl.sharding.shared_steps import SharedStep

_STATISTIC = "statistic:"
"""Before the name of a buffer among the arrays of a step."""


class TorchState:
    """The state of a model and its optimizer, for ``client.steps()``.

    Statistics of layers, such as the running mean of BatchNorm, become the mean over all workers, by records, of what
    each one's forward pass makes them.

    The optimizer's state is created here: an optimizer of PyTorch creates its own with its first update, and a worker
    that joins could not be given it before.

    Args:
        model: its parameters and buffers are state.
        optimizer: of these parameters.

    Raises:
        BadInputError: a tensor has a type that NumPy has not, such as bfloat16, or is not in this machine's memory.
    """

    def __init__(self, model: Any, optimizer: Any) -> None:
        self._model, self._optimizer = model, optimizer
        self._trained = {name: each for name, each in model.named_parameters() if each.requires_grad}
        for name, tensor in model.state_dict().items():
            _to_array(name, tensor)
        self._buffers = dict(model.named_buffers())
        self._statistics = {name: each for name, each in self._buffers.items() if each.is_floating_point()}
        self._before: dict[str, Any] = {}
        self._keep_buffers()
        _create_optimizer_state(optimizer)

    @property
    def gradients_like(self) -> dict[str, Any]:
        """Arrays with the shapes and types of what a step combines: gradients, and statistics of layers."""
        gradients = {name: _to_array(name, each) for name, each in self._trained.items()}
        return gradients | {_STATISTIC + name: _to_array(name, each) for name, each in self._statistics.items()}

    def state_dict(self) -> dict[str, Any]:
        """The state of model and optimizer; the arrays share its memory."""
        return {"model": _to_arrays(self._model.state_dict()), "optimizer": _to_arrays(self._optimizer.state_dict())}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replace the state of model and optimizer."""
        self._model.load_state_dict(_to_tensors(state["model"], self._model.state_dict()))
        self._optimizer.load_state_dict(_to_tensors(state["optimizer"], self._optimizer.state_dict()))
        self._keep_buffers()

    def combine_gradients(self, step: SharedStep, loss: Any = None) -> None:
        """Replace the gradients of this worker's parameters by their mean over all workers, by records.

        Call it in every step between ``loss.backward()`` and ``optimizer.step()``, also without records.

        Args:
            step: the step.
            loss: the loss of its records, for status and plots.

        Raises:
            WorldChangedError: the step does not happen.
        """
        arrays = None
        if step.batch is not None:
            # A parameter that the loss does not reach has no gradient.
            arrays = {
                name: np.zeros(tuple(each.shape), _to_array(name, each).dtype)
                if each.grad is None
                else _to_array(name, each.grad)
                for name, each in self._trained.items()
            }
            arrays |= {_STATISTIC + name: _to_array(name, each) for name, each in self._statistics.items()}
        try:
            means = step.allreduce(arrays, loss=None if loss is None else float(loss))
        except WorldChangedError:
            with torch.no_grad():
                for name, values in self._before.items():
                    self._buffers[name].copy_(values)
            raise
        with torch.no_grad():
            for name, each in self._trained.items():
                mean = torch.from_numpy(means[name])
                if each.grad is None:
                    each.grad = mean.clone()
                else:
                    each.grad.copy_(mean)
            for name, each in self._statistics.items():
                each.copy_(torch.from_numpy(means[_STATISTIC + name]))
            for name, each in self._buffers.items():
                # A worker without records has counted none.
                if name.rpartition(".")[2] == "num_batches_tracked":
                    each.copy_(self._before[name] + 1)
        self._keep_buffers()

    def _keep_buffers(self) -> None:
        """Keep the buffers as they are before a forward pass, which changes some: the step may be given up."""
        self._before = {name: each.detach().clone() for name, each in self._buffers.items()}


def _create_optimizer_state(optimizer: Any) -> None:
    """Let the optimizer create its state, by an update with gradients of zero that changes nothing.

    ``torch.distributed.checkpoint`` does the same (``_init_optim_state``).
    """
    if optimizer.state:
        return
    parameters = [each for group in optimizer.param_groups for each in group["params"] if each.requires_grad]
    before = [each.detach().clone() for each in parameters]
    rates = [group["lr"] for group in optimizer.param_groups]
    for each in parameters:
        each.grad = torch.zeros_like(each)
    for group in optimizer.param_groups:
        group["lr"] = torch.zeros_like(group["lr"]) if isinstance(group["lr"], torch.Tensor) else 0.0
    optimizer.step()
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    with torch.no_grad():
        for each, values in zip(parameters, before, strict=True):
            each.copy_(values)
    # No update has been made yet.
    for state in optimizer.state.values():
        for key, value in state.items():
            if key == "step":
                state[key] = torch.zeros_like(value) if isinstance(value, torch.Tensor) else type(value)(0)
    optimizer.zero_grad(set_to_none=True)


def _to_array(name: str, tensor: Any) -> Any:
    if tensor.device.type != "cpu":
        raise BadInputError(
            f"'{name}' is on {tensor.device}", where="TorchState", hint="EDL has tried models in the main memory only"
        )
    try:
        return tensor.detach().contiguous().numpy()
    except TypeError as error:
        raise BadInputError(
            f"'{name}' has the type {tensor.dtype}, which NumPy has not", where="TorchState", hint="use float32"
        ) from error


def _to_arrays(state: Any, name: str = "") -> Any:
    if isinstance(state, torch.Tensor):
        return _to_array(name, state)
    if isinstance(state, Mapping):
        return {key: _to_arrays(value, f"{name}/{key}") for key, value in state.items()}
    if isinstance(state, list | tuple):
        return [_to_arrays(value, f"{name}/{index}") for index, value in enumerate(state)]
    return state


def _to_tensors(state: Any, like: Any) -> Any:
    if isinstance(like, torch.Tensor):
        return torch.from_numpy(np.array(state))
    if isinstance(like, Mapping):
        return {key: _to_tensors(state[key], value) for key, value in like.items()}
    if isinstance(like, list | tuple):
        return type(like)(_to_tensors(state[index], value) for index, value in enumerate(like))
    return state

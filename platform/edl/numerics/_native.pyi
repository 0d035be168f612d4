"""The extension that ``make native`` builds from ``native/``; ``bindings.cpp`` is its source."""

from collections.abc import Sequence
from enum import Enum

from edl.numerics.array_types import Floats, Ids, StepNumbers

class Optimizer(Enum):
    sgd = 0
    momentum = 1
    nesterov = 2
    adagrad = 3
    adam = 4
    amsgrad = 5
    adamax = 6
    nadam = 7
    rmsprop = 8
    rmsprop_momentum = 9
    centered = 10
    centered_momentum = 11
    adadelta = 12
    lion = 13
    ftrl = 14
    ftrl_power = 15

class Distribution(Enum):
    constant = 0
    uniform = 1
    normal = 2
    truncated_normal = 3

class Step:
    def __init__(
        self,
        *,
        rate: float = ...,
        decay: float = ...,
        decay_rate: float = ...,
        momentum: float = ...,
        epsilon: float = ...,
        first_weight: float = ...,
        second_weight: float = ...,
        first_keep: float = ...,
        second_keep: float = ...,
        of_gradient: float = ...,
        correction: float = ...,
        shrinkage: float = ...,
        curvature: float = ...,
        l1: float = ...,
        group: float = ...,
        power: float = ...,
    ) -> None: ...

class Initializer:
    def __init__(self, distribution: Distribution, a: float, b: float, seed: int) -> None: ...

class Memory:
    @property
    def reserved(self) -> int: ...
    @property
    def resident(self) -> int: ...
    @property
    def rows(self) -> int: ...
    @property
    def index(self) -> int: ...
    @property
    def snapshots(self) -> int: ...

class Table:
    def __init__(
        self,
        dim: int,
        slots: Sequence[float],
        initializer: Initializer,
        optimizer: Optimizer,
        threads: int,
        isa: str,
        evict_after: int,
        salt: int,
    ) -> None: ...
    def __len__(self) -> int: ...
    @property
    def isa(self) -> str: ...
    def read(self, ids: Ids, out: Floats) -> None: ...
    @property
    def extent(self) -> int: ...
    def apply(self, ids: Ids, gradients: Floats, step: Step, now: int) -> None: ...
    def drop(self, now: int) -> None: ...
    def missing(self, ids: Ids) -> int: ...
    def scan(self, start: int, ids: Ids, values: Floats) -> int: ...
    def load(self, ids: Ids, values: Floats, slots: Sequence[Floats], seen: StepNumbers | None, now: int) -> None: ...
    def memory(self) -> Memory: ...

class ReleasedError(RuntimeError): ...

class Snapshot:
    def __init__(self, table: Table) -> None: ...
    def __len__(self) -> int: ...
    def read(self, ids: Ids, out: Floats) -> None: ...
    @property
    def extent(self) -> int: ...
    def scan(
        self, start: int, ids: Ids, values: Floats, slots: Sequence[Floats], seen: StepNumbers | None, pass_by: bool
    ) -> int: ...
    def release(self) -> None: ...

def move(
    optimizer: Optimizer, step: Step, values: Floats, slots: Sequence[Floats], gradient: Floats, isa: str
) -> None: ...
def gather(rows: Floats, positions: Ids, out: Floats) -> None: ...

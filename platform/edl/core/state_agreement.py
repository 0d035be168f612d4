"""Whether the ranks of strategy AllReduce compute the same values, and which of them do not.

All ranks apply the same sums to the same state. Ranks with the same instruction set and the same threads of TensorFlow
get the same bits, so a digest shows a divergence. Others round differently: they drift apart, and all take the state
of one rank from time to time. docs/design/0010-allreduce.md says when.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

DIGEST_STEPS = 100
"""Steps between two comparisons. A digest of 40 MB takes 1.5 ms, and a step of such a model about 120 ms. To take a
state costs as much as one to three steps."""

DRIFT_TOLERANCE = 1e-4
"""How far a variable may drift from that of another rank, as a part of its norm, because processors round differently.

An update in float32 rounds by 6e-8 of a value, so a hundred updates stay far below.
"""
_UNITS = 16.0
"""The same for narrower types, in units of their last place: one unit of bfloat16 is 0.8 %."""
_SMALLEST_NORM = 1e-12
"""Smaller differences are no drift: a variable may be zero but for what processors make of denormal numbers."""


CODE_PREFIX = "code of "
"""Begins the name of a file of model code among the variables that a worker describes; its digest follows."""


@dataclass(frozen=True, slots=True)
class RankFacts:
    """What a rank says about itself when a round begins.

    Attributes:
        worker: its name for users, such as ``worker-1``.
        model: the fingerprint of its model.
        versions: the versions of the packages that compute.
        instructions: the vector instructions of its processor, after the name of its architecture.
        threads: TensorFlow's threads, by their kind.
    """

    worker: str
    model: str = ""
    versions: Mapping[str, str] | None = None
    instructions: tuple[str, ...] = ()
    threads: Mapping[str, int] | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "worker": self.worker,
            "model": self.model,
            "versions": dict(self.versions or {}),
            "instructions": list(self.instructions),
            "threads": dict(self.threads or {}),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> RankFacts:
        """Read what ``to_json`` returned.

        Raises:
            KeyError, TypeError: it is something else.
        """
        return cls(
            str(value["worker"]),
            str(value["model"]),
            dict(value["versions"]),
            tuple(map(str, value["instructions"])),
            dict(value["threads"]),
        )


def name_rank(facts: Sequence[RankFacts], rank: int) -> str:
    """A rank for users: ``worker-2 (rank 1)``."""
    return f"{facts[rank].worker} (rank {rank})"


def describe_version_conflict(facts: Sequence[RankFacts]) -> str:
    """Which rank has another version of a package than rank 0; empty if all have the same ones."""
    first = facts[0].versions or {}
    for rank, other in enumerate(facts):
        versions = other.versions or {}
        for package in sorted({*first, *versions}):
            if first.get(package) != versions.get(package):
                return (
                    f"{name_rank(facts, 0)} has {package} {first.get(package, 'in no version')}, "
                    f"{name_rank(facts, rank)} has {package} {versions.get(package, 'in no version')}"
                )
    return ""


def describe_model_difference(
    first: str, first_variables: Mapping[str, str], second: str, second_variables: Mapping[str, str]
) -> str:
    """In which variable two models differ first.

    Args:
        first, second: the workers, for users.
        first_variables, second_variables: type and shape of each variable of their models, by its name, in order. After
            ``CODE_PREFIX`` and the path of a file of model code: its digest.
    """
    first_variables, first_code = _split_code(first_variables)
    second_variables, second_code = _split_code(second_variables)
    for name, kind in first_variables.items():
        if name not in second_variables:
            return f"only {first} has the variable '{name}' ({kind})"
        if second_variables[name] != kind:
            return f"'{name}' is {kind} on {first} and {second_variables[name]} on {second}"
    for name, kind in second_variables.items():
        if name not in first_variables:
            return f"only {second} has the variable '{name}' ({kind})"
    for name, other in zip(first_variables, second_variables, strict=True):
        if name != other:
            return f"their variables have another order: '{name}' comes first on {first} and '{other}' on {second}"
    for path in sorted({*first_code, *second_code}):
        if first_code.get(path) != second_code.get(path):
            lacking = [worker for worker, code in ((first, first_code), (second, second_code)) if path not in code]
            return f"{lacking[0]} has not imported {path}" if lacking else f"{path} has other code on {second}"
    return "the updates of train_step(), or the variables whose gradients are summed, differ"


def _split_code(described: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Variables, and the digest of each file of model code by its path."""
    code = {name: kind for name, kind in described.items() if name.startswith(CODE_PREFIX)}
    variables = {name: kind for name, kind in described.items() if name not in code}
    return variables, {name.removeprefix(CODE_PREFIX): digest for name, digest in code.items()}


def describe_difference(facts: Sequence[RankFacts]) -> str:
    """Why the ranks may round differently, after the first rank that may; empty if all compute the same bits."""
    first = facts[0]
    for rank, other in enumerate(facts):
        if set(other.instructions) != set(first.instructions):
            more = sorted(set(first.instructions) - set(other.instructions))
            fewer = sorted(set(other.instructions) - set(first.instructions))
            parts = [
                f"{name_rank(facts, at)} has the instructions {' '.join(names)}"
                for at, names in ((0, more), (rank, fewer))
                if names
            ]
            lacking = name_rank(facts, rank if more else 0)
            return " and ".join(parts) if len(parts) > 1 else f"{parts[0]}, which {lacking} lacks"
        if (other.threads or {}) != (first.threads or {}):
            return (
                f"TensorFlow has {_list_threads(first)} threads on {name_rank(facts, 0)} and "
                f"{_list_threads(other)} on {name_rank(facts, rank)}"
            )
    return ""


def _list_threads(facts: RankFacts) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in sorted((facts.threads or {}).items())) or "unknown"


def is_digest_step(step: int) -> bool:
    """Whether the ranks compare their states after this step."""
    return step % DIGEST_STEPS == 0


def count_digest_steps(after: int, until: int) -> int:
    """How many of the steps after ``after``, up to ``until``, are followed by a comparison."""
    return max(0, until // DIGEST_STEPS - after // DIGEST_STEPS)


@dataclass(frozen=True, slots=True)
class Divergence:
    """A rank whose variable is another one than that of most ranks.

    Attributes:
        variable: the position of the first such variable.
        rank: the rank.
        other_rank: a rank with the value that most have. Of two ranks nobody knows which one is right.
    """

    variable: int
    rank: int
    other_rank: int


def find_divergence(digests: Sequence[Sequence[int]]) -> Divergence | None:
    """The first variable that is not the same on all ranks; None: there is none.

    Args:
        digests: by rank, the digest of each variable.
    """
    for variable, column in enumerate(zip(*digests, strict=True)):
        # Of values that are equally frequent, that of the lowest rank comes first.
        (most_frequent, count), *_ = Counter(column).most_common()
        if count < len(column):
            rank = next(at for at, digest in enumerate(column) if digest != most_frequent)
            return Divergence(variable, rank, column.index(most_frequent))
    return None


def drift_tolerance(epsilon: float | None) -> float:
    """How far a variable may drift, as a part of its norm.

    Args:
        epsilon: the unit in the last place of 1 in the variable's type; None: the type is exact, as integers are.
    """
    return 0.0 if epsilon is None else max(DRIFT_TOLERANCE, _UNITS * epsilon)


@dataclass(frozen=True, slots=True)
class Drift:
    """How far a rank's variable is from that of the rank whose state all take.

    Attributes:
        variable: its name.
        difference: the norm of the difference.
        norm: the norm of the other rank's value.
        epsilon: as in ``drift_tolerance``.
    """

    variable: str
    difference: float
    norm: float
    epsilon: float | None

    @property
    def relative(self) -> float:
        """The difference as a part of the norm."""
        return self.difference / self.norm if self.norm else math.inf

    @property
    def exceeds_tolerance(self) -> bool:
        """Whether rounding does not explain the difference. One that is not finite is never explained."""
        allowed = drift_tolerance(self.epsilon) * self.norm + (_SMALLEST_NORM if self.epsilon is not None else 0.0)
        return not self.difference <= allowed

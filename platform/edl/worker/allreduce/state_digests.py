"""Compares the states of the ranks of a round, and gives all of them one rank's state where processors differ.

Every function with a communicator is a reduction: all ranks call it at the same place. All get the same answers, so
all raise the same error. ``edl.core.state_agreement`` decides.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NoReturn, Protocol

import numpy as np

from edl.api.errors import BadInputError
from edl.core.state_agreement import (
    Drift,
    RankFacts,
    describe_difference,
    describe_model_difference,
    describe_version_conflict,
    find_divergence,
    name_rank,
)
from edl.core.strict_json import decode_json
from edl.worker.allreduce.model_description import MODEL_HINT, format_variables, parse_variables
from edl.worker.allreduce.rank_answers import read_answers

_LOG = logging.getLogger(__name__)

Array = np.ndarray[Any, Any]
_DIGEST_BYTES = 8
_MAX_TABLE_BYTES = 16 << 20
"""Of the names, types and shapes of a model's variables."""


class Reducer(Protocol):
    """What is needed of ``Communicator``."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    def all_reduce(self, buffer: Array, control: bytes = b"") -> list[bytes]: ...
    def exchange(self, message: bytes) -> list[bytes]: ...


class ComparedReplica(Protocol):
    """What is needed of ``ReplicaLike``."""

    def state_arrays(self) -> Mapping[str, Array]: ...
    def pack_state(self) -> Array: ...
    def unpack_state(self, buffer: Array) -> None: ...
    def digest(self) -> int: ...
    def variable_digests(self) -> Mapping[str, int]: ...
    def describe_variables(self) -> Mapping[str, str]: ...
    def fingerprint(self) -> str: ...


class StateDigests:
    """The states of the ranks of one round after another.

    Args:
        replica: the model of this rank.
        facts: what this rank says about itself.

    Attributes:
        difference: why the ranks of this round may round differently; empty if all compute the same bits.
        takes_state: whether all take the state of one rank when this round begins. Also after a round whose ranks
            differed: a worker that followed it knows nothing of the states that the members took.
    """

    def __init__(self, replica: ComparedReplica, facts: RankFacts) -> None:
        self._replica = replica
        self._own_facts = replace(facts, model=replica.fingerprint())
        self._facts: Sequence[RankFacts] = (self._own_facts,)
        self._has_drifted = False
        self.difference = ""
        self.takes_state = False

    def compare_ranks(self, communicator: Reducer) -> None:
        """A round begins: compare models, packages and processors of its ranks.

        Raises:
            BadInputError: they cannot train together.
            PeerRefusedError: what a rank says cannot be read.
            RoundBrokenError: a rank was lost.
        """
        own = self._own_facts.to_json() | {"drifted": self._has_drifted}
        answers = read_answers(communicator.exchange(json.dumps(own).encode()), _read_facts, "facts about itself")
        self._facts = facts = [each for each, _ in answers]
        # Before the models: another version may be why these differ.
        if conflict := describe_version_conflict(facts):
            raise BadInputError(
                f"the workers have different packages: {conflict}",
                hint="run all workers from the same image or environment",
            )
        for rank, other in enumerate(facts):
            if other.model != facts[0].model:
                self._raise_model_difference(communicator, rank)
        self.difference = describe_difference(facts)
        self.takes_state = bool(self.difference) or any(has_drifted for _, has_drifted in answers)
        if self.difference:
            _LOG.info("the workers of this round may round numbers differently: %s", self.difference)

    def name_rank(self, rank: int) -> str:
        """A rank of this round, for users."""
        return name_rank(self._facts, rank)

    def compare_states(self, communicator: Reducer, step: int) -> int:
        """Compare the digests of all ranks, which have applied ``step``; returns the digest.

        Raises:
            BadInputError: a rank has other values.
            RoundBrokenError: a rank was lost.
        """
        digest = self._replica.digest()
        own = digest.to_bytes(_DIGEST_BYTES, "big")
        if any(other != own for other in communicator.exchange(own)):
            self._raise_divergence(communicator, step)
        # From now on all have the same bits, and equal processors keep them equal.
        self._has_drifted = bool(self.difference)
        return digest

    def check_step(self, communicator: Reducer, step: int) -> None:
        """All ranks have applied ``step``, and a comparison is due: compare their states, or take those of rank 0.

        Raises:
            BadInputError: a rank has other values, and rounding does not explain it.
            RoundBrokenError: a rank was lost.
        """
        if not self.difference:
            self.compare_states(communicator, step)
            return
        state = self._replica.pack_state() if communicator.rank == 0 else np.zeros_like(self._replica.pack_state())
        # As whole numbers, so the copy is exact.
        communicator.all_reduce(state.view(np.int32))
        self.take_state(communicator, state, 0, step)

    def take_state(
        self, communicator: Reducer, state: Array, source: int, step: int, *, has_state: bool = True
    ) -> None:
        """Replace this rank's state by that of the rank ``source``, after a comparison.

        Args:
            state: the packed state of ``source``.
            has_state: whether this rank has a state of ``step``.

        Raises:
            BadInputError: the state of a rank differs by more than rounding explains.
            PeerRefusedError: what a rank says cannot be read.
            RoundBrokenError: a rank was lost.
        """
        worst: Drift | None = None
        if communicator.rank != source and has_state:
            before = self._replica.state_arrays()
            self._replica.unpack_state(state.view(np.uint8))
            worst = _find_drift(before, self._replica.state_arrays())
        own = json.dumps([worst.variable, worst.relative] if worst is not None else None).encode()
        answers = read_answers(communicator.exchange(own), _read_drift, "a difference of states", self.name_rank)
        for rank, drift in enumerate(answers):
            if drift is not None:
                variable, relative = drift
                raise BadInputError(
                    f"{name_rank(self._facts, rank)} has drifted from {name_rank(self._facts, source)} after step "
                    f"{step:,}: their values of '{variable}' differ by {relative:.2g} of its norm, and rounding "
                    "does not explain that",
                    hint=_HINT,
                )

    def _raise_model_difference(self, communicator: Reducer, other: int) -> NoReturn:
        """Exchange the variables of rank 0 and of another rank, whose models differ, and name the first difference."""
        own = b""
        if communicator.rank in (0, other):
            own = format_variables(self._replica.describe_variables())
        answers = communicator.exchange(len(own).to_bytes(_DIGEST_BYTES, "big"))
        sizes = [int.from_bytes(answers[rank], "big") for rank in (0, other)]
        tables: list[Mapping[str, str]] = [{}, {}]
        if max(sizes) <= _MAX_TABLE_BYTES:
            # As data: they may be longer than a control message.
            data = np.zeros(sum(sizes), np.uint8)
            if own:
                start = 0 if communicator.rank == 0 else sizes[0]
                data[start : start + len(own)] = np.frombuffer(own, np.uint8)
            communicator.all_reduce(data)
            with suppress(ValueError):
                tables = [parse_variables(part.tobytes()) for part in (data[: sizes[0]], data[sizes[0] :])]
        names = [name_rank(self._facts, rank) for rank in (0, other)]
        difference = describe_model_difference(names[0], tables[0], names[1], tables[1])
        raise BadInputError(f"{names[0]} and {names[1]} have different models: {difference}", hint=MODEL_HINT)

    def _raise_divergence(self, communicator: Reducer, step: int) -> NoReturn:
        own = self._replica.variable_digests()
        table = np.zeros((communicator.size, len(own)), np.int64)
        table[communicator.rank] = list(own.values())
        communicator.all_reduce(table)
        divergence = find_divergence(table.tolist())
        if divergence is None:
            raise BadInputError(f"the workers have different states after step {step:,}", hint=_HINT)
        raise BadInputError(
            f"{name_rank(self._facts, divergence.rank)} has another value of '{list(own)[divergence.variable]}' than "
            f"{name_rank(self._facts, divergence.other_rank)} after step {step:,}",
            hint=_HINT,
        )


_HINT = (
    "look for code of the model, the optimizer or a callback that assigns other values in one process; if there is "
    "none, the memory or the processor of that machine may be faulty"
)


def _read_facts(data: bytes) -> tuple[RankFacts, bool]:
    answer = decode_json(data)
    return RankFacts.from_json(answer), bool(answer["drifted"])


def _read_drift(data: bytes) -> tuple[str, float] | None:
    drift = decode_json(data, nonfinite_as_none=True)
    if drift is None:
        return None
    variable, relative = drift
    return str(variable), math.nan if relative is None else float(relative)


def _find_drift(before: Mapping[str, Array], after: Mapping[str, Array]) -> Drift | None:
    """The first variable that has drifted further than rounding explains; None: there is none."""
    for name, other in after.items():
        own = before[name]
        if own.tobytes() == other.tobytes():
            continue
        epsilon = _epsilon(other.dtype)
        if epsilon is None:
            return Drift(name, 1.0, 1.0, None)
        wide = other.astype(np.float64)
        # What is not finite gives a difference that is not: no tolerance covers it.
        with np.errstate(all="ignore"):
            difference = float(np.linalg.norm((own.astype(np.float64) - wide).reshape(-1)))
            drift = Drift(name, difference, float(np.linalg.norm(wide.reshape(-1))), epsilon)
        if drift.exceeds_tolerance:
            return drift
    return None


def _epsilon(dtype: Any) -> float | None:
    if dtype.name == "bfloat16":
        # NumPy does not know it.
        return 2.0**-7
    return float(np.finfo(dtype).eps) if dtype.kind == "f" else None

"""Everything a master knows about its job, and how journal entries change it.

``JobState`` (module ``job``) decides; what it decides about the ledger becomes journal entries, and ``apply`` is the
only code that changes the ledger, live and in replay alike. So a master that replays the journal is where the one
before it was. What is not in the journal (deadlines, PS attachments, cuts on their way) is found again by looking.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from edl.core import evaluation
from edl.core.cuts import Cut
from edl.core.evaluation import Round
from edl.core.events import Command, EndJob, Record, Tell
from edl.core.fleet import Fleet
from edl.core.leases import Holder, Patience
from edl.core.revocations import Revocation
from edl.core.shards import Plan, Source
from edl.core.tasks import Lease, Ledger, Work

TRAINING, EVALUATION, PREDICTION = "training", "evaluation", "prediction"
DESCRIBE, METRICS, EXPORT = "describe", "metrics", "export"
INCARNATION_SHIFT = 32


@dataclass(frozen=True, slots=True)
class Settings:
    """What of the JobSpec matters to decisions; units are records and steps.

    Attributes:
        task_records: records a lease.
        evaluation_steps, checkpoint_steps: None switches the periodic one off.
        describe: the data set is described by a worker (a user's own reader).
        skip_crashing: a range that makes workers crash is skipped instead of failing the job.
    """

    minibatch: int
    task_records: int
    epochs: int = 1
    seed: int | None = 0
    max_steps: int | None = None
    evaluation_steps: int | None = None
    checkpoint_steps: int | None = None
    export: bool = False
    predict: bool = False
    describe: bool = False
    skip_crashing: bool = False
    ps: int = 1
    workers: int = 1
    grace: float = 5.0


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint that is complete on disk."""

    cut: int
    step: int
    version: int
    ledger: Mapping[str, Any]


@dataclass(slots=True)
class Counters:
    """What the summary says besides the ledger."""

    repeated: int = 0
    partial: int = 0
    skipped: int = 0
    rolled_back: int = 0
    updates_rolled_back: int = 0
    workers_lost: int = 0
    loss: float | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    exported: list[str] = field(default_factory=list)


@dataclass(slots=True)
class State:
    """Everything the master knows.

    Attributes:
        incarnation: of the master that decides now.
        ledgers: ranges by kind of work; a kind appears when there is such work.
        cut: the cut on its way, if any; ``cut_number`` is the last number used.
        final_pin: the cut at the end of training, once taken.
    """

    settings: Settings
    incarnation: int = 1
    ledgers: dict[str, Ledger] = field(default_factory=dict)
    validation: tuple[Source, ...] = ()
    fleet: Fleet = field(init=False)
    counters: Counters = field(default_factory=Counters)
    checkpoint: Checkpoint | None = None
    round: Round | None = None
    cut_number: int = 0
    last_evaluation: int = 0
    last_checkpoint: int = 0
    final_pin: int = 0
    evaluated_final: bool = False
    phase: str = "Starting"
    reason: str = ""
    lease_counter: int = 0
    revoked: set[int] = field(default_factory=set)
    # Found again after a restart, never in the journal:
    described: bool = False
    synced: bool = False
    cut: Cut | None = None
    frozen: dict[str, Any] = field(default_factory=dict)
    held_cuts: float = 0.0
    pins: dict[str, frozenset[int]] = field(default_factory=dict)
    revocations: list[Revocation] = field(default_factory=list)
    holders: dict[str, Holder] = field(default_factory=dict)
    patience: Patience = field(default_factory=Patience)
    range_crashes: dict[Work, int] = field(default_factory=dict)
    failure: tuple[str, str] | None = None
    out: list[Command] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.fleet = Fleet(self.settings.ps)

    # ------------------------------------------------------------------ what others ask

    @property
    def training(self) -> Ledger | None:
        """The training ledger, once the data set is known."""
        return self.ledgers.get(TRAINING)

    @property
    def step(self) -> int:
        """Training steps that are done."""
        return self.training.done_steps if self.training else 0

    @property
    def ended(self) -> bool:
        """Whether the job is over."""
        return self.phase in ("Done", "Failed", "Interrupted")

    @property
    def main(self) -> Ledger | None:
        """The ledger that the job is about: training, or prediction."""
        return self.ledgers.get(PREDICTION if self.settings.predict else TRAINING)

    def training_over(self) -> bool:
        """Whether every step that is to be made is done."""
        return self.training is not None and self.over(self.training)

    def over(self, training: Ledger) -> bool:
        """Whether a training ledger, perhaps one of a cut, has nothing left that is to be done."""
        limit = self.settings.max_steps
        reached = limit is not None and training.done_steps >= limit
        return not training.leases and (reached or not training.waiting)

    def find(self, number: int) -> tuple[str, Lease] | None:
        """Kind and lease of a number that is held."""
        for kind, ledger in self.ledgers.items():
            if number in ledger.leases:
                return kind, ledger.leases[number]
        return None

    def leases_of(self, worker: str) -> list[tuple[str, Lease]]:
        """What a worker holds and is not being taken back, oldest first."""
        held = [
            (kind, lease)
            for kind, ledger in self.ledgers.items()
            for lease in ledger.leases.values()
            if lease.worker == worker and not lease.revoking
        ]
        return sorted(held, key=lambda item: item[1].number)

    def next_number(self) -> int:
        """The number that the next lease gets."""
        return (self.incarnation << INCARNATION_SHIFT) + self.lease_counter + 1

    def floor(self) -> int:
        """Every lease below is closed."""
        training = self.training
        return min(training.leases, default=self.next_number()) if training else self.next_number()

    # ------------------------------------------------------------------ deciding

    def do(self, *commands: Command) -> None:
        """Add commands to what is being decided."""
        self.out.extend(commands)

    def tell(self, event: str, **fields: Any) -> None:
        """Add an event for people."""
        self.out.append(Tell(event, fields))

    def record(self, entry: Mapping[str, Any]) -> None:
        """Decide a change of the ledger: it is journaled and applied at once."""
        self.out.append(Record(entry))
        self.apply(entry)

    def end(self, phase: str, reason: str, detail: str = "", kind: str = "job") -> None:
        """End the job; later events change nothing."""
        if not self.ended:
            self.record({"kind": "phase", "name": phase, "reason": reason})
            self.do(EndJob(phase, reason, detail, kind))

    # ------------------------------------------------------------------ what is journaled

    def apply(self, entry: Mapping[str, Any]) -> None:
        """Make a journaled decision true. Never decides, never fails on an entry that ``handle`` produced."""
        _APPLY[entry["kind"]](self, entry)

    def replay(self, snapshot: Mapping[str, Any] | None, entries: Sequence[Mapping[str, Any]]) -> None:
        """Become what the journal says."""
        if snapshot is not None:
            self.restore(snapshot)
        for entry in entries:
            self.apply(entry)

    def snapshot(self) -> dict[str, Any]:
        """All that the journal's entries so far have led to, as JSON."""
        checkpoint = self.checkpoint
        return {
            "sources": _sources(self.ledgers, self.validation) if self.described else None,
            "ledgers": {k: x.snapshot() for k, x in self.ledgers.items() if k != EVALUATION},
            "round": self.round.snapshot() if self.round else None,
            "counters": {name: getattr(self.counters, name) for name in Counters.__slots__},
            "checkpoint": checkpoint and [checkpoint.cut, checkpoint.step, checkpoint.version, checkpoint.ledger],
            "marks": [getattr(self, name) for name in _MARKS],
            "next_worker": self.fleet.next_worker,
            "born": dict(self.fleet.born),
            "revoked": sorted(self.revoked),
            "revoking": {n: x.revoking for k in self.ledgers.values() for n, x in k.leases.items() if x.revoking},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Become what ``snapshot`` described."""
        if state["sources"] is not None:
            self.apply({"kind": "dataset", **state["sources"]})
        if state["round"]:
            at = state["round"]
            self.apply({"kind": "evaluation", **{name: at[name] for name in ("pin", "step", "final")}})
            assert self.round is not None
            self.round.ledger.restore(at["ledger"])
            self.round.states = at["states"]
        for kind, ledger in state["ledgers"].items():
            self.ledgers.setdefault(kind, unit(kind)).restore(ledger)
        self.counters = Counters(**state["counters"])
        self.checkpoint = Checkpoint(*state["checkpoint"]) if state["checkpoint"] else None
        for name, value in zip(_MARKS, state["marks"], strict=True):
            setattr(self, name, value)
        self.fleet.next_worker = state["next_worker"]
        self.fleet.born = dict(state["born"])
        self.revoked = set(state["revoked"])
        for number, reason in state["revoking"].items():
            found = self.find(int(number))
            if found:
                found[1].revoking = reason


_MARKS = (
    "cut_number",
    "last_evaluation",
    "last_checkpoint",
    "final_pin",
    "evaluated_final",
    "phase",
    "reason",
    "lease_counter",
    "incarnation",
)


def unit(kind: str) -> Ledger:
    """A ledger of one thing to do."""
    return Ledger(Plan((Source(kind, 1),), 1), 1, 1)


def _sources(ledgers: Mapping[str, Ledger], validation: Sequence[Source]) -> dict[str, Any]:
    def rows(sources: Sequence[Source]) -> list[list[Any]]:
        return [[source.name, source.records] for source in sources]

    found = {k: rows(ledgers[k].plan.sources) for k in (TRAINING, PREDICTION) if k in ledgers}
    return {**found, "validation": rows(validation)}


# ---------------------------------------------------------------------- apply, entry by entry


def _dataset(state: State, entry: Mapping[str, Any]) -> None:
    s = state.settings
    state.described = True
    state.ledgers.pop(DESCRIBE, None)
    for kind, epochs, seed in ((TRAINING, s.epochs, s.seed), (PREDICTION, 1, None)):
        sources = tuple(Source(*row) for row in entry.get(kind) or ())
        if sources:
            state.ledgers[kind] = Ledger(Plan(sources, s.task_records, seed), epochs, s.minibatch)
    state.validation = tuple(Source(*row) for row in entry.get("validation") or ())


def _leased(state: State, entry: Mapping[str, Any]) -> None:
    ledger = state.ledgers.setdefault(entry["task"], unit(entry["task"]))
    ledger.lease(entry["lease"], Work(*entry["work"]), entry["worker"])
    state.lease_counter = entry["lease"] & ((1 << INCARNATION_SHIFT) - 1)


def _progress(state: State, entry: Mapping[str, Any]) -> None:
    found = state.find(entry["lease"])
    if found:
        state.ledgers[found[0]].progress(entry["lease"], entry["through"])
        _losses(state, entry)


def _done(state: State, entry: Mapping[str, Any]) -> None:
    found = state.find(entry["lease"])
    if not found:
        return
    kind = found[0]
    state.ledgers[kind].done(entry["lease"])
    _losses(state, entry)
    if kind == EVALUATION and state.round:
        state.round.states = evaluation.add(state.round.states, entry["result"])
    if kind == EXPORT:
        state.counters.exported = list(entry["result"])


def _losses(state: State, entry: Mapping[str, Any]) -> None:
    state.counters.skipped += entry.get("skipped", 0)
    if entry.get("loss") is not None:
        state.counters.loss = entry["loss"]


def _revoking(state: State, entry: Mapping[str, Any]) -> None:
    for number in entry["leases"]:
        found = state.find(number)
        if found:
            found[1].revoking = entry["reason"]


def _returned(state: State, entry: Mapping[str, Any]) -> None:
    found = state.find(entry["lease"])
    if found:
        state.ledgers[found[0]].give_back(entry["lease"], entry["through"], entry.get("quarantine", 0))
        state.revoked.add(entry["lease"])
        state.revoked = {number for number in state.revoked if number >= state.floor()}
        state.counters.repeated += entry["repeated"]
        state.counters.partial += entry["partial"]


def _cut(state: State, entry: Mapping[str, Any]) -> None:
    state.cut_number = max(state.cut_number, entry["cut"])


def _saved(state: State, entry: Mapping[str, Any]) -> None:
    state.checkpoint = Checkpoint(entry["cut"], entry["step"], entry["version"], entry["ledger"])
    state.last_checkpoint = entry["step"]


def _evaluation(state: State, entry: Mapping[str, Any]) -> None:
    plan = Plan(state.validation, state.settings.task_records)
    ledger = Ledger(plan, 1, state.settings.minibatch)
    state.round = Round(entry["pin"], entry["step"], entry["final"], ledger)
    state.ledgers[EVALUATION] = ledger
    state.ledgers.pop(METRICS, None)
    state.last_evaluation = entry["step"]


def _evaluated(state: State, entry: Mapping[str, Any]) -> None:
    state.counters.metrics = dict(entry["metrics"])
    if state.round:
        state.evaluated_final |= state.round.final
    _evaluation_off(state, entry)


def _evaluation_off(state: State, entry: Mapping[str, Any]) -> None:
    state.round = None
    for kind in (EVALUATION, METRICS):
        state.ledgers.pop(kind, None)


def _final(state: State, entry: Mapping[str, Any]) -> None:
    state.final_pin = entry["cut"]
    state.evaluated_final = False
    state.ledgers.pop(EXPORT, None)


def _rolled_back(state: State, entry: Mapping[str, Any]) -> None:
    training = state.ledgers[TRAINING]
    if entry["ledger"] is not None:
        training.restore(entry["ledger"])
        state.counters.rolled_back += entry["records"]
        state.last_checkpoint = state.last_evaluation = training.done_steps
        state.revoked.clear()
    state.counters.updates_rolled_back += entry.get("updates", 0)
    _evaluation_off(state, entry)
    _final(state, {"cut": 0})


def _restored(state: State, entry: Mapping[str, Any]) -> None:
    state.fleet.born[entry["ps"]] = entry["born"]


def _worker(state: State, entry: Mapping[str, Any]) -> None:
    state.fleet.next_worker = max(state.fleet.next_worker, entry["index"] + 1)
    state.counters.workers_lost += entry.get("lost", 0)


def _phase(state: State, entry: Mapping[str, Any]) -> None:
    state.phase, state.reason = entry["name"], entry["reason"]


def _resumed(state: State, entry: Mapping[str, Any]) -> None:
    state.phase, state.reason = "Starting", "resumed"


def _incarnation(state: State, entry: Mapping[str, Any]) -> None:
    state.incarnation, state.lease_counter = entry["number"], 0


_APPLY = {
    "dataset": _dataset,
    "leased": _leased,
    "progress": _progress,
    "done": _done,
    "revoking": _revoking,
    "returned": _returned,
    "cut_announced": _cut,
    "cut_taken": _cut,
    "cut_off": _cut,
    "saved": _saved,
    "evaluation": _evaluation,
    "evaluated": _evaluated,
    "evaluation_off": _evaluation_off,
    "final": _final,
    "rolled_back": _rolled_back,
    "restored": _restored,
    "worker": _worker,
    "phase": _phase,
    "resumed": _resumed,
    "incarnation": _incarnation,
}
ENTRIES: Sequence[str] = tuple(_APPLY)

"""The pure core of a job of strategy AllReduce: one master after another over one journal, and its workers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from edl.api.cluster_port import PodPhase, PodStatus, Role
from edl.api.round_id import RoundId
from edl.core.callback_decisions import CallbackSpec
from edl.core.events import (
    DatasetDescribed,
    EmitEvent,
    LeaseReply,
    LeaseRequested,
    ModelDeclared,
    PodChanged,
    PodsSynced,
    RecordEntry,
    WorldReported,
    WorldView,
)
from edl.core.job import JobStateMachine
from edl.core.rank_state import RankPhase
from edl.core.state import JobSettings
from edl.core.world_rounds import MemberReport, StepShares, WorldRounds


def make_report(
    state_round: RoundId, step: int | None, digest: int, until: int, shares: Mapping[int, StepShares]
) -> MemberReport:
    """What a worker reports whose unacknowledged steps have these shares, by step.

    Args:
        until: the shares up to this step are reported.
    """
    done: dict[int, int] = {}
    skipped: dict[int, int] = {}
    for share in (share for number in sorted(shares) if number <= until for share in shares[number]):
        done[share.lease], skipped[share.lease] = share.end, share.skipped
    skipped = {lease: count for lease, count in skipped.items() if count}
    return MemberReport(state_round, step, digest, min(shares, default=until + 1) - 1, done, skipped)


class AllReduceMaster:
    """The master; ``journal`` has what it has entered.

    Args:
        started: workers that run from the beginning.
        records: of one epoch.
        sources: the training files with their records; None: one with ``records``.
        nodes: the node of each worker, by index.
        validation: records that are evaluated.
        callbacks: what each worker declares; None: it says nothing of callbacks.
        settings: changes of the job's settings.
    """

    def __init__(
        self,
        *,
        started: int = 3,
        records: int = 96,
        sources: tuple[tuple[str, int], ...] | None = None,
        nodes: Sequence[str] = (),
        validation: int = 0,
        callbacks: tuple[CallbackSpec, ...] | None = None,
        **settings: Any,
    ) -> None:
        self.sources, self.callbacks = sources or (("a", records),), callbacks
        self.nodes = nodes
        self.validation = (("v", validation),) if validation else ()
        self.settings = JobSettings(
            **(
                {
                    "minibatch": 4,
                    "task_records": 16,
                    "ps": 0,
                    "durable": False,
                    "all_reduce": True,
                    "workers": max(1, started),
                }
                | settings
            )
        )
        self.snapshot: dict[str, Any] | None = None
        """The state before the first entry of the journal, once it was compacted."""
        self.journal: list[dict[str, Any]] = []
        self.events: list[Any] = []
        """All events that users see."""
        self.workers = [f"w{index}" for index in range(started)]
        """Uids of all workers that were started, by index."""
        self.gone: set[str] = set()
        self.number = 0
        self.restart()

    def restart(self) -> None:
        """A new master replays the journal."""
        self.number += 1
        self.now = 0.0
        self.state = JobStateMachine(self.settings)
        self.state.replay_journal(self.snapshot, self.journal)
        self._take(self.state.begin_incarnation(self.number))
        for index, uid in enumerate(self.workers):
            if uid not in self.gone:
                self._show_pod(uid, index)
                self.handle(ModelDeclared(uid, self.callbacks))
        self.handle(PodsSynced())
        if not self.state.is_dataset_known:
            self.handle(DatasetDescribed(training=self.sources, validation=self.validation))

    def compact(self) -> None:
        """Keep the state in the place of the entries that led to it."""
        self.snapshot, self.journal = json.loads(json.dumps(self.state.to_snapshot())), []

    @property
    def rounds(self) -> WorldRounds:
        """The rounds."""
        assert self.state.world is not None
        return self.state.world

    def handle(self, event: Any, *, after: float = 0.01) -> list[Any]:
        """All that follows from an event, ``after`` seconds later."""
        self.now += after
        return self._take(self.state.handle(event, self.now))

    def _take(self, commands: list[Any]) -> list[Any]:
        self.journal += [command.entry.to_json() for command in commands if isinstance(command, RecordEntry)]
        self.events += [command.event for command in commands if isinstance(command, EmitEvent)]
        return commands

    def report(
        self,
        worker: str,
        phase: RankPhase,
        round_id: RoundId | None = None,
        *,
        step: int | None = None,
        digest: int = 7,
        stable: int = 0,
        shares: Mapping[int, StepShares] | None = None,
        state_round: RoundId | None = None,
        **more: Any,
    ) -> WorldView:
        """A worker says something of the newest round; returns its view."""
        known = round_id or self.rounds.round
        reported = step if phase is not RankPhase.RUNNING else stable
        report = make_report(state_round or known, step, digest, reported or 0, shares or {})
        answers = self.handle(WorldReported(worker, phase, known, report, stable, **more))
        return next(command for command in answers if isinstance(command, WorldView))

    def start_round(self, *workers: str) -> None:
        """Let workers join, with or without a change of a running round, until they train together."""
        for _ in range(2 + len(workers)):
            for worker in self.rounds.members:
                self.report(worker, RankPhase.CONFIRMED)
            if all(self.rounds.trains(worker) for worker in workers):
                return
            self._ask_to_join(workers)
            # The boundary at which the others are taken in.
            for worker in self.rounds.members:
                self.report(worker, RankPhase.ENDED, step=self.rounds.committed_step)
            self._ask_to_join(workers)
        raise AssertionError(self.rounds)

    def _ask_to_join(self, workers: Sequence[str]) -> None:
        for worker in workers:
            if worker not in self.rounds.members:
                self.report(worker, RankPhase.OUTSIDE)

    def lease(self, worker: str, *known: int) -> Any:
        """What a worker that asks for work gets: a lease, or why it gets none."""
        answers = self.handle(LeaseRequested(worker, frozenset(known)))
        return next(command for command in answers if isinstance(command, LeaseReply) or hasattr(command, "reason"))

    def start_worker(self) -> str:
        """The cluster says that a new worker runs; it has built its model. Returns its uid."""
        uid, index = f"w{len(self.workers)}", len(self.workers)
        self.workers.append(uid)
        self._show_pod(uid, index)
        self.handle(ModelDeclared(uid, self.callbacks))
        return uid

    def _show_pod(self, uid: str, index: int) -> None:
        node = self.nodes[index] if index < len(self.nodes) else ""
        self.handle(PodChanged(PodStatus(uid, Role.WORKER, index, PodPhase.RUNNING, reason="Started", node=node)))

    def kill(self, worker: str, exit_code: int = 137) -> None:
        """The cluster says that a worker has ended, and knows no cause."""
        self.gone.add(worker)
        index, phase = self.workers.index(worker), PodPhase.FAILED if exit_code else PodPhase.SUCCEEDED
        self.handle(PodChanged(PodStatus(worker, Role.WORKER, index, phase, exit_code=exit_code, reason="Ended")))

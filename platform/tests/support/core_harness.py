"""The pure core under test: events in, commands out, without a cluster, a clock or a file.

`CoreJob` is one state machine and the time; `JournaledJob` adds the journal, over which one master follows another;
`CoreHarness` takes such a job to its first lease. `support.text_scenarios` runs a `JournaledJob` by text.
"""

from __future__ import annotations

import json
from typing import Any

from edl.api.cluster_port import PodPhase, PodStatus, Role
from edl.core.events import (
    CheckpointSaveFinished,
    CoreEvent,
    CutPrepared,
    DatasetDescribed,
    EmitEvent,
    LeaseReply,
    LeaseRequested,
    ModelDeclared,
    PodChanged,
    PodsSynced,
    PsAttached,
    PsRegistered,
    RecordEntry,
    SnapshotTaken,
    Tick,
    UpdatesHeld,
)
from edl.core.job import JobStateMachine
from edl.core.state import JobSettings


class CoreJob:
    """One state machine, and the time at which it hears of events."""

    def __init__(self, settings: JobSettings) -> None:
        self.settings = settings
        self.state = JobStateMachine(settings)
        self.now = 0.0

    def see(self, *events: CoreEvent, after: float = 0.0) -> list[Any]:
        """All that is decided about the events; they happen ``after`` seconds."""
        self.now += after
        return [command for event in events for command in self._take(self.state.handle(event, self.now))]

    def _take(self, commands: list[Any]) -> list[Any]:
        return commands


class JournaledJob(CoreJob):
    """One master after another over the same journal."""

    def __init__(self, settings: JobSettings) -> None:
        super().__init__(settings)
        self.journal: list[Any] = []
        self.emitted: list[Any] = []
        self.number = 0
        self.restart()

    def restart(self) -> list[Any]:
        """The next master, which has nothing but the journal."""
        self.number += 1
        self.state = JobStateMachine(self.settings)
        self.state.replay_journal(None, self.journal)
        return self._take(self.state.begin_incarnation(self.number))

    def begin_anew(self) -> None:
        """Another master, and nothing is left of the journal."""
        self.journal.clear()
        self.restart()

    def _take(self, commands: list[Any]) -> list[Any]:
        self.journal += [
            json.loads(json.dumps(command.entry.to_json())) for command in commands if isinstance(command, RecordEntry)
        ]
        self.emitted += [command.event for command in commands if isinstance(command, EmitEvent)]
        return commands

    def entries(self, kind: str) -> list[Any]:
        return [entry for entry in self.journal if entry["kind"] == kind]


class CoreHarness(JournaledJob):
    """640 records, two workers, minibatches of 8; everything happens at 0 s."""

    def __init__(self, ps: int = 1, checkpoint_steps: int | None = None, *, durable: bool = True) -> None:
        super().__init__(
            JobSettings(
                minibatch=8, task_records=64, ps=ps, workers=2, checkpoint_steps=checkpoint_steps, durable=durable
            )
        )

    def train(self) -> int:
        """Everybody is there, the first checkpoint is on disk, worker-0 holds a lease; returns its number."""
        ps = [alive(Role.PS, index) for index in range(self.settings.ps)]
        self.see(DatasetDescribed(training=(("a", 640),)), *ps, alive(Role.WORKER, 0), alive(Role.WORKER, 1))
        self.see(PodsSynced())
        for index in range(self.settings.ps):
            self.see(PsRegistered(f"ps-{index}"), PsAttached(f"ps-{index}", False, 0))
        self.see(ModelDeclared("worker-0"), Tick())
        for index in range(self.settings.ps):
            self.see(CutPrepared(f"ps-{index}", 1))
        for index in range(self.settings.ps):
            self.see(UpdatesHeld(f"ps-{index}", 1, {}))
        for index in range(self.settings.ps):
            self.see(SnapshotTaken(f"ps-{index}", 1, 0, 0.0))
        (granted,) = [
            x for x in self.see(CheckpointSaveFinished(1), LeaseRequested("worker-0")) if isinstance(x, LeaseReply)
        ]
        return granted.lease


def alive(role: Role, index: int, uid: str = "") -> PodChanged:
    return PodChanged(PodStatus(uid or f"{role}-{index}", role, index, PodPhase.RUNNING, pid=100 + index))


def killed(role: Role, index: int, uid: str = "") -> PodChanged:
    return PodChanged(PodStatus(uid or f"{role}-{index}", role, index, PodPhase.FAILED, 137, "Killed", 100 + index))

"""Scenarios: what happens to a job and what it does about it, as text that documents the protocol.

A line at the margin is an event, ``TIME what who key=value ...``; the indented lines below it are what the core does.
``#`` begins a comment. Leases are written ``incarnation.counter``. Two lines are not events: ``job key=value ...``
begins one, ``started`` takes it to its first lease without showing how (``start.txt`` does). ``rewritten`` returns the
text with the indented lines as they are now.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from support.core_harness import JournaledJob

from edl.api.cluster_port import PodOptions, PodPhase, PodStatus, Role, TerminationCause
from edl.api.round_id import RoundId
from edl.core import events as ev
from edl.core.cuts import WrittenShard
from edl.core.rank_state import RankPhase
from edl.core.state import JobSettings
from edl.core.world_rounds import MemberReport, RoundPhase

Words = list[str]
Fields = dict[str, str]


def rewritten(text: str) -> str:
    """The scenario with what the core does now."""
    runner, lines = ScenarioRunner(), []
    for line in text.splitlines():
        if line.startswith(" "):
            continue
        lines.append(line)
        if line and not line.startswith("#"):
            lines += [f"    {done}" for done in runner.play(line)]
    return "\n".join(lines) + "\n"


class ScenarioRunner(JournaledJob):
    """One job, and the masters that it has had."""

    def __init__(self) -> None:
        super().__init__(JobSettings(1, 1))
        self.dataset: Fields = {}
        self.pods: dict[str, PodStatus] = {}

    def play(self, line: str) -> list[str]:
        """Let happen what a line says; returns what is done about it."""
        words = [word for word in shlex.split(line) if "=" not in word]
        fields = dict(word.split("=", 1) for word in shlex.split(line) if "=" in word)
        if words[0] == "job":
            self._begin(fields)
            return []
        if words[0] == "started":
            self.now = 0.0
            self.see(*self._start())
            return []
        self.now, what, who = float(words[0]), words[1], words[2:]
        commands = self.restart() if what == "master" else self.see(_EVENTS[what](self, who, fields))
        # What a worker is told when it looks again is in its next answer.
        return [command_text(command) for command in commands if not isinstance(command, ev.NotifyWorkers)]

    def _begin(self, fields: Fields) -> None:
        self.dataset = {name: fields.pop(name) for name in ("training", "validation") if name in fields}
        values: dict[str, Any] = {"seed": None, **{name: json.loads(value) for name, value in fields.items()}}
        self.settings = JobSettings(**values)
        self.number = 0
        self.begin_anew()

    def _start(self) -> Iterator[ev.CoreEvent]:
        servers = [f"ps-{i}" for i in range(self.settings.ps)]
        for name in [*servers, *(f"worker-{i}" for i in range(self.settings.workers))]:
            yield pod(self, [name, "running"], {})
        yield ev.PodsSynced()
        yield dataset(self, [], {})
        for name in servers:
            yield ev.PsRegistered(name)
            yield ev.PsAttached(name, False, 0)
        yield from (ev.ModelDeclared(f"worker-{i}") for i in range(self.settings.workers))
        yield from (ev.CutPrepared(name, 1) for name in servers)
        yield from (ev.UpdatesHeld(name, 1, {}) for name in servers)
        yield from (ev.SnapshotTaken(name, 1, 0, 0.0) for name in servers)
        if servers:
            yield ev.CheckpointSaveFinished(1)


# ------------------------------------------------------------------------------------------------ events


def pod(runner: ScenarioRunner, who: Words, fields: Fields) -> ev.CoreEvent:
    """``pod worker-0 running``, ``... pending message="no room"``, ``... leaving cause=preempted``, ``... ended 137``,
    ``... gone``; ``leaving`` keeps the phase that it had, and the cause holds."""
    role, _, index = who[0].partition("-")
    phases = {"pending": PodPhase.PENDING, "running": PodPhase.RUNNING, "gone": PodPhase.GONE, "ended": PodPhase.FAILED}
    code = int(who[2]) if len(who) > 2 else None
    before = runner.pods.get(who[0])
    if who[1] == "leaving":
        phase = before.phase if before is not None else PodPhase.RUNNING
    else:
        phase = PodPhase.SUCCEEDED if code == 0 else phases[who[1]]
    runner.pods[who[0]] = PodStatus(
        uid=fields.get("uid", who[0]),
        role=Role(role),
        index=int(index.rstrip("'")),
        phase=phase,
        exit_code=code,
        leaving=who[1] == "leaving",
        cause=TerminationCause(fields.get("cause", "")),
        message=fields.get("message", ""),
        elevated="elevated" in who,
        node=fields.get("node", ""),
        unreachable_since=float(fields.get("unreachable", 0)),
    )
    return ev.PodChanged(runner.pods[who[0]])


def dataset(runner: ScenarioRunner, who: Words, fields: Fields) -> ev.CoreEvent:
    """``dataset``: as the job says."""
    parts = {name: _sources(value) for name, value in runner.dataset.items()}
    return ev.DatasetDescribed(training=parts.get("training", ()), validation=parts.get("validation", ()))


def _sources(text: str) -> tuple[tuple[str, int], ...]:
    rows = (part.split(":") for part in text.split(","))
    return tuple((name, int(records)) for name, records in rows)


def _lease(text: str) -> int:
    incarnation, counter = text.split(".")
    return (int(incarnation) << 32) + int(counter)


def _steps(fields: Fields) -> tuple[ev.LeaseProgress, ...]:
    return tuple(ev.LeaseProgress(_lease(name), int(through)) for name, through in _leases(fields))


def _leases(fields: Fields) -> list[tuple[str, str]]:
    return [(name, value) for name, value in fields.items() if name[0].isdigit()]


def _applied(fields: Fields) -> dict[int, int]:
    return {_lease(name): int(through) for name, through in _leases(fields)}


def _whole(fields: Fields, name: str) -> int | None:
    return int(fields[name]) if name in fields else None


def _report(who: Words, fields: Fields) -> ev.CoreEvent:
    result = json.loads(fields["result"]) if "result" in fields else None
    return ev.TaskReported(who[0], _lease(who[1]), None, result)


def _world(phase: RankPhase) -> Callable[[ScenarioRunner, Words, Fields], ev.CoreEvent]:
    """``runs worker-0 step=3 stable=2 1.1=8``: a worker's message about the rounds of AllReduce.

    The leases have the records that are done with the steps after ``after``, which a master has acknowledged, up to
    ``step`` (``runs``: up to ``stable``). ``copied=2@8``: it has copied the state of step 8 for checkpoint 2;
    ``written=2@8``: and the file is on the disk. Unless the line says it, all rounds are the newest one.
    """

    def report(runner: ScenarioRunner, who: Words, fields: Fields) -> ev.CoreEvent:
        rounds = runner.state.world
        assert rounds is not None
        stable = int(fields.get("stable", 0))
        known = _round(fields["round"]) if "round" in fields else rounds.round
        report = MemberReport(
            state_round=_round(fields["state_round"]) if "state_round" in fields else known,
            step=stable if phase is RankPhase.RUNNING else _whole(fields, "step"),
            digest=int(fields.get("digest", 7)),
            after=int(fields.get("after", rounds.committed_step)),
            done=_applied(fields),
        )
        return ev.WorldReported(
            who[0], phase, known, report, stable, is_leaving="leaving" in who, copied=_copied(fields, report)
        )

    return report


def _round(text: str) -> RoundId:
    incarnation, number = text.split(".")
    return RoundId(int(incarnation), int(number))


def _copied(fields: Fields, report: MemberReport) -> ev.CopiedState | None:
    text = fields.get("written") or fields.get("copied")
    if text is None:
        return None
    cut, step = map(int, text.split("@"))
    file = WrittenShard(f"cut-{cut}", 1, 1) if "written" in fields else None
    return ev.CopiedState(cut, step, 0.0, file, dict(report.done))


_EVENTS: Mapping[str, Callable[[ScenarioRunner, Words, Fields], ev.CoreEvent]] = {
    "pod": pod,
    "synced": lambda runner, who, fields: ev.PodsSynced(),
    "dataset": dataset,
    "registered": lambda runner, who, fields: ev.PsRegistered(who[0]),
    "attached": lambda runner, who, fields: ev.PsAttached(
        who[0], "empty" not in who, int(fields.get("version", 0)), tuple(json.loads(fields.get("pins", "[]")))
    ),
    "declared": lambda runner, who, fields: ev.ModelDeclared(who[0]),
    "wants": lambda runner, who, fields: ev.LeaseRequested(who[0]),
    "progress": lambda runner, who, fields: ev.ProgressReported(who[0], _steps(fields)),
    "report": lambda runner, who, fields: _report(who, fields),
    "left": lambda runner, who, fields: ev.WorkerLeft(who[0], "told to go", _steps(fields)),
    "failed": lambda runner, who, fields: ev.WorkerFailed(who[0], who[1], " ".join(who[2:])),
    "revoked": lambda runner, who, fields: ev.LeasesRevoked(who[0], _applied(fields)),
    "prepared": lambda runner, who, fields: ev.CutPrepared(who[0], int(fields["cut"])),
    "held": lambda runner, who, fields: ev.UpdatesHeld(who[0], int(fields["cut"]), _applied(fields)),
    "snapshot": lambda runner, who, fields: ev.SnapshotTaken(
        who[0], int(fields["cut"]), int(fields.get("version", 0)), 0.0
    ),
    "refuses": lambda runner, who, fields: ev.PsRefused(who[0], "cut", fields["message"], int(fields["cut"])),
    "saved": lambda runner, who, fields: ev.CheckpointSaveFinished(int(fields["cut"]), fields.get("error", "")),
    "refused": lambda runner, who, fields: ev.StartRefused(
        Role(who[0].split("-")[0]), int(who[0].split("-")[1]), " ".join(who[1:]), retry=True
    ),
    "scale": lambda runner, who, fields: ev.ScaleRequested(_whole(fields, "min"), _whole(fields, "max")),
    "stop": lambda runner, who, fields: ev.StopRequested(" ".join(who), float(fields.get("seconds", "0"))),
    "heard": lambda runner, who, fields: ev.PsHeartbeat(who[0]),
    "told-to-go": lambda runner, who, fields: ev.PsLeaving(who[0]),
    "tick": lambda runner, who, fields: ev.Tick(),
    "outside": _world(RankPhase.OUTSIDE),
    "follows": _world(RankPhase.FOLLOWING),
    "caught-up": _world(RankPhase.CAUGHT_UP),
    "fetches": _world(RankPhase.FETCHING),
    "confirms": _world(RankPhase.CONFIRMED),
    "runs": _world(RankPhase.RUNNING),
    "ends": _world(RankPhase.ENDED),
}


# ------------------------------------------------------------------------------------------------ commands


def command_text(command: ev.CoreCommand) -> str:
    """One line for a command."""
    match command:
        case ev.RecordEntry(entry):
            written = entry.to_json()
            return f"journal  {written.pop('kind')} {_fields(written)}".rstrip()
        case ev.EmitEvent(event):
            fields = {name: getattr(event, name) for name in _TOLD if hasattr(event, name)}
            return f"tell     {event.kind} {_fields(fields)}".rstrip()
        case ev.LeaseReply(lease, kind, work, _, _, pin):
            pinned = f" of cut {pin}" if pin else ""
            where = f"epoch {work.epoch} {work.source}[{work.start}:{work.end}]"
            alone = ", one by one" if command.one_by_one else ""
            return f"answer   {_number(lease)} {kind}{pinned}: {where}{alone}"
        case ev.WaitForWork(reason) | ev.StopWork(reason):
            return f"answer   {'wait' if isinstance(command, ev.WaitForWork) else 'stop'}: {reason}"
        case ev.Acknowledged(lost, fatal, refusal):
            parts = (
                [f"lost {' '.join(map(_number, lost))}"] * bool(lost) + ["fatal"] * fatal + [refusal] * bool(refusal)
            )
            return f"answer   {', '.join(parts) or 'yes'}"
        case ev.WorldView():
            return f"answer   {_view(command)}"
        case ev.MayEnd(value, reason):
            return f"answer   {'end' if value else 'serve on'}: {reason}"
        case ev.EndJob(phase, reason):
            return f"end      {phase}: {reason}"
        case ev.StartPod(role, index, wish):
            return f"cluster  start {role}-{index}{_wish(wish)}"
        case ev.DeletePod(uid, grace):
            return f"cluster  delete {uid} grace={grace:g}"
        case ev.AttachPs(uid, floor, revoked, live, cut, restore, complete):
            load = f" load={restore}{' complete' if complete else ''}" if restore is not None else ""
            return f"{uid:8} attach floor={_number(floor)} revoked={_list(revoked)} live={_list(live)} cut={cut}{load}"
        case ev.RevokeLeases(ps, leases, floor):
            return f"{ps:8} revoke {_list(leases)} floor={_number(floor)}"
        case ev.SaveCheckpoint(cut, step, _, ledger):
            return f"disk     save cut={cut} step={step} ledger={_ledger(ledger)}"
        case ev.TakeSnapshot(cut, included_steps=within, keep_paused=keep):
            return f"all ps   snapshot cut={cut} within={_through(within)}{' keep' if keep else ''}"
    name = {"PrepareCut": "prepare", "HoldUpdates": "hold", "ReleaseCut": "release", "Unpin": "unpin"}
    return f"all ps   {name[type(command).__name__]} cut={command.cut}"


_TOLD = (
    *("role", "index", "records", "updates", "cut", "step", "metrics", "path", "min", "max", "missing", "unsaved"),
    *("cause", "message", "reason"),
)
"""Fields of events that are shown, in their order."""


def _view(view: ev.WorldView) -> str:
    """What a worker must see of the rounds of AllReduce, without what does not concern it."""
    parts = [f"round {view.round.incarnation}.{view.round.number} {view.phase.value}"]
    if not view.is_member:
        parts.append("outside")
    elif view.phase is not RoundPhase.CLOSING:
        parts.append(f"ranks {' '.join(view.members)}")
    if view.phase is RoundPhase.CONFIRMING and view.is_member:
        restored = f"checkpoint {view.restore_cut}" if view.restore_cut else "the beginning"
        parts.append(f"state of {' '.join(view.holders) or restored}, step {view.step}")
    if view.phase is RoundPhase.RUNNING and view.leases:
        leases = (f"{_number(lease)}:{done}" for lease, done in view.leases.items())
        parts.append(f"step {view.committed_step} entered, records {' '.join(leases)}")
    if view.checkpoint is not None:
        parts.append(f"copy cut={view.checkpoint.cut} after step {view.checkpoint.at_step}")
    if view.source:
        parts.append(f"follow {view.source}")
    if view.must_pause:
        parts.append("pause")
    if view.reason:
        parts.append(f"{'change' if view.must_change else 'wait'}: {view.reason}")
    return ", ".join(parts)


def _wish(wish: PodOptions) -> str:
    memory = f" memory={wish.memory_factor:g}" if wish.memory_factor != 1 else ""
    return f"{memory}{' elevated' if wish.elevated else ''}"


def _number(lease: int) -> str:
    return f"{lease >> 32}.{lease & 0xFFFFFFFF}"


def _through(steps: Mapping[int, int]) -> str:
    return ",".join(f"{_number(lease)}={through}" for lease, through in steps.items()) or "none"


def _list(leases: tuple[int, ...]) -> str:
    return ",".join(map(_number, leases)) or "none"


def _fields(fields: Mapping[str, Any]) -> str:
    return " ".join(
        f"{name}={_value(name, value)}" for name, value in fields.items() if value not in ({}, [], (), None, "")
    )


def _value(name: str, value: Any) -> str:
    match name, value:
        case ("lease" | "born" | "below", int()):
            return _number(value)
        case (("leases" | "returned"), [*numbers]):
            return _list(tuple(numbers))
        case "done", list():
            return ",".join(f"{_number(lease)}:{records}" for lease, records, *_ in value)
        case (("members" | "holders" | "joined"), list()):
            return f'"{" ".join(value)}"' if len(value) > 1 else value[0]
        case "missing", _:
            return f'"{"; ".join(f"ps-{each.index}: {each.reason}" for each in value)}"'
        case "work", [epoch, source, start, end]:
            return f"{epoch}/{source}[{start}:{end}]"
        case "ledger", _:
            return _ledger(value)
        case "applied", _:
            return ",".join(f"{_number(int(lease))}:{through}" for lease, through in value.items())
        case _, str() if " " in value:
            return f'"{value}"'
        case _, list() | dict():
            return json.dumps(value, separators=(",", ":"))
    return str(value)


def _ledger(ledger: Mapping[str, Any]) -> str:
    back = ",".join(f"{epoch}/{source}[{start}:{end}]" for epoch, source, start, end in ledger["returned"])
    planned = f"shard {ledger['index']} of epoch {ledger['epoch']}"
    return f"({ledger['done_records']} records done; next: {back + ', ' if back else ''}{planned})"

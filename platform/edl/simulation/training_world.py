"""A whole job without processes: the real core, simulated workers and PS, and faults.

It runs on a virtual clock, and its result is a function of the seed. While it runs, and in
``check_end``, ``World`` checks what the design promises (module ``promises``), and that each
request has exactly one answer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from edl.api.cluster_port import PodOptions, PodStatus, Role, TerminationCause
from edl.api.events import JobEvent
from edl.api.journal_entries import JobResumed, JournalEntry, LeaseReturned, ParametersRolledBack
from edl.core import events as ev
from edl.core.job import JobStateMachine
from edl.core.shuffle import BlockLayout
from edl.core.state import TRAINING, JobSettings
from edl.ps.cut_state import CutError
from edl.simulation import promises
from edl.simulation.clock import VirtualClock
from edl.simulation.ledger_recount import Recount
from edl.simulation.promises import BrokenPromiseError, done_minibatches
from edl.simulation.simulated_cluster import SimulatedCluster
from edl.simulation.simulated_ps import Copy, Minibatch, SimulatedPs
from edl.simulation.simulated_worker import SimulatedWorker

ANSWERS = (ev.LeaseReply, ev.WaitForWork, ev.StopWork, ev.Acknowledged, ev.MayEnd)
REQUESTS = (ev.LeaseRequested, ev.ProgressReported, ev.TaskReported, ev.WorkerLeft, ev.WorkerFailed, ev.PsLeaving)
TICK, REGISTER, ASK_TO_END = 0.25, 0.5, 0.1


class MasterLost(Exception):  # noqa: N818  an event of the simulation, not an error
    """The master died while it handled an event."""


@dataclass(frozen=True, slots=True)
class Network:
    """Message delivery: seconds per way, and the probabilities of duplicates and lost answers."""

    shortest: float = 0.001
    longest: float = 0.05
    repeated: float = 0.0
    lost: float = 0.0


class World:
    """A complete simulated job.

    Args:
        settings: settings of the job.
        training, validation: sources, ``(name, records)``.
        seed: seed of all random decisions.
        pace: seconds per step.
        poison: minibatches that make a worker fail with an error that it reports.
        lethal: minibatches that make a worker end without a report: by a signal, or with exit code
            0.
        lethal_fed: the same, as soon as the minibatch is read or fed, while an earlier one trains.
        forgets: whether the cluster forgets pods that ended while no master was running.
        capacity: number of workers that fit into the cluster; None: no limit.
        alone: seconds after which a terminating PS ends if no master answers.
    """

    def __init__(
        self,
        settings: JobSettings,
        training: tuple[tuple[str, int], ...],
        validation: tuple[tuple[str, int], ...] = (),
        *,
        seed: int = 0,
        network: Network = Network(),
        pace: float = 0.05,
        poison: frozenset[Minibatch] = frozenset(),
        lethal: frozenset[Minibatch] = frozenset(),
        lethal_fed: frozenset[Minibatch] = frozenset(),
        forgets: bool = False,
        capacity: int | None = None,
        alone: float = 1.0,
        blocks: BlockLayout | None = None,
    ) -> None:
        self.settings, self.network, self.pace = settings, network, pace
        self.poison, self.lethal, self.lethal_fed = poison, lethal, lethal_fed
        self.dataset = ev.DatasetDescribed(training, validation, blocks=blocks)
        self.alone = alone
        self.clock, self.rng, self.forgets = VirtualClock(), Random(seed), forgets  # noqa: S311  chance, not secrets
        self.journal: list[str] = []
        self.history: list[Mapping[str, Any]] = []
        self.base: str | None = None
        self.master: JobStateMachine | None = None
        self.shadow = JobStateMachine(settings)
        self.incarnation = 0
        self.links: dict[str, int] = {}
        self.cluster = SimulatedCluster(
            self.clock,
            capacity,
            tell=self._show,
            began=self._began,
            asked_to_go=self._asked_to_go,
            died=self._died,
        )
        self.workers: dict[str, SimulatedWorker] = {}
        self.servers: dict[str, SimulatedPs] = {}
        self.placement: list[SimulatedPs] = []
        self.copies: dict[int, dict[int, Copy]] = {}
        self.checkpoints: dict[int, dict[int, Copy]] = {}
        self.evaluations: list[tuple[int, Any]] = []
        self.gone: dict[int, set[Minibatch]] = {}
        self.told: list[JobEvent | ev.TrainingStalled | ev.PhaseEntered] = []
        self.twice: set[Minibatch] = set()
        self.settled: list[LeaseReturned] = []
        self.handled = 0
        self.die_at: int | None = None
        self.ended: ev.EndJob | None = None

    # ------------------------------------------------------------------ running

    def run(self, until: float) -> None:
        """Advance the clock until the job has ended, or to ``until``."""
        if self.master is None and not self.incarnation:
            self.start_master()
        while self.ended is None and self.clock.now() < until and self.clock.advance_to_next():
            pass

    def latency(self) -> float:
        """A random delivery time of one message, in seconds."""
        return self.rng.uniform(self.network.shortest, self.network.longest)

    # ------------------------------------------------------------------ the master

    def start_master(self) -> None:
        """Start a new master process: it replays the journal, takes an incarnation, lists the pods."""
        self.incarnation += 1
        master = JobStateMachine(self.settings)
        self.shadow = JobStateMachine(self.settings)
        # The shadow gets journal entries only. After each event it must equal the master
        # (promises.journal_is_enough). Each parses the journal anew, so they share no objects.
        for state in (master, self.shadow):
            snapshot = json.loads(self.base) if self.base is not None else None
            state.replay_journal(snapshot, [json.loads(line) for line in self.journal])
        self.master = master
        # The previous master journaled the end and died before it could report it.
        if master.has_ended:
            self.ended = ev.EndJob(master.phase, master.reason)
            return
        self.links = {}
        for command in master.begin_incarnation(self.incarnation):
            self._carry_out(command)
        self.post(*(ev.PodChanged(pod) for pod in list(self.cluster.pods.values())), ev.PodsSynced(), self.dataset)
        self._tick(self.incarnation)

    def kill_master(self, away: float) -> None:
        """Kill the master. Another one starts after ``away`` seconds."""
        self.master = None
        if self.forgets:
            self.cluster.forget_ended()
        self.clock.after(away, self.start_master)

    def resume(self, away: float = 1.0) -> None:
        """Resume a stopped job as ``--resume`` does, with no process of the earlier run left."""
        assert self.ended is not None
        for worker in self.alive_workers():
            self.end(worker.uid, 137)
        for ps in self.alive_servers():
            self.end(ps.uid, 137)
        self._record(JobResumed())
        self.ended = None
        self.kill_master(away)

    def _tick(self, incarnation: int) -> None:
        if self.incarnation == incarnation and self.master is not None and self.ended is None:
            self.post(ev.Tick())
            self.clock.after(TICK, lambda: self._tick(incarnation))

    def post(self, *happened: ev.CoreEvent) -> None:
        """Let the master handle events that expect no answer, if there is a master."""
        for event in happened:
            if self.master is not None:
                try:
                    self.handle(event)
                except MasterLost:
                    return

    def handle(self, event: ev.CoreEvent) -> Any:
        """Let the master decide and execute its commands; returns its answer.

        Raises:
            MasterLost: the master died before it executed all commands.
        """
        assert self.master is not None
        commands = self.master.handle(event, self.clock.now())
        self.handled += 1
        # Each request has exactly one answer, and other events have none.
        answers = [command for command in commands if isinstance(command, ANSWERS)]
        if len(answers) != isinstance(event, REQUESTS):
            raise BrokenPromiseError(f"{event} was answered {answers}")
        if self.die_at is not None and self.handled >= self.die_at:
            self._die_torn(commands)
        for command in commands:
            self._carry_out(command)
        promises.journal_is_enough(self.master, self.shadow, self.journal[-3:])
        promises.no_more_than_wanted(self.master)
        if answers and isinstance(answers[0], ev.LeaseReply):
            assert isinstance(event, ev.LeaseRequested)
            promises.granted_to_the_living(self.master, event, answers[0])
        return answers[0] if answers else None

    def _die_torn(self, commands: list[ev.CoreCommand]) -> None:
        """Let the master die after some of its journal entries were written; execute no command."""
        self.die_at = None
        entries = [command for command in commands if isinstance(command, ev.RecordEntry)]
        for command in entries[: self.rng.randint(0, len(entries))]:
            self._carry_out(command)
        self.kill_master(self.rng.uniform(0.1, 3.0))
        raise MasterLost

    def compact(self) -> None:
        """Compact the journal to a snapshot."""
        if self.master is not None:
            self.base, self.journal = json.dumps(self.master.to_snapshot()), []

    # ------------------------------------------------------------------ the master's commands

    def _carry_out(self, command: ev.CoreCommand) -> None:
        match command:
            case ev.RecordEntry(entry):
                self._record(entry)
            case ev.EmitEvent(event):
                self.told.append(event)
            case ev.StartPod(role, index, wish):
                assert self.master is not None
                promises.asked_for_a_reason(self.master, role)
                self.clock.after(self.latency(), lambda: self._start(role, index, wish))
            case ev.DeletePod(uid, grace):
                self.clock.after(self.latency(), lambda: self.cluster.delete(uid, grace))
            case ev.SaveCheckpoint():
                self._save(command)
            case ev.EndJob():
                self.ended = command
            case ev.AttachPs(uid) | ev.RevokeLeases(uid):
                self._ask_ps(uid, command)
            case ev.PrepareCut() | ev.HoldUpdates() | ev.TakeSnapshot() | ev.ReleaseCut() | ev.Unpin():
                for uid in sorted(self.links):
                    self._ask_ps(uid, command)

    def _record(self, entry: JournalEntry) -> None:
        line = json.dumps(entry.to_json())
        if isinstance(entry, ParametersRolledBack) and entry.ledger is not None:
            self.gone.clear()
        if isinstance(entry, LeaseReturned):
            self.settled.append(entry)
            found = self.shadow.find_lease(entry.lease)
            if found and entry.partial:
                lease = found[1]
                steps = range(entry.through, entry.through + entry.partial)
                self.twice |= {
                    (lease.record_range.epoch, lease.record_range.source, lease.record_after_steps(step))
                    for step in steps
                }
        self.journal.append(line)
        self.history.append(json.loads(line))
        self.shadow.apply_entry(JournalEntry.from_json(json.loads(line)))

    def _ask_ps(self, uid: str, command: ev.CoreCommand) -> None:
        """Let one PS execute commands in order, including those of a master that has died since.

        Commands of an older incarnation are dropped once a newer master has attached the PS.
        """
        ps, incarnation = self.servers[uid], self.incarnation
        ps.busy_until = max(self.clock.now() + self.latency(), ps.busy_until)

        def do() -> None:
            if not ps.alive or incarnation < ps.incarnation:
                return
            happened = self._on_ps(ps, command, incarnation)
            if happened is None and isinstance(command, ev.TakeSnapshot) and incarnation == self.incarnation:
                # Try again after the commands that are queued by now.
                self._ask_ps(uid, command)
            if happened is not None:
                self.clock.after(self.latency(), lambda: self._back(incarnation, happened))

        self.clock.at(ps.busy_until, do)

    def _back(self, incarnation: int, happened: ev.CoreEvent) -> None:
        if incarnation == self.incarnation:
            self.post(happened)

    def _on_ps(self, ps: SimulatedPs, command: ev.CoreCommand, incarnation: int) -> ev.CoreEvent | None:
        match command:
            case ev.AttachPs(uid, low, revoked, live, cut, restore, complete):
                ps.incarnation = incarnation
                ps.leases.attach_master(incarnation, low, revoked, live)
                if restore is not None:
                    copy = self.checkpoints[restore][ps.index]
                    ps.restore(restore, copy, self.everything(ps.index), complete=complete)
                elif not self.settings.durable and not ps.initialized:
                    ps.lacking = frozenset(self.everything(ps.index))
                ps.cuts.finish_cut(cut)
                return ev.PsAttached(uid, ps.initialized, ps.version, tuple(ps.cuts.pinned_cuts()))
            case ev.RevokeLeases(uid, leases, low):
                first = ps.leases.first_steps(leases)
                return ev.LeasesRevoked(uid, ps.leases.revoke_leases(leases, low), first)
            case ev.PrepareCut(cut):
                return ev.CutPrepared(ps.uid, cut)
            case ev.HoldUpdates(cut):
                return self._hold(ps, cut)
            case ev.ReleaseCut(cut):
                ps.cuts.release_cut(cut)
            case ev.Unpin(cut):
                ps.cuts.unpin_cut(cut)
            case ev.TakeSnapshot():
                return self._take(ps, command)
        return None

    def _hold(self, ps: SimulatedPs, cut: int) -> ev.CoreEvent:
        try:
            ps.cuts.pause_pushes(cut, self.clock.now())
        except CutError as error:
            return ev.PsRefused(ps.uid, error.kind, error.message, cut)
        return ev.UpdatesHeld(ps.uid, cut, ps.leases.steps_of_pushed_leases())

    def _take(self, ps: SimulatedPs, command: ev.TakeSnapshot) -> ev.CoreEvent | None:
        """Take a snapshot; None while the PS lacks a step of the cut."""
        ps.cuts.expire_pause(self.clock.now())
        try:
            ps.cuts.check_open(command.cut)
        except CutError as error:
            return ev.PsRefused(ps.uid, error.kind, error.message, command.cut)
        ps.cuts.include_steps(command.cut, command.included_steps)
        if not ps.leases.has_reached(command.included_steps):
            return None
        if ps.leases.steps_beyond(command.included_steps):
            raise BrokenPromiseError(f"{ps.uid} has steps that cut {command.cut} is not to have")
        copy = ps.snapshot(command.cut, pin=command.pin, floor=command.lowest_open_lease, keep=command.keep_paused)
        if command.checkpoint:
            self.copies.setdefault(command.cut, {})[ps.index] = copy
        return ev.SnapshotTaken(ps.uid, command.cut, copy.version, 0.0, ps.leases.admitted_count)

    def _save(self, command: ev.SaveCheckpoint) -> None:
        incarnation, uids = self.incarnation, [ps.uid for ps in self.alive_servers()]
        shards = self.copies.pop(command.cut)
        assert self.master is not None
        promises.cut_agrees(self.master.ledgers[TRAINING], command, shards, twice=self.twice)

        def save() -> None:
            whole = all(self.servers[uid].alive for uid in uids) and incarnation == self.incarnation
            if whole:
                self.checkpoints[command.cut] = shards
            self._back(
                incarnation, ev.CheckpointSaveFinished(command.cut, "" if whole else "a parameter server was lost")
            )

        self.clock.after(10 * self.latency(), save)

    # ------------------------------------------------------------------ pods

    def _start(self, role: Role, index: int, wish: PodOptions) -> None:
        refusal = self.cluster.start(role, index, wish)
        if refusal:
            self.post(ev.StartRefused(role, index, refusal, retry=True))

    def _show(self, uid: str) -> None:
        """Report a pod to the master after a delay, with its state by then."""
        show = lambda: self.post(ev.PodChanged(self.cluster.pods[uid])) if uid in self.cluster.pods else None  # noqa: E731
        self.clock.after(self.latency(), show)

    def _began(self, pod: PodStatus) -> None:
        if pod.role is Role.PS:
            self.servers[pod.uid] = SimulatedPs(pod.uid, pod.index)
            self._register(self.servers[pod.uid])
        else:
            self.workers[pod.uid] = SimulatedWorker(self, pod.uid, pod.index, self.pace)
            self.workers[pod.uid].start()

    def _asked_to_go(self, uid: str) -> None:
        """A pod received SIGTERM.

        A worker leaves between two steps. A PS serves until its master releases it.
        """
        if uid in self.workers:
            self.workers[uid].leaving = True
        elif uid in self.servers:
            self._ask_to_end(self.servers[uid], self.clock.now())

    def _ask_to_end(self, ps: SimulatedPs, answered: float) -> None:
        if not ps.alive:
            return
        answer = None
        if self.master is not None:
            try:
                answer, answered = self.handle(ev.PsLeaving(ps.uid)), self.clock.now()
            except MasterLost:
                answer = None
        if (answer is not None and answer.value) or self.clock.now() - answered >= self.alone:
            self.clock.after(self.latency(), lambda: self.end(ps.uid, 0))
        else:
            self.clock.after(ASK_TO_END, lambda: self._ask_to_end(ps, answered))

    def _died(self, uid: str) -> None:
        if uid in self.workers:
            self.workers[uid].alive = False
        elif uid in self.servers and self.servers[uid].alive:
            ps = self.servers[uid]
            ps.alive = False
            self.gone.setdefault(ps.index, set()).update(ps.applied.keys() | ps.lacking)
            self.links.pop(uid, None)

    def _register(self, ps: SimulatedPs) -> None:
        """A PS registers until the master attaches it."""
        if not ps.alive:
            return
        pod = self.master.pods.by_uid.get(ps.uid) if self.master is not None else None
        if self.master is not None and (ps.uid not in self.links or pod is None or not pod.attached):
            self.links[ps.uid] = ps.index
            self.post(ev.PsRegistered(ps.uid))
        self.clock.after(REGISTER * self.rng.uniform(0.1, 1.0), lambda: self._register(ps))

    def end(self, uid: str, exit_code: int, cause: TerminationCause = TerminationCause.NONE) -> None:
        """End a pod: 0, 143 (SIGTERM), 137 (SIGKILL) or an error."""
        self.cluster.end(uid, exit_code, cause)

    def alive_servers(self) -> list[SimulatedPs]:
        """The running PS processes."""
        return [ps for ps in self.servers.values() if ps.alive]

    def alive_workers(self) -> list[SimulatedWorker]:
        """The running worker processes."""
        return [worker for worker in self.workers.values() if worker.alive]

    # ------------------------------------------------------------------ the workers' view

    def placed(self) -> list[SimulatedPs]:
        """The parameter servers that a worker may use, according to the master's last answer."""
        if self.master is None:
            return [ps for ps in self.placement if ps.alive]
        restored = self.master.checkpoint is not None
        pods = [p for p in self.master.pods.live_pods(Role.PS) if p.attached and (p.initialized or not restored)]
        self.placement = [self.servers[pod.uid] for pod in pods]
        return [ps for ps in self.placement if ps.alive]

    def placed_at(self, index: int) -> SimulatedPs | None:
        """The PS that receives pushes. Workers keep the addresses while no master is running."""
        return next((ps for ps in self.placed() if ps.index == index), None)

    def readable(self, pin: int) -> bool:
        """Whether every PS still keeps a pinned version."""
        servers = self.placed()
        return len(servers) == self.settings.ps and all(pin in ps.cuts.pinned_cuts() for ps in servers)

    def ask(self, worker: SimulatedWorker, event: ev.CoreEvent, then: Callable[[Any], None]) -> None:
        """Send a request until it is answered; messages may be delayed, duplicated or lost."""

        def deliver(first: bool) -> None:
            if self.master is None:
                again()
                return
            try:
                answer = self.handle(event)
            except MasterLost:
                again()
                return
            # Only the answer is lost: the master has handled the request, and must answer it again.
            if isinstance(event, REQUESTS) and first and self.rng.random() < self.network.lost:
                again()
                return
            if isinstance(event, REQUESTS[1:]) and first and self.rng.random() < self.network.repeated:
                self.clock.after(self.rng.uniform(0.0, 20.0), stray)
            worker.later(self.latency(), lambda: then(answer))

        def again() -> None:
            worker.later(self.rng.uniform(0.1, 0.5), lambda: deliver(False))

        def stray() -> None:
            if self.master is not None:
                self.post(event)

        self.clock.after(self.latency(), lambda: deliver(True))

    # ------------------------------------------------------------------ invariants

    def everything(self, index: int) -> set[Minibatch]:
        """All minibatches that the journal, a live PS or a lost PS of this index has as applied."""
        holding = self.shadow.pods.parameter_holders.values()
        holders = [ps for ps in self.alive_servers() if self.settings.durable or ps.uid in holding]
        applied = {what for ps in holders for what in ps.applied.keys() | ps.lacking}
        return applied | self.gone.get(index, set()) | set(done_minibatches(self.shadow.ledgers[TRAINING]))

    def check_end(self) -> None:
        """Check what must hold when the job is done."""
        master = self.master
        if master is None or self.ended is None or self.ended.phase != "Done":
            raise BrokenPromiseError(f"the job is not done: {self.ended}, {master and master.phase}")
        promises.all_is_done(master)
        done = set(done_minibatches(master.ledgers[TRAINING]))
        counted = Recount()
        for entry in self.history:
            counted.enter(entry)
        for ps in self.alive_servers():
            if ps.initialized:
                promises.applied_once(ps.uid, ps.applied, done, lacking=ps.lacking, twice=self.twice)
                promises.lacking_is_counted(master, ps.index, ps.steps, counted.counted)
        promises.little_is_repeated(master, self.settled)
        if self.dataset.validation:
            promises.evaluated_once(self.dataset.validation, self.evaluations[-1][1])

"""A whole job without processes: the real core, simulated workers and PS, and faults.

It runs on a virtual clock, and its result is a function of the seed. While it runs, and in
``check_end``, ``TrainingWorld`` checks what the design promises (module ``promises``), and that each
request has exactly one answer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from edl.api.cluster_port import PodOptions, PodStatus, Role, TerminationCause
from edl.api.exit_codes import SIGKILL_EXIT
from edl.api.journal_entries import JobResumed, JournalEntry, LeaseReturned, ParametersRolledBack
from edl.api.run_events import JobEvent
from edl.core import events as ev
from edl.core.job import JobStateMachine
from edl.core.journal_application import apply_entry
from edl.core.ledger import TRAINING
from edl.core.shuffle import BlockLayout
from edl.core.state import JobSettings
from edl.ps.cut_state import CutError
from edl.simulation import promises
from edl.simulation.clock import VirtualClock
from edl.simulation.ledger_recount import LedgerRecount
from edl.simulation.promises import BrokenPromiseError, done_minibatches
from edl.simulation.simulated_cluster import SimulatedCluster
from edl.simulation.simulated_ps import Minibatch, SimulatedPs, SnapshotContent
from edl.simulation.simulated_worker import SimulatedWorker

ANSWERS = (ev.LeaseReply, ev.WaitForWork, ev.StopWork, ev.Acknowledged, ev.MayEnd)
REQUESTS = (ev.LeaseRequested, ev.ProgressReported, ev.TaskReported, ev.WorkerLeft, ev.WorkerFailed, ev.PsLeaving)
TICK, REGISTER, ASK_TO_END = 0.25, 0.5, 0.1


class MasterLost(Exception):  # noqa: N818  an event of the simulation, not an error
    """The master died while it handled an event."""


@dataclass(frozen=True, slots=True)
class SimulatedNetwork:
    """Message delivery: seconds per way, and the probabilities of duplicates and lost answers."""

    min_delay: float = 0.001
    max_delay: float = 0.05
    duplicate_probability: float = 0.0
    loss_probability: float = 0.0


class TrainingWorld:
    """A complete simulated job.

    Args:
        settings: settings of the job.
        training, validation: sources, ``(name, records)``.
        seed: seed of all random decisions.
        step_seconds: seconds per step.
        poison_minibatches: minibatches that make a worker fail with an error that it reports.
        lethal_minibatches: minibatches that make a worker end without a report: by a signal, or
            with exit code 0.
        lethal_fed: the same, as soon as the minibatch is read or fed, while an earlier one trains.
        forgets_ended_pods: whether the cluster forgets pods that ended while no master was running.
        capacity: number of workers that fit into the cluster; None: no limit.
        master_timeout: seconds after which a terminating PS ends if no master answers.
    """

    def __init__(
        self,
        settings: JobSettings,
        training: tuple[tuple[str, int], ...],
        validation: tuple[tuple[str, int], ...] = (),
        *,
        seed: int = 0,
        network: SimulatedNetwork = SimulatedNetwork(),
        step_seconds: float = 0.05,
        poison_minibatches: frozenset[Minibatch] = frozenset(),
        lethal_minibatches: frozenset[Minibatch] = frozenset(),
        lethal_fed: frozenset[Minibatch] = frozenset(),
        forgets_ended_pods: bool = False,
        capacity: int | None = None,
        master_timeout: float = 1.0,
        blocks: BlockLayout | None = None,
    ) -> None:
        self.settings, self.network, self.step_seconds = settings, network, step_seconds
        self.poison_minibatches = poison_minibatches
        self.lethal_minibatches, self.lethal_fed = lethal_minibatches, lethal_fed
        self.dataset = ev.DatasetDescribed(training, validation, blocks=blocks)
        self.master_timeout = master_timeout
        self.clock, self.rng = VirtualClock(), Random(seed)  # noqa: S311  chance, not secrets
        self.forgets_ended_pods = forgets_ended_pods
        self.journal_lines: list[str] = []
        self.all_entries: list[Mapping[str, Any]] = []
        self.journal_snapshot: str | None = None
        self.master: JobStateMachine | None = None
        self.replayed_master = JobStateMachine(settings)
        self.incarnation = 0
        self.attached_ps: dict[str, int] = {}
        self.cluster = SimulatedCluster(
            self.clock,
            capacity,
            report_pod=self._report_pod,
            on_started=self._start_process,
            on_sigterm=self._handle_sigterm,
            on_ended=self._handle_process_end,
        )
        self.worker_processes: dict[str, SimulatedWorker] = {}
        self.ps_processes: dict[str, SimulatedPs] = {}
        self.placed_ps: list[SimulatedPs] = []
        self.snapshot_contents: dict[int, dict[int, SnapshotContent]] = {}
        self.checkpoints: dict[int, dict[int, SnapshotContent]] = {}
        self.evaluations: list[tuple[int, Any]] = []
        self.lost_minibatches: dict[int, set[Minibatch]] = {}
        self.emitted_events: list[JobEvent | ev.TrainingStalled | ev.PhaseEntered] = []
        self.twice_applied: set[Minibatch] = set()
        self.returned_leases: list[LeaseReturned] = []
        self.handled_events = 0
        self.die_at: int | None = None
        self.end_command: ev.EndJob | None = None

    # ------------------------------------------------------------------ running

    def run(self, until: float) -> None:
        """Advance the clock until the job has ended, or to ``until``."""
        if self.master is None and not self.incarnation:
            self.start_master()
        while self.end_command is None and self.clock.now() < until and self.clock.advance_to_next():
            pass

    def message_latency(self) -> float:
        """A random delivery time of one message, in seconds."""
        return self.rng.uniform(self.network.min_delay, self.network.max_delay)

    # ------------------------------------------------------------------ the master

    def start_master(self) -> None:
        """Start a new master process: it replays the journal, takes an incarnation, lists the pods."""
        self.incarnation += 1
        master = JobStateMachine(self.settings)
        self.replayed_master = JobStateMachine(self.settings)
        # The shadow gets journal entries only. After each event it must equal the master
        # (promises.journal_is_enough). Each parses the journal anew, so they share no objects.
        for state in (master, self.replayed_master):
            snapshot = json.loads(self.journal_snapshot) if self.journal_snapshot is not None else None
            state.replay_journal(snapshot, [json.loads(line) for line in self.journal_lines])
        self.master = master
        # The previous master journaled the end and died before it could report it.
        if master.has_ended:
            self.end_command = ev.EndJob(master.phase, master.reason)
            return
        self.attached_ps = {}
        for command in master.begin_incarnation(self.incarnation):
            self._carry_out(command)
        self.post_events(
            *(ev.PodChanged(pod) for pod in list(self.cluster.pods.values())), ev.PodsSynced(), self.dataset
        )
        self._schedule_ticks(self.incarnation)

    def kill_master(self, away: float) -> None:
        """Kill the master. Another one starts after ``away`` seconds."""
        self.master = None
        if self.forgets_ended_pods:
            self.cluster.forget_ended()
        self.clock.call_later(away, self.start_master)

    def resume_job(self, away: float = 1.0) -> None:
        """Resume a stopped job as ``--resume`` does, with no process of the earlier run left."""
        assert self.end_command is not None
        for worker in self.alive_workers():
            self.end_pod(worker.uid, SIGKILL_EXIT)
        for ps in self.alive_servers():
            self.end_pod(ps.uid, SIGKILL_EXIT)
        self._record_entry(JobResumed())
        self.end_command = None
        self.kill_master(away)

    def _schedule_ticks(self, incarnation: int) -> None:
        if self.incarnation == incarnation and self.master is not None and self.end_command is None:
            self.post_events(ev.Tick())
            self.clock.call_later(TICK, lambda: self._schedule_ticks(incarnation))

    def post_events(self, *happened: ev.CoreEvent) -> None:
        """Let the master handle events that expect no answer, if there is a master."""
        for event in happened:
            if self.master is not None:
                try:
                    self.handle_event(event)
                except MasterLost:
                    return

    def handle_event(self, event: ev.CoreEvent) -> Any:
        """Let the master decide and execute its commands; returns its answer.

        Raises:
            MasterLost: the master died before it executed all commands.
        """
        assert self.master is not None
        commands = self.master.handle(event, self.clock.now())
        self.handled_events += 1
        # Each request has exactly one answer, and other events have none.
        answers = [command for command in commands if isinstance(command, ANSWERS)]
        if len(answers) != isinstance(event, REQUESTS):
            raise BrokenPromiseError(f"{event} was answered {answers}")
        if self.die_at is not None and self.handled_events >= self.die_at:
            self._die_torn(commands)
        for command in commands:
            self._carry_out(command)
        promises.journal_is_enough(self.master, self.replayed_master, self.journal_lines[-3:])
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

    def compact_journal(self) -> None:
        """Compact the journal to a snapshot."""
        if self.master is not None:
            self.journal_snapshot, self.journal_lines = json.dumps(self.master.to_snapshot()), []

    # ------------------------------------------------------------------ the master's commands

    def _carry_out(self, command: ev.CoreCommand) -> None:
        match command:
            case ev.RecordEntry(entry):
                self._record_entry(entry)
            case ev.EmitEvent(event):
                self.emitted_events.append(event)
            case ev.StartPod(role, index, wish):
                assert self.master is not None
                promises.asked_for_a_reason(self.master, role)
                self.clock.call_later(self.message_latency(), lambda: self._start_pod(role, index, wish))
            case ev.DeletePod(uid, grace):
                self.clock.call_later(self.message_latency(), lambda: self.cluster.delete_pod(uid, grace))
            case ev.SaveCheckpoint():
                self._save_checkpoint(command)
            case ev.EndJob():
                self.end_command = command
            case ev.AttachPs(uid) | ev.RevokeLeases(uid):
                self._ask_ps(uid, command)
            case ev.PrepareCut() | ev.HoldUpdates() | ev.TakeSnapshot() | ev.ReleaseCut() | ev.Unpin():
                for uid in sorted(self.attached_ps):
                    self._ask_ps(uid, command)

    def _record_entry(self, entry: JournalEntry) -> None:
        line = json.dumps(entry.to_json())
        if isinstance(entry, ParametersRolledBack) and entry.ledger is not None:
            self.lost_minibatches.clear()
        if isinstance(entry, LeaseReturned):
            self.returned_leases.append(entry)
            lease_place = self.replayed_master.find_lease(entry.lease)
            if lease_place and entry.partial:
                lease = lease_place[1]
                steps = range(entry.through, entry.through + entry.partial)
                self.twice_applied |= {
                    (lease.record_range.epoch, lease.record_range.source, lease.record_after_steps(step))
                    for step in steps
                }
        self.journal_lines.append(line)
        self.all_entries.append(json.loads(line))
        apply_entry(self.replayed_master, JournalEntry.from_json(json.loads(line)))

    def _ask_ps(self, uid: str, command: ev.CoreCommand) -> None:
        """Let one PS execute commands in order, including those of a master that has died since.

        Commands of an older incarnation are dropped once a newer master has attached the PS.
        """
        ps, incarnation = self.ps_processes[uid], self.incarnation
        ps.busy_until = max(self.clock.now() + self.message_latency(), ps.busy_until)

        def execute_command() -> None:
            if not ps.alive or incarnation < ps.incarnation:
                return
            happened = self._on_ps(ps, command, incarnation)
            if happened is None and isinstance(command, ev.TakeSnapshot) and incarnation == self.incarnation:
                # Try again after the commands that are queued by now.
                self._ask_ps(uid, command)
            if happened is not None:
                self.clock.call_later(self.message_latency(), lambda: self._post_reply(incarnation, happened))

        self.clock.call_at(ps.busy_until, execute_command)

    def _post_reply(self, incarnation: int, happened: ev.CoreEvent) -> None:
        if incarnation == self.incarnation:
            self.post_events(happened)

    def _on_ps(self, ps: SimulatedPs, command: ev.CoreCommand, incarnation: int) -> ev.CoreEvent | None:
        match command:
            case ev.AttachPs(uid, low, revoked, live, cut, restore, complete):
                ps.incarnation = incarnation
                ps.leases.attach_master(incarnation, low, revoked, live)
                if restore is not None:
                    copy = self.checkpoints[restore][ps.index]
                    ps.restore_checkpoint(restore, copy, self.known_minibatches(ps.index), complete=complete)
                elif not self.settings.durable and not ps.initialized:
                    ps.lacking_minibatches = frozenset(self.known_minibatches(ps.index))
                ps.cuts.finish_cut(cut)
                return ev.PsAttached(uid, ps.initialized, ps.version, tuple(ps.cuts.pinned_cuts()))
            case ev.RevokeLeases(uid, leases, low):
                first = ps.leases.first_steps(leases)
                return ev.LeasesRevoked(uid, ps.leases.revoke_leases(leases, low), first)
            case ev.PrepareCut(cut):
                return ev.CutPrepared(ps.uid, cut)
            case ev.HoldUpdates(cut):
                return self._hold_updates(ps, cut)
            case ev.ReleaseCut(cut):
                ps.cuts.release_cut(cut)
            case ev.Unpin(cut):
                ps.cuts.unpin_cut(cut)
            case ev.TakeSnapshot():
                return self._take_snapshot(ps, command)
        return None

    def _hold_updates(self, ps: SimulatedPs, cut: int) -> ev.CoreEvent:
        try:
            ps.cuts.pause_pushes(cut, self.clock.now())
        except CutError as error:
            return ev.PsRefused(ps.uid, error.kind, error.message, cut)
        return ev.UpdatesHeld(ps.uid, cut, ps.leases.steps_of_pushed_leases())

    def _take_snapshot(self, ps: SimulatedPs, command: ev.TakeSnapshot) -> ev.CoreEvent | None:
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
        copy = ps.take_snapshot(command.cut, pin=command.pin, floor=command.lowest_open_lease, keep=command.keep_paused)
        if command.checkpoint:
            self.snapshot_contents.setdefault(command.cut, {})[ps.index] = copy
        return ev.SnapshotTaken(ps.uid, command.cut, copy.version, 0.0, ps.leases.admitted_count)

    def _save_checkpoint(self, command: ev.SaveCheckpoint) -> None:
        incarnation, uids = self.incarnation, [ps.uid for ps in self.alive_servers()]
        shards = self.snapshot_contents.pop(command.cut)
        assert self.master is not None
        promises.cut_agrees(self.master.ledgers[TRAINING], command, shards, twice=self.twice_applied)

        def finish_save() -> None:
            is_complete = all(self.ps_processes[uid].alive for uid in uids) and incarnation == self.incarnation
            if is_complete:
                self.checkpoints[command.cut] = shards
            self._post_reply(
                incarnation,
                ev.CheckpointSaveFinished(command.cut, "" if is_complete else "a parameter server was lost"),
            )

        self.clock.call_later(10 * self.message_latency(), finish_save)

    # ------------------------------------------------------------------ pods

    def _start_pod(self, role: Role, index: int, options: PodOptions) -> None:
        refusal = self.cluster.start_pod(role, index, options)
        if refusal:
            self.post_events(ev.StartRefused(role, index, refusal, retry=True))

    def _report_pod(self, uid: str) -> None:
        """Report a pod to the master after a delay, with its state by then."""
        show = lambda: self.post_events(ev.PodChanged(self.cluster.pods[uid])) if uid in self.cluster.pods else None  # noqa: E731
        self.clock.call_later(self.message_latency(), show)

    def _start_process(self, pod: PodStatus) -> None:
        if pod.role is Role.PS:
            self.ps_processes[pod.uid] = SimulatedPs(pod.uid, pod.index)
            self._register_ps(self.ps_processes[pod.uid])
        else:
            self.worker_processes[pod.uid] = SimulatedWorker(self, pod.uid, pod.index, self.step_seconds)
            self.worker_processes[pod.uid].start_working()

    def _handle_sigterm(self, uid: str) -> None:
        """A pod received SIGTERM.

        A worker leaves between two steps. A PS serves until its master releases it.
        """
        if uid in self.worker_processes:
            self.worker_processes[uid].leaving = True
        elif uid in self.ps_processes:
            self._ask_to_end(self.ps_processes[uid], self.clock.now())

    def _ask_to_end(self, ps: SimulatedPs, answered: float) -> None:
        if not ps.alive:
            return
        answer = None
        if self.master is not None:
            try:
                answer, answered = self.handle_event(ev.PsLeaving(ps.uid)), self.clock.now()
            except MasterLost:
                answer = None
        if (answer is not None and answer.value) or self.clock.now() - answered >= self.master_timeout:
            self.clock.call_later(self.message_latency(), lambda: self.end_pod(ps.uid, 0))
        else:
            self.clock.call_later(ASK_TO_END, lambda: self._ask_to_end(ps, answered))

    def _handle_process_end(self, uid: str) -> None:
        if uid in self.worker_processes:
            self.worker_processes[uid].alive = False
        elif uid in self.ps_processes and self.ps_processes[uid].alive:
            ps = self.ps_processes[uid]
            ps.alive = False
            self.lost_minibatches.setdefault(ps.index, set()).update(ps.applied_counts.keys() | ps.lacking_minibatches)
            self.attached_ps.pop(uid, None)

    def _register_ps(self, ps: SimulatedPs) -> None:
        """A PS registers until the master attaches it."""
        if not ps.alive:
            return
        pod = self.master.pods.by_uid.get(ps.uid) if self.master is not None else None
        if self.master is not None and (ps.uid not in self.attached_ps or pod is None or not pod.attached):
            self.attached_ps[ps.uid] = ps.index
            self.post_events(ev.PsRegistered(ps.uid))
        self.clock.call_later(REGISTER * self.rng.uniform(0.1, 1.0), lambda: self._register_ps(ps))

    def end_pod(self, uid: str, exit_code: int, cause: TerminationCause = TerminationCause.NONE) -> None:
        """End a pod: 0, ``SIGTERM_EXIT``, ``SIGKILL_EXIT`` or an error."""
        self.cluster.end_pod(uid, exit_code, cause)

    def alive_servers(self) -> list[SimulatedPs]:
        """The running PS processes."""
        return [ps for ps in self.ps_processes.values() if ps.alive]

    def alive_workers(self) -> list[SimulatedWorker]:
        """The running worker processes."""
        return [worker for worker in self.worker_processes.values() if worker.alive]

    # ------------------------------------------------------------------ the workers' view

    def usable_ps(self) -> list[SimulatedPs]:
        """The parameter servers that a worker may use, according to the master's last answer."""
        if self.master is None:
            return [ps for ps in self.placed_ps if ps.alive]
        restored = self.master.checkpoint is not None
        pods = [p for p in self.master.pods.live_pods(Role.PS) if p.attached and (p.initialized or not restored)]
        self.placed_ps = [self.ps_processes[pod.uid] for pod in pods]
        return [ps for ps in self.placed_ps if ps.alive]

    def usable_ps_at(self, index: int) -> SimulatedPs | None:
        """The PS that receives pushes. Workers keep the addresses while no master is running."""
        return next((ps for ps in self.usable_ps() if ps.index == index), None)

    def is_pin_readable(self, pin: int) -> bool:
        """Whether every PS still keeps a pinned version."""
        servers = self.usable_ps()
        return len(servers) == self.settings.ps and all(pin in ps.cuts.pinned_cuts() for ps in servers)

    def send_request(self, worker: SimulatedWorker, event: ev.CoreEvent, then: Callable[[Any], None]) -> None:
        """Send a request until it is answered; messages may be delayed, duplicated or lost."""

        def deliver_request(first: bool) -> None:
            if self.master is None:
                retry_later()
                return
            try:
                answer = self.handle_event(event)
            except MasterLost:
                retry_later()
                return
            # Only the answer is lost: the master has handled the request, and must answer it again.
            if isinstance(event, REQUESTS) and first and self.rng.random() < self.network.loss_probability:
                retry_later()
                return
            if isinstance(event, REQUESTS[1:]) and first and self.rng.random() < self.network.duplicate_probability:
                self.clock.call_later(self.rng.uniform(0.0, 20.0), deliver_duplicate)
            worker.call_later(self.message_latency(), lambda: then(answer))

        def retry_later() -> None:
            worker.call_later(self.rng.uniform(0.1, 0.5), lambda: deliver_request(False))

        def deliver_duplicate() -> None:
            if self.master is not None:
                self.post_events(event)

        self.clock.call_later(self.message_latency(), lambda: deliver_request(True))

    # ------------------------------------------------------------------ invariants

    def known_minibatches(self, index: int) -> set[Minibatch]:
        """All minibatches that the journal, a live PS or a lost PS of this index has as applied."""
        holding = self.replayed_master.pods.parameter_holders.values()
        holders = [ps for ps in self.alive_servers() if self.settings.durable or ps.uid in holding]
        applied = {what for ps in holders for what in ps.applied_counts.keys() | ps.lacking_minibatches}
        return (
            applied
            | self.lost_minibatches.get(index, set())
            | set(done_minibatches(self.replayed_master.ledgers[TRAINING]))
        )

    def check_end(self) -> None:
        """Check what must hold when the job is done."""
        master = self.master
        if master is None or self.end_command is None or self.end_command.phase != "Done":
            raise BrokenPromiseError(f"the job is not done: {self.end_command}, {master and master.phase}")
        promises.all_is_done(master)
        done = set(done_minibatches(master.ledgers[TRAINING]))
        counted = LedgerRecount()
        for entry in self.all_entries:
            counted.apply_entry(entry)
        for ps in self.alive_servers():
            if ps.initialized:
                promises.applied_once(
                    ps.uid, ps.applied_counts, done, lacking=ps.lacking_minibatches, twice=self.twice_applied
                )
                promises.lacking_is_counted(master, ps.index, ps.applied_steps, counted.counted_steps)
        promises.little_is_repeated(master, self.returned_leases)
        if self.dataset.validation:
            promises.evaluated_once(self.dataset.validation, self.evaluations[-1][1])

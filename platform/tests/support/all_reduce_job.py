"""A job of strategy AllReduce in one process: the real core, and ranks as threads with real rings.

Each rank runs the real `StepLoop` with a replica of one variable that counts: record i adds exactly 1 to element i.
So the variable shows, for any order of faults, which records were applied and how often.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self
from zlib import crc32

import numpy as np

from edl.api.cluster_port import PodPhase, PodStatus, Role, TerminationCause
from edl.api.errors import EdlError, RetryableError
from edl.api.journal_entries import JournalEntry, LeaseGranted
from edl.api.round_id import RoundId
from edl.collective.collective_listener import CollectiveListener
from edl.core.callback_decisions import DeclaredCallback
from edl.core.checkpoint_shares import SHARD_BYTES
from edl.core.events import (
    CopyCheckpoint,
    CoreEvent,
    DatasetDescribed,
    DeletePod,
    EmitEvent,
    EndJob,
    LeaseReply,
    LeaseRequested,
    ModelDeclared,
    PodChanged,
    PodsSynced,
    ProgressReported,
    RecordEntry,
    RequestAnswer,
    SaveCheckpoint,
    StopWork,
    TaskReported,
    Tick,
    WorldReported,
    WorldView,
    WorldViewed,
)
from edl.core.job import JobStateMachine
from edl.core.ledger import BEST_MODEL, EXPORT, MODEL_FILE, TRAINING
from edl.core.rank_state import NO_ENDED_STEP, CallbackEpoch, EndedStep
from edl.core.state import JobSettings
from edl.core.state_agreement import RankFacts
from edl.core.world_rounds import StepShares
from edl.master.checkpoint_coordinator import CheckpointCoordinator
from edl.master.master_service import (
    MemberDirectory,
    lease_to_task,
    parse_lease_progress,
    parse_world_report,
    view_to_reply,
)
from edl.transport import edl_pb2 as pb
from edl.worker.allreduce.checkpoint_writer import CheckpointWriter
from edl.worker.allreduce.copy_evaluation import CopyEvaluation
from edl.worker.allreduce.round_connection import RoundConnection
from edl.worker.allreduce.share_source import BatchShareSource, ShareSource
from edl.worker.allreduce.step_feed import StepFeed
from edl.worker.allreduce.step_loop import LearningRates, LoopSettings, RankLinks, RankWork, StepLoop
from edl.worker.allreduce.world_client import WorldClient
from edl.worker.graceful_shutdown import LeavingError, ShutdownGate
from edl.worker.lease_client import LeaseClient, LeasedTask, ProgressReporter
from edl.worker.loss_log import LossLog
from edl.worker.record_stream import LoadedStep
from edl.worker.runtime import ALL_REDUCE_LEASES_AHEAD

TOKEN = "the-token-of-these-tests"
BOUND = 60.0
"""Seconds after which a test fails that should have ended long before."""


@dataclass(frozen=True)
class CountedRecords:
    """A minibatch: the numbers of its records."""

    features: Sequence[int]
    labels: None = None
    weights: None = None


@dataclass(frozen=True)
class CountedStep:
    """The result of a minibatch."""

    weight: float
    loss: float = 0.5
    is_finite: bool = True
    nonfinite_name: str = ""
    common_loss: float | None = None


class CountingReplica:
    """The variable ``counts``: how often each record was applied. It also has a number of updates.

    ``rates`` sums the learning rates with which each record was applied.
    """

    def __init__(self, records: int, *, seconds: float = 0.0) -> None:
        self.counts = np.zeros(records, np.float64)
        self.rates = np.zeros(records, np.float64)
        self.rate = 1.0
        self.updates = 0
        self.rate_of_update: dict[int, float] = {}
        """Of the updates that this rank applied."""
        self.factor_of_update: dict[int, tuple[float, float | None]] = {}
        """Of the same: the weight of all ranks, and the factor of the learning rate."""
        self.seconds = seconds
        self.buffers: tuple[np.ndarray[Any, Any], ...] = (np.zeros(records, np.float64),)
        self.gradient_counts: tuple[int, ...] = (records,)
        self.skips_infinite_gradients = False
        self.most_records = 0
        """Of a minibatch."""
        self.draws = 0
        """How often a random layer would have drawn: once for each minibatch, undone with an abandoned step."""
        self._draws_before: int | None = None
        self._newest: tuple[Sequence[int], int] | None = None
        """The newest minibatch, and the draws after it."""
        self.computed: list[tuple[int, ...]] = []
        """The minibatches of all forward passes."""
        self.fail_at: Callable[[str], None] = lambda point: None

    def compute(self, features: Sequence[int], labels: Any, weights: Any, *, adds: bool = False) -> CountedStep:
        self.fail_at("compute")
        time.sleep(self.seconds)
        self.most_records = max(self.most_records, len(features))
        if not adds:
            self.clear()
            self._draws_before = self.draws
        self.draws += 1
        self.computed.append(tuple(features))
        self._newest = None if adds else (features, self.draws)
        self.buffers[0][list(features)] = 1
        self.fail_at("reduce")
        return CountedStep(float(len(features)))

    @property
    def keeps_addend(self) -> bool:
        return self._newest is not None

    def write_again(self) -> None:
        assert self._newest is not None
        self.clear()
        features, draws = self._newest
        self._draws_before, self.draws = self.draws, draws
        self.buffers[0][list(features)] = 1
        self.fail_at("reduce")

    def clear(self) -> None:
        self.buffers[0][:] = 0

    def apply(self, total_weight: float, rate_factor: float | None = None) -> None:
        assert self.buffers[0].sum() == total_weight
        self.fail_at("apply")
        self._draws_before = self._newest = None
        self.counts += self.buffers[0]
        self.rates += self.buffers[0] * self.rate
        self.updates += 1
        self.rate_of_update[self.updates] = self.rate
        self.factor_of_update[self.updates] = total_weight, rate_factor
        self.fail_at("applied")

    def set_learning_rate(self, rate: float) -> None:
        self.rate = rate

    def restore_statistics(self) -> None:
        if self._draws_before is not None:
            self.draws, self._draws_before = self._draws_before, None

    @property
    def rate_names(self) -> frozenset[str]:
        return frozenset({"rate"})

    def state_sizes(self) -> dict[str, int]:
        return {name: array.nbytes for name, array in self._arrays().items()}

    def state_arrays(self, names: Iterable[str] | None = None) -> dict[str, np.ndarray[Any, Any]]:
        self.fail_at("copy")
        wanted = None if names is None else set(names)
        return {name: array for name, array in self._arrays().items() if wanted is None or name in wanted}

    def _arrays(self) -> dict[str, np.ndarray[Any, Any]]:
        return {
            "counts": self.counts.copy(),
            "rates": self.rates.copy(),
            "rate": np.array([self.rate]),
            "updates": np.array([self.updates], np.int64),
        }

    def load_state(self, arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
        self.fail_at("load")
        self.counts, self.rates = arrays["counts"].copy(), arrays["rates"].copy()
        self.rate, self.updates = float(arrays["rate"][0]), int(arrays["updates"][0])

    def pack_state(self) -> np.ndarray[Any, Any]:
        return np.concatenate([self.counts, self.rates, [self.rate, self.updates]]).view(np.uint8)

    def hold_state(self) -> list[np.ndarray[Any, Any]]:
        return [self.pack_state()]

    def unpack_state(self, buffer: np.ndarray[Any, Any]) -> None:
        self.fail_at("fetched")
        *values, self.rate, updates = buffer.view(np.float64)
        self.counts, self.rates = np.array_split(np.array(values), 2)
        self.updates = int(updates)

    def digest(self) -> int:
        return hash(self.pack_state().tobytes()) & ((1 << 62) - 1)

    def variable_digests(self) -> dict[str, int]:
        return {name: crc32(array.tobytes()) for name, array in self.state_arrays().items()}

    def describe_variables(self) -> dict[str, str]:
        return {name: f"{array.dtype} of shape {array.shape}" for name, array in self._arrays().items()}

    def fingerprint(self) -> str:
        return str(len(self.counts))


class CountingStream:
    """Gives the record numbers of a lease.

    Args:
        corrupt: records that cannot be read.
    """

    def __init__(self, corrupt: Collection[int] = ()) -> None:
        self._corrupt = corrupt

    def add_task(self, task: LeasedTask) -> None:
        pass

    def drop_task(self, task: LeasedTask) -> None:
        pass

    def load_steps(self, task: LeasedTask) -> Iterator[LoadedStep]:
        for step in range(task.step_count):
            start, end = task.step_range(step)
            records = tuple(record for record in range(start, end) if record not in self._corrupt)
            minibatch: Any = CountedRecords(records) if records else None
            yield LoadedStep(step, minibatch, len(records), end - start - len(records))


class RecordedCallbacks:
    """The user's callbacks of one rank: it keeps what is called, and a test decides what they do.

    Attributes:
        calls: of each step, the number of steps before it, its epoch, its loss and its rate.
        before_epoch: called before the first step of an epoch that this rank sees.
        before_step: called before a step with the number of steps before it.
        after_step: called after a step with these callbacks and the number of its update.
    """

    def __init__(self) -> None:
        self.learning_rate: float | None = None
        self.replica: CountingReplica | None = None
        self.has_stopped = False
        self.begun: list[tuple[int, int]] = []
        self.begun_epochs = 0
        self.epoch_loss_sum, self.epoch_steps = 0.0, 0
        self.epoch_losses: list[tuple[float, int]] = []
        """Of each epoch that is over: the sum of its losses and their number."""
        self.calls: list[tuple[int, int, float, float | None]] = []
        self.before_epoch: Callable[[int], None] = lambda epoch: None
        self.before_step: Callable[[int], None] = lambda step: None
        self.after_step: Callable[[RecordedCallbacks, int], None] = lambda callbacks, update: None
        self.has_ended = False
        self.beginnings: list[int] = []
        """The number of steps in each state from which training began, or began again."""
        self.began_in = (0, 0)
        self.rate_before: float | None = None
        self.rates_before: np.ndarray[Any, Any] | None = None

    def start_round(self, rank: int) -> None:
        pass

    def forget_old_values(self) -> None:
        self.rates_before = None

    @property
    def lacks_old_values(self) -> bool:
        has_begun = self.replica is not None and self.begun_step == (self.replica.updates, self.begun_epochs - 1)
        return self.rates_before is None and has_begun

    @contextmanager
    def showing_checkpoint(self) -> Iterator[None]:
        replica = self.replica
        if replica is None:
            yield
            return
        actual = replica.rate, replica.rates
        rate = self.callback_epoch.learning_rate
        if rate is not None:
            replica.rate = rate
        if self.rates_before is not None and self.begun_step == (replica.updates, self.begun[-1][1]):
            replica.rates = self.rates_before
        yield
        replica.rate, replica.rates = actual

    @property
    def begun_step(self) -> tuple[int, int] | None:
        return self.begun[-1] if self.begun else (-1, 0)

    def begin_step(self, step: int, epoch: int) -> None:
        if epoch >= self.begun_epochs:
            if epoch:
                self.epoch_losses.append((self.epoch_loss_sum, self.epoch_steps))
            self.epoch_loss_sum, self.epoch_steps = 0.0, 0
        is_new = not self.begun or self.begun[-1][0] != step
        if is_new:
            self.rate_before = self.learning_rate
            self.rates_before = None if self.replica is None else self.replica.rates.copy()
        if epoch >= self.begun_epochs:
            self.begun_epochs = epoch + 1
            self.before_epoch(epoch)
        if is_new:
            self.begun.append((step, epoch))
            self.before_step(step)

    def end_step(self, step: int, epoch: int, loss: float, learning_rate: float | None) -> None:
        assert self.begun[-1][0] == step
        self.calls.append((step, epoch, loss, learning_rate))
        self.epoch_loss_sum, self.epoch_steps = self.epoch_loss_sum + loss, self.epoch_steps + 1
        if self.learning_rate is not None and learning_rate is not None:
            self.learning_rate = learning_rate
        self.after_step(self, step + 1)

    def skip_step(self, step: int, epoch: int) -> None:
        self.begin_step(step, epoch)

    def end_training(self) -> None:
        self.has_ended = True

    def forget_stop(self) -> None:
        self.has_stopped = False

    @property
    def callback_epoch(self) -> CallbackEpoch:
        has_begun = self.replica is not None and self.begun_step == (self.replica.updates, self.begun_epochs - 1)
        rate = self.rate_before if has_begun else self.learning_rate
        return CallbackEpoch(self.begun_epochs, self.epoch_loss_sum, self.epoch_steps, self.began_in, rate)

    @property
    def ended_step(self) -> EndedStep:
        return EndedStep(*self.calls[-1][:3]) if self.calls else NO_ENDED_STEP

    def make_up_step(self, ended: EndedStep) -> None:
        if ended.step >= 0 and self.ended_step.step == ended.step - 1:
            self.begin_step(ended.step, ended.epoch)
            self.end_step(ended.step, ended.epoch, ended.loss, None)

    def begin_again(self, step: int, began_in: tuple[int, int], epoch: int) -> None:
        self.began_in = began_in
        self.beginnings.append(step)
        self._forget_training()

    def _forget_training(self) -> None:
        if self.begun_epochs:
            self.begun_epochs, self.epoch_loss_sum, self.epoch_steps = 0, 0.0, 0
            self.begun.clear()
            self.calls.clear()
            self.learning_rate = None

    def adopt_state(self, epoch: CallbackEpoch, step: int) -> None:
        if epoch.began_in != self.began_in:
            self._forget_training()
            self.began_in = epoch.began_in
            self.beginnings.append(step)
        if epoch.begun and epoch.begun != self.begun_epochs:
            self.begun_epochs = epoch.begun
            self.before_epoch(epoch.begun - 1)
        if epoch.begun or self.begun:
            self.learning_rate = epoch.learning_rate
        if epoch.begun:
            self.epoch_loss_sum, self.epoch_steps = epoch.loss_sum, epoch.steps
        self.begun.clear()


class KilledError(BaseException):
    """The thread of a rank that was killed: it does nothing any more."""


@dataclass(eq=False)
class Rank:
    """One worker: its threads, and what a test can do to it."""

    uid: str
    index: int
    replica: CountingReplica
    gate: ShutdownGate = field(default_factory=ShutdownGate)
    is_killed: bool = False
    is_preempted: bool = False
    """Whether the cluster says why it was killed."""
    ended: threading.Event = field(default_factory=threading.Event)
    error: BaseException | None = None
    callbacks: RecordedCallbacks = field(default_factory=RecordedCallbacks)
    world: WorldClient = field(init=False)
    loop: StepLoop = field(init=False)
    listener: CollectiveListener = field(init=False)
    connection: RoundConnection = field(init=False)
    leases: LeaseClient = field(init=False)
    evaluation: CopyEvaluation[np.ndarray[Any, Any]] = field(init=False)
    checkpoints: CheckpointWriter = field(init=False)
    made_steps: list[tuple[float, int, StepShares]] = field(default_factory=list)
    """When each step was applied, its number and its shares."""
    losses: dict[int, float | None] = field(default_factory=dict)
    """By step."""


def record_steps(rank: Rank) -> None:
    """Keep the shares of the steps that a rank applies."""
    apply_step = rank.world.apply_step

    def apply_and_record(shares: StepShares, loss: float | None, **named: bool) -> None:
        apply_step(shares, loss, **named)
        if shares:
            rank.made_steps.append((time.monotonic(), rank.world.step, shares))
            rank.losses[rank.world.step] = loss

    rank.world.apply_step = apply_and_record  # type: ignore[method-assign]


class AllReduceJob:
    """The master, and ranks that are started and killed; a context manager.

    Args:
        folder: for the sockets.
        records: of one epoch.
        seconds: how long a minibatch takes.
        validation: records that are evaluated.
        callbacks: what each worker declares.
        epoch_rate: the learning rate of each epoch.
        shard_bytes: the least bytes of a shard of a checkpoint.
        settings: changes of the job's settings.
    """

    def __init__(
        self,
        folder: Path,
        records: int = 96,
        *,
        seconds: float = 0.0,
        validation: int = 0,
        callbacks: tuple[DeclaredCallback, ...] = (),
        epoch_rate: Callable[[int], float] | None = None,
        shard_bytes: int = SHARD_BYTES,
        **settings: Any,
    ) -> None:
        self.callbacks, self.epoch_rate, self.shard_bytes = callbacks, epoch_rate, shard_bytes
        self.make_stream: Callable[[], Any] = CountingStream
        self.make_replica: Callable[[int], Any] = lambda index: CountingReplica(records, seconds=self.seconds)
        self.gradient_compression = "none"
        self.find_updates: Callable[[Any], Any] = lambda replica: None
        """Returns what the loop gets as ``several_updates``."""
        self.skip_nan = False
        self.rate_factor: Callable[[int], float] | None = None
        self.find_node: Callable[[int], str] = lambda index: ""
        """The node of each worker."""
        self.make_facts: Callable[[int], RankFacts] = lambda index: RankFacts(f"worker-{index}")
        self.folder, self.records, self.seconds = folder, records, seconds
        self.checkpoints = CheckpointCoordinator(folder / "checkpoints", 2, lambda: self.cuts_in_use())
        self.validation = (("v", validation),) if validation else ()
        self.settings = JobSettings(
            **(
                {"minibatch": 4, "task_records": 16, "ps": 0, "durable": False, "all_reduce": True, "workers": 4}
                | settings
            )
        )
        self.changed = threading.Condition()
        self.journal: list[JournalEntry] = []
        self.events: list[Any] = []
        """What users are told."""
        self.ranks: list[Rank] = []
        self.end: EndJob | None = None
        self.deleted: set[str] = set()
        self.is_down = False
        self.evaluated: list[tuple[str, int, float]] = []
        """Of each evaluated range: worker, step, and the sum of the worker's variable."""
        self.metric: Callable[[int, float], float] = lambda step, total: total
        """The value of an evaluation: of its step, and of the sum that the ranks have reported."""
        self.exported: list[tuple[str, int, int]] = []
        """Of each export and each best model: its kind, the checkpoint that was read (0: none) and its updates."""
        self.written: list[tuple[str, Mapping[str, Any], list[int]]] = []
        """Of each task that writes model files: the worker, the payload, and how often it has applied each record."""
        self.silent: set[str] = set()
        """Workers whose messages do not arrive: they are stopped."""
        self.evaluation_seconds = 0.0
        self.before_report: Callable[[WorldReported], None] = lambda event: None
        """Called under ``changed`` before the master handles a report; a RetryableError loses the message."""
        self.before_answer: Callable[[str, WorldView], None] = lambda worker, view: None
        """Called under ``changed`` before a worker gets its view; a RetryableError loses the answer."""
        self._stopped = False
        self.incarnation = 0
        self.start_master()
        self._ticker = threading.Thread(target=self._tick, daemon=True)
        self._ticker.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._stopped = True
        for rank in self.ranks:
            self._silence(rank)
        with self.changed:
            self.changed.notify_all()
        for rank in self.ranks:
            rank.ended.wait(BOUND)

    # ------------------------------------------------------------------ the master

    def start_master(self) -> None:
        """A new master replays the journal."""
        with self.changed:
            self.incarnation += 1
            self.state = JobStateMachine(self.settings)
            self.directory = MemberDirectory()
            self.state.replay_journal(None, [entry.to_json() for entry in self.journal])
            self._obey(self.state.begin_incarnation(self.incarnation))
            self.is_down = False
            for rank in self.ranks:
                self.handle(PodChanged(self._status(rank)))
            self.handle(PodsSynced())
            if not self.state.is_dataset_known:
                self.handle(DatasetDescribed(training=(("a", self.records),), validation=self.validation))

    def stop_master(self) -> None:
        """Nobody answers until ``start_master``."""
        with self.changed:
            self.is_down = True
            self.changed.notify_all()

    def cuts_in_use(self) -> set[int]:
        """The checkpoint to which training would go back, and the best ones."""
        saved = self.state.checkpoint
        return set(self.state.callbacks.best_cuts) | ({saved.cut} if saved is not None else set())

    def handle(self, event: CoreEvent) -> RequestAnswer | None:
        """Let the master handle an event; returns its answer."""
        with self.changed:
            if self.is_down:
                raise RetryableError("the master is down")
            return self._obey(self.state.handle(event, time.monotonic()))

    def _obey(self, commands: Iterable[Any]) -> RequestAnswer | None:
        answer, is_changed = None, False
        for command in commands:
            # An answer alone wakes nobody: waiting requests ask again, and would wake each other without an end.
            is_changed = is_changed or not isinstance(command, RequestAnswer)
            if isinstance(command, RecordEntry):
                self.journal.append(command.entry)
            elif isinstance(command, EmitEvent):
                self.events.append(command.event)
            elif isinstance(command, EndJob):
                self.end = command
            elif isinstance(command, DeletePod):
                self.deleted.add(command.uid)
            elif isinstance(command, SaveCheckpoint):
                threading.Thread(target=self._save, args=(command, self.incarnation), daemon=True).start()
            elif isinstance(command, CopyCheckpoint):
                threading.Thread(target=self._copy, args=(command, self.incarnation), daemon=True).start()
            elif isinstance(command, RequestAnswer):
                answer = command
        if is_changed:
            self.changed.notify_all()
        return answer

    def _save(self, command: SaveCheckpoint, incarnation: int) -> None:
        """The master's thread that writes the manifest; it ends with its master."""
        event = self.checkpoints.save(command, {}, 0, incarnation)
        if not event.error:
            self.check_saved(command.cut)
        with suppress(RetryableError), self.changed:
            if incarnation == self.incarnation:
                self.handle(event)

    def _copy(self, command: CopyCheckpoint, incarnation: int) -> None:
        """The master's thread that makes the best checkpoint the newest one."""
        event = self.checkpoints.copy(command)
        with suppress(RetryableError), self.changed:
            if incarnation == self.incarnation:
                self.handle(event)

    def check_saved(self, cut: int) -> None:
        """Called when a checkpoint is on disk, before the master hears of it."""

    def _tick(self) -> None:
        while not self._stopped:
            with suppress(RetryableError):
                self.handle(Tick())
            time.sleep(0.05)

    # ------------------------------------------------------------------ what a rank's session calls

    def request_world(self, rank: Rank, make: Callable[[], pb.WorldRequest], wait_seconds: float) -> pb.WorldReply:
        """``MasterSession.request_world``: the real conversions, without gRPC."""
        while True:
            try:
                return self._answer_world(rank, make(), wait_seconds)
            except RetryableError:
                time.sleep(0.02)

    def _answer_world(self, rank: Rank, request: pb.WorldRequest, wait_seconds: float) -> pb.WorldReply:
        self._check_alive(rank)
        request.member.uid = rank.uid
        event = parse_world_report(pb.WorldRequest.FromString(request.SerializeToString()))
        if request.HasField("unreadable"):
            self._replace_checkpoint(rank.uid, request.unreadable)
        version = self.incarnation << 32
        with self.changed:
            self.before_report(event)
            view = self.handle(event)
            assert isinstance(view, WorldView)
            until = time.monotonic() + wait_seconds
            while version + view.version == request.seen and (left := until - time.monotonic()) > 0:
                self.changed.wait(left)
                self._check_alive(rank)
                view = self.handle(WorldViewed(rank.uid))
                assert isinstance(view, WorldView)
            self.before_answer(rank.uid, view)
            for each in self.ranks:
                self.directory.keep_address(each.uid, each.listener.address, self.state.pods.is_live)
            known = RoundId(request.members_known.incarnation, request.members_known.number)
            reply = view_to_reply(view, self.incarnation, self.directory.members_message(view), members_known=known)
        return pb.WorldReply.FromString(reply.SerializeToString())

    def _replace_checkpoint(self, worker: str, refused: pb.UnreadableCheckpoint) -> None:
        with self.changed:
            newest = self.state.checkpoint
            if newest is not None and newest.cut == refused.cut:
                self.handle(self.checkpoints.find_fallback(worker, refused.cut, refused.error))

    def request_lease(self, rank: Rank, known: Callable[[], Iterable[int]], wait_seconds: float) -> pb.LeaseReply:
        """``MasterSession.request_lease``."""
        until = time.monotonic() + wait_seconds
        while True:
            with suppress(RetryableError):
                self._check_alive(rank)
                answer = self.handle(LeaseRequested(rank.uid, frozenset(known())))
                if isinstance(answer, LeaseReply):
                    return pb.LeaseReply(task=lease_to_task(answer))
                if isinstance(answer, StopWork):
                    return pb.LeaseReply(stop=pb.Stop(reason=answer.reason))
            if time.monotonic() > until:
                return pb.LeaseReply(wait=pb.Wait(reason="nothing"))
            with self.changed:
                self.changed.wait(0.02)

    def _check_alive(self, rank: Rank) -> None:
        if rank.is_killed:
            raise KilledError
        if rank.uid in self.silent:
            raise RetryableError("the worker is stopped")

    # ------------------------------------------------------------------ ranks

    def _status(self, rank: Rank) -> PodStatus:
        status = PodStatus(
            rank.uid,
            Role.WORKER,
            rank.index,
            PodPhase.RUNNING,
            reason="Started",
            leaving=rank.gate.closed,
            node=self.find_node(rank.index),
        )
        if rank.is_killed:
            cause = TerminationCause.PREEMPTED if rank.is_preempted else TerminationCause.NONE
            return replace(status, phase=PodPhase.FAILED, exit_code=137, reason="Killed", cause=cause, leaving=False)
        if rank.ended.is_set():
            return replace(status, phase=PodPhase.SUCCEEDED, exit_code=0, reason="Completed", leaving=False)
        return status

    def start_rank(self, prepare: Callable[[Rank], None] = lambda rank: None) -> Rank:
        """Start a worker; ``prepare`` may change it before its threads run."""
        index = len(self.ranks)
        rank = Rank(f"w{index}", index, self.make_replica(index))
        if isinstance(rank.replica, CountingReplica):  # of a Keras model, the callbacks of a test change no variable
            rank.callbacks.replica = rank.replica
        session = _RankSession(self, rank)
        feed = StepFeed(f"worker-{index}", rank.replica)
        rank.listener = CollectiveListener(f"unix:{self.folder}/{index}", TOKEN, handle_frame=feed.handle_frame)
        rank.listener.start()
        rank.connection = RoundConnection(rank.listener)
        # Both are used through the few methods that are here.
        rank.leases = LeaseClient(
            session,  # type: ignore[arg-type]
            lambda task: progress.track_lease(task),
            lambda: progress.known_leases(),
            leases_ahead=ALL_REDUCE_LEASES_AHEAD,
        )
        progress = ProgressReporter(session, rank.leases.mark_lost)  # type: ignore[arg-type]
        checkpoints = rank.checkpoints = CheckpointWriter(self.checkpoints.directory)
        rank.evaluation = CopyEvaluation(
            self.settings.evaluation_steps or 1,
            lambda: rank.replica.counts.copy(),
            lambda task: self._run_copy_task(rank, task, progress),
        )
        rank.world = WorldClient(
            session,
            rank.uid,
            rank.listener.address,
            is_leaving=lambda: rank.gate.closed,
            on_closed=rank.connection.abort,
            copied_state=lambda: checkpoints.progress,
            evaluation_copy=lambda: rank.evaluation.report,
        )
        rank.loop = StepLoop(
            rank.replica,
            RankLinks(rank.world, rank.connection, feed),
            RankWork(
                self._make_shares(rank, progress),
                lambda task: self._run_task(rank, task, progress),
                rank.evaluation,
            ),
            checkpoints,
            rank.gate,
            self.make_facts(index),
            LoopSettings(
                self.settings.max_steps,
                self.skip_nan,
                self.settings.global_batch,
                self.gradient_compression,
                self.shard_bytes,
            ),
            rates=LearningRates(self.rate_factor, self.epoch_rate),
            callbacks=rank.callbacks,
            loss_log=LossLog(None),
            on_left=lambda: None,
            several_updates=self.find_updates(rank.replica),
        )
        record_steps(rank)
        prepare(rank)
        with self.changed:
            self.ranks.append(rank)
        with suppress(RetryableError):
            self.handle(PodChanged(self._status(rank)))
            self.handle(ModelDeclared(rank.uid, self.callbacks))
        for target in (rank.leases.run, rank.world.run, rank.world.send_reports, lambda: self._run(rank)):
            threading.Thread(target=self._quietly, args=(rank, target), daemon=True).start()
        return rank

    def _make_shares(self, rank: Rank, progress: ProgressReporter) -> ShareSource:
        stream: Any = self.make_stream()
        if self.settings.global_batch is None:
            return ShareSource(rank.leases, progress, stream)
        return BatchShareSource(rank.leases, progress, stream, self.settings.minibatch)

    def step_records(self) -> list[tuple[int, list[int]]]:
        """Of each step that counts, in order: its epoch and the numbers of its records."""
        ranges = {entry.lease: entry.work for entry in self.journal if isinstance(entry, LeaseGranted)}
        # A step that did not count was made again by others, later.
        made_steps = sorted(made_step for rank in self.ranks for made_step in rank.made_steps)
        shares_by_step = {step: shares for _, step, shares in made_steps}
        steps = []
        for _, shares in sorted(shares_by_step.items()):
            starts = [(ranges[share.lease][2], share) for share in shares]
            epochs = {ranges[share.lease][0] for share in shares}
            assert len(epochs) == 1, "a step has records of two epochs"
            records = [at for start, share in starts for at in range(start + share.start, start + share.end)]
            steps.append((epochs.pop(), records))
        return steps

    def _run_task(self, rank: Rank, task: LeasedTask, progress: ProgressReporter) -> None:
        """Evaluation: the sum of the variable, counted once for each record that was evaluated."""
        self._check_alive(rank)
        if rank.gate.closed:
            raise LeavingError
        assert not task.of_copy
        if task.kind == MODEL_FILE:
            self._write_files(rank, task)
        elif task.kind in (EXPORT, BEST_MODEL):
            self._export(rank, task)
        else:
            time.sleep(self.evaluation_seconds)
            self._report_evaluation(rank, task, float(rank.replica.counts.sum()))
        progress.drop_lease(task.lease_id)
        rank.leases.release_slot(task)

    def _export(self, rank: Rank, task: LeasedTask) -> None:
        """Read the checkpoint that the task names, or this rank's state."""
        payload = task.decode_payload() if task.payload else {}
        cut = payload.get("checkpoint", payload.get("cut", 0))
        rank.replica.fail_at(task.kind)
        arrays = rank.checkpoints.read(cut) if cut else rank.replica.state_arrays()
        self.exported.append((task.kind, cut, self.count_updates(arrays)))
        is_best = task.kind == BEST_MODEL
        result: Any = {"place": payload["place"], "cut": cut, "path": "best"} if is_best else ["export"]
        with suppress(RetryableError):
            self.handle(TaskReported(rank.uid, task.lease_id, None, result))

    def count_updates(self, arrays: Mapping[str, np.ndarray[Any, Any]]) -> int:
        """The number of steps in a state."""
        return int(arrays["updates"][0])

    def _write_files(self, rank: Rank, task: LeasedTask) -> None:
        """Keep this rank's state in the place of files."""
        payload = task.decode_payload()
        rank.replica.fail_at(task.kind)
        self._check_alive(rank)
        assert payload["step"] == rank.replica.updates
        self.written.append((rank.uid, payload, [int(count) for count in rank.replica.counts]))
        rank.replica.fail_at("written")
        result = {"written": payload["written"], "paths": [file["filepath"] for file in payload["files"]]}
        with suppress(RetryableError):
            self.handle(TaskReported(rank.uid, task.lease_id, None, result))

    def _run_copy_task(self, rank: Rank, task: LeasedTask, progress: ProgressReporter) -> None:
        """Evaluation of the copy that the rank has, and nothing without one; called on the thread of the evaluation."""
        until = time.monotonic() + self.evaluation_seconds
        while (copy := rank.evaluation.find_copy(task.step)) is not None and time.monotonic() < until:
            time.sleep(0.001)
        if copy is not None and not rank.is_killed:
            self._report_evaluation(rank, task, float(copy.sum()))
        progress.drop_lease(task.lease_id)
        rank.leases.release_slot(task)

    def _report_evaluation(self, rank: Rank, task: LeasedTask, total: float) -> None:
        if task.kind == "evaluation":
            self.evaluated.append((rank.uid, task.step, total))
            result: Any = {"total": {"additive": True, "states": [[total]]}}
        else:
            result = {"total": self.metric(task.step, total)}
        with suppress(RetryableError):
            self.handle(TaskReported(rank.uid, task.lease_id, None, result))

    def _quietly(self, rank: Rank, target: Callable[[], Any]) -> None:
        with suppress(KilledError):
            target()

    def _run(self, rank: Rank) -> None:
        try:
            rank.loop.run()
        except (LeavingError, KilledError):
            pass
        except BaseException as error:
            if not rank.is_killed:
                rank.error = error
        finally:
            rank.loop.close()
            rank.leases.stop()
            rank.world.stop()
            rank.listener.stop()
            rank.ended.set()
            if not rank.is_killed:
                with suppress(EdlError):
                    self.handle(PodChanged(self._status(rank)))

    def _silence(self, rank: Rank) -> None:
        rank.is_killed = True
        rank.leases.stop()
        rank.connection.abort(rank.world.round, "killed")
        rank.listener.stop()

    def kill(self, rank: Rank, *, is_preempted: bool = False) -> None:
        """SIGKILL: its connections break, and the cluster says that its pod has ended."""
        rank.is_preempted = is_preempted
        self._silence(rank)
        with suppress(RetryableError):
            self.handle(PodChanged(self._status(rank)))

    def tell_to_leave(self, rank: Rank) -> None:
        """SIGTERM."""
        threading.Thread(target=rank.gate.close, args=(0.0,), daemon=True).start()
        rank.gate._closed.set()
        with suppress(RetryableError):
            self.handle(PodChanged(self._status(rank)))

    def living_ranks(self) -> list[Rank]:
        """The ranks that were not killed."""
        return [rank for rank in self.ranks if not rank.is_killed]

    # ------------------------------------------------------------------ what tests wait for

    def wait(self, condition: Callable[[], Any], seconds: float = BOUND) -> None:
        """Wait until something holds."""
        until = time.monotonic() + seconds
        while not condition():
            failed = [rank for rank in self.ranks if rank.error is not None]
            if failed:
                raise AssertionError(f"{failed[0].uid} failed") from failed[0].error
            rounds = self.state.world
            ranks = [(rank.uid, rank.world.phase, rank.world.step) for rank in self.ranks]
            assert time.monotonic() < until, (self.state.evaluation, self.state.world_pauses, rounds, ranks)
            time.sleep(0.005)

    def wait_killed(self, rank: Rank, seconds: float = BOUND) -> None:
        """Wait until a rank is killed and the master knows: one that starts before is told to leave."""
        self.wait(lambda: rank.is_killed and not self.state.pods.is_live(rank.uid), seconds)

    def end_with_this_epoch(self) -> None:
        """Let the job have no further epoch, as if it were resumed with fewer."""
        with self.changed:
            training = self.state.ledgers[TRAINING]
            training.epochs = min(training.epochs, training.epoch + 1)
            # The ledger counts on its epochs.
            training.restore_snapshot(training.to_snapshot())
            self.settings = self.state.settings = replace(self.settings, epochs=training.epochs)

    def wait_for_seconds(self, seconds: float) -> None:
        """Let time pass, at most until the job ends."""
        until = time.monotonic() + seconds
        self.wait(lambda: self.end is not None or time.monotonic() >= until)

    def wait_for_round(self, workers: int) -> None:
        """Wait until a round with so many workers runs."""
        self.wait(
            lambda: (
                self.state.world is not None and sum(map(self.state.world.trains, self.state.world.members)) == workers
            )
        )

    def wait_for_step(self, step: int) -> None:
        """Wait until steps are in the ledger."""
        self.wait(lambda: self.state.step >= step)

    def hurry(self) -> None:
        """The test has what it waited for: from now on a minibatch takes no time."""
        self.seconds = 0.0
        for rank in self.ranks:
            rank.replica.seconds = 0.0

    def wait_for_end(self, seconds: float = BOUND) -> None:
        """Wait until the job is done, and check that every record was applied exactly once in each epoch."""
        self.wait(lambda: self.end is not None, seconds)
        assert self.end is not None
        assert self.end.phase == "Done", self.end
        training = self.state.ledgers[TRAINING]
        assert training.done_records == self.records * self.settings.epochs
        # A worker that was not ready before the end never got a state.
        remaining = [
            rank for rank in self.ranks if not rank.is_killed and not rank.gate.closed and rank.replica.updates
        ]
        assert remaining
        for rank in remaining:
            rank.ended.wait(BOUND)
            assert rank.error is None, rank.error
            np.testing.assert_array_equal(rank.replica.counts, np.full(self.records, self.settings.epochs))


class _RankSession:
    """The calls of one worker to the master."""

    def __init__(self, job: AllReduceJob, rank: Rank) -> None:
        self._job, self._rank = job, rank

    def request_world(self, request: Callable[[], pb.WorldRequest], wait_seconds: float) -> pb.WorldReply:
        return self._job.request_world(self._rank, request, wait_seconds)

    def request_lease(self, wait_seconds: float, known_leases: Callable[[], Iterable[int]] = tuple) -> pb.LeaseReply:
        return self._job.request_lease(self._rank, known_leases, wait_seconds)

    def report_progress(self, lease_progress: Any) -> pb.ProgressReply:
        self._job.handle(ProgressReported(self._rank.uid, parse_lease_progress(lease_progress)))
        return pb.ProgressReply()

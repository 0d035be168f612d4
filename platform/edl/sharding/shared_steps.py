"""Steps that all workers of a job take together: the collective of strategy AllReduce, for a program of the user's.

The loop of the rank runs on a thread of its own and is that of Keras models. The program's thread computes and applies
(``program_handoff``).
"""

from __future__ import annotations

import logging
import math
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from edl.api.job_spec import JobSpec
from edl.collective.collective_listener import CollectiveListener
from edl.core.state_agreement import RankFacts
from edl.data.record_columns import join_records
from edl.sharding.program_handoff import Contribution, ProgramHandoff, StepsClosedError, WorldChangedError
from edl.sharding.program_replica import OfferedStep, ProgramReplica, Reduction, StepNumbers, read_arrays
from edl.sharding.record_batch import RecordBatch
from edl.sharding.record_prefetch import PrefetchedBatch, WindowRecords
from edl.storage.run_directory import RunDirectory
from edl.transport.listener import TcpAddress, parse_address
from edl.transport.process_identity import ProcessIdentity
from edl.worker.allreduce.checkpoint_writer import CheckpointWriter
from edl.worker.allreduce.copy_evaluation import CopyEvaluation
from edl.worker.allreduce.leaving import wait_until_left
from edl.worker.allreduce.round_connection import RoundConnection, ring_address
from edl.worker.allreduce.share_source import BatchShareSource, ShareSource
from edl.worker.allreduce.step_feed import StepFeed
from edl.worker.allreduce.step_loop import LearningRates, LoopSettings, RankLinks, RankWork, StepLoop
from edl.worker.allreduce.vector_instructions import read_instructions
from edl.worker.allreduce.world_client import WorldClient
from edl.worker.graceful_shutdown import LeavingError, ShutdownGate
from edl.worker.lease_client import LeaseClient, LeasedTask, ProgressReporter
from edl.worker.loss_log import LossLog
from edl.worker.master_session import MasterSession
from edl.worker.record_stream import LoadedStep, RecordStream
from edl.worker.task_loop import TaskLoop

_LOG = logging.getLogger(__name__)

Arrays = Mapping[str, Any] | Sequence[Any]

_FIRST_PORT, _PORTS = 29500, 500


@dataclass(frozen=True, slots=True)
class ProgramWorld:
    """The workers that take steps together.

    Attributes:
        round: its number, which is never used again.
        rank: of this worker, from 0.
        size: the number of workers.
        members: their uids, by rank.
        addresses: where each of them listens for the others, by rank.
        reason: why the world has changed.
    """

    round: int
    rank: int
    size: int
    members: tuple[str, ...]
    addresses: tuple[str, ...]
    reason: str

    @property
    def environment(self) -> dict[str, str]:
        """The variables that ``torchrun`` sets for its processes, for this round.

        Nothing listens at the port: rank 0 of a group of the program's own does. It differs from that of the round
        before, whose socket may still be open.
        """
        hosts = [_host(address) for address in self.addresses]
        own = hosts[self.rank]
        return {
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.size),
            "LOCAL_RANK": str(hosts[: self.rank].count(own)),
            "LOCAL_WORLD_SIZE": str(hosts.count(own)),
            "MASTER_ADDR": hosts[0],
            "MASTER_PORT": str(_FIRST_PORT + self.round % _PORTS),
            "GROUP_RANK": str(list(dict.fromkeys(hosts)).index(own)),
            "ROLE_RANK": str(self.rank),
            "ROLE_WORLD_SIZE": str(self.size),
            "TORCHELASTIC_RESTART_COUNT": str(self.round),
        }

    def set_environment(self) -> None:
        """Set the variables in this process, and so for the processes that it starts from now on."""
        os.environ.update(self.environment)


def _host(address: str) -> str:
    """The host of a member's address; members of one machine have sockets of files."""
    parsed = parse_address(address)
    return parsed.host if isinstance(parsed, TcpAddress) else "127.0.0.1"


class SharedStep:
    """One step of all workers; a context manager.

    Leave the block normally, and the step counts: its records are done on all workers. If workers are lost meanwhile,
    :meth:`allreduce` raises :class:`WorldChangedError`, which ends the block and nothing else: the same records come
    again in a later step. So change the program's state only with what :meth:`allreduce` has returned.

    Attributes:
        number: steps that were made before it; equal on all workers.
        epoch: from 0.
        batch: the records of this worker, with ``strategy.global_batch`` its share of that; None: it has none now, or
            it follows the others before it joins them.
        world: the workers that take this step; None: this worker follows them and does not add anything yet.
    """

    def __init__(
        self,
        steps: SharedSteps,
        offered: OfferedStep,
        world: ProgramWorld | None,
    ) -> None:
        self._steps = steps
        self.number, self.epoch = offered.number, offered.epoch
        self.world = world
        self.batch: RecordBatch | None = None
        if offered.window is not None:
            window = offered.window.window
            self.batch = RecordBatch(window.records, offered.epoch, window.source, window.start, window.skipped_records)
        self._is_open = self._is_reduced = False

    def allreduce(self, arrays: Arrays | None, *, weight: float | None = None, loss: float | None = None) -> Any:
        """Combine the arrays of all workers, and return the result, which is equal on all of them.

        Call it once in each step, also without records.

        Args:
            arrays: a sequence or mapping like ``arrays_like``, of NumPy arrays or of arrays of another framework; None:
                this worker adds nothing, as without records.
            weight: of this worker's arrays in the mean; by default the number of its records.
            loss: the loss of its records, for status and plots.

        Returns:
            NumPy arrays in the form of ``arrays_like``. They are valid until the block ends.

        Raises:
            WorldChangedError: the step does not happen.
            BadInputError: the arrays differ from ``arrays_like``.
            ValueError: called twice, outside of the block, or the weight is not above 0.
        """
        if not self._is_open or self._is_reduced:
            raise ValueError("call allreduce once in the `with` block of a step")
        if arrays is not None and self.batch is None and weight is None:
            raise ValueError("this worker has no records in this step: give None, or a weight")
        if weight is None:
            weight = float(len(self.batch)) if self.batch is not None else 0.0
        if arrays is not None and not (math.isfinite(weight) and weight > 0):
            raise ValueError(f"the weight of a worker's arrays is above 0, not {weight}")
        own_arrays = None if arrays is None else read_arrays(arrays, self._steps.views)
        self._is_reduced = True
        self._steps.add(Contribution(own_arrays, weight, 0.0 if loss is None else float(loss)))
        return self._steps.results()

    def __enter__(self) -> Self:
        self._is_open = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        self._is_open = False
        if isinstance(error, WorldChangedError):
            return True
        if error is None and not self._is_reduced:
            raise ValueError("a step ended without allreduce: every worker takes part in every step")
        if error is None:
            self._steps.applied()
        return False


@dataclass(frozen=True, slots=True)
class StepProgram:
    """The program whose arrays the steps combine: what it gave to :meth:`edl.sharding.Client.steps`, which explains it.

    Attributes:
        arrays_like: arrays with the shapes and types of those that a step combines.
        state_dict: returns the program's state.
        load_state_dict: replaces it.
        reduction: what the program gets of the arrays of all workers.
        on_world: called on the program's thread when this worker is in a new world.
    """

    arrays_like: Arrays
    state_dict: Callable[[], Any]
    load_state_dict: Callable[[Any], None]
    reduction: Reduction
    on_world: Callable[[ProgramWorld], None]


class SharedSteps:
    """The steps of one worker; iterate over it on the thread that created it.

    Args:
        identity: of this process.
        spec: the job.
        session, leases, progress, stream: the worker's.
        program: what takes the steps.

    Raises:
        BadInputError: the arrays cannot be summed, or the state cannot be read.
    """

    def __init__(
        self,
        identity: ProcessIdentity,
        spec: JobSpec,
        session: MasterSession,
        leases: LeaseClient,
        progress: ProgressReporter,
        stream: RecordStream,
        program: StepProgram,
    ) -> None:
        self._on_world = program.on_world
        self._by_name = isinstance(program.arrays_like, Mapping)
        likes = dict(program.arrays_like) if isinstance(program.arrays_like, Mapping) else _number(program.arrays_like)
        self._handoff = ProgramHandoff()
        self._numbers = StepNumbers(self._start_round)
        self._replica = ProgramReplica(
            self._handoff, self._numbers, likes, program.reduction, program.state_dict, program.load_state_dict
        )
        self._world: ProgramWorld | None = None
        self._gate = ShutdownGate()
        self._left = threading.Event()
        worker = f"worker-{identity.index}"
        feed = StepFeed(worker, self._replica)
        self._listener = CollectiveListener(ring_address(identity), identity.token, handle_frame=feed.handle_frame)
        self._listener.start()
        self._checkpoints = CheckpointWriter(RunDirectory(identity.run_dir).checkpoints)
        connection = RoundConnection(self._listener)
        self._client = WorldClient(
            session,
            identity.uid,
            self._listener.address,
            is_leaving=lambda: self._gate.closed,
            on_closed=connection.abort,
            copied_state=lambda: self._checkpoints.progress,
        )
        shares = (
            ShareSource(leases, progress, stream)
            if spec.strategy.global_batch is None
            else ProgramShareSource(leases, progress, stream, spec.train.minibatch_size)
        )
        tasks = TaskLoop(session, leases, progress, self._gate, {})
        self._loop = StepLoop(
            self._replica,
            RankLinks(self._client, connection, feed),
            RankWork(shares, tasks.run_task, CopyEvaluation(1, lambda: None, tasks.run_task)),
            self._checkpoints,
            self._gate,
            RankFacts(worker, versions={"numpy": np.__version__}, instructions=read_instructions(), threads={}),
            LoopSettings.of_job(spec),
            rates=LearningRates(),
            callbacks=self._numbers,
            loss_log=LossLog(spec.log.loss_every_steps),
            on_left=self._left.set,
        )
        self._threads = [
            threading.Thread(target=target, name=name, daemon=True)
            for name, target in (
                ("world", self._client.run),
                ("world reports", self._client.send_reports),
                ("steps", self._run),
            )
        ]

    def start(self) -> None:
        """Take part in the rounds, on threads of its own."""
        for thread in self._threads:
            thread.start()

    # ------------------------------------------------------------------ the program's thread

    def __iter__(self) -> Iterator[SharedStep]:
        while (offered := self._handoff.next_step()) is not None:
            yield SharedStep(self, offered, self.world)

    @property
    def world(self) -> ProgramWorld | None:
        """The world that this worker takes steps in, at the end the last one; None if it is in none."""
        return None if self._client.is_outside else self._world

    @property
    def views(self) -> Mapping[str, NDArray[Any]]:
        """The arrays of a step, by name."""
        return self._replica.views

    def results(self) -> Any:
        """The arrays of a step, in the form in which the program gives them."""
        return dict(self.views) if self._by_name else list(self.views.values())

    def add(self, contribution: Contribution) -> None:
        """See :meth:`SharedStep.allreduce`."""
        self._handoff.add(contribution)

    def applied(self) -> None:
        """The program has applied the open step."""
        self._handoff.applied()

    def stop_training(self) -> None:
        """Let all workers take no further step."""
        self._numbers.has_stopped = True

    def close(self) -> None:
        """Leave the world, if this worker is in it: the others see a broken connection."""
        if self._threads[-1].ident is not None:
            self._handoff.close()
            self._threads[-1].join()
        self._end_loop()

    # ------------------------------------------------------------------ other threads

    def begin_leaving(self) -> None:
        """This worker was told to end: it leaves at the next boundary. Waits until it has."""
        self._gate.close(0.0)
        wait_until_left(self._left, self._checkpoints, self._loop.step_seconds)

    def _run(self) -> None:
        failure: BaseException | None = None
        try:
            self._loop.run()
        except StepsClosedError:
            _LOG.debug("the program takes no more steps")
        except BaseException as error:  # noqa: BLE001  raised on the program's thread
            failure = error
        # A program that is told to end asks for more records, and learns it there.
        self._handoff.abandon("this worker takes no more steps")
        self._end_loop()
        self._handoff.end(None if isinstance(failure, LeavingError) else failure)

    def _end_loop(self) -> None:
        self._loop.close()
        self._left.set()
        self._client.stop()
        self._listener.stop()

    def _start_round(self, rank: int) -> None:
        view = self._client.view
        world = ProgramWorld(view.round.number, rank, len(view.members), view.members, view.addresses, view.reason)

        def enter() -> None:
            self._world = world
            world.set_environment()
            self._on_world(world)

        self._handoff.call(enter)


def _number(arrays: Sequence[Any]) -> dict[str, Any]:
    return {str(index): array for index, array in enumerate(arrays)}


class ProgramShareSource(BatchShareSource):
    """A share of a global batch as one minibatch, because a program calls ``allreduce`` once in a step.

    The records of a share may be of several leases, and are read in parts.
    """

    def _load(self, ranges: Iterable[LeasedTask]) -> Iterator[tuple[LeasedTask, LoadedStep]]:
        parts = list(super()._load(ranges))
        batches = [loaded.minibatch for _, loaded in parts if isinstance(loaded.minibatch, PrefetchedBatch)]
        if not batches:
            return
        window = batches[0].features.window._replace(
            records=join_records([batch.records for batch in batches]),
            skipped_records=sum(loaded.skipped_records for _, loaded in parts),
        )
        task, first = parts[0]
        joined = PrefetchedBatch(batches[0].tag, WindowRecords(window))
        yield task, LoadedStep(first.step, joined, len(window.records), window.skipped_records)

"""The part of a worker that needs no TensorFlow; it runs while TensorFlow is being imported.

It registers, leases the first ranges and reads their first records. Afterwards it keeps leases alive and
reports progress.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edl.api.errors import EdlError
from edl.api.job_spec import BatchSpec, JobSpec
from edl.core.grants import MAX_TRAINING_LEASES
from edl.data.reader import Reader
from edl.jobfile.batch_rules import lease_records
from edl.jobfile.loader import load_job_file
from edl.jobfile.strategy_choice import uses_all_reduce
from edl.transport import edl_pb2 as pb
from edl.transport.control_client import ControlChannel
from edl.transport.process_identity import ProcessIdentity
from edl.worker.data_readers import DATA_SET_BY_MODE, may_have_custom_reader, open_data_set
from edl.worker.data_wait import measure_wait
from edl.worker.graceful_shutdown import ShutdownGate
from edl.worker.lease_client import LEASES_AHEAD, TRAINING_KIND, LeaseClient, LeasedTask, ProgressReporter
from edl.worker.master_session import MasterSession, PsPlacement, make_master_call
from edl.worker.record_stream import CorruptRecordSkipper, RecordStream, TaggedWindows

if TYPE_CHECKING:
    from edl.keras.model_contract import ModelModule
    from edl.worker.feed_pipeline import FeedFunction

ALL_REDUCE_LEASES_AHEAD = MAX_TRAINING_LEASES
"""Under AllReduce: as many training leases as the master grants, and one task of another kind."""
_PLACEMENT_POLL_SECONDS = 0.05  # seconds between two registrations while parameter servers are starting


class WorkerRuntime:
    """The threads and objects that talk to the master.

    Args:
        identity: identity of this process.
        spec: the job's spec.
        gate: the shutdown gate of this process.
        channel: the channel to the master.
    """

    def __init__(self, identity: ProcessIdentity, spec: JobSpec, gate: ShutdownGate, channel: ControlChannel) -> None:
        self.identity = identity
        self.spec = spec
        self.gate = gate
        self.model_module: Future[ModelModule] = Future()
        member = pb.Member(role=identity.role.value, index=identity.index, uid=identity.uid)
        all_reduce = uses_all_reduce(spec)
        self.session = MasterSession(
            member,
            make_master_call(channel),
            lost_timeout=spec.master.lost_timeout,
            # ``leases`` is made below, because it needs ``session``. AllReduce has no parameter servers.
            on_new_placement=(lambda: None) if all_reduce else (lambda: self.leases.schedule_placement_check()),
        )
        self.leases = LeaseClient(
            self.session,
            self._on_lease_granted,
            # ``progress`` is made below, because it needs ``leases``.
            lambda: self.progress.known_leases(),
            leases_ahead=ALL_REDUCE_LEASES_AHEAD if all_reduce else LEASES_AHEAD,
            position_describer=self._describe_positions,
        )
        self.progress = ProgressReporter(self.session, self.leases.mark_lost)
        self._corrupt_records = CorruptRecordSkipper(spec.data.max_corrupt_records)
        self._feeds_by_mode: dict[str, FeedFunction] = {}
        self.streams = {kind: self._make_stream(kind) for kind in DATA_SET_BY_MODE}
        # A built-in reader can be opened while the user's module is still being imported.
        self._may_read_early = not may_have_custom_reader(spec.model)
        self._readers_by_set: dict[str, Reader] = {}
        self.world_exit: Future[Callable[[], None]] = Future()
        """Once this worker takes part in AllReduce: a function that waits until it takes part in no step any more."""
        self._open_lock = threading.Lock()

    @classmethod
    def from_identity(cls, identity: ProcessIdentity, gate: ShutdownGate) -> WorkerRuntime:
        """Read the job and create a connection; nothing is sent before ``start``.

        Raises:
            EdlError: the job cannot be read.
        """
        spec = load_job_file(identity.run_dir / "spec.json")
        return cls(identity, spec, gate, ControlChannel(identity.master_address, identity.token))

    def start(self) -> None:
        """Start the threads that talk to the master."""
        for name, target in (("leases", self._register_and_lease), ("progress", self.progress.run)):
            threading.Thread(target=target, name=name, daemon=True).start()

    def _register_and_lease(self) -> None:
        try:
            self.session.register()
        except EdlError as error:
            self.leases.set_error(error)
        else:
            self.leases.run()

    def wait_for_placement(self) -> PsPlacement:
        """Wait until every parameter server has an address; returns the placement."""
        wait = threading.Event()
        while not (placement := self.session.placement).is_complete:
            wait.wait(_PLACEMENT_POLL_SECONDS)
            # Only the answer to a registration has the placement.
            self.session.register()
        return placement

    def return_leases(self, timeout_seconds: float) -> None:
        """Return all leases, once this worker has left the world of AllReduce."""
        if self.world_exit.done():
            self.world_exit.result()()
        self.session.leave("received SIGTERM", self.progress.unreported_progress(), deadline=timeout_seconds)

    def open_reader(self, data_set: str) -> Reader:
        """The reader of ``training``, ``validation`` or ``prediction``, opened once.

        Waits for the user's module only if that may define a reader of its own.
        """
        with self._open_lock:
            if data_set not in self._readers_by_set:
                custom = None if self._may_read_early else self.model_module.result().custom_data_reader
                self._readers_by_set[data_set] = open_data_set(
                    self.spec.data, data_set, custom, Path(self.spec.model.zoo), self.spec.train, self.identity.run_dir
                )
            return self._readers_by_set[data_set]

    def _on_lease_granted(self, task: LeasedTask) -> None:
        self.progress.track_lease(task)
        stream = self.streams.get(task.kind)
        # With a global batch, the ranges to read are known with each step.
        if stream is not None and (task.kind != TRAINING_KIND or self.spec.strategy.global_batch is None):
            stream.add_task(task)
            if self._may_read_early:
                stream.read_first_window(task)

    def _describe_positions(self, epoch: int, start: int, end: int) -> str:
        return self.streams["training"].describe_positions(epoch, start, end)

    def first_minibatch(self) -> tuple[LeasedTask, Any] | None:
        """The first minibatch that is not empty, with its range as a task; None if there is none."""
        from edl.worker.feed_pipeline import find_first_minibatch

        size = self.spec.train.minibatch_size
        return find_first_minibatch(
            self.open_reader("training"), self._open_feed("training"), self._corrupt_records, size=size
        )

    def first_features(self, mode: str = "training") -> Any:
        """Features of the first records, for models that are built by their first call; None if there are none."""
        from edl.worker.feed_pipeline import find_first_features

        size = self.spec.train.minibatch_size
        return find_first_features(
            self.open_reader(DATA_SET_BY_MODE[mode]), self._open_feed(mode), self._corrupt_records, size=size
        )

    def check_validation_data(self) -> None:
        """Compare the first validation records with the training records, if the job evaluates.

        Raises:
            EdlError: they cannot be read, or differ; names the data set and the file.
        """
        if not self.spec.data.validation:
            return
        from edl.worker.validation_check import check_validation_data

        first = self.first_minibatch()
        check_validation_data(
            self.open_reader("validation"),
            self._open_feed("evaluation"),
            self.open_reader("training"),
            None if first is None else first[1],
            max_corrupt_records=self.spec.data.max_corrupt_records,
            size=self.spec.train.minibatch_size,
        )

    def _open_feed(self, mode: str) -> FeedFunction:
        """``feed`` for one mode; traced by the first caller's thread."""
        from edl.worker.feed_pipeline import FeedFunction

        if mode not in self._feeds_by_mode:
            module = self.model_module.result()
            self._feeds_by_mode[mode] = FeedFunction(
                module.feed,
                mode,
                self.open_reader(DATA_SET_BY_MODE[mode]).metadata,
                zoo=module.zoo,
                pad=self.spec.train.batches.pad,
            )
        return self._feeds_by_mode[mode]

    def _make_stream(self, mode: str) -> RecordStream:
        def pipeline(windows: TaggedWindows) -> Any:
            from edl.worker.feed_pipeline import feed_in_background

            minibatches = feed_in_background(self._open_feed(mode), windows)
            return measure_wait(minibatches, self.progress.add_warning) if mode == "training" else minibatches

        train = self.spec.train
        batches = train.batches if mode == "training" else BatchSpec()
        return RecordStream(
            lambda: self.open_reader(DATA_SET_BY_MODE[mode]),
            self._corrupt_records,
            pipeline,
            self.leases.is_held,
            seed=train.seed,
            batches=batches,
            portion_records=lease_records(train) if batches.bucket_by is not None else 0,
        )

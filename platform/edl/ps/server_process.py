"""The process of a parameter server: its two servers, its registration, and its shutdown."""

from __future__ import annotations

import logging
import math
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from types import FrameType

from edl.api.errors import EdlError, JobFailedError, RetryableError
from edl.api.job_spec import JobSpec, ParameterServerSpec
from edl.core.backoff import ExponentialBackoff
from edl.numerics.embedding_table import RowRetention
from edl.ps.bulk_handler import MAX_REQUEST_BYTES, BulkRequestHandler
from edl.ps.control_service import PsControlService
from edl.ps.init_from_rows import make_initial_rows_reader
from edl.ps.model_state import StoreFactory
from edl.ps.parameter_server import ParameterServer
from edl.ps.shard_writer import ShardWriter
from edl.ps.statistics_collector import PsStatisticsCollector
from edl.retry.attempts import Retry
from edl.storage.run_directory import RunDirectory
from edl.transport import edl_pb2 as pb
from edl.transport.bulk_server import BulkServer
from edl.transport.control_client import ControlChannel
from edl.transport.control_methods import MasterMethods
from edl.transport.control_server import start_control_server
from edl.transport.edl_pb2_grpc import add_PsControlServicer_to_server
from edl.transport.listener import BULK_PORT, CONTROL_PORT, TcpAddress
from edl.transport.peer_errors import PeerRefusedError
from edl.transport.process_identity import ProcessIdentity, count_available_cores

# --------------------------------------------------------------------------------------------------
# Registration with the master, repeated every second for as long as both processes live. It is
# cheap, and a restarted master finds its existing PS by it; the master attaches after a
# registration that is new to it. The statistics for users travel with it. After SIGTERM, the
# process registers as leaving and keeps serving until the master releases it, when its state is in
# a checkpoint. Without a master no checkpoint can be taken, so it exits at once.


_REGISTER_PERIOD = 1.0  # seconds after an accepted registration
_REGISTER_BACKOFF = ExponentialBackoff(first_seconds=0.1, max_seconds=0.3)
_REGISTER_DEADLINE = 2.0  # seconds for one call
_LEAVE_PERIOD = 0.1  # seconds between two registrations of a leaving process: its grace period is short
_LEAVE_DEADLINE = 5.0  # seconds for one such call: a slow master is not a lost one
_MASTER_LOST_SECONDS = 1.0  # seconds without an answer after which a leaving process exits
# Refusals that no retry can change: the job's token, and the version of the protocol.
_PERMANENT_KINDS = frozenset({"token", "version"})


def make_registration(identity: ProcessIdentity, control_address: str, bulk_address: str) -> pb.RegisterRequest:
    """The registration message of a parameter server."""
    return pb.RegisterRequest(
        member=pb.Member(role=identity.role.value, index=identity.index, uid=identity.uid),
        pid=os.getpid(),
        control_address=control_address,
        bulk_address=bulk_address,
    )


def keep_registered(
    channel: ControlChannel,
    registration: pb.RegisterRequest,
    stop_requested: threading.Event,
    *,
    lost_timeout: float,
    collect_figures: Callable[[], pb.PsFigures] = pb.PsFigures,
    record_incarnation: Callable[[int], None] = lambda incarnation: None,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Register until ``stop_requested`` is set and the master releases this process.

    Logs when the master is lost and found.

    Args:
        channel: the channel to the master.
        registration: the message that is sent each time.
        stop_requested: set on SIGTERM.
        lost_timeout: seconds without a master after which this process exits, because the job is gone.
        collect_figures: returns the current statistics; called for each registration.
        record_incarnation: called with the incarnation of the master that answered.
        clock: returns monotonic seconds.

    Raises:
        PeerRefusedError: the master refuses the token or speaks another version.
        JobFailedError: no master answered for ``lost_timeout`` seconds.
    """
    logged_problem: object = ()
    last_reply_at = clock()
    has_registered = False
    retry = Retry(_REGISTER_BACKOFF, stop_requested.wait)
    while not stop_requested.is_set():
        problem = _register_once(channel, registration, collect_figures(), record_incarnation)
        if problem is None:
            has_registered, last_reply_at = True, clock()
        elif clock() - last_reply_at > lost_timeout:
            raise JobFailedError(
                f"no master for {lost_timeout:g} s (master.lost_timeout): {problem.message}", where=channel.address
            )
        # The text changes with every attempt while the master is away; log only a change of meaning.
        if type(problem) is not logged_problem:
            log.info("%s", f"waiting for the master: {problem}" if problem else f"registered with {channel.address}")
            logged_problem = type(problem)
        if problem:
            retry.wait()
        else:
            retry.reset()
            stop_requested.wait(_REGISTER_PERIOD)
    if has_registered:
        _serve_until_released(channel, registration, collect_figures, clock)


def _register_once(
    channel: ControlChannel,
    registration: pb.RegisterRequest,
    metrics: pb.PsFigures,
    record_incarnation: Callable[[int], None],
) -> EdlError | None:
    """One attempt; returns the problem if a retry makes sense."""
    registration.figures.CopyFrom(metrics)
    try:
        record_incarnation(channel.call(MasterMethods.Register, registration, timeout=_REGISTER_DEADLINE).incarnation)
    except RetryableError as error:
        return error
    except PeerRefusedError as error:
        if error.kind in _PERMANENT_KINDS:
            raise
        return error
    return None


def _serve_until_released(
    channel: ControlChannel,
    registration: pb.RegisterRequest,
    collect_figures: Callable[[], pb.PsFigures],
    clock: Callable[[], float],
) -> None:
    """Keep serving until the master releases this process or stops answering."""
    registration.leaving = True
    log.info("received SIGTERM: serving until the parameters are in a checkpoint")
    last_reply_at = clock()
    while True:
        registration.figures.CopyFrom(collect_figures())
        try:
            reply = channel.call(MasterMethods.Register, registration, timeout=_LEAVE_DEADLINE)
        except PeerRefusedError as error:
            log.info("exiting: the master refuses this process: %s", error)
            return
        except RetryableError as error:
            if clock() - last_reply_at >= _MASTER_LOST_SECONDS:
                log.info("exiting: no master is available to take a checkpoint: %s", error)
                return
        else:
            if reply.may_end:
                log.info("exiting: released by the master")
                return
            last_reply_at = clock()
        time.sleep(_LEAVE_PERIOD)


log = logging.getLogger(__name__)

_CONTROL_THREADS = 8
_MAX_TABLE_THREADS = 8  # of one table: beyond that memory is busy


def run_server(identity: ProcessIdentity, spec: JobSpec, stop_requested: threading.Event) -> None:
    """Serve until ``stop_requested`` is set.

    Raises:
        RefusedError: an address cannot be used, or the master refuses this process permanently.
        JobFailedError: the master is lost.
    """
    retention = RowRetention(spec.ps.max_rows, spec.ps.evict_after_steps, spec.ps.count)
    store_factory = StoreFactory(
        spec.ps.store,
        table_thread_count(spec.ps, count_available_cores(), in_pod=identity.pod_host is not None),
        retention,
    )
    chosen = store_factory.choose_store_kind()
    log.info("tables are %s (%s), %d threads", chosen.value, chosen.reason, store_factory.table_threads)
    run = RunDirectory(identity.run_dir)
    server = ParameterServer(
        identity.index,
        ShardWriter(identity.index),
        store_factory=store_factory,
        read_initial_rows=make_initial_rows_reader(run, spec, identity.index),
        strategy=spec.strategy,
    )
    control_address, bulk_address = listen_addresses(identity)
    with ExitStack() as resources:
        resources.callback(server.close)
        handler = BulkRequestHandler(server, max_lease_steps=spec.train.minibatches_per_task)
        bulk = BulkServer(
            bulk_address,
            identity.token,
            handler,
            max_body_bytes=MAX_REQUEST_BYTES,
            on_disconnect=handler.handle_disconnect,
        )
        bulk.start()
        resources.callback(bulk.stop)
        # ``before_stop`` answers the requests that wait inside the server, so that stopping is
        # prompt.
        plane = PsControlService(server, identity.uid, run.checkpoints)
        control = start_control_server(
            partial(add_PsControlServicer_to_server, plane),
            control_address,
            identity.token,
            _CONTROL_THREADS,
            before_stop=server.close,
        )
        resources.callback(control.stop)
        # Registered last: the master may call as soon as it knows the addresses.
        channel = resources.enter_context(ControlChannel(identity.master_address, identity.token))
        log.info("serves on %s and %s", control.address, bulk.address)
        registration = make_registration(identity, control.address, bulk.address)
        keep_registered(
            channel,
            registration,
            stop_requested,
            lost_timeout=spec.master.lost_timeout,
            collect_figures=PsStatisticsCollector(server).collect_message,
            record_incarnation=server.record_incarnation,
        )
    log.info("stopped")


def listen_addresses(identity: ProcessIdentity) -> tuple[str, str]:
    """The addresses for the master and the workers: ports of the pod, or Unix sockets of this process."""
    if identity.pod_host is not None:
        return str(TcpAddress(identity.pod_host, CONTROL_PORT)), str(TcpAddress(identity.pod_host, BULK_PORT))
    base = identity.runtime_dir / identity.socket_name("ps")
    return f"unix:{base}.ctl", f"unix:{base}.blk"


def table_thread_count(ps_spec: ParameterServerSpec, available_cores: int, *, in_pod: bool) -> int:
    """Threads that share a large batch: the cores available to this parameter server, at least one.

    Args:
        ps_spec: the job's ``ps`` section.
        available_cores: cores that this process may run on.
        in_pod: whether it runs in a pod, which has ``ps.resources.cpu`` of the node's cores. Otherwise
            the parameter servers of the job divide the machine.
    """
    share = math.ceil(ps_spec.resources.cpu) if in_pod else available_cores // ps_spec.count
    return max(1, min(available_cores, share, _MAX_TABLE_THREADS))


def stop_on_signals() -> threading.Event:
    """An event that is set on SIGTERM and SIGINT; call from the main thread."""
    stop_requested = threading.Event()

    def stop(number: int, _: FrameType | None) -> None:
        stop_requested.set()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    return stop_requested

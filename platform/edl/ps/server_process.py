"""The process of a parameter server: two sockets, a registration, and a clean end."""

from __future__ import annotations

import logging
import math
import os
import signal
import threading
from contextlib import ExitStack
from functools import partial
from types import FrameType

from edl.jobfile.job_spec import JobSpec, ParameterServerSpec
from edl.numerics.row_retention import RowRetention
from edl.ps.bulk_handler import MAX_REQUEST_BYTES, BulkRequestHandler
from edl.ps.control_service import PsControlService
from edl.ps.master_registration import keep_registered, make_registration
from edl.ps.parameter_server import ParameterServer
from edl.ps.shard_writer import ShardWriter
from edl.ps.statistics_collector import PsStatisticsCollector
from edl.ps.store_factory import StoreFactory
from edl.storage.run_directory import RunDirectory
from edl.transport.address import BULK_PORT, CONTROL_PORT, TcpAddress
from edl.transport.bulk_client import BulkServer
from edl.transport.control_client import open_control_channel, start_control_server
from edl.transport.edl_pb2_grpc import add_PsControlServicer_to_server
from edl.transport.process_identity import ProcessIdentity

log = logging.getLogger(__name__)

_CONTROL_THREADS = 8
_MAX_TABLE_THREADS = 8  # of one table: beyond that memory is busy
_UID_SUFFIX_LENGTH = 8  # characters of the uid in socket names: paths of Unix sockets are short


def run_server(identity: ProcessIdentity, spec: JobSpec, stopping: threading.Event) -> None:
    """Serve until ``stopping`` is set.

    Raises:
        RefusedError: an address cannot be used, or the master refuses this process for good.
        JobFailedError: the master is lost.
    """
    retention = RowRetention(spec.ps.max_rows, spec.ps.evict_after_steps, spec.ps.count)
    stores = StoreFactory(
        spec.ps.store, table_thread_count(spec.ps, count_available_cores(), alone=identity.host is not None), retention
    )
    chosen = stores.choose_store_kind()
    log.info("tables are %s (%s), %d threads", chosen.value, chosen.reason, stores.threads)
    server = ParameterServer(identity.index, ShardWriter(identity.index), stores=stores, strategy=spec.strategy)
    control_address, bulk_address = listen_addresses(identity)
    with ExitStack() as running:
        running.callback(server.close)
        handler = BulkRequestHandler(server, most_steps=spec.train.minibatches_per_task)
        bulk = BulkServer(bulk_address, identity.token, handler, max_body=MAX_REQUEST_BYTES, parted=handler.parted)
        bulk.start()
        running.callback(bulk.stop)
        plane = PsControlService(server, identity.uid, RunDirectory(identity.run_dir).checkpoints)
        control = start_control_server(
            partial(add_PsControlServicer_to_server, plane),
            control_address,
            identity.token,
            _CONTROL_THREADS,
            before_stop=server.close,
        )
        running.callback(control.stop)
        channel = running.enter_context(open_control_channel(identity.master_address, identity.token))
        log.info("serves on %s and %s", control.address, bulk.address)
        registration = make_registration(identity, control.address, bulk.address)
        keep_registered(
            channel,
            registration,
            stopping,
            lost_timeout=spec.master.lost_timeout,
            figures=PsStatisticsCollector(server).now,
            heard_of_master=server.heard_of_master,
        )
    log.info("ends")


def listen_addresses(identity: ProcessIdentity) -> tuple[str, str]:
    """Where the master and workers reach this process: ports of its pod, or sockets that no two processes share."""
    if identity.host is not None:
        return str(TcpAddress(identity.host, CONTROL_PORT)), str(TcpAddress(identity.host, BULK_PORT))
    base = identity.runtime_dir / f"ps-{identity.index}-{identity.uid[-_UID_SUFFIX_LENGTH:]}"
    return f"unix:{base}.ctl", f"unix:{base}.blk"


def count_available_cores() -> int:
    """Cores that this process may run on; a cpuset or ``taskset`` can leave it fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def table_thread_count(ps: ParameterServerSpec, cores: int, *, alone: bool) -> int:
    """Threads that share a large batch: as many as this parameter server has cores, at least one.

    Args:
        ps: of the job.
        cores: that this process may run on.
        alone: it is in a pod, which was promised ``ps.resources.cpu`` of the node's cores; else the parameter servers
            of the job divide the machine.
    """
    share = math.ceil(ps.resources.cpu) if alone else cores // ps.count
    return max(1, min(cores, share, _MAX_TABLE_THREADS))


def stop_on_signals() -> threading.Event:
    """An event that SIGTERM and SIGINT set; call it from the main thread."""
    stopping = threading.Event()

    def stop(number: int, _: FrameType | None) -> None:
        stopping.set()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    return stopping

"""The control plane under 8 client processes, beside a bare gRPC echo server with the same 8 clients.

The master's own parts (servicer, shell, core, a journal on disk with fsync) run in a process of their own over a ledger
of a million tasks; only pods and parameter servers are played. Clients work through real cycles: lease a task of four
steps, report progress after two, report the end. Every one of the three requests is entered into the journal and
answered when it is on disk. The echo server is gRPC alone: the same messages come back as the bytes that they are,
with the same thread pool and options, no token, no journal. The same client processes, through the same
``ControlChannel``, turn to one and then to the other, round by round.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

import grpc
import psutil
from figures import BenchFigure, ScriptResult, percentile
from script import main, print_progress

from edl.api.cluster_port import PodPhase, PodStatus, Role
from edl.core.events import (
    AttachPs,
    CheckpointSaveFinished,
    CoreCommand,
    CoreEvent,
    CutPrepared,
    DatasetDescribed,
    HoldUpdates,
    PodChanged,
    PodsSynced,
    PrepareCut,
    PsAttached,
    PsRegistered,
    SaveCheckpoint,
    SnapshotTaken,
    TakeSnapshot,
    UpdatesHeld,
)
from edl.core.job import JobStateMachine
from edl.core.state import JobSettings
from edl.master.checkpoint_coordinator import CheckpointCoordinator
from edl.master.master_process import tune_interpreter
from edl.master.master_service import MasterService
from edl.master.ps_client import PsControlClient
from edl.master.shell import MasterShell
from edl.storage.journal import Journal
from edl.transport import edl_pb2 as pb
from edl.transport.control_client import ControlChannel
from edl.transport.control_methods import ControlMethod, MasterMethods, ReplyT, RequestT
from edl.transport.control_server import start_control_server
from edl.transport.edl_pb2_grpc import add_MasterServicer_to_server
from edl.transport.grpc_options import SERVER_OPTIONS

CLIENTS = 8
THREADS = 16 + 3 * CLIENTS  # as edl.master.master_process chooses
MINIBATCH, STEPS = 16, 4
TASKS = 1_000_000
TOKEN = "benchmark"
DEADLINE = 30.0
CONTEXT = multiprocessing.get_context("spawn")
ECHO = "edl.bench.Echo"
REQUESTS = ("Lease", "Progress", "Report")


# ---------------------------------------------------------------------------------------------------- the two servers


class ScriptedServers:
    """A parameter server that answers everything at once, from a thread of its own as the real ones do."""

    def __init__(self) -> None:
        self.shell: MasterShell | None = None
        self._pool = ThreadPoolExecutor(1)

    def execute(self, command: CoreCommand) -> None:
        answer = answer_to(command)
        if answer is not None:
            assert self.shell is not None
            self._pool.submit(self.shell.handle, answer)


def answer_to(command: CoreCommand) -> CoreEvent | None:
    """What a parameter server says; None where it says nothing."""
    match command:
        case AttachPs():
            return PsAttached("ps-0", initialized=True, version=0)
        case PrepareCut(cut):
            return CutPrepared("ps-0", cut)
        case HoldUpdates(cut):
            return UpdatesHeld("ps-0", cut, {})
        case TakeSnapshot(cut):
            return SnapshotTaken("ps-0", cut, 0, 0.0)
        case SaveCheckpoint(cut):
            return CheckpointSaveFinished(cut)
    return None


class NoPods:
    """A cluster in which nothing is started or stopped."""

    def execute(self, command: CoreCommand) -> None:
        pass


def serve_master(address: str, folder: str, pipe: Connection) -> None:
    tune_interpreter()  # as edl.master.master_process does
    journal, _ = Journal.open(Path(folder), holder="benchmark")
    settings = JobSettings(minibatch=MINIBATCH, task_records=MINIBATCH * STEPS, workers=CLIENTS)
    servers = ScriptedServers()
    shell = servers.shell = MasterShell(
        JobStateMachine(settings), journal, pods=NoPods(), ps_client=servers, emit_event=lambda what: None
    )
    shell.begin_incarnation(journal.incarnation)
    add_pods_and_tasks(shell)
    checkpoints = CheckpointCoordinator(Path(folder) / "checkpoints", keep=1, protected=set)
    unmet = PsControlClient(TOKEN, journal.incarnation, settings.ps, checkpoints)  # the played one has no address
    servicer = MasterService(shell, unmet, journal.incarnation)
    server = start_control_server(
        lambda server: add_MasterServicer_to_server(servicer, server),  # type: ignore[no-untyped-call]
        address,
        TOKEN,
        THREADS,
        before_stop=shell.stop_waiting,
    )
    pipe.send(server.address)
    stopped = threading.Event()

    def await_stop() -> None:
        pipe.recv()
        stopped.set()

    threading.Thread(target=await_stop, daemon=True).start()
    shell.run(stopped.is_set)
    assert shell.state.training_ledger is not None
    done = shell.state.training_ledger.done_records
    server.stop()
    syncs = journal.fsync_latency
    journal.close()
    pipe.send({"fsync_median": syncs.median, "fsync_p99": syncs.p99, "records_done": done})


def add_pods_and_tasks(shell: MasterShell) -> None:
    """A job whose pods are there and whose data set is a million tasks."""
    shell.handle(PodChanged(PodStatus("ps-0", Role.PS, 0, PodPhase.RUNNING)))
    for index in range(CLIENTS):
        shell.handle(PodChanged(PodStatus(f"worker-{index}", Role.WORKER, index, PodPhase.RUNNING)))
    shell.handle(PodsSynced())
    shell.handle(PsRegistered("ps-0"))
    shell.handle(DatasetDescribed(training=(("records", TASKS * MINIBATCH * STEPS),)))


def serve_echo(address: str, folder: str, pipe: Connection) -> None:
    pool = ThreadPoolExecutor(THREADS)
    server = grpc.server(pool, options=SERVER_OPTIONS)
    echo: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(lambda request, context: request)
    handlers = dict.fromkeys(REQUESTS, echo)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(ECHO, handlers),))
    server.add_insecure_port(address)
    server.start()
    pipe.send(address)
    pipe.recv()
    server.stop(0).wait()
    pipe.send({})


# ---------------------------------------------------------------------------------------------------- the clients

Cycle = Callable[[ControlChannel, pb.Member, list[float]], None]


def timed_call(
    channel: ControlChannel, method: ControlMethod[RequestT, ReplyT], request: RequestT, took: list[float]
) -> ReplyT:
    began = time.perf_counter()
    reply = channel.call(method, request, timeout=DEADLINE)
    took.append(time.perf_counter() - began)
    return reply


def do_master_task(channel: ControlChannel, member: pb.Member, took: list[float]) -> None:
    """One task of the real master."""
    leased = timed_call(channel, MasterMethods.Lease, lease_request(member), took)
    if not leased.HasField("task"):
        raise AssertionError(f"the master has no work: {leased}")
    number = leased.task.lease
    timed_call(channel, MasterMethods.Progress, progress_request(member, number), took)
    report = timed_call(channel, MasterMethods.Report, report_request(member, number), took)
    if not report.accepted:
        raise AssertionError(f"the master refused a report: {report.reason}")


_ECHOES: dict[str, ControlMethod[Any, Any]] = {
    name: ControlMethod(f"/{ECHO}/{name}", message, message)
    for name, message in zip(REQUESTS, (pb.LeaseRequest, pb.ProgressRequest, pb.ReportRequest), strict=True)
}


def do_echo_task(channel: ControlChannel, member: pb.Member, took: list[float]) -> None:
    """The same three messages to the echo server."""
    number = (1 << 32) + len(took)
    timed_call(channel, _ECHOES["Lease"], lease_request(member), took)
    timed_call(channel, _ECHOES["Progress"], progress_request(member, number), took)
    timed_call(channel, _ECHOES["Report"], report_request(member, number), took)


def lease_request(member: pb.Member) -> pb.LeaseRequest:
    return pb.LeaseRequest(member=member, wait_seconds=5.0, known_incarnation=1)


def progress_request(member: pb.Member, lease: int) -> pb.ProgressRequest:
    steps = pb.LeaseProgress(lease=lease, through=2, loss_sum=1.25, loss_steps=2)
    return pb.ProgressRequest(member=member, leases=[steps])


def report_request(member: pb.Member, lease: int) -> pb.ReportRequest:
    last = pb.LeaseProgress(lease=lease, through=STEPS, loss_sum=1.25, loss_steps=2)
    return pb.ReportRequest(member=member, lease=lease, last=last)


CYCLES: dict[str, Cycle] = {"master": do_master_task, "echo": do_echo_task}


def serve_client(index: int, addresses: dict[str, str], pipe: Connection) -> None:
    """Serve commands ``(target, begin, end)``, times of the shared monotonic clock, until told None."""
    member = pb.Member(role="worker", index=index, uid=f"worker-{index}")
    channels = {name: ControlChannel(address, TOKEN) for name, address in addresses.items()}
    pipe.send("ready")
    while (command := pipe.recv()) is not None:
        target, begin, end = command
        cycle, channel = CYCLES[target], channels[target]
        took: list[float] = []
        time.sleep(max(0.0, begin - time.monotonic()))
        while time.monotonic() < end:
            cycle(channel, member, took)
        pipe.send((took, time.monotonic()))
    for channel in channels.values():
        channel.close()


# ---------------------------------------------------------------------------------------------------- the measurement


@dataclass(frozen=True)
class TargetRound:
    """One target, measured once."""

    target: str
    requests_per_second: float
    median: float
    p99: float
    slowest: float
    server_cpu_us: float
    """Processor time that the server spent on one request, in microseconds: what others on the machine blur least."""


@dataclass(frozen=True)
class ServerProcess:
    """A server's process."""

    name: str
    process: psutil.Process
    pipe: Connection

    def cpu_seconds(self) -> float:
        times = self.process.cpu_times()
        return times.user + times.system


def spawn_process(target: Callable[..., None], *arguments: Any) -> tuple[Any, Connection]:
    ours, theirs = CONTEXT.Pipe()
    process = CONTEXT.Process(target=target, args=(*arguments, theirs), daemon=True)
    process.start()
    theirs.close()
    return process, ours


@contextmanager
def running_servers(folder: Path) -> Iterator[tuple[list[Connection], dict[str, ServerProcess]]]:
    """Both servers and all clients; yields the pipes of the clients."""
    servers = {
        "master": spawn_process(serve_master, f"unix:{folder}/master", str(folder / "journal")),
        "echo": spawn_process(serve_echo, f"unix:{folder}/echo", ""),
    }
    addresses = {name: pipe.recv() for name, (_, pipe) in servers.items()}
    clients = [spawn_process(serve_client, index, addresses) for index in range(CLIENTS)]
    try:
        for _, pipe in clients:
            pipe.recv()
        yield (
            [pipe for _, pipe in clients],
            {name: ServerProcess(name, psutil.Process(process.pid), pipe) for name, (process, pipe) in servers.items()},
        )
    finally:
        for process, pipe in (*clients, *servers.values()):
            with suppress(OSError):  # it has left already
                pipe.send(None)
            process.join(20)


def measure_round(server: ServerProcess, clients: Sequence[Connection], seconds: float) -> TargetRound:
    begin, cpu = time.monotonic() + 0.1, server.cpu_seconds()
    for pipe in clients:
        pipe.send((server.name, begin, begin + seconds))
    answers = [pipe.recv() for pipe in clients]
    took = [seconds for each, _ in answers for seconds in each]
    span = max(ended for _, ended in answers) - begin
    cpu = (server.cpu_seconds() - cpu) / len(took)
    return TargetRound(server.name, len(took) / span, median(took), percentile(took, 0.99), max(took), 1e6 * cpu)


def measure(arguments: argparse.Namespace) -> ScriptResult:
    each = arguments.seconds / arguments.rounds
    rounds: list[TargetRound] = []
    with (
        tempfile.TemporaryDirectory(dir=arguments.folder) as folder,
        running_servers(Path(folder)) as (clients, servers),
    ):
        for server in servers.values():
            measure_round(server, clients, min(1.0, each))  # connects and warms up
        for number in range(arguments.rounds):
            for name in CYCLES if number % 2 == 0 else reversed(CYCLES):
                rounds.append(measure_round(servers[name], clients, each))
                print_progress(round_text(rounds[-1]))
        servers["master"].pipe.send(None)
        master_values = servers["master"].pipe.recv()
    return ScriptResult(
        "control_plane", figures(rounds, master_values), {"rounds": [vars(r) for r in rounds], "master": master_values}
    )


def round_text(taken: TargetRound) -> str:
    return (
        f"{taken.target}: {taken.requests_per_second:.0f} requests/s, p99 {1e3 * taken.p99:.1f} ms, "
        f"{taken.server_cpu_us:.0f} us of server CPU a request"
    )


def figures(rounds: Sequence[TargetRound], told: dict[str, float]) -> tuple[BenchFigure, ...]:
    def median_value(target: str, name: str) -> float:
        value: float = median(getattr(r, name) for r in rounds if r.target == target)
        return value

    ours, bare = ([r.requests_per_second for r in rounds if r.target == target] for target in ("master", "echo"))
    ratio = median(a / b for a, b in zip(ours, bare, strict=True))  # neighbours: a slow minute is slow for both
    return (
        BenchFigure("control plane: requests/s, of a bare gRPC echo server's", ratio, "x", limit=0.5, at_least=True),
        BenchFigure("control plane: p99", 1e3 * median_value("master", "p99"), "ms", limit=25),
        BenchFigure("control plane: requests/s", median(ours), "1/s"),
        BenchFigure("bare echo: requests/s", median(bare), "1/s"),
        BenchFigure("bare echo: p99", 1e3 * median_value("echo", "p99"), "ms"),
        BenchFigure("journal: fdatasync, median", 1e3 * told["fsync_median"], "ms"),
        BenchFigure("journal: fdatasync, p99", 1e3 * told["fsync_p99"], "ms"),
    )


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=60.0, help="of all rounds, for each of the two; default 60")
    parser.add_argument("--folder", help="where the journal is written: a disk, not memory; default: TMPDIR")


if __name__ == "__main__":
    main(__doc__, measure, rounds=6, options=options)

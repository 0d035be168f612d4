"""How fast tensors travel between two processes: bulk frames, bare sockets and unary gRPC, over TCP and Unix sockets.

The server answers each message with as many bytes as it is asked for, from memory that it keeps, as a PS answers with
its slab; the client receives into memory that it keeps. A push carries 16 MB there and nothing back, a pull nothing
there and 16 MB back. The bare sockets do the same with a head of 16 bytes and nothing else: no kinds, no messages, no
proof of a token, no limits. For each plane, transport and exchange: the median round trip in microseconds and the bytes
of both directions per second (GB = 1e9 bytes).
"""

from __future__ import annotations

import argparse
import multiprocessing
import socket
import statistics
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import Connection

import grpc
from figures import BenchFigure, ScriptResult
from script import main, print_progress

from edl.transport.bulk_client import BulkClient
from edl.transport.bulk_connection import FrameKind, OutgoingFrame, ReceivedFrame
from edl.transport.bulk_server import BulkServer

TOKEN = "benchmark"
LARGE = 16_000_000
EXCHANGES = {
    "empty": (0, 0),
    "400 KB": (400_000, 400_000),
    "16 MB": (LARGE, LARGE),
    "push": (LARGE, 0),
    "pull": (0, LARGE),
}
"""Bytes there and back."""
METHOD = "/edl.bench/Exchange"
UNLIMITED = (("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1))
META = struct.Struct("<QQ24x")  # bytes there and back; as long as the head of a push
HEAD = struct.Struct("<QQ")
Call = Callable[[memoryview, int], object]
"""Sends a body and gets that many bytes back."""
Taken = dict[str, dict[str, dict[str, float]]]
"""By transport, exchange and name of the number."""


def serve_bulk(address: str, pipe: Connection) -> None:
    slab = memoryview(bytearray(LARGE))

    def answer_frame(frame: ReceivedFrame) -> OutgoingFrame:
        _, back = META.unpack(frame.meta)
        return OutgoingFrame(FrameKind.PUSHED, frame.meta, [slab[:back]])

    server = BulkServer(address, TOKEN, answer_frame, max_body_bytes=LARGE)
    server.start()
    pipe.send(server.address)
    pipe.recv()
    server.stop()


@contextmanager
def bulk_calls(address: str) -> Iterator[Call]:
    slab = memoryview(bytearray(LARGE))
    with BulkClient(address, TOKEN, timeout=30.0) as client:
        yield lambda body, back: client.request(FrameKind.PUSH, META.pack(body.nbytes, back), [body], into=slab[:back])


def serve_bare(address: str, pipe: Connection) -> None:
    slab = memoryview(bytearray(LARGE))
    with bare_listener(address) as listener:
        name = listener.getsockname()
        pipe.send(address if address.startswith("unix:") else f"{name[0]}:{name[1]}")
        connection, _ = listener.accept()
        with connection:
            if connection.family == socket.AF_INET:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            head = memoryview(bytearray(HEAD.size))
            while receive_into(connection, head):
                request_size, response_size = HEAD.unpack(head)
                receive_into(connection, slab[:request_size])
                connection.sendall(head)
                connection.sendall(slab[:response_size])
    pipe.recv()


def bare_listener(address: str) -> socket.socket:
    if address.startswith("unix:"):
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(address.removeprefix("unix:"))
        listener.listen()
        return listener
    return socket.create_server(("127.0.0.1", 0))


def receive_into(connection: socket.socket, room: memoryview) -> bool:
    """Receive until ``room`` is full; False if the other side is gone."""
    while room:
        count = connection.recv_into(room, 0, socket.MSG_WAITALL)
        if not count:
            return False
        room = room[count:]
    return True


@contextmanager
def bare_calls(address: str) -> Iterator[Call]:
    slab, head = memoryview(bytearray(LARGE)), memoryview(bytearray(HEAD.size))
    if address.startswith("unix:"):
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(address.removeprefix("unix:"))
    else:
        host, port = address.split(":")
        connection = socket.create_connection((host, int(port)))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def exchange_bodies(body: memoryview, back: int) -> None:
        connection.sendall(HEAD.pack(body.nbytes, back))
        connection.sendall(body)
        if not (receive_into(connection, head) and receive_into(connection, slab[:back])):
            raise ConnectionError("the server is gone")

    with connection:
        yield exchange_bodies


def serve_grpc(address: str, pipe: Connection) -> None:
    bodies = {back: bytes(back) for _, back in EXCHANGES.values()}
    server = grpc.server(ThreadPoolExecutor(2), options=UNLIMITED)
    handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(
        lambda request, context: bodies[HEAD.unpack_from(request)[1]]
    )
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("edl.bench", {"Exchange": handler}),))
    port = server.add_insecure_port(address)
    server.start()
    pipe.send(address if address.startswith("unix:") else f"127.0.0.1:{port}")
    pipe.recv()
    server.stop(0).wait()


@contextmanager
def grpc_calls(address: str) -> Iterator[Call]:
    with grpc.insecure_channel(address, options=UNLIMITED) as channel:
        method: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(METHOD)
        yield lambda body, back: method(HEAD.pack(body.nbytes, back) + body, timeout=30.0)


PLANES = {"bulk": (serve_bulk, bulk_calls), "bare": (serve_bare, bare_calls), "grpc": (serve_grpc, grpc_calls)}


def measure(call: Call, exchange: tuple[int, int], seconds: float) -> dict[str, float]:
    request_size, response_size = exchange
    body = memoryview(bytearray(LARGE))[:request_size]
    call(body, response_size)
    took: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        begun = time.perf_counter()
        call(body, response_size)
        took.append(time.perf_counter() - begun)
    median = statistics.median(took)
    return {
        "round_trip_us": round(median * 1e6, 1),
        "gb_per_second": round((request_size + response_size) / median / 1e9, 3),
        "round_trips": len(took),
    }


def run_plane(plane: str, address: str, seconds: float) -> dict[str, dict[str, float]]:
    serve, calls = PLANES[plane]
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(address, theirs))
    process.start()
    try:
        with calls(ours.recv()) as call:
            return {name: measure(call, exchange, seconds) for name, exchange in EXCHANGES.items()}
    finally:
        ours.send("end")
        process.join()


def measure_planes(arguments: argparse.Namespace) -> ScriptResult:
    """The planes take turns in every round."""
    rounds = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(arguments.rounds):
            results: dict[str, Taken] = {plane: {} for plane in PLANES}
            for kind in ("tcp", "unix"):
                for plane in PLANES:
                    address = f"unix:{folder}/{plane}-{number}" if kind == "unix" else "127.0.0.1:0"
                    results[plane][kind] = run_plane(plane, address, arguments.seconds)
            rounds.append(results)
            print_progress(f"round {number + 1} of {arguments.rounds}")
    return ScriptResult("bulk_plane", tuple(figures(rounds)), {"rounds": rounds})


def figures(rounds: list[dict[str, Taken]]) -> Iterator[BenchFigure]:
    """The shares of bare TCP, each the median of ratios of one round; then what matters to training on one machine."""

    def median_value(plane: str, kind: str, exchange: str, name: str) -> float:
        return statistics.median(results[plane][kind][exchange][name] for results in rounds)

    for exchange in ("push", "pull"):
        shares = [
            results["bare"]["tcp"][exchange]["round_trip_us"] / results["bulk"]["tcp"][exchange]["round_trip_us"]
            for results in rounds
        ]
        name = f"bulk plane: {exchange} of 16 MB, of a bare TCP socket's bandwidth"
        yield BenchFigure(name, statistics.median(shares), "x", 0.85, at_least=True, aim=0.95)
    for plane, name in (("bulk", "bulk plane"), ("bare", "bare TCP")):
        for exchange in ("push", "pull"):
            yield BenchFigure(
                f"{name}: {exchange} of 16 MB", median_value(plane, "tcp", exchange, "gb_per_second"), "GB/s"
            )
    for plane, name in (("bulk", "bulk plane"), ("grpc", "unary gRPC")):
        yield BenchFigure(
            f"{name}: round trip of an empty message", median_value(plane, "unix", "empty", "round_trip_us"), "us"
        )
        yield BenchFigure(
            f"{name}: 16 MB there and back", median_value(plane, "unix", "16 MB", "gb_per_second"), "GB/s"
        )


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--seconds", type=float, default=0.4, help="for each plane, transport and exchange; default 0.4"
    )


if __name__ == "__main__":
    main(__doc__, measure_planes, rounds=5, options=options)

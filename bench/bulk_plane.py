"""How fast tensors travel between two processes: bulk frames beside unary gRPC, over a Unix socket and over TCP.

The server answers each frame with a body of the same size from memory that it keeps, as a PS answers a push with its
slab; the client receives into memory that it keeps. For each plane, transport and size: the median round trip in
microseconds and the bytes of both directions per second (GB = 1e9 bytes).
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import Connection

import grpc
from figures import Figure, Result
from script import main, say

from edl.rpc.bulk import Answer, BulkClient, BulkServer, Frame, Kind

TOKEN = "benchmark"
SIZES = {"empty": 0, "400 KB": 400_000, "16 MB": 16_000_000}
LARGEST = max(SIZES.values())
METHOD = "/edl.bench/Echo"
UNLIMITED = (("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1))


def serve_bulk(address: str, pipe: Connection) -> None:
    slab = memoryview(bytearray(LARGEST))

    def handle(frame: Frame) -> Answer:
        return Answer(Kind.PUSHED, frame.meta, [slab[: frame.body.nbytes]])

    server = BulkServer(address, TOKEN, handle, max_body=LARGEST)
    server.start()
    pipe.send(server.address)
    pipe.recv()
    server.stop()


def serve_grpc(address: str, pipe: Connection) -> None:
    server = grpc.server(ThreadPoolExecutor(2), options=UNLIMITED)
    echo = grpc.unary_unary_rpc_method_handler(lambda request, context: request)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("edl.bench", {"Echo": echo}),))
    port = server.add_insecure_port(address)
    server.start()
    pipe.send(address if address.startswith("unix:") else f"127.0.0.1:{port}")
    pipe.recv()
    server.stop(0).wait()


@contextmanager
def bulk_calls(address: str) -> Iterator[Callable[[memoryview], object]]:
    slab = memoryview(bytearray(LARGEST))
    with BulkClient(address, TOKEN, timeout=30.0) as client:
        yield lambda body: client.request(Kind.PUSH, b"0123456789" * 4, [body], into=slab)


@contextmanager
def grpc_calls(address: str) -> Iterator[Callable[[memoryview], object]]:
    with grpc.insecure_channel(address, options=UNLIMITED) as channel:
        call = channel.unary_unary(METHOD)
        yield lambda body: call(bytes(body), timeout=30.0)


PLANES = {"bulk": (serve_bulk, bulk_calls), "grpc": (serve_grpc, grpc_calls)}


def measure(call: Callable[[memoryview], object], size: int, seconds: float) -> dict[str, float]:
    body = memoryview(bytearray(LARGEST))[:size]
    call(body)
    took: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        begun = time.perf_counter()
        call(body)
        took.append(time.perf_counter() - begun)
    median = statistics.median(took)
    return {
        "round_trip_us": round(median * 1e6, 1),
        "gb_per_second": round(2 * size / median / 1e9, 2),
        "round_trips": len(took),
    }


def run(plane: str, address: str, seconds: float) -> dict[str, dict[str, float]]:
    serve, calls = PLANES[plane]
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(address, theirs))
    process.start()
    try:
        with calls(ours.recv()) as call:
            return {name: measure(call, size, seconds) for name, size in SIZES.items()}
    finally:
        ours.send("end")
        process.join()


def measured(arguments: argparse.Namespace) -> Result:
    """The planes take turns in every round."""
    rounds = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(arguments.rounds):
            addresses = {"unix": f"unix:{folder}/{number}", "tcp": "127.0.0.1:0"}
            rounds.append(
                {
                    plane: {kind: run(plane, address, arguments.seconds) for kind, address in addresses.items()}
                    for plane in PLANES
                }
            )
            say(f"round {number + 1} of {arguments.rounds}")
    return Result("bulk_plane", tuple(figures(rounds)), {"rounds": rounds})


def figures(rounds: list[dict[str, dict[str, dict[str, dict[str, float]]]]]) -> Iterator[Figure]:
    """What matters to training: a small frame, and a large one, over the Unix socket that local roles use."""

    def middle(plane: str, size: str, name: str) -> float:
        return statistics.median(taken[plane]["unix"][size][name] for taken in rounds)

    for plane, name in (("bulk", "bulk plane"), ("grpc", "unary gRPC")):
        yield Figure(f"{name}: round trip of an empty message", middle(plane, "empty", "round_trip_us"), "us")
        yield Figure(f"{name}: 16 MB there and back", middle(plane, "16 MB", "gb_per_second"), "GB/s")


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=1.0, help="for each plane, transport and size; default 1")


if __name__ == "__main__":
    main(__doc__, measured, rounds=3, options=options)

"""One rank of ``allreduce.py``: reduces with ``edl.collective``, or moves as many bytes through a bare socket.

python bench/allreduce_rank.py edl RANK ADDRESS native|numpy
python bench/allreduce_rank.py bare RANK
"""

from __future__ import annotations

import socket
import statistics
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from peer import serve_questions

from edl.api.round_id import RoundId
from edl.collective.collective_listener import CollectiveListener
from edl.collective.communicator import Communicator
from edl.collective.reduction_plan import Algorithm
from edl.worker.allreduce.gradient_sums import GradientSums

TOKEN = "benchmark"


def median_seconds(do: Callable[[], object], warm: int, count: int) -> float:
    """The median time of one call."""
    for _ in range(warm):
        do()
    took = []
    for _ in range(count):
        begun = time.perf_counter()
        do()
        took.append(time.perf_counter() - begun)
    return statistics.median(took)


@dataclass(frozen=True)
class GradientBuffer:
    """A replica whose buffer is all gradients."""

    buffers: tuple[Any, ...]
    gradient_counts: tuple[int, ...]
    skips_infinite_gradients: bool = False


def serve_edl(rank: int, address: str, native: bool) -> None:
    """Questions: ``members`` once, then ``bytes``, ``warm`` and ``count``.

    ``wire_type``: of compressed gradients; ``algorithm``: another one than that for this size.
    """
    buffers: dict[int, Any] = {}
    with CollectiveListener(address, TOKEN, shared_memory=native) as listener:
        communicators: list[Communicator] = []

        def answer_question(question: dict[str, Any]) -> dict[str, Any]:
            if "members" in question:
                members = question["members"]
                # Gaps between questions are long: a benchmark must not be lost to a busy moment.
                communicators.append(
                    Communicator.connect(
                        listener, RoundId(1, 1), rank, members, timeout=30, heartbeat_timeout=30, native=native
                    )
                )
                return {}
            size = question["bytes"]
            if size not in buffers:
                buffers[size] = np.zeros(size // 4, np.float32) + 0.0
            buffer = buffers[size]
            reduce = communicators[0].all_reduce
            if "wire_type" in question:
                sums = GradientSums(GradientBuffer((buffer,), (buffer.size,)), question["wire_type"])

                def reduce_compressed() -> None:
                    sums.reduce(communicators[0], b"", 0, has_gradient=True)
                    sums.end_step(0, is_applied=True)

                return {"seconds": median_seconds(reduce_compressed, question["warm"], question["count"])}
            algorithm = Algorithm[question["algorithm"]] if "algorithm" in question else None
            return {
                "seconds": median_seconds(
                    lambda: reduce(buffer, algorithm=algorithm), question["warm"], question["count"]
                )
            }

        serve_questions(answer_question, address=listener.address)
        for communicator in communicators:
            communicator.close()


def serve_bare(rank: int) -> None:
    """Questions: ``port`` for the second rank, then as above. Both send and receive at once, and add nothing."""
    listener = socket.create_server(("127.0.0.1", 0)) if rank == 0 else None
    sockets: list[socket.socket] = []

    def answer_question(question: dict[str, Any]) -> dict[str, Any]:
        if "port" in question:
            sock = listener.accept()[0] if listener else socket.create_connection(("127.0.0.1", question["port"]))
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sockets.append(sock)
            return {}
        outgoing, incoming = (memoryview(bytearray(question["bytes"])) for _ in range(2))
        return {
            "seconds": median_seconds(
                lambda: exchange_buffers(sockets[0], outgoing, incoming), question["warm"], question["count"]
            )
        }

    serve_questions(answer_question, port=listener.getsockname()[1] if listener else 0)


def exchange_buffers(sock: socket.socket, outgoing: memoryview, incoming: memoryview) -> None:
    """Send one buffer while the other is received."""
    small = len(outgoing) < 1 << 16
    sending = threading.Thread(target=sock.sendall, args=(outgoing,))
    sock.sendall(outgoing) if small else sending.start()
    while incoming:
        incoming = incoming[sock.recv_into(incoming, 0, socket.MSG_WAITALL) :]
    if not small:
        sending.join()


if __name__ == "__main__":
    if sys.argv[1] == "edl":
        serve_edl(int(sys.argv[2]), sys.argv[3], sys.argv[4] == "native")
    else:
        serve_bare(int(sys.argv[2]))

"""One rank of ``allreduce.py`` under gloo, run by the Python that has PyTorch.

    python3 bench/allreduce_gloo.py RANK SIZE FILE

It is given what helps it: the loopback interface by name, one thread for its arithmetic, and for each buffer the number
of concurrent pieces that is fastest here.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from typing import Any

os.environ["GLOO_SOCKET_IFNAME"] = "lo"
os.environ["OMP_NUM_THREADS"] = "1"

import torch  # type: ignore[import-not-found]
import torch.distributed as dist  # type: ignore[import-not-found]
from peer import serve_questions


def main(rank: int, size: int, file: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=size)
    buffers: dict[int, Any] = {}

    def reduce_pieces(buffer: Any, pieces: int) -> None:
        if pieces == 1:
            dist.all_reduce(buffer)
            return
        works = [dist.all_reduce(piece, async_op=True) for piece in torch.chunk(buffer, pieces)]
        for work in works:
            work.wait()

    def answer_question(question: dict[str, Any]) -> dict[str, Any]:
        nbytes = question["bytes"]
        if nbytes not in buffers:
            buffers[nbytes] = torch.zeros(nbytes // 4, dtype=torch.float32)
        buffer, took = buffers[nbytes], []
        for number in range(question["warm"] + question["count"]):
            begun = time.perf_counter()
            reduce_pieces(buffer, question["pieces"])
            if number >= question["warm"]:
                took.append(time.perf_counter() - begun)
        return {"seconds": statistics.median(took)}

    serve_questions(answer_question, version=torch.__version__)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])

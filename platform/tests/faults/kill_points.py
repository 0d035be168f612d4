"""SIGKILL of a real worker of strategy AllReduce at a named point of the protocol.

The module of the job holds ``KILL_POINTS``. An order is a file ``<point>.<number>`` in the folder ``ORDERS``: the first
worker that reaches this point takes it, so of two orders for one point two workers die in the same step.
"""

from __future__ import annotations

import time
from pathlib import Path

KILL_POINTS = """

import os
import signal
import time
from pathlib import Path

from edl.collective import reduction_plan
from edl.collective.round_errors import RoundBrokenError
from edl.transport.bulk_connection import BulkConnection, FrameKind, encode_frame_head, send_buffers
from edl.worker.allreduce.gradient_sums import GradientSums
from edl.worker.allreduce.step_follower import StepFollower
from edl.worker.allreduce.step_loop import StepLoop
from edl.worker.allreduce.update_sums import UpdateSums
from edl.worker.allreduce.world_client import WorldClient

# These small models are summed as large ones are: by reduce-scatter and all-gather.
reduction_plan.GATHER_BYTES = 0


def takes_order(point):
    for order in Path(ORDERS).glob(point + ".[0-9]"):
        try:
            order.rename(order.with_suffix(order.suffix + ".taken"))
        except FileNotFoundError:
            continue
        return True
    return False


def die_before(owner, name, point):
    plain = getattr(owner, name)

    def dies(self, *arguments, **named):
        if takes_order(point):
            os.kill(os.getpid(), signal.SIGKILL)
        return plain(self, *arguments, **named)

    setattr(owner, name, dies)


def wait_before(owner, name, point):
    # Until the file of the order that was taken is gone.
    plain = getattr(owner, name)

    def waits(self, *arguments, **named):
        if takes_order(point):
            while any(Path(ORDERS).glob(point + ".[0-9].taken")):
                time.sleep(0.01)
        return plain(self, *arguments, **named)

    setattr(owner, name, waits)


def die_within_reduction():
    plain = GradientSums.reduce

    def dies(self, communicator, *arguments, **named):
        if not takes_order("reducing"):
            return plain(self, communicator, *arguments, **named)
        communicator.fail_after(8)
        try:
            return plain(self, communicator, *arguments, **named)
        finally:
            os.kill(os.getpid(), signal.SIGKILL)

    GradientSums.reduce = dies


def die_as_the_only_one_that_applied():
    # All ranks but one lose the end of the same reduction. That one applies the sums, and dies.
    reduce, apply_step, order, chosen = GradientSums.reduce, WorldClient.apply_step, Path(ORDERS, "only.0"), []

    def loses_end(self, communicator, message, step, **named):
        answers = reduce(self, communicator, message, step, **named)
        if order.exists():
            for number in range(1, communicator.size):
                try:
                    Path(ORDERS, f"only.{step}.{number}").touch(exist_ok=False)
                except FileExistsError:
                    continue
                raise RoundBrokenError(None, "the end of a reduction is lost")
            chosen.append(step)
        return answers

    def dies(self, *arguments, **named):
        if chosen:
            order.rename(order.with_suffix(order.suffix + ".taken"))
            os.kill(os.getpid(), signal.SIGKILL)
        return apply_step(self, *arguments, **named)

    GradientSums.reduce, WorldClient.apply_step = loses_end, dies


def die_within_transfer():
    send, receive = BulkConnection.send, BulkConnection.receive

    def sends_half(self, kind, meta=b"", buffers=()):
        if kind is FrameKind.ROUND_STATE and takes_order("sending"):
            state = memoryview(b"".join(buffers))
            head = encode_frame_head(kind, len(meta), state.nbytes)
            send_buffers(self._sock, [head + meta, state[: state.nbytes // 2]])
            os.kill(os.getpid(), signal.SIGKILL)
        return send(self, kind, meta, buffers)

    def receives_some(self, into=None, **named):
        # Only a worker that follows gives memory for what it receives.
        if into is not None and takes_order("receiving"):
            self._sock.recv(100)
            os.kill(os.getpid(), signal.SIGKILL)
        return receive(self, into, **named)

    BulkConnection.send, BulkConnection.receive = sends_half, receives_some


die_as_the_only_one_that_applied()
die_within_transfer()
die_before(StepLoop, "_compute", "compute")
die_before(GradientSums, "reduce", "computed")
die_within_reduction()
die_before(UpdateSums, "_compute", "updated")
die_before(StepLoop, "_apply_sums", "reduced")
die_before(WorldClient, "apply_step", "applied")
die_before(WorldClient, "confirm", "confirm")
wait_before(WorldClient, "confirm", "unconfirmed")
die_before(StepFollower, "_take_state", "fetch")
die_before(StepLoop, "_hold_for_follower", "serve")
"""


def order_kills(folder: Path, point: str, count: int = 1) -> list[Path]:
    """The next ``count`` workers that reach ``point`` die there; returns the files that appear when they do."""
    orders = [folder / f"{point}.{number}" for number in range(count)]
    for order in orders:
        order.touch()
    return [order.with_suffix(order.suffix + ".taken") for order in orders]


def wait_for_kills(taken: list[Path], seconds: float = 60.0) -> None:
    """Wait until all orders were carried out, and forget them."""
    wait_for_workers(taken, seconds)
    for file in taken:
        file.unlink()


def wait_for_workers(taken: list[Path], seconds: float = 60.0) -> None:
    """Wait until workers have come to the points of all orders. One that only waits there goes on without its file."""
    until = time.monotonic() + seconds
    while not all(file.exists() for file in taken):
        assert time.monotonic() < until, f"nobody came to {[file.name for file in taken if not file.exists()]}"
        time.sleep(0.01)

"""A rank sends what cannot be read: the job ends with an error that names this rank and what is wrong."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from support.all_reduce_job import BOUND, AllReduceJob, Rank
from support.text_keys import missing_keys

from edl.core.state_agreement import RankFacts
from edl.core.world_rounds import Share
from edl.transport.peer_errors import PeerRefusedError
from edl.worker.allreduce.step_message import StepMessage

STEP_BYTES = len(StepMessage().encode())
SHARE_BYTES = len(StepMessage((Share(1, 0, 1),)).encode()) - STEP_BYTES


@pytest.fixture
def folder() -> Iterator[Path]:
    with TemporaryDirectory(prefix="edl-") as path:
        yield Path(path)


def change_messages(rank: Rank, change: Callable[[bytes], bytes]) -> None:
    """Change what a rank sends with each reduction."""
    connect = rank.connection.connect

    def connect_changed(*arguments: Any) -> Any:
        communicator = connect(*arguments)
        reduce = communicator.all_reduce

        def reduce_changed(buffer: Any, control: bytes = b"", **options: Any) -> list[bytes]:
            return reduce(buffer, change(control), **options)

        communicator.all_reduce = reduce_changed  # type: ignore[method-assign]
        return communicator

    rank.connection.connect = connect_changed  # type: ignore[method-assign]


def in_step(change: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    """Changes the messages of steps with records only."""

    def change_step(control: bytes) -> bytes:
        is_step = len(control) >= STEP_BYTES and (len(control) - STEP_BYTES) % SHARE_BYTES == 0
        return (
            change(control)
            if is_step and not control.startswith(b"{") and StepMessage.decode(control).shares
            else (control)
        )

    return change_step


def in_json(key: str, change: Callable[[dict[str, Any]], Any]) -> Callable[[bytes], bytes]:
    """Changes messages in JSON that have a key."""

    def change_json(control: bytes) -> bytes:
        if not control.startswith(b"{"):
            return control
        value = json.loads(control)
        return json.dumps(change(value)).encode() if key in value else control

    return change_json


def without(name: str) -> Callable[[dict[str, Any]], Any]:
    return lambda value: {key: each for key, each in value.items() if key != name}


def with_share(*numbers: int) -> Callable[[bytes], bytes]:
    return lambda control: control[:STEP_BYTES] + struct.pack("<qqqq", *numbers)


@pytest.mark.parametrize(
    ("liar", "change", "said"),
    [
        pytest.param(1, in_step(lambda control: b"short"), ("worker-1 (rank 1)", "5 bytes"), id="short"),
        pytest.param(1, in_step(lambda control: control + b"x"), ("worker-1 (rank 1)", "bytes"), id="long"),
        pytest.param(0, in_step(with_share(1, 5, 5, 0)), ("worker-0 (rank 0)", "start=5", "end=5"), id="no records"),
        pytest.param(1, in_step(with_share(1, 0, 4, 5)), ("worker-1 (rank 1)", "skipped=5"), id="skipped"),
        pytest.param(
            1,
            in_step(lambda control: struct.pack("<d", float("nan")) + control[8:]),
            ("worker-1 (rank 1)", "weight is nan"),
            id="weight",
        ),
        pytest.param(
            1,
            in_step(lambda control: control[:24] + struct.pack("<q", -7) + control[32:]),
            ("worker-1 (rank 1)", "epoch is -7"),
            id="epoch",
        ),
        pytest.param(1, in_json("worker", lambda value: [1]), ("rank 1", "facts"), id="facts of another type"),
        pytest.param(1, in_json("worker", without("model")), ("rank 1", "lacks 'model'"), id="facts lack the model"),
        pytest.param(1, in_json("worker", without("drifted")), ("rank 1", "lacks 'drifted'"), id="facts lack a flag"),
        pytest.param(0, in_json("share_bytes", lambda value: {}), ("worker-0 (rank 0)", "share_bytes"), id="no size"),
        *(
            pytest.param(
                0,
                in_json("share_bytes", lambda value, size=size: {"share_bytes": size}),
                ("worker-0 (rank 0)", str(size)),
                id=f"size {size}",
            )
            for size in (-1, 1 << 50, "many", None)
        ),
    ],
)
def test_all_ranks_name_the_rank_and_what_is_wrong(
    folder: Path, liar: int, change: Callable[[bytes], bytes], said: tuple[str, ...]
) -> None:
    with AllReduceJob(folder, 400, workers_min=2) as job:
        for index in range(2):
            job.start_rank(lambda rank, index=index: change_messages(rank, change) if index == liar else None)  # type: ignore[misc]
        for rank in job.ranks:
            assert rank.ended.wait(BOUND)
        errors = [rank.error for rank in job.ranks]
    for error in errors:
        assert isinstance(error, PeerRefusedError)
        assert not missing_keys(str(error), "cannot be used", "same version of EDL", *said)


def test_a_difference_of_states_that_cannot_be_read(folder: Path) -> None:
    """Ranks with other processors take one state and say how far they were from it."""
    with AllReduceJob(folder, 400, workers_min=2) as job:
        job.make_facts = lambda index: RankFacts(f"worker-{index}", instructions=(str(index),))
        for index in range(2):
            change = (lambda control: b'"x' if control == b"null" else control) if index else bytes
            job.start_rank(lambda rank, change=change: change_messages(rank, change))  # type: ignore[misc]
        for rank in job.ranks:
            assert rank.ended.wait(BOUND)
        errors = [rank.error for rank in job.ranks]
    for error in errors:
        assert isinstance(error, PeerRefusedError)
        assert not missing_keys(str(error), "worker-1 (rank 1)", "a difference of states")


@pytest.mark.parametrize("shares", [{}, {"after": 0, "step": -3, "done": [], "newest": []}])
def test_shares_of_a_state_that_cannot_be_read(folder: Path, shares: dict[str, Any]) -> None:
    """The worker that gets the state is the only one that reads them; the others go on without it."""
    with AllReduceJob(folder, 2000, seconds=0.003) as job:
        first = [job.start_rank() for _ in range(2)]
        job.wait_for_round(2)
        for rank in first:
            rank.world.pending_shares = lambda: shares  # type: ignore[method-assign]
        joined = job.start_rank()
        assert joined.ended.wait(BOUND)
        error, joined.error = joined.error, None
        assert isinstance(error, PeerRefusedError)
        assert not missing_keys(str(error), "rank 0", "shares of its state")
        job.hurry()
        job.wait(lambda: job.end is not None)

"""Workers that lost the same peer do not all come back to it at the same moment."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from worker.loop_harness import MEMBER, ScriptedMaster

from edl.api.errors import EdlError, JobFailedError, RetryableError
from edl.data.reader import Record
from edl.transport import edl_pb2 as pb
from edl.transport.bulk_connection import FrameKind
from edl.worker.lease_client import LeasedTask
from edl.worker.master_session import MasterSession
from edl.worker.ps_connections import PsBulkConnections, PsRequest
from edl.worker.record_stream import CorruptRecordSkipper, RecordStream, TaggedWindows

Retries = Callable[[Callable[[float], None], Callable[[], float]], None]


def ask_absent_master(pause: Callable[[float], None], jitter: Callable[[], float]) -> None:
    master = ScriptedMaster()
    master.away = 4
    MasterSession(MEMBER, master, lost_timeout=100, pause=pause, jitter=jitter).register()


def ask_absent_ps(pause: Callable[[float], None], jitter: Callable[[], float]) -> None:
    def connect(address: str) -> Any:
        raise RetryableError("away", where=address)

    now = iter(range(100))
    placement = SimpleNamespace(addresses={0: "unix:/nobody"}, uids={0: "uid"})
    directory: Any = SimpleNamespace(placement=placement, register=lambda: placement)
    connections = PsBulkConnections(
        directory,
        connect,
        lambda part: PsRequest(FrameKind.DECLARE, pb.Declare()),
        answer_timeout=5,
        clock=lambda: next(now),
        pause=pause,
        jitter=jitter,
    )
    with pytest.raises(JobFailedError):
        connections.exchange({0: PsRequest(FrameKind.PULL, pb.Pull())})


class UnmountedFiles:
    """A reader whose files cannot be read for the first attempts."""

    def __init__(self, failures: int) -> None:
        self.failures = failures

    def read(self, source: str, start: int, end: int) -> list[Record]:
        if self.failures:
            self.failures -= 1
            raise RetryableError("the file system does not answer")
        return [b"record"] * (end - start)


def read_files(failures: int, pause: Callable[[float], None], jitter: Callable[[], float]) -> int:
    reader: Any = UnmountedFiles(failures)

    def feed(windows: TaggedWindows) -> Iterator[Any]:
        return (
            SimpleNamespace(tag=tag, features=np.array(window.records), skipped_images=0) for tag, window in windows
        )

    stream = RecordStream(lambda: reader, CorruptRecordSkipper(0), feed, lambda lease: True, pause=pause, jitter=jitter)
    task = LeasedTask(1, "training", source="a", start=0, end=2, minibatch_size=2)
    stream.add_task(task)
    return sum(step.record_count for step in stream.load_steps(task))


def read_unmounted_files(pause: Callable[[float], None], jitter: Callable[[], float]) -> None:
    assert read_files(4, pause, jitter) == 2


@pytest.mark.parametrize("retries", [ask_absent_master, ask_absent_ps, read_unmounted_files])
def test_pauses_grow_and_depend_on_chance(retries: Retries) -> None:
    longest, shortest = list[float](), list[float]()
    retries(longest.append, lambda: 1.0)
    retries(shortest.append, lambda: 0.0)
    assert len(longest) >= 4
    assert longest[:3] == pytest.approx([longest[0] * factor for factor in (1, 2, 4)])
    assert shortest == pytest.approx([pause / 2 for pause in longest])


def test_reading_is_given_up_after_some_attempts() -> None:
    pauses: list[float] = []
    with pytest.raises(EdlError, match="does not answer"):
        read_files(1000, pauses.append, lambda: 0.5)
    assert 3 < sum(pauses) < 10

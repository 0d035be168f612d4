"""The client of programs: what it counts as done, and when."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.text_keys import missing_keys
from support.waiting_clock import WAIT_WARNING, use_waiting_clock

from edl.api.cluster_port import Role
from edl.api.errors import BadInputError
from edl.api.job_spec import DataSpec, JobSpec, TrainSpec
from edl.sharding import Client, RecordShard, WorkerLeaving
from edl.transport import edl_pb2 as pb
from edl.transport.process_identity import ProcessIdentity

RECORDS, MINIBATCH = 100, 10
WAIT_SECONDS = 20.0


class RangeMaster:
    """Hands out ranges of the file, one lease each, and keeps what it hears."""

    def __init__(self, source: str, ranges: list[tuple[int, int]]) -> None:
        self._source, self._ranges = source, list(ranges)
        self._changed = threading.Condition()
        self._numbers: dict[int, tuple[int, int]] = {}
        self.steps: dict[int, int] = {}
        self.reported: list[int] = []
        self.left: list[tuple[int, int]] | None = None
        self.failures: list[pb.FailRequest] = []
        self.lost: set[int] = set()
        self.rejected: set[int] = set()
        self.stopped = False
        self.warnings: list[tuple[str, str]] = []

    def __call__(self, method: str, request: Any, *, deadline: float) -> Any:
        with self._changed:
            reply = getattr(self, method)(request)
            self._changed.notify_all()
            return reply

    def wait(self, condition: Callable[[], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, WAIT_SECONDS)

    def Register(self, request: Any) -> Any:
        return pb.RegisterReply(incarnation=1)

    def Lease(self, request: Any) -> Any:
        if not self._ranges:
            return pb.LeaseReply(incarnation=1, stop=pb.Stop(reason="all done"))
        start, end = self._ranges.pop(0)
        number = len(self._numbers) + 1
        self._numbers[number] = (start, end)
        task = pb.Task(
            lease=number, kind="training", source=self._source, start=start, end=end, minibatch=MINIBATCH,
            expires_seconds=60.0,
        )  # fmt: skip
        return pb.LeaseReply(incarnation=1, task=task)

    def Progress(self, request: Any) -> Any:
        self._note(request.leases)
        self.stopped |= request.stopped_training
        self.warnings += [(each.topic, each.text) for each in request.warnings]
        return pb.ProgressReply(incarnation=1, lost=[each.lease for each in request.leases if each.lease in self.lost])

    def Report(self, request: Any) -> Any:
        self._note([request.last])
        self.reported.append(request.lease)
        return pb.ReportReply(accepted=request.lease not in self.rejected, incarnation=1)

    def Leave(self, request: Any) -> Any:
        self.left = [(each.lease, each.through) for each in request.leases]
        return pb.LeaveReply()

    def Fail(self, request: Any) -> Any:
        self.failures.append(request)
        return pb.FailReply(fatal=True)

    def _note(self, leases: Any) -> None:
        for each in leases:
            self.steps[each.lease] = max(self.steps.get(each.lease, 0), each.through)


@pytest.fixture
def make_client(tmp_path: Path) -> Iterator[Callable[..., tuple[Client, RangeMaster]]]:
    file = tmp_path / "lines.txt"
    file.write_text("".join(f"{number}\n" for number in range(RECORDS)))
    clients: list[Client] = []

    def make(*ranges: tuple[int, int]) -> tuple[Client, RangeMaster]:
        master = RangeMaster(str(file), list(ranges))
        identity = ProcessIdentity(tmp_path, Role.WORKER, 3, "worker-3-x", "t", tmp_path, "unix:/nowhere")
        train = TrainSpec(minibatch_size=MINIBATCH)
        spec = JobSpec("p", command=("x",), data=DataSpec(training=(str(file),)), train=train)
        client = Client(identity, spec, master)
        client.start()
        clients.append(client)
        return client, master

    yield make
    for client in clients:
        client.close()


def numbers(batch: Any) -> list[int]:
    return [int(record) for record in batch]


Make = Callable[..., tuple[Client, RangeMaster]]


def test_every_record_of_every_range_comes_once_in_minibatches(make_client: Make) -> None:
    client, master = make_client((40, 75), (0, 20))
    assert [numbers(batch) for batch in client.batches()] == [
        list(range(40, 50)), list(range(50, 60)), list(range(60, 70)), list(range(70, 75)),
        list(range(0, 10)), list(range(10, 20)),
    ]  # fmt: skip
    assert sorted(master.reported) == [1, 2]
    assert master.steps == {1: 4, 2: 2}


def test_a_minibatch_is_done_when_the_next_one_is_asked_for(make_client: Make) -> None:
    client, master = make_client((0, 40))
    batches = client.batches()
    next(batches)
    assert not client._progress.unreported_progress()[0].through
    next(batches)
    master.wait(lambda: master.steps.get(1) == 1)
    assert master.reported == []


def test_a_minibatch_that_was_left_comes_again(make_client: Make) -> None:
    client, _ = make_client((0, 30))
    for batch in client.batches():
        if batch.start == 10:
            break
    assert [batch.start for batch in client.batches()] == [10, 20]


def test_records_come_one_by_one(make_client: Make) -> None:
    client, _ = make_client((5, 25))
    assert [int(record) for record in client.records()] == list(range(5, 25))


def test_a_program_that_reads_by_itself_reports_whole_minibatches(make_client: Make) -> None:
    client, master = make_client((0, 35), (60, 70))
    shard = client.fetch_shard()
    assert shard is not None
    assert (shard.epoch, shard.start, shard.end, len(shard)) == (0, 0, 35, 35)
    client.report_done(shard, 19)
    master.wait(lambda: master.steps.get(1) == 1)
    with pytest.raises(ValueError, match="is not done"):
        client.fetch_shard()
    with pytest.raises(ValueError, match="35 records, not 36"):
        client.report_done(shard, 36)
    client.report_done(shard)
    master.wait(lambda: master.reported == [1])
    with pytest.raises(ValueError, match="is not the newest"):
        client.report_done(shard)
    # The rest of the stream is not confused by a range that nobody read.
    assert [numbers(batch) for batch in client.batches()] == [list(range(60, 70))]
    assert client.fetch_shard() is None


def test_a_program_may_wait_for_what_the_master_says_of_a_range(make_client: Make) -> None:
    client, master = make_client((0, 40), (40, 80))
    master.rejected.add(2)
    first = client.fetch_shard()
    assert first is not None
    assert client.report_done_and_wait(first)
    assert master.reported == [1]
    second = client.fetch_shard()
    assert second is not None
    assert not client.report_done_and_wait(second)
    assert client.fetch_shard() is None


def test_the_rest_of_a_range_that_another_worker_has_is_left_out(make_client: Make) -> None:
    client, master = make_client((0, 40), (50, 60))
    starts = []
    for batch in client.batches():
        starts.append(batch.start)
        if batch.start == 10:
            master.lost.add(1)
            shard = client._shard
            assert isinstance(shard, RecordShard)
            client._progress.send_all()
            assert not shard.is_held
    assert starts == [0, 10, 50]
    assert master.reported == [2]


def test_a_worker_that_leaves_returns_its_ranges_after_its_minibatch(make_client: Make) -> None:
    client, master = make_client((0, 40), (50, 60))

    def train() -> None:
        for batch in client.batches():
            if batch.start == 10:
                client.leave()
                assert client.is_leaving
                assert master.left is None, "the minibatch in progress is waited for"

    with pytest.raises(WorkerLeaving) as leaving:
        train()
    assert leaving.value.code == 0
    assert master.left is not None
    assert (1, 2) in master.left, "this minibatch counts"


def test_a_loop_that_waits_for_records_hears_of_the_end(make_client: Make) -> None:
    client, master = make_client()
    client.leave()
    master.wait(lambda: master.left is not None)
    with pytest.raises(WorkerLeaving):
        client.fetch_shard()


def test_the_master_hears_why_a_program_failed(make_client: Make) -> None:
    client, master = make_client((0, 20))

    def train() -> None:
        with client:
            for _ in client.batches():
                raise ZeroDivisionError("no way")

    with pytest.raises(ZeroDivisionError):
        train()
    (failure,) = master.failures
    assert (failure.kind, failure.lease) == ("crash", 1)
    assert not missing_keys(failure.message, "ZeroDivisionError", "no way")
    assert Path(__file__).name in failure.detail


def test_an_end_in_order_is_no_failure(make_client: Make) -> None:
    client, master = make_client((0, 20))
    with pytest.raises(SystemExit), client:
        raise SystemExit(0)
    assert master.failures == []


def test_loss_and_stop_reach_the_master(make_client: Make) -> None:
    client, master = make_client((0, 20))
    for _ in client.batches():
        client.report_loss(2.5)
        client.stop_training()
    master.wait(lambda: master.stopped)


def test_a_program_that_no_job_runs_is_told_how_to_start_it() -> None:
    with pytest.raises(BadInputError) as error:
        Client.from_env({})
    assert not missing_keys(str(error.value), "EDL_RUN_DIR", "edl run JOB.yaml", "command")


def taken_ahead(client: Client, depth: int) -> Iterator[list[int]]:
    """What a loader does that has ``depth`` minibatches under way."""
    ahead = client.batches_ahead()

    class Loader:
        def __iter__(self) -> Iterator[list[int]]:
            waiting: list[list[int]] = []
            has_more = True
            while has_more or waiting:
                while has_more and len(waiting) < depth:
                    batch = ahead.take()
                    has_more = batch is not None
                    if batch is not None:
                        waiting.append(numbers(batch))
                if waiting:
                    yield waiting.pop(0)

    return ahead.follow_all(Loader())


@pytest.mark.parametrize("depth", [1, 3, 9])
def test_a_loader_that_works_ahead_gets_every_record_once(make_client: Make, depth: int) -> None:
    client, master = make_client((40, 75), (0, 20), (90, 100))
    records = [number for batch in taken_ahead(client, depth) for number in batch]
    assert records == [*range(40, 75), *range(20), *range(90, 100)]
    assert master.steps == {1: 4, 2: 2, 3: 1}
    assert sorted(master.reported) == [1, 2, 3]


def test_what_a_loader_has_taken_is_not_done_before_the_loop_asks_for_the_next_one(make_client: Make) -> None:
    client, master = make_client((0, 40))
    batches = taken_ahead(client, 4)
    next(batches)
    assert not client._progress.unreported_progress()[0].through
    next(batches)
    master.wait(lambda: master.steps.get(1) == 1)
    assert master.reported == []


def test_a_minibatch_that_a_loader_has_and_another_worker_got_is_left_out(make_client: Make) -> None:
    client, master = make_client((0, 40), (50, 70))
    batches = taken_ahead(client, 6)
    assert next(batches) == list(range(10))
    assert next(batches) == list(range(10, 20))
    master.lost.add(1)
    client._progress.send_all()
    assert list(batches) == [list(range(50, 60)), list(range(60, 70))]
    assert master.reported == [2]


def test_a_worker_that_leaves_ends_a_loader_s_loop_and_returns_what_is_under_way(make_client: Make) -> None:
    client, master = make_client((0, 40))
    batches = taken_ahead(client, 4)
    next(batches)
    next(batches)
    client.leave()
    with pytest.raises(WorkerLeaving):
        next(batches)
    assert master.left == [(1, 2)]


def test_a_client_gives_its_records_to_one_loop_only(make_client: Make) -> None:
    client, _ = make_client((0, 40))
    client.batches_ahead()
    with pytest.raises(ValueError, match="batches_ahead"):
        next(client.batches())
    with pytest.raises(ValueError, match="another loop"):
        client.batches_ahead()


@pytest.mark.parametrize(
    "take_all",
    [lambda client: list(client.batches()), lambda client: list(taken_ahead(client, 3))],
    ids=["batches", "batches_ahead"],
)
def test_a_program_that_waits_for_records_tells(
    make_client: Make, monkeypatch: pytest.MonkeyPatch, take_all: Callable[[Client], Any]
) -> None:
    use_waiting_clock(monkeypatch)
    client, master = make_client((0, RECORDS))
    assert len(take_all(client)) == RECORDS // MINIBATCH
    # Warnings are sent before reports.
    master.wait(lambda: master.reported == [1])
    assert master.warnings == [WAIT_WARNING]

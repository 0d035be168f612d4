"""What the master asks of parameter servers, against one behind a real socket that answers as the test says."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from master.master_stubs import LONG, TOKEN, ScriptedPs, scripted_ps
from support.text_keys import missing_keys

from edl.api.errors import BadInputError, RetryableError
from edl.api.run_events import WarningRaised
from edl.core.cuts import WrittenShard
from edl.core.events import (
    AttachPs,
    CheckpointSaveFinished,
    CoreEvent,
    CutPrepared,
    EmitEvent,
    HoldUpdates,
    LeasesRevoked,
    PrepareCut,
    PsAttached,
    PsRefused,
    PsSilent,
    ReleaseCut,
    RevokeLeases,
    SaveCheckpoint,
    SnapshotTaken,
    TakeSnapshot,
    Unpin,
    UpdatesHeld,
)
from edl.core.partition import initial_placement
from edl.master.checkpoint_coordinator import CheckpointCoordinator
from edl.master.ps_client import RESTORE_DEADLINE, ControlRequestBuilder, PsControlClient
from edl.storage.checkpoint_manifest import CheckpointManifest, commit_checkpoint, cut_directory
from edl.transport import edl_pb2 as pb
from edl.transport.peer_errors import PeerRefusedError

INCARNATION = 4
ATTACH = AttachPs("ps-0-a", lowest_open_lease=5, revoked_leases=(7,), live_leases=(8, 9), passed_cut=2)


class AnswerQueue:
    """What the answers are told to."""

    def __init__(self) -> None:
        self.events: queue.SimpleQueue[CoreEvent] = queue.SimpleQueue()
        self.failures: queue.SimpleQueue[Exception] = queue.SimpleQueue()

    def next(self) -> CoreEvent:
        return self.events.get(timeout=LONG)


@pytest.fixture
def core() -> AnswerQueue:
    return AnswerQueue()


@pytest.fixture
def ps() -> Iterator[tuple[ScriptedPs, str]]:
    with scripted_ps() as played:
        yield played


def servers_for(core: AnswerQueue, folder: Path, count: int = 1, patience: float = LONG) -> PsControlClient:
    checkpoints = CheckpointCoordinator(folder, 2, set)
    servers = PsControlClient(TOKEN, INCARNATION, count, checkpoints, answer_timeout=patience)
    servers.start(core.events.put, core.failures.put)
    return servers


@pytest.fixture
def servers(core: AnswerQueue, tmp_path: Path, ps: tuple[ScriptedPs, str]) -> Iterator[PsControlClient]:
    servers = servers_for(core, tmp_path)
    assert servers.add_ps("ps-0-a", 0, ps[1], "bulk")
    yield servers
    servers.close()


# ---------------------------------------------------------------------------------------------- questions and answers


def test_questions_keep_their_order_and_answers_become_events(
    servers: PsControlClient, core: AnswerQueue, ps: tuple[ScriptedPs, str]
) -> None:
    commands = (
        ATTACH,
        PrepareCut(3),
        HoldUpdates(3),
        RevokeLeases("ps-0-a", (8,), 8),
        TakeSnapshot(3, checkpoint=True, pin=True, lowest_open_lease=9, included_steps={9: 2}),
        ReleaseCut(4),
        Unpin(2),
    )
    for command in commands:
        servers.execute(command)
    questions = [type(request).__name__.removesuffix("Request") for request in ps[0].until_asked(7)]
    assert questions == ["Attach", "Prepare", "Hold", "Revoke", "Snapshot", "Release", "Unpin"]
    assert core.next() == PsAttached("ps-0-a", initialized=True, version=3, pins=(2,))
    assert core.next() == CutPrepared("ps-0-a", 3)
    assert core.next() == UpdatesHeld("ps-0-a", 3, {9: 2})
    assert core.next() == LeasesRevoked("ps-0-a", {8: 1})
    assert core.next() == SnapshotTaken("ps-0-a", 3, 5, 0.25)


def test_a_copy_that_waits_for_a_step_is_asked_for_again_behind_what_came_meanwhile(
    servers: PsControlClient, core: AnswerQueue, ps: tuple[ScriptedPs, str]
) -> None:
    answers = iter([pb.SnapshotReply(waits=True), pb.SnapshotReply(version=6)])

    def snapshot(request: pb.SnapshotRequest) -> pb.SnapshotReply:
        if len(ps[0].asked) == 1:
            servers.execute(RevokeLeases("ps-0-a", (8,), 8))
        return next(answers)

    ps[0].answers["Snapshot"] = snapshot
    servers.execute(TakeSnapshot(3, checkpoint=False, pin=True, included_steps={9: 2}))
    assert core.next() == LeasesRevoked("ps-0-a", {8: 1})
    assert core.next() == SnapshotTaken("ps-0-a", 3, 6, 0.0)


def test_requests_say_what_the_commands_say(tmp_path: Path) -> None:
    asker = ControlRequestBuilder(INCARNATION, 2, tmp_path)
    attach = asker.build_request(ATTACH, "ps-0-a").request
    assert (attach.incarnation, attach.floor, attach.revoked, attach.live, attach.cut) == (4, 5, [7], [8, 9], 2)
    assert (attach.restore, list(attach.slots)) == ("", list(initial_placement(2)))
    snapshot = asker.build_request(
        TakeSnapshot(3, checkpoint=False, pin=True, lowest_open_lease=9, included_steps={8: 2}), "ps-0-a"
    ).request
    assert list(snapshot.within) == [pb.LeaseStep(lease=8, through=2)]
    assert (snapshot.cut, snapshot.checkpoint, snapshot.pin, snapshot.floor) == (3, "", True, 9)


def test_a_restore_names_the_folder_of_its_cut_and_may_take_long(tmp_path: Path) -> None:
    command = AttachPs("ps-0-a", 1, (), (), 0, restore_cut=12)
    question = ControlRequestBuilder(INCARNATION, 1, tmp_path).build_request(command, "ps-0-a")
    assert question.request.restore == str(tmp_path / "cut-00000012")
    assert question.deadline == RESTORE_DEADLINE


def test_other_commands_are_not_for_parameter_servers(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="not a command for parameter servers"):
        ControlRequestBuilder(INCARNATION, 1, tmp_path).build_request(EmitEvent(WarningRaised("x")), "ps-0-a")


def test_what_is_for_all_goes_to_all_and_what_is_for_one_to_that_one(
    core: AnswerQueue, tmp_path: Path, ps: tuple[ScriptedPs, str]
) -> None:
    with scripted_ps() as (other, address):
        servers = servers_for(core, tmp_path, count=2)
        servers.add_ps("ps-0-a", 0, ps[1], "bulk")
        servers.add_ps("ps-1-a", 1, address, "bulk")
        servers.execute(RevokeLeases("ps-1-a", (8,), 8))
        servers.execute(PrepareCut(1))
        assert [type(request) for request in other.until_asked(2)] == [pb.RevokeRequest, pb.PrepareRequest]
        assert [type(request) for request in ps[0].until_asked(1)] == [pb.PrepareRequest]
        servers.close()


# ---------------------------------------------------------------------------------------------- who there is


def test_a_ps_is_new_once(servers: PsControlClient, ps: tuple[ScriptedPs, str]) -> None:
    assert not servers.add_ps("ps-0-a", 0, ps[1], "bulk")
    assert servers.add_ps("ps-0-b", 0, ps[1], "bulk")
    servers.remove_ps("ps-0-a")
    assert set(servers.connections()) == {"ps-0-b"}


def test_nothing_is_asked_of_one_that_ended(servers: PsControlClient, ps: tuple[ScriptedPs, str]) -> None:
    servers.add_ps("ps-0-b", 0, ps[1], "bulk")
    servers.remove_ps("ps-0-a")
    servers.remove_ps("ps-0-a")
    servers.execute(ATTACH)
    servers.execute(PrepareCut(1))
    assert [type(request) for request in ps[0].until_asked(1)] == [pb.PrepareRequest]


def test_an_address_that_is_none_is_refused(servers: PsControlClient) -> None:
    with pytest.raises(BadInputError):
        servers.add_ps("ps-1-a", 1, "nowhere", "bulk")


# ---------------------------------------------------------------------------------------------- silence


def test_a_ps_that_lives_is_asked_until_it_answers_and_the_core_hears_of_its_silence(
    core: AnswerQueue, tmp_path: Path
) -> None:
    with scripted_ps() as (_, address):
        pass  # it lived there once
    servers = servers_for(core, tmp_path, patience=0.0)
    servers.add_ps("ps-0-a", 0, address, "bulk")
    servers.execute(ATTACH)
    events = [core.next(), core.next()]
    assert all(isinstance(event, PsSilent) and event.uid == "ps-0-a" for event in events)
    servers.close()


def test_a_ps_that_is_busy_is_asked_again(
    servers: PsControlClient, core: AnswerQueue, ps: tuple[ScriptedPs, str]
) -> None:
    def busy(request: Any) -> Any:
        if len(ps[0].asked) < 3:
            raise PeerRefusedError("not now", kind="busy")
        return pb.AttachReply(version=9)

    ps[0].answers["Attach"] = busy
    servers.execute(ATTACH)
    assert core.next() == PsAttached("ps-0-a", initialized=False, version=9)


def test_a_ps_that_ends_while_it_is_asked_is_asked_no_more(
    servers: PsControlClient, core: AnswerQueue, ps: tuple[ScriptedPs, str]
) -> None:
    release = threading.Event()
    ps[0].answers["Revoke"] = lambda _: release.wait(LONG) and pb.RevokeReply()
    before = set(threading.enumerate())
    servers.execute(RevokeLeases("ps-0-a", (8,), 8))
    ps[0].until_asked(1)
    servers.remove_ps("ps-0-a")
    for thread in before:
        if thread.name == "ps-0":
            thread.join(LONG)
            assert not thread.is_alive()
    release.set()
    assert core.events.empty()
    assert core.failures.empty()


# ---------------------------------------------------------------------------------------------- refusals


def refusing(kind: str) -> Any:
    def refuse(request: Any) -> Any:
        raise PeerRefusedError("no", kind=kind)

    return refuse


def test_a_newer_master_ends_this_one(servers: PsControlClient, core: AnswerQueue, ps: tuple[ScriptedPs, str]) -> None:
    ps[0].answers["Prepare"] = refusing("incarnation")
    servers.execute(PrepareCut(1))
    assert "no" in str(core.failures.get(timeout=LONG))


@pytest.mark.parametrize(
    ("method", "command", "cut"),
    [
        ("Attach", ATTACH, 0),
        ("Revoke", RevokeLeases("ps-0-a", (8,), 8), 0),
        ("Snapshot", TakeSnapshot(3, checkpoint=True, pin=False), 3),
    ],
)
def test_a_refusal_that_matters_is_the_core_s(
    servers: PsControlClient,
    core: AnswerQueue,
    ps: tuple[ScriptedPs, str],
    caplog: Any,
    method: str,
    command: Any,
    cut: int,
) -> None:
    ps[0].answers[method] = refusing("storage")
    servers.execute(command)
    event = core.next()
    assert isinstance(event, PsRefused)
    assert (event.uid, event.kind, event.cut) == ("ps-0-a", "storage", cut)
    assert event.message == f"ps-0 refuses {method}: no"  # people know no addresses; the log has them
    assert str(ps[1]) in caplog.text


def test_other_refusals_are_logged_and_the_next_question_is_asked(
    servers: PsControlClient, core: AnswerQueue, ps: tuple[ScriptedPs, str], caplog: Any
) -> None:
    ps[0].answers["Unpin"] = refusing("pin")
    servers.execute(Unpin(1))
    servers.execute(RevokeLeases("ps-0-a", (8,), 8))
    assert isinstance(core.next(), LeasesRevoked)
    assert "ps-0 refuses Unpin" in caplog.text


def test_a_core_that_fails_ends_the_master_by_whatever_thread(tmp_path: Path, ps: tuple[ScriptedPs, str]) -> None:
    failures: queue.SimpleQueue[Exception] = queue.SimpleQueue()
    servers = PsControlClient(TOKEN, INCARNATION, 1, CheckpointCoordinator(tmp_path, 2, set))
    servers.start(lambda event: 1 / 0, failures.put)
    servers.add_ps("ps-0-a", 0, ps[1], "bulk")
    servers.execute(ATTACH)
    assert isinstance(failures.get(timeout=LONG), ZeroDivisionError)
    servers.close()


# ---------------------------------------------------------------------------------------------- checkpoints


def written(folder: Path, cut: int, index: int) -> pb.SavedReply:
    from edl.storage.checkpoint_manifest import cut_directory

    directory = cut_directory(folder, cut)
    directory.mkdir(exist_ok=True)
    (directory / f"ps-{index}.safetensors").write_bytes(b"12345")
    return pb.SavedReply(file=f"ps-{index}.safetensors", size=5, checksum=f"{7:08x}")


def saving(cut: int) -> SaveCheckpoint:
    return SaveCheckpoint(
        cut, step=10, version=20, ledger={"done_steps": 10}, pause=0.1, dataset={"training": [["a", 40]]}
    )


def test_a_checkpoint_is_real_when_all_shards_are_on_disk(
    servers: PsControlClient, core: AnswerQueue, ps: tuple[ScriptedPs, str], tmp_path: Path
) -> None:
    from edl.storage.checkpoint_manifest import CheckpointManifest, ShardInfo, cut_directory, load_manifest

    ps[0].answers["Saved"] = lambda request: written(tmp_path, request.cut, 0)
    servers.execute(saving(3))
    assert core.next() == CheckpointSaveFinished(3)
    manifest = load_manifest(cut_directory(tmp_path, 3))
    assert isinstance(manifest, CheckpointManifest)
    assert (manifest.version, manifest.ledger) == (20, {"done_steps": 10, "dataset": {"training": [["a", 40]]}})
    assert manifest.shards == (ShardInfo("ps-0.safetensors", 5, 7),)


def test_a_shard_that_was_not_written_leaves_no_checkpoint(
    servers: PsControlClient, core: AnswerQueue, ps: tuple[ScriptedPs, str], tmp_path: Path
) -> None:
    ps[0].answers["Saved"] = lambda _: pb.SavedReply(error="no space left")
    servers.execute(saving(3))
    event = core.next()
    assert isinstance(event, CheckpointSaveFinished)
    assert "no space left" in event.error
    assert list(tmp_path.rglob("manifest.json")) == []


def test_a_shard_that_a_worker_could_not_write_is_reported_in_one_line_with_its_file_once(
    servers: PsControlClient, core: AnswerQueue, tmp_path: Path
) -> None:
    error = f"{tmp_path}/shard: no space left\n  free some space there"
    servers.execute(replace(saving(3), shards=(WrittenShard("state-0.safetensors", 0, 0, error=error),)))
    event = core.next()
    assert isinstance(event, CheckpointSaveFinished)
    assert event.error == f"{tmp_path}/shard: no space left; free some space there"


def test_a_ps_that_forgot_the_cut_or_is_gone_leaves_no_checkpoint(
    core: AnswerQueue, ps: tuple[ScriptedPs, str], tmp_path: Path
) -> None:
    servers = servers_for(core, tmp_path, count=2)
    servers.add_ps("ps-0-a", 0, ps[1], "bulk")
    ps[0].answers["Saved"] = lambda request: written(tmp_path, request.cut, 0)
    servers.execute(saving(3))
    event = core.next()
    assert isinstance(event, CheckpointSaveFinished)
    assert event.error == "ps-1 was lost"
    assert list(tmp_path.rglob("manifest.json")) == []
    servers.close()


def test_old_checkpoints_go_and_the_one_in_use_stays(
    core: AnswerQueue, ps: tuple[ScriptedPs, str], tmp_path: Path
) -> None:
    from edl.storage.checkpoint_manifest import list_cuts

    checkpoints = CheckpointCoordinator(tmp_path, 1, lambda: {1})
    servers = PsControlClient(TOKEN, INCARNATION, 1, checkpoints)
    servers.start(core.events.put, core.failures.put)
    servers.add_ps("ps-0-a", 0, ps[1], "bulk")
    ps[0].answers["Saved"] = lambda request: written(tmp_path, request.cut, 0)
    for cut in (1, 2, 3):
        servers.execute(saving(cut))
        assert core.next() == CheckpointSaveFinished(cut)
    assert list_cuts(tmp_path) == [1, 3]
    servers.close()


def test_old_checkpoints_that_cannot_be_removed_do_not_undo_the_new_one(
    servers: PsControlClient, core: AnswerQueue, ps: tuple[ScriptedPs, str], tmp_path: Path, caplog: Any
) -> None:
    ps[0].answers["Saved"] = lambda request: written(tmp_path, request.cut, 0)
    for cut in (1, 2, 3):
        if cut == 3:
            (tmp_path / "cut-00000001" / "a folder").mkdir()
        servers.execute(saving(cut))
        assert core.next() == CheckpointSaveFinished(cut)
    assert "could not remove old checkpoints" in caplog.text


class DecisionRight:
    """To decide; it can be taken away."""

    def __init__(self) -> None:
        self.held = threading.Event()
        self.asked = threading.Semaphore(0)
        self.lost = False

    def __call__(self) -> None:
        self.asked.release()
        assert self.held.wait(LONG)
        if self.lost:
            raise RetryableError("another master has the Lease")


@pytest.mark.parametrize("lost", [False, True])
def test_a_master_that_may_not_decide_any_more_makes_no_checkpoint_real(
    lost: bool, core: AnswerQueue, ps: tuple[ScriptedPs, str], tmp_path: Path
) -> None:
    right = DecisionRight()
    servers = PsControlClient(TOKEN, INCARNATION, 1, CheckpointCoordinator(tmp_path, 1, set, right))
    servers.start(core.events.put, core.failures.put)
    servers.add_ps("ps-0-a", 0, ps[1], "bulk")
    ps[0].answers["Saved"] = lambda request: written(tmp_path, request.cut, 0)
    servers.execute(saving(3))
    assert right.asked.acquire(timeout=LONG)
    assert list(tmp_path.rglob("manifest.json")) == []
    right.lost = lost
    right.held.set()
    saved = core.next()
    assert saved.cut == 3
    assert ("Lease" in saved.error) == lost
    assert len(list(tmp_path.rglob("manifest.json"))) == (0 if lost else 1)
    servers.close()


def test_a_master_that_may_not_decide_any_more_removes_no_checkpoint(
    core: AnswerQueue, ps: tuple[ScriptedPs, str], tmp_path: Path
) -> None:
    from edl.storage.checkpoint_manifest import list_cuts

    right = DecisionRight()
    right.held.set()
    servers = PsControlClient(TOKEN, INCARNATION, 1, CheckpointCoordinator(tmp_path, 1, lambda: set(), right))
    servers.start(core.events.put, core.failures.put)
    servers.add_ps("ps-0-a", 0, ps[1], "bulk")
    ps[0].answers["Saved"] = lambda request: written(tmp_path, request.cut, 0)
    servers.execute(saving(1))
    assert core.next() == CheckpointSaveFinished(1)
    assert [right.asked.acquire(timeout=LONG) for _ in range(2)] == [True, True]
    right.held.clear()
    servers.execute(saving(2))
    assert right.asked.acquire(timeout=LONG)
    assert list_cuts(tmp_path) == [1, 2]
    right.lost = True
    right.held.set()
    assert isinstance(core.next(), CheckpointSaveFinished)
    assert list_cuts(tmp_path) == [1, 2]
    servers.close()


def test_a_newer_checkpoint_that_nobody_entered_is_named_when_no_older_one_stands_in(tmp_path: Path) -> None:
    directory = cut_directory(tmp_path, 3)
    directory.mkdir()
    commit_checkpoint(directory, CheckpointManifest(3, 0, "now", (), {"done_steps": 1}))
    refused = CheckpointCoordinator(tmp_path, 2, set).find_fallback("ps-0", 2, "it is damaged")
    assert refused.fallback is None
    assert not missing_keys(refused.skipped_reasons, "checkpoint 3", "--resume RUN --from-checkpoint")

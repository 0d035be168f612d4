"""When training stands for want of parameter servers, and what is said of them."""

from __future__ import annotations

from typing import Any

from support.text_scenarios import ScenarioRunner

from edl.api.cluster_port import PodPhase, PodStatus, Role
from edl.api.events import StallEnded
from edl.core.events import (
    CheckpointSaveFinished,
    CoreEvent,
    EmitEvent,
    MissingPs,
    PodChanged,
    PsAttached,
    PsHeartbeat,
    Tick,
    TrainingStalled,
)
from edl.core.job_pods import PS_SILENCE_SECONDS
from edl.core.stall import find_missing_ps, unsaved_checkpoint_reason

JOB = "job minibatch=2 task_records=4 workers=1 ps=2 training=a:8"


def trains() -> ScenarioRunner:
    stage = ScenarioRunner()
    stage.play(JOB)
    stage.play("started")
    stage.play("1.0 wants worker-0")
    return stage


def see(stage: ScenarioRunner, uid: str, now: float, **fields: Any) -> None:
    values = {"phase": PodPhase.RUNNING, "node": "n1", **fields}
    stage.job.handle(PodChanged(PodStatus(uid, Role.PS, int(uid[3]), **values)), now)


def test_a_job_that_trains_waits_for_nobody() -> None:
    stage = trains()
    for now in (5.0, 10.0, 15.0):
        for ps in ("ps-0", "ps-1"):
            stage.job.handle(PsHeartbeat(ps), now)
    assert find_missing_ps(stage.job, 16.0) == ()


def test_a_ps_that_does_not_answer_and_one_whose_node_is_lost() -> None:
    stage = trains()
    assert find_missing_ps(stage.job, PS_SILENCE_SECONDS - 0.1) == ()
    stage.job.handle(PsHeartbeat("ps-1"), 12.0)
    see(stage, "ps-0", 13.0, unreachable_since=1_700_000_000.0)
    assert find_missing_ps(stage.job, 20.0) == (MissingPs(0, "its node n1 is unreachable", 1_700_000_000.0),)
    assert find_missing_ps(stage.job, 25.0)[1] == MissingPs(1, "it has not answered for 13 s")


def test_a_ps_that_is_lost_until_its_successor_has_loaded_its_checkpoint() -> None:
    stage = trains()
    stage.job.handle(PsHeartbeat("ps-1"), 4.0)
    see(stage, "ps-0", 5.0, phase=PodPhase.FAILED, exit_code=137)
    assert find_missing_ps(stage.job, 5.0) == (MissingPs(0, "a new one was requested"),)
    see(stage, "ps-0-b", 6.0, phase=PodPhase.PENDING, node="", message="0/3 nodes are available")
    assert find_missing_ps(stage.job, 6.0) == (MissingPs(0, "it is not scheduled yet: 0/3 nodes are available"),)
    see(stage, "ps-0-b", 7.0)
    stage.play("7.1 registered ps-0-b")
    stage.play("7.2 attached ps-0-b empty")
    assert find_missing_ps(stage.job, 7.3) == (MissingPs(0, "it is loading its checkpoint"),)
    stage.play("7.4 attached ps-0-b")
    assert find_missing_ps(stage.job, 7.5) == ()


def test_a_job_that_has_not_begun_or_is_over_is_not_stalled() -> None:
    stage = ScenarioRunner()
    stage.play(JOB)
    assert find_missing_ps(stage.job, 100.0) == ()
    stage = trains()
    stage.play("2.0 stop enough")
    stage.job.handle(Tick(), 3.0)
    assert find_missing_ps(stage.job, 100.0) == ()


def told(stage: ScenarioRunner, now: float) -> list[Any]:
    """What people hear of it when time passes."""
    return heard(stage, Tick(), now)


def heard(stage: ScenarioRunner, event: CoreEvent, now: float) -> list[Any]:
    """What people hear of it when something happens."""
    told = (each.event for each in stage.job.handle(event, now) if isinstance(each, EmitEvent))
    return [each for each in told if isinstance(each, TrainingStalled | StallEnded)]


def test_people_are_told_that_it_stands_and_that_it_goes_on() -> None:
    stage = trains()
    for now in range(3, 13):  # it is seen to stand from 10 s on
        stage.job.handle(PsHeartbeat("ps-1"), float(now))
        assert told(stage, now) == []
    assert told(stage, 13.0) == [TrainingStalled((MissingPs(0, "it has not answered for 13 s"),))]
    stage.job.handle(PsHeartbeat("ps-1"), 16.0)
    assert told(stage, 16.0) == [], "one line for a change, not for a second"
    (end,) = heard(stage, PsHeartbeat("ps-0"), 17.0)
    assert end == StallEnded(seconds=7.0, reason="ps-0 serves again")
    assert told(stage, 18.0) == []


def test_a_node_that_is_lost_is_news_and_a_successor_on_its_way_is_none() -> None:
    stage = trains()
    stage.job.handle(PsHeartbeat("ps-1"), 12.0)
    assert [told(stage, now) for now in (12.0, 13.0)] == [[], []]
    assert [each.kind for each in told(stage, 16.0)] == ["stalled"]
    lost = PodStatus("ps-0", Role.PS, 0, PodPhase.RUNNING, node="n1", unreachable_since=1.7e9)
    assert heard(stage, PodChanged(lost), 17.0) == [
        TrainingStalled((MissingPs(0, "its node n1 is unreachable", 1.7e9),))
    ]
    see(stage, "ps-0", 18.0, phase=PodPhase.FAILED, exit_code=137)
    see(stage, "ps-0-b", 19.0)
    stage.job.handle(PsHeartbeat("ps-1"), 20.0)
    assert told(stage, 20.0) == []
    said = "it is starting; its predecessor is lost: its node n1 is unreachable"
    assert find_missing_ps(stage.job, 20.0) == (MissingPs(0, said, 1.7e9),)
    stage.play("20.1 registered ps-0-b")
    stage.play("20.2 attached ps-0-b empty")
    (end,) = heard(stage, PsAttached("ps-0-b", initialized=True, version=0), 21.0)
    assert (end.kind, end.reason) == ("stall_ended", "ps-0 serves again")


def test_a_master_that_takes_over_says_nothing_of_the_moment_until_every_ps_listens() -> None:
    stage = trains()
    stage.play("2.0 master")
    assert [told(stage, now) for now in (2.5, 3.0, 4.0)] == [[], [], []]


def test_a_job_that_ends_while_it_stands_goes_on_no_more() -> None:
    stage = trains()
    assert [each.kind for now in (12.0, 16.0) for each in told(stage, now)] == ["stalled"]
    stage.play("17.0 stop enough")
    assert told(stage, 18.0) == []


def test_a_job_that_waits_for_room_is_stalled_with_the_reason_until_a_checkpoint_is_written() -> None:
    stage = ScenarioRunner()
    stage.play("job minibatch=2 task_records=4 workers=1 training=a:80 checkpoint_steps=2 checkpoint_full_timeout=600")
    stage.play("started")

    def trains_a_range(now: float, lease: str) -> None:
        for line in (f"{now} wants worker-0", f"{now} report worker-0 {lease}"):
            stage.play(line)

    def cut(now: float, number: int, outcome: str = "") -> None:
        for line in ("prepared ps-0", "held ps-0", "snapshot ps-0", "saved"):
            stage.play(f"{now} {line} cut={number} {outcome if line == 'saved' else ''}")

    trains_a_range(1.0, "1.1")
    cut(1.5, 2, 'error="no space left on device"')
    assert unsaved_checkpoint_reason(stage.job) == "", "one interval more is trained"
    stage.play("2.0 wants worker-0")
    assert unsaved_checkpoint_reason(stage.job) == "", "what is leased is trained"
    (line,) = (line for line in stage.play("2.5 report worker-0 1.2") if "stalled" in line)
    assert line == 'tell     stalled unsaved="no space left on device"'
    stage.play("10.0 heard ps-0")
    assert told(stage, 11.0) == [], "once"
    stage.play("31.5 heard ps-0")
    cut(31.6, 3, 'error="still no space"')
    assert unsaved_checkpoint_reason(stage.job) == "still no space"
    assert told(stage, 32.0) == []
    stage.play("61.5 heard ps-0")
    for line in ("62.0 tick", "62.1 prepared ps-0 cut=4", "62.2 held ps-0 cut=4", "62.3 snapshot ps-0 cut=4"):
        stage.play(line)
    (end,) = heard(stage, CheckpointSaveFinished(4), 62.5)
    assert end == StallEnded(seconds=60.0, reason="a checkpoint was written again")
    assert unsaved_checkpoint_reason(stage.job) == ""

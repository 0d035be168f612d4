"""When training stands for want of parameter servers, and what is said of them."""

from __future__ import annotations

from typing import Any

from support.text_keys import missing_keys
from support.text_scenarios import ScenarioRunner

from edl.api.cluster_port import PodPhase, PodStatus, Role
from edl.api.run_events import StallEnded
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
    runner = ScenarioRunner()
    runner.play(JOB)
    runner.play("started")
    runner.play("1.0 wants worker-0")
    return runner


def see(runner: ScenarioRunner, uid: str, now: float, **fields: Any) -> None:
    values = {"phase": PodPhase.RUNNING, "node": "n1", **fields}
    runner.state.handle(PodChanged(PodStatus(uid, Role.PS, int(uid[3]), **values)), now)


def test_a_job_that_trains_waits_for_nobody() -> None:
    runner = trains()
    for now in (5.0, 10.0, 15.0):
        for ps in ("ps-0", "ps-1"):
            runner.state.handle(PsHeartbeat(ps), now)
    assert find_missing_ps(runner.state, 16.0) == ()


def test_a_ps_that_does_not_answer_and_one_whose_node_is_lost() -> None:
    runner = trains()
    assert find_missing_ps(runner.state, PS_SILENCE_SECONDS - 0.1) == ()
    runner.state.handle(PsHeartbeat("ps-1"), 12.0)
    see(runner, "ps-0", 13.0, unreachable_since=1_700_000_000.0)
    (lost,) = find_missing_ps(runner.state, 20.0)
    assert (lost.index, lost.since) == (0, 1_700_000_000.0)
    assert not missing_keys(lost.reason, "node n1")
    _, silent = find_missing_ps(runner.state, 25.0)
    assert silent.index == 1
    assert not missing_keys(silent.reason, "13 s")


def check_missing_ps(runner: ScenarioRunner, now: float, *keys: str) -> None:
    """PS 0 alone is missing, for a reason with these keys."""
    (missing,) = find_missing_ps(runner.state, now)
    assert missing.index == 0
    assert not missing_keys(missing.reason, *keys)


def test_a_ps_that_is_lost_until_its_successor_has_loaded_its_checkpoint() -> None:
    runner = trains()
    runner.state.handle(PsHeartbeat("ps-1"), 4.0)
    see(runner, "ps-0", 5.0, phase=PodPhase.FAILED, exit_code=137)
    check_missing_ps(runner, 5.0, "requested")
    see(runner, "ps-0-b", 6.0, phase=PodPhase.PENDING, node="", message="0/3 nodes are available")
    check_missing_ps(runner, 6.0, "not scheduled", "0/3 nodes are available")
    see(runner, "ps-0-b", 7.0)
    runner.play("7.1 registered ps-0-b")
    runner.play("7.2 attached ps-0-b empty")
    check_missing_ps(runner, 7.3, "checkpoint")
    runner.play("7.4 attached ps-0-b")
    assert find_missing_ps(runner.state, 7.5) == ()


def test_a_job_that_has_not_begun_or_is_over_is_not_stalled() -> None:
    runner = ScenarioRunner()
    runner.play(JOB)
    assert find_missing_ps(runner.state, 100.0) == ()
    runner = trains()
    runner.play("2.0 stop enough")
    runner.state.handle(Tick(), 3.0)
    assert find_missing_ps(runner.state, 100.0) == ()


def events_at_tick(runner: ScenarioRunner, now: float) -> list[Any]:
    """What people hear of it when time passes."""
    return events_of(runner, Tick(), now)


def events_of(runner: ScenarioRunner, event: CoreEvent, now: float) -> list[Any]:
    """What people hear of it when something happens."""
    events = (each.event for each in runner.state.handle(event, now) if isinstance(each, EmitEvent))
    return [each for each in events if isinstance(each, TrainingStalled | StallEnded)]


def test_people_are_told_that_it_stands_and_that_it_goes_on() -> None:
    runner = trains()
    for now in range(3, 13):  # it is seen to stand from 10 s on
        runner.state.handle(PsHeartbeat("ps-1"), float(now))
        assert events_at_tick(runner, now) == []
    (stalled,) = events_at_tick(runner, 13.0)
    assert [missing.index for missing in stalled.missing] == [0]
    assert not missing_keys(stalled.missing[0].reason, "13 s")
    runner.state.handle(PsHeartbeat("ps-1"), 16.0)
    assert events_at_tick(runner, 16.0) == [], "one line for a change, not for a second"
    (end,) = events_of(runner, PsHeartbeat("ps-0"), 17.0)
    assert end.seconds == 7.0
    assert not missing_keys(end.reason, "ps-0")
    assert events_at_tick(runner, 18.0) == []


def test_a_node_that_is_lost_is_news_and_a_successor_on_its_way_is_none() -> None:
    runner = trains()
    runner.state.handle(PsHeartbeat("ps-1"), 12.0)
    assert [events_at_tick(runner, now) for now in (12.0, 13.0)] == [[], []]
    assert [each.kind for each in events_at_tick(runner, 16.0)] == ["stalled"]
    lost = PodStatus("ps-0", Role.PS, 0, PodPhase.RUNNING, node="n1", unreachable_since=1.7e9)
    assert events_of(runner, PodChanged(lost), 17.0) == [
        TrainingStalled((MissingPs(0, "its node n1 is unreachable", 1.7e9),))
    ]
    see(runner, "ps-0", 18.0, phase=PodPhase.FAILED, exit_code=137)
    see(runner, "ps-0-b", 19.0)
    runner.state.handle(PsHeartbeat("ps-1"), 20.0)
    assert events_at_tick(runner, 20.0) == []
    reason = "it is starting; its predecessor is lost: its node n1 is unreachable"
    assert find_missing_ps(runner.state, 20.0) == (MissingPs(0, reason, 1.7e9),)
    runner.play("20.1 registered ps-0-b")
    runner.play("20.2 attached ps-0-b empty")
    (end,) = events_of(runner, PsAttached("ps-0-b", initialized=True, version=0), 21.0)
    assert (end.kind, end.reason) == ("stall_ended", "ps-0 serves again")


def test_a_master_that_takes_over_says_nothing_of_the_moment_until_every_ps_listens() -> None:
    runner = trains()
    runner.play("2.0 master")
    assert [events_at_tick(runner, now) for now in (2.5, 3.0, 4.0)] == [[], [], []]


def test_a_job_that_ends_while_it_stands_goes_on_no_more() -> None:
    runner = trains()
    assert [each.kind for now in (12.0, 16.0) for each in events_at_tick(runner, now)] == ["stalled"]
    runner.play("17.0 stop enough")
    assert events_at_tick(runner, 18.0) == []


def test_a_job_that_waits_for_room_is_stalled_with_the_reason_until_a_checkpoint_is_written() -> None:
    runner = ScenarioRunner()
    runner.play("job minibatch=2 task_records=4 workers=1 training=a:80 checkpoint_steps=2 checkpoint_full_timeout=600")
    runner.play("started")

    def trains_a_range(now: float, lease: str) -> None:
        for line in (f"{now} wants worker-0", f"{now} report worker-0 {lease}"):
            runner.play(line)

    def cut(now: float, number: int, outcome: str = "") -> None:
        for line in ("prepared ps-0", "held ps-0", "snapshot ps-0", "saved"):
            runner.play(f"{now} {line} cut={number} {outcome if line == 'saved' else ''}")

    trains_a_range(1.0, "1.1")
    cut(1.5, 2, 'error="no space left on device"')
    assert unsaved_checkpoint_reason(runner.state) == "", "one interval more is trained"
    runner.play("2.0 wants worker-0")
    assert unsaved_checkpoint_reason(runner.state) == "", "what is leased is trained"
    (line,) = (line for line in runner.play("2.5 report worker-0 1.2") if "stalled" in line)
    assert line == 'tell     stalled unsaved="no space left on device"'
    runner.play("10.0 heard ps-0")
    assert events_at_tick(runner, 11.0) == [], "once"
    runner.play("31.5 heard ps-0")
    cut(31.6, 3, 'error="still no space"')
    assert unsaved_checkpoint_reason(runner.state) == "still no space"
    assert events_at_tick(runner, 32.0) == []
    runner.play("61.5 heard ps-0")
    for line in ("62.0 tick", "62.1 prepared ps-0 cut=4", "62.2 held ps-0 cut=4", "62.3 snapshot ps-0 cut=4"):
        runner.play(line)
    (end,) = events_of(runner, CheckpointSaveFinished(4), 62.5)
    assert end.seconds == 60.0
    assert not missing_keys(end.reason, "checkpoint")
    assert unsaved_checkpoint_reason(runner.state) == ""

"""A worker that is stopped for good loses its place to a new one, and nobody else does."""

from __future__ import annotations

from collections.abc import Sequence

from support.all_reduce_master import AllReduceMaster
from support.text_keys import missing_keys

from edl.api.run_events import WarningRaised
from edl.core.events import DeletePod, StartPod, Tick
from edl.core.rank_state import RankPhase
from edl.core.silent_workers import REPLACEMENT_SILENCE_SECONDS


def stay_silent(master: AllReduceMaster, speaking: Sequence[str], seconds: float) -> list[object]:
    """Let time pass in which only these workers report; returns the commands about pods."""
    commands: list[object] = []
    for _ in range(round(seconds)):
        for worker in speaking:
            master.report(worker, RankPhase.OUTSIDE)
        commands += master.handle(Tick(), after=1.0 - master.now % 1.0)
    return [each for each in commands if isinstance(each, DeletePod | StartPod)]


def test_a_worker_that_is_silent_for_minutes_is_replaced_once() -> None:
    master = AllReduceMaster()
    master.start_round("w0", "w1", "w2")
    assert stay_silent(master, ("w0", "w1"), REPLACEMENT_SILENCE_SECONDS - 2) == []
    deleted, started = stay_silent(master, ("w0", "w1"), 4)
    assert deleted == DeletePod("w2", master.settings.grace)
    assert isinstance(started, StartPod)
    assert started.index == 3
    warnings = [each.message for each in master.events if isinstance(each, WarningRaised)]
    assert not missing_keys(warnings[-1], "worker-2", "it is replaced")
    # It ends by a signal that the master asked for, so it is no crash, and nothing else replaces it.
    master.kill("w2")
    assert stay_silent(master, ("w0", "w1"), 4) == []
    assert not master.state.has_ended


def test_a_worker_that_speaks_again_in_time_keeps_its_place() -> None:
    master = AllReduceMaster()
    master.start_round("w0", "w1", "w2")
    for _ in range(2):
        assert stay_silent(master, ("w0", "w1"), REPLACEMENT_SILENCE_SECONDS - 5) == []
        master.report("w2", RankPhase.OUTSIDE)


def test_no_worker_is_replaced_while_the_master_hears_nobody() -> None:
    """The master may be the one that is cut off: the workers train on without it."""
    master = AllReduceMaster()
    master.start_round("w0", "w1", "w2")
    assert stay_silent(master, (), 2 * REPLACEMENT_SILENCE_SECONDS) == []
    # The first one that it hears again does not cost the others their places.
    assert stay_silent(master, ("w0",), 10) == []


def test_the_silence_of_a_stopped_worker_counts_anew_for_a_new_master() -> None:
    master = AllReduceMaster()
    master.start_round("w0", "w1", "w2")
    stay_silent(master, ("w0", "w1"), 60)
    master.restart()
    assert stay_silent(master, ("w0", "w1"), REPLACEMENT_SILENCE_SECONDS - 5) == []
    assert DeletePod("w2", master.settings.grace) in stay_silent(master, ("w0", "w1"), 10)

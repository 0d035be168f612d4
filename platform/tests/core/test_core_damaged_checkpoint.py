"""A parameter server cannot read the checkpoint that it is to load: an older one stands in, or the job ends."""

from __future__ import annotations

from typing import Any

from support.core_harness import CoreHarness, alive, killed
from support.text_keys import missing_keys

from edl.api.cluster_port import Role
from edl.api.journal_entries import CheckpointWritten
from edl.api.run_events import WarningRaised
from edl.core.cuts import SavedCheckpoint
from edl.core.events import AttachPs, CheckpointRefused, LeaseProgress, ProgressReported, PsAttached, PsRegistered
from edl.core.journal_application import apply_entry

BAD = "ps-0.safetensors is damaged"


def trained(ps: int = 1) -> tuple[CoreHarness, SavedCheckpoint]:
    """A job whose newest checkpoint, 9, was taken after 5 steps, and the one before it, of no step at all."""
    harness = CoreHarness(ps=ps)
    lease = harness.train()
    older = harness.state.checkpoint
    assert older is not None
    harness.see(ProgressReported("worker-0", (LeaseProgress(lease, 5),)))
    training = harness.state.training_ledger
    assert training is not None
    saved = CheckpointWritten(cut=9, step=5, version=5, ledger=training.snapshot_at_cut({lease: 5}))
    apply_entry(harness.state, saved)
    harness.journal.append(saved.to_json())
    return harness, older


def restores(commands: list[Any]) -> list[tuple[str, int]]:
    return [(x.uid, x.restore_cut) for x in commands if isinstance(x, AttachPs) and x.restore_cut is not None]


def test_an_older_checkpoint_stands_in_with_its_ledger() -> None:
    harness, older = trained()
    harness.see(killed(Role.PS, 0), alive(Role.PS, 0, "new"), PsRegistered("new"))
    assert restores(harness.see(PsAttached("new", False, 0))) == [("new", 9)]
    assert harness.state.step == 5
    assert restores(harness.see(CheckpointRefused("new", 9, BAD, older))) == [("new", 1)]
    assert (harness.state.step, harness.state.checkpoint) == (0, older)
    assert [entry["records"] for entry in harness.entries("rolled_back")] == [0, 40]
    assert [entry["reason"] for entry in harness.entries("checkpoint_back")] == [BAD]
    assert BAD in next(tell.message for tell in harness.emitted if isinstance(tell, WarningRaised))
    harness.see(PsAttached("new", True, 0))
    assert harness.state.pods.all_ps_ready()
    harness.restart()
    assert (harness.state.step, harness.state.checkpoint) == (0, older)


def test_what_another_parameter_server_found_out_before_is_not_done_again() -> None:
    harness, older = trained(ps=2)
    harness.see(killed(Role.PS, 0), killed(Role.PS, 1), alive(Role.PS, 0, "a"), alive(Role.PS, 1, "b"))
    harness.see(PsRegistered("a"), PsRegistered("b"), PsAttached("a", False, 0), PsAttached("b", False, 0))
    assert restores(harness.see(CheckpointRefused("a", 9, BAD, older))) == [("a", 1)]
    assert restores(harness.see(CheckpointRefused("b", 9, BAD, older))) == [("b", 1)]
    assert len(harness.entries("checkpoint_back")) == 1
    harness.see(PsAttached("a", True, 0), PsAttached("b", True, 0))
    assert harness.state.pods.all_ps_ready()


def test_one_that_could_read_the_damaged_checkpoint_loads_the_older_one_too() -> None:
    harness, older = trained(ps=2)
    harness.see(killed(Role.PS, 0), killed(Role.PS, 1), alive(Role.PS, 0, "a"), alive(Role.PS, 1, "b"))
    harness.see(PsRegistered("a"), PsRegistered("b"), PsAttached("a", False, 0), PsAttached("b", False, 0))
    harness.see(CheckpointRefused("a", 9, BAD, older))
    assert restores(harness.see(PsAttached("b", True, 5))) == [("b", 1)]


def test_beside_a_parameter_server_that_survived_only_the_lost_parameters_go_further_back() -> None:
    harness, older = trained(ps=2)
    harness.see(killed(Role.PS, 1), alive(Role.PS, 1, "b"), PsRegistered("b"), PsAttached("b", False, 0))
    assert restores(harness.see(CheckpointRefused("b", 9, BAD, older))) == [("b", 1)]
    assert harness.state.step == 5
    assert [(entry["ps"], entry["updates"]) for entry in harness.entries("rolled_back")] == [(1, 0), (1, 5)]
    harness.see(PsAttached("b", True, 0))
    assert harness.state.pods.all_ps_ready()


def test_without_an_older_one_the_job_ends_and_names_what_was_looked_at() -> None:
    harness, _ = trained()
    harness.see(killed(Role.PS, 0), alive(Role.PS, 0, "new"), PsRegistered("new"), PsAttached("new", False, 0))
    harness.see(CheckpointRefused("new", 9, BAD, None, "checkpoint 1 cannot be used either: it has no manifest"))
    assert harness.state.phase == "Failed"
    assert not missing_keys(harness.state.reason, BAD, "checkpoint 1", "no manifest")

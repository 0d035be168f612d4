"""Parameter servers are killed: what goes back is said, and is what the ledger says. Told to go, they cost nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from itertools import product
from pathlib import Path
from signal import SIGKILL, SIGTERM

import numpy as np
import pytest
from faults.job_assertions import done
from faults.linear_job import LinearJob, cut_of, parameters, rows_of
from numpy.typing import NDArray
from support.job_process import START_SECONDS, JobProcess

from edl.simulation.counted_steps import CountedStep, PartRollback
from edl.simulation.ledger_recount import LedgerRecount

pytestmark = pytest.mark.faults

Make = Callable[..., LinearJob]


def test_the_only_one_is_killed(linear: Make) -> None:
    """While it writes a checkpoint, and amid two: parameters, rows and ledger go back together, to a whole one."""
    job = linear(embedding=True)
    lines = 0
    with job.start() as run:
        for intervals in (2, 1):
            saved = run.wait_line(lambda line: line["event"] == "checkpoint_saved" and line["step"] > 0, after=lines)
            if intervals == 2:
                wait_begun(run, after=saved["cut"])
            else:
                run.wait_step(saved["step"] + 200)
            run.send("ps", 0, SIGKILL)
            lines = len(run.lines)
            back = run.wait_event("rolled_back", after=lines)
            assert back["to_cut"] >= saved["cut"]
            assert 0 <= back["records"] <= intervals * job.interval * job.minibatch
        summary, counted = done(job, run)
        job.check_checkpoints(run.run_dir, counted)
    assert len(counted.rollbacks) == 2
    assert summary["updates_rolled_back"] == 0
    assert summary["records_repeated"] == 0


def wait_begun(run: JobProcess, *, after: int) -> None:
    """Until a checkpoint later than the cut ``after`` is begun on the disk and is none yet."""
    checkpoints = run.run_dir / "checkpoints"
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until:
        begun = [folder for folder in checkpoints.glob("cut-*") if cut_of(folder) > after]
        if any(not (folder / "manifest.json").exists() for folder in begun):
            return
        time.sleep(0.001)
    raise AssertionError(f"no checkpoint was begun after cut {after}")


@pytest.mark.repetition
def test_the_only_one_and_a_worker_are_killed_while_rows_are_served(linear: Make) -> None:
    """Rows go back with the variables; what was pushed and counts is what both moved by."""
    job = linear(embedding=True)
    with job.start() as run:
        run.wait_step(100)
        run.send("worker", min(run.training()), SIGKILL)
        saved = run.wait_line(lambda line: line["event"] == "checkpoint_saved" and line["step"] > 100)
        run.wait_step(saved["step"] + 100)
        run.send("ps", 0, SIGKILL)
        run.wait_event("rolled_back")
        _, counted = done(job, run, lost=1)
        job.check_checkpoints(run.run_dir, counted)
    assert len(counted.rollbacks) == 1


@pytest.mark.repetition
@pytest.mark.parametrize(
    "embedding",
    [pytest.param(False, id="variables"), pytest.param(True, id="variables and rows, and a worker too")],
)
def test_one_of_two_is_killed(linear: Make, embedding: bool) -> None:
    """What it held goes back to the newest checkpoint; nothing is leased again, and the summary counts the updates."""
    # A fast machine does hundreds of steps between two status lines: still amid two checkpoints.
    job = linear(ps=2, records=24000, every_steps=1200, embedding=embedding)
    with job.start() as run:
        if embedding:
            run.wait_step(200)
            run.send("worker", min(run.training()), SIGKILL)
        saved = run.wait_line(lambda line: line["event"] == "checkpoint_saved" and line["step"] > 0)
        run.wait_step(saved["step"] + 100)
        run.send("ps", 1, SIGKILL)
        back = run.wait_event("rolled_back")
        assert back["records"] == 0
        assert 0 < back["updates"] <= job.interval
        summary, counted = done(job, run, lost=int(embedding))
        folder = max(path.parent for path in run.run_dir.glob("checkpoints/*/manifest.json"))
    assert summary["records_rolled_back"] == 0
    assert [part.ps for part in counted.part_rollbacks] == [1]
    intact, lost = ShardContents(job, folder, 0), ShardContents(job, folder, 1)
    assert ("items" in intact.values) == ("items" in lost.values) == embedding
    check_kept(intact, counted)
    assert check_lost(lost, counted, counted.part_rollbacks[0]) == {summary["updates_rolled_back"]}


@pytest.mark.parametrize("ps", [pytest.param(1, marks=pytest.mark.repetition), 2])
@pytest.mark.repetition
def test_one_is_told_to_go(linear: Make, ps: int) -> None:
    """SIGTERM: its successor begins where it ends, with variables and rows; nothing goes back, to the last bit."""
    job = linear(ps=ps, records=12000, every_steps=100_000, embedding=True)
    with job.start() as run:
        run.wait_step(300)
        lines = len(run.lines)
        run.send("ps", ps - 1, SIGTERM)
        ended = run.wait_event("role_ended", after=lines, role="ps")
        assert (ended["index"], ended["exit_code"]) == (ps - 1, 0)
        run.wait_event("role_started", after=lines, role="ps")
        summary, counted = done(job, run)
        job.check_checkpoints(run.run_dir, counted)
    assert (summary["records_rolled_back"], summary["updates_rolled_back"], summary["records_repeated"]) == (0, 0, 0)
    assert (counted.rollbacks, counted.part_rollbacks) == ([], [])


@pytest.mark.repetition
def test_a_cut_over_two_is_the_ledger_at_its_position(linear: Make) -> None:
    """Two PS take their snapshots at different times and still hold the same steps."""
    job = linear(ps=2, every_steps=150)
    with job.start() as run:
        _, counted = done(job, run, timeout=150.0)
        job.check_checkpoints(run.run_dir, counted)
        folders = [path.parent for path in run.run_dir.glob("checkpoints/*/manifest.json")]
    amid = [folder for folder in folders if 0 < len(counted.cuts[cut_of(folder)]) < len(counted.counted_steps)]
    assert len(amid) >= 3
    assert all(parameters(folder, ps) for folder in amid for ps in (0, 1))


# ------------------------------------------------------------------ which updates went with a lost PS


class ShardContents:
    """The variables and rows that one PS has at the end, and what steps add to them."""

    def __init__(self, job: LinearJob, folder: Path, ps: int) -> None:
        self.ps = ps
        self.values = parameters(folder, ps)
        assert self.values, "a placement in which one PS owns nothing shows nothing"
        self._job = job
        self._rows = rows_of(folder, ps)
        self.flat = self._flat(self.values)

    def of(self, steps: Iterable[CountedStep]) -> NDArray[np.float32]:
        """The sum over these steps."""
        return self._flat(self._job.expected(steps))

    def _flat(self, values: dict[str, NDArray[np.float32]]) -> NDArray[np.float32]:
        """Every value that this PS owns, side by side."""
        own = [values[name][self._rows] if name == "items" else values[name] for name in sorted(self.values)]
        return np.concatenate([value.ravel() for value in own])


def check_kept(held: ShardContents, found: LedgerRecount) -> None:
    """The other one lacks nothing; what a killed worker had sent to it alone is in once more."""
    halves = [[np.zeros_like(held.flat), held.of([half])] for half in found.partial_steps]
    counted_sum = held.of(found.counted_steps)
    assert any(np.array_equal(sum(chosen, counted_sum), held.flat) for chosen in product(*halves))


def check_lost(held: ShardContents, found: LedgerRecount, part: PartRollback) -> set[int]:
    """A restored PS lacks what was entered since its cut, and the first few steps of each worker that were not yet.

    What workers had pushed and not yet reported when it died is not in the journal. Their pushes are in order, so it is
    a number of steps for each worker: exactly one choice of numbers must explain every value.

    Returns:
        How many updates the values lack: of one number, unless a worker was killed between two of its sends.
    """
    entered = part.counted_before - found.cuts[part.cut]
    missing = held.of(found.counted_steps) - held.flat - held.of(entered)
    choices = [list(enumerate(_prefixes(held, steps))) for steps in _unreported(found, part).values()]
    choices += [[(0, np.zeros_like(missing)), (0, -held.of([half]))] for half in found.partial_steps]
    lacking = {
        len(entered) + sum(steps for steps, _ in chosen)
        for chosen in product(*choices)
        if np.array_equal(sum((values for _, values in chosen), np.zeros_like(missing)), missing)
    }
    if not lacking:
        raise AssertionError(f"no prefix of the unreported steps explains what ps-{held.ps} lacks: {missing}")
    return lacking


def _unreported(found: LedgerRecount, part: PartRollback) -> dict[str, list[CountedStep]]:
    """By worker, the steps that it may have pushed and not reported, in order."""
    steps: dict[str, list[CountedStep]] = {}
    for number in part.live_leases:
        lease = found.leases[number]
        after = [step for step in lease.first_steps(lease.done_steps) if step not in part.counted_before]
        steps.setdefault(lease.worker, []).extend(after)
    return steps


def _prefixes(held: ShardContents, steps: list[CountedStep]) -> Iterator[NDArray[np.float32]]:
    total = np.zeros_like(held.flat)
    yield total
    for step in steps:
        total = total + held.of([step])
        yield total

"""Parameter servers are killed: what goes back is said, and is what the ledger says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from signal import SIGKILL

import numpy as np
import pytest
from faults.linear_job import LinearJob, cut_of, parameters
from faults.verdict import done
from numpy.typing import NDArray

from edl.testing.counted_steps import CountedStep, PartRollback
from edl.testing.ledger import Recount

pytestmark = pytest.mark.faults

Make = Callable[..., LinearJob]


@pytest.mark.parametrize("steps_after", [[0, 200]], ids=["right after a checkpoint and amid two"])
def test_the_only_one_is_killed(linear: Make, steps_after: list[int]) -> None:
    """Parameters and ledger go back together, by at most one checkpoint interval each time."""
    job = linear()
    lines = 0
    with job.start() as run:
        for after in steps_after:
            saved = run.wait_line(lambda line: line["event"] == "checkpoint_saved" and line["step"] > 0, after=lines)
            run.wait_step(saved["step"] + after)
            run.send("ps", 0, SIGKILL)
            lines = len(run.lines)
            back = run.wait_event("rolled_back", after=lines)
            assert back["to_cut"] >= saved["cut"]
            assert 0 <= back["records"] <= job.interval * job.minibatch
        summary, found = done(job, run)
        job.check_checkpoints(run.run_dir, found)
    assert len(found.rollbacks) == len(steps_after)
    assert summary["updates_rolled_back"] == 0
    assert summary["records_repeated"] == 0


def test_one_of_two_is_killed(linear: Make) -> None:
    """Its variables go back to the newest checkpoint; nothing is leased again, and the summary counts the updates."""
    # A fast machine does hundreds of steps between two status lines: still amid two checkpoints.
    job = linear(ps=2, records=24000, every_steps=1200)
    with job.start() as run:
        saved = run.wait_line(lambda line: line["event"] == "checkpoint_saved" and line["step"] > 0)
        run.wait_step(saved["step"] + 100)
        run.send("ps", 1, SIGKILL)
        back = run.wait_event("rolled_back")
        assert back["records"] == 0
        assert 0 < back["updates"] <= job.interval
        summary, found = done(job, run)
        folder = max(path.parent for path in run.run_dir.glob("checkpoints/*/manifest.json"))
    assert summary["records_rolled_back"] == summary["records_repeated"] == 0
    assert [part.ps for part in found.parts] == [1]
    kept, lost = parameters(folder, 0), parameters(folder, 1)
    assert kept
    assert lost, "a placement in which one PS owns nothing shows nothing"
    whole = job.expected(found.counted)
    for name, value in kept.items():
        np.testing.assert_array_equal(value, whole[name], err_msg=name)
    check_lost(job, found, found.parts[0], lost)


def test_a_cut_over_two_is_the_ledger_at_its_position(linear: Make) -> None:
    """Two PS take their snapshots at different times and still hold the same steps."""
    job = linear(ps=2, every_steps=150)
    with job.start() as run:
        _, found = done(job, run)
        job.check_checkpoints(run.run_dir, found)
        folders = [path.parent for path in run.run_dir.glob("checkpoints/*/manifest.json")]
    amid = [folder for folder in folders if 0 < len(found.cuts[cut_of(folder)]) < len(found.counted)]
    assert len(amid) >= 3
    assert all(parameters(folder, ps) for folder in amid for ps in (0, 1))


# ------------------------------------------------------------------ which updates went with a lost PS


def check_lost(job: LinearJob, found: Recount, part: PartRollback, values: dict[str, NDArray[np.float32]]) -> None:
    """A restored PS lacks what was entered since its cut, and the first few steps of each worker that were not yet.

    What workers had pushed and not yet reported when it died is not in the journal. Their pushes are in order, so it is
    a number of steps for each worker: exactly one choice of numbers must explain every value.
    """
    entered = part.before - found.cuts[part.cut]
    missing = {name: job.expected(found.counted)[name] - value for name, value in values.items()}
    base = job.expected(entered)
    rest = {name: (value - base[name]).ravel() for name, value in missing.items()}
    names = sorted(rest)
    target = np.concatenate([rest[name] for name in names])
    choices = [list(_prefixes(job, steps, names)) for steps in _unreported(found, part).values()]
    if not any(np.array_equal(sum(chosen, np.zeros_like(target)), target) for chosen in product(*choices)):
        raise AssertionError(f"no prefix of the unreported steps explains what ps-{part.ps} lacks: {target}")


def _unreported(found: Recount, part: PartRollback) -> dict[str, list[CountedStep]]:
    """By worker, the steps that it may have pushed and not reported, in order."""
    steps: dict[str, list[CountedStep]] = {}
    for number in part.live:
        lease = found.leases[number]
        after = [step for step in lease.steps(lease.through) if step not in part.before]
        steps.setdefault(lease.worker, []).extend(after)
    return steps


def _prefixes(job: LinearJob, steps: list[CountedStep], names: list[str]) -> Iterator[NDArray[np.float32]]:
    total = np.concatenate([np.zeros_like(job.expected([])[name]).ravel() for name in names])
    yield total
    for step in steps:
        values = job.expected([step])
        total = total + np.concatenate([values[name].ravel() for name in names])
        yield total

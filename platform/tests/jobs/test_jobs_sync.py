"""Whole jobs in synchronous mode: their updates are those that plain Keras makes of the same records."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from jobs.plain_keras import QUIET
from support.signed_job import MINIBATCH, SignedJob, dense

pytestmark = [pytest.mark.jobs, pytest.mark.timeout(400), pytest.mark.tensorflow, pytest.mark.filterwarnings(QUIET)]

RECORDS = 6400


@pytest.mark.parametrize("ps", [pytest.param(1, marks=pytest.mark.repetition), 2])
def test_two_workers_make_the_updates_of_one_process_with_larger_minibatches(tmp_path: Path, ps: int) -> None:
    job = SignedJob.make(tmp_path, records=RECORDS, ps=ps)
    with job.start() as run:
        summary = run.summary(300.0)
        cuts = sorted(path.parent for path in run.run_dir.glob("checkpoints/cut-*/manifest.json"))
    assert summary["records_done"] == RECORDS
    assert summary["records_repeated"] == 0
    signatures = [job.signatures(cuts[-1], part) for part in range(ps)]
    assert [(one.odd, one.absent) for one in signatures] == [([], [])] * ps
    updates = {number: sorted(records) for number, records in signatures[0].updates.items()}
    for other in signatures[1:]:
        assert {number: sorted(records) for number, records in other.updates.items()} == updates
    assert list(updates) == list(range(1, len(updates) + 1))
    sizes = [len(records) // MINIBATCH for records in updates.values()]
    assert set(sizes) == {1, 2}
    assert sizes.count(2) > 50, "the two workers did not train at the same time"
    parameters = summary["parameters"]
    assert (parameters["pushes"], parameters["updates"]) == (RECORDS // MINIBATCH, len(updates))
    assert parameters["stalest"] <= ps - 1, (
        "a worker that joins may have values of two updates, from two parameter servers"
    )
    expected = job.in_keras(dense(cuts[0]), updates)
    for name, value in dense(cuts[-1]).items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-3, atol=1e-5, err_msg=name)

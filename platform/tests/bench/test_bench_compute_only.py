"""The limit of DeepFM is made of a worker's own parts, and trains as the worker of today does."""

from __future__ import annotations

from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[3] / "bench"
VOCABULARY = 40_000
"""Rows of 16 floats take more than the 2 MiB from which on they are served."""


def test_it_makes_steps_with_served_rows_whether_records_are_fed_or_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    from click_job import BLOCKS, click_log_folder
    from compute_only import ComputeLimit
    from mnist_job import ZOO

    with click_log_folder(BLOCKS * 16, VOCABULARY) as clicks:
        limit = ComputeLimit(clicks.training_folder, ZOO, VOCABULARY, batch=16)
    assert all(limit.samples_per_second({"seconds": 0.05, "fed": fed})["rate"] > 0 for fed in (True, False))

"""The random numbers of retries."""

from __future__ import annotations

import random

from edl.transport.retry import draw_jitter


def test_a_seed_that_all_workers_set_does_not_make_them_retry_together() -> None:
    random.seed(7)
    first = draw_jitter()
    random.seed(7)
    assert draw_jitter() != first

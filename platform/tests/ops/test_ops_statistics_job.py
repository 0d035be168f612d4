"""How ``edl data stats --workers`` divides a table among workers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from edl.data.table_scan import TableRanges
from edl.ops.statistics_job import lease_records, statistics_job


@pytest.mark.parametrize(
    ("records", "workers", "group", "lease"),
    [
        (10_000_000, 2, 250_000, 500_000),
        (10_000_000, 1, 250_000, 500_000),
        (3_000_000, 2, 250_000, 250_000),
        (100_000_000, 2, 1_000_000, 1_000_000),
        (100_000_000, 2, 100_000, 500_000),
        (10_000_000, 2, 1, 524_288),
    ],
)
def test_a_lease_has_whole_row_groups(records: int, workers: int, group: int, lease: int) -> None:
    assert lease_records(records, workers, group) == lease


@pytest.mark.parametrize("group", [1_000_000, 999_999, 600_001])
def test_a_few_large_row_groups_are_divided_among_workers(group: int) -> None:
    lease = lease_records(2 * group, 2, group)
    assert group / 10 < lease <= 2 * group / 16 + 1
    assert group % lease == 0 or group % lease > lease / 2  # no small rest


@pytest.mark.parametrize("records", [1, 7, 63, 1000, 1_000_003])
@pytest.mark.parametrize("group", [1, 10, 65_537])
@pytest.mark.parametrize("workers", [1, 2, 7])
def test_minibatches_are_a_lease(records: int, group: int, workers: int) -> None:
    train = statistics_job(["t"], {}, records, workers, group)["train"]
    assert train["minibatch_size"] * train["minibatches_per_task"] == lease_records(records, workers, group) > 0


def test_a_table_knows_its_row_groups(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": np.arange(100)}), tmp_path / "a.parquet", row_group_size=40)
    np.savez(tmp_path / "a.npz", x=np.arange(100))
    assert [TableRanges(str(tmp_path / name), {}).group_records for name in ("a.parquet", "a.npz")] == [40, 1]

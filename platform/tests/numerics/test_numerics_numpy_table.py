"""The NumPy table keeps the contract of tables."""

from __future__ import annotations

import pytest
from support.retention_contract import RetentionContract
from support.table_contract import Make, TableContract

from edl.numerics.numpy_table import NumpyTable
from edl.numerics.optimizers import make_rule


class TestNumpyTable(TableContract, RetentionContract):
    @pytest.fixture
    def make(self) -> Make:
        return lambda table, spec, retention=None: NumpyTable(
            table, spec.slot_starts, make_rule(spec, spec.weight_decay_for(table.name)), retention
        )

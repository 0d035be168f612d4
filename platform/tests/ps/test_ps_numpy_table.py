"""The NumPy table keeps the contract of tables."""

from __future__ import annotations

import pytest
from table_contract import Make, TableContract

from edl.optimizers import rule
from edl.ps.numpy_table import NumpyTable


class TestNumpyTable(TableContract):
    @pytest.fixture
    def make(self) -> Make:
        return lambda table, spec: NumpyTable(table, spec.slots, rule(spec, spec.decay_of(table.name)))

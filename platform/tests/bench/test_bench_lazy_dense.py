"""The reference prints how far lazy updates are from dense ones, for every optimizer that there is."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from edl.numerics.optimizer_spec import OPTIMIZER_DEFINITIONS

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs/reference/optimizers.md"


@pytest.fixture(scope="module")
def lazy_dense() -> Iterator[ModuleType]:
    sys.path.insert(0, str(ROOT / "bench"))
    import lazy_dense

    yield lazy_dense
    sys.path.remove(str(ROOT / "bench"))


def test_every_optimizer_is_measured(lazy_dense):
    assert {spec.name for spec, _ in lazy_dense.OPTIMIZERS.values()} == set(OPTIMIZER_DEFINITIONS)


def test_the_page_has_what_is_measured(lazy_dense):
    _, _, printed = PAGE.read_text().partition("| loss, lazy |")
    rows = [line.split(" | ") for line in printed.partition("\n\n")[0].splitlines() if line.startswith("| `")]
    measured = [[f"| {name}", f"{rate:g}"] for name, (_, rate) in lazy_dense.OPTIMIZERS.items()]
    assert [row[:2] for row in rows] == measured


@pytest.mark.parametrize(("name", "equal"), [("`Adagrad`", True), ("`Adam`", False)])
def test_lazy_is_dense_where_no_state_fades(lazy_dense, name, equal):
    accesses = lazy_dense.LookupPlan.draw_plan(5)
    lazy, dense = (
        lazy_dense.train_table(accesses, *lazy_dense.OPTIMIZERS[name], dense=dense) for dense in (False, True)
    )
    assert np.allclose(lazy, dense, atol=1e-6) is equal

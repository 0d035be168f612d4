"""The docstring of ``edl.core.job`` is the map of the core: it names every module, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from edl.core import job


def test_the_map_of_the_core_names_every_module_once() -> None:
    modules = {path.stem for path in Path(job.__file__).parent.glob("*.py")} - {"__init__", "job"}
    lists = [line for line in (job.__doc__ or "").splitlines() if line.startswith("*")]
    named = [name for line in lists for name in re.findall(r"``(\w+)``", line)]
    assert sorted(named) == sorted(modules)

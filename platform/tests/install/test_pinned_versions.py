"""The pinned versions install on every Python that EDL says it runs on."""

from __future__ import annotations

import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parents[3]


def test_each_pinned_version_runs_on_the_oldest_python() -> None:
    """``pip freeze`` on a newer one may choose versions that Debian's first 3.11 cannot have."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (oldest,) = (part.version for part in SpecifierSet(project["requires-python"]) if part.operator == ">=")
    pinned = [line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line]
    wanted = {name: python for name, version in pinned if (python := _requires(name, version)) is not None}
    assert len(wanted) > 50
    assert {name: spec for name, spec in wanted.items() if not SpecifierSet(spec).contains(f"{oldest}.0")} == {}


def _requires(name: str, version: str) -> str | None:
    """What Python a distribution asks for; None if it does not say, or is not here in that version."""
    try:
        found = distribution(name)
    except PackageNotFoundError:
        return None
    return found.metadata.get("Requires-Python") if found.version == version else None

"""What the tests of whole jobs share."""

from __future__ import annotations

import os

import pytest
from support.job_folder import MODEL_ZOO


@pytest.fixture(autouse=True)
def zoo_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """The zoos of these tests import from the project's."""
    path = [str(MODEL_ZOO.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))

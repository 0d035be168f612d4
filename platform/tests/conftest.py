from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-scenarios", action="store_true", help="write what the core does now into tests/scenarios/*.txt"
    )

"""MaxCompute (ODPS) tables: the names can be imported, and raise an error when used."""

from __future__ import annotations

import os
from typing import Any

from elasticdl.python.common.constants import MaxComputeConfig
from elasticdl_compat.missing_names import explain_missing_names, refuse_max_compute


def is_odps_configured() -> bool:
    """Whether the environment has an account of MaxCompute. A module that asks first writes no table without one."""
    account = (MaxComputeConfig.PROJECT_NAME, MaxComputeConfig.ACCESS_ID, MaxComputeConfig.ACCESS_KEY)
    return all(name in os.environ for name in account)


class ODPSReader:
    """Refused.

    Raises:
        BadInputError: always.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        raise refuse_max_compute("ODPSReader")


class ODPSWriter:
    """Refused.

    Raises:
        BadInputError: always.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        raise refuse_max_compute("ODPSWriter")


__getattr__ = explain_missing_names(__name__)

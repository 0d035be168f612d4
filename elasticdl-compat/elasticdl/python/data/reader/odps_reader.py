"""The reader of MaxCompute (ODPS) tables: it can be imported, and raises an error when used."""

from __future__ import annotations

from typing import Any

from elasticdl_compat.missing_names import explain_missing_names, refuse_max_compute


class ODPSDataReader:
    """Refused.

    Raises:
        BadInputError: always.
    """

    def __init__(self, **options: Any) -> None:
        raise refuse_max_compute("ODPSDataReader")


__getattr__ = explain_missing_names(__name__)

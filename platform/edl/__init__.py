"""EDL: elastic, fault-tolerant deep learning on TensorFlow 2 / Keras."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd

__version__ = "0.1.0"


def load_ipython_extension(ipython: Any) -> None:
    """``%load_ext edl`` of IPython and Jupyter: cells that begin with ``%%edl`` have statements of ``edl sql``."""
    ipython.register_magics(import_module("edl.cli.sql_notebook").EdlMagics)


def sql(
    statements: str,
    database: str | None = None,
    *,
    replace: bool = False,
    models: str | Path | None = None,
    export: str | Path | None = None,
    query_timeout: float | None = None,
) -> pd.DataFrame:
    """Run SQL statements as ``edl sql`` does; it prints nothing.

    Args:
        statements: separated by semicolons.
        database: its address, without a password; by default that of ``EDL_DATABASE``.
        replace: a model that exists gets a new version; a table is replaced.
        models: folder of the models; by default that of ``EDL_MODELS``, else ``~/.edl/models``.
        export: folder that keeps the Keras module, the job file and the data of a training.
        query_timeout: seconds that a query may take in the database; None: no limit.

    Returns:
        What the last statement returns: its rows for a query, the rows with the column of predictions for TO PREDICT,
        metrics in one row for a training and TO EVALUATE, columns and their importance for TO EXPLAIN.

    Raises:
        EdlError: of ``edl.api.errors``; a statement is wrong, or fails. ``where`` names line and column of it.
    """
    # By name: an import would give everything that imports edl the packages of databases.
    try:
        frames: Any = import_module("edl.sql_jobs.data_frames")
    except ImportError as error:
        from edl.api.errors import BadInputError

        hint = "pip install 'edl-platform[train,sql,pandas]'"
        raise BadInputError(f"edl.sql needs the package {error.name}", hint=hint) from error
    frame: pd.DataFrame = frames.run_to_frame(
        statements, database, replace=replace, models=models, export=export, query_timeout=query_timeout
    )
    return frame

"""EDL: elastic, fault-tolerant deep learning on TensorFlow 2 / Keras."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
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
    stream: bool | str = False,
    submit: bool = False,
    job_file: str | Path | None = None,
    settings: Sequence[str] = (),
    database_secret: str | None = None,
    context: str | None = None,
    namespace: str | None = None,
) -> pd.DataFrame:
    """Run SQL statements as ``edl sql`` does; it prints nothing.

    Args:
        statements: separated by semicolons.
        database: its address, without a password; by default that of ``EDL_DATABASE``.
        replace: a model that exists gets a new version; a table is replaced.
        models: folder of the models; by default that of ``EDL_MODELS``, else ``~/.edl/models``.
        export: folder that keeps the Keras module, the job file and the data of a training.
        query_timeout: seconds that a query may take in the database; None: no limit.
        stream: leave the rows of a training in the database and read them by ranges of a unique key: True in one
            snapshot of PostgreSQL, ``"inconsistent"`` without one.
        submit: run the statements as jobs on a cluster, without asking, and wait for them. The other arguments are for
            it, like the options of the command.
        job_file: with image, volumes, workers and the like.
        settings: ``FIELD=VALUE`` of the job file.
        database_secret: name of the Secret with the credentials of the database.
        context: of the kubeconfig.
        namespace: by default the context's.

    Returns:
        What the last statement returns: its rows for a query, the rows with the column of predictions for TO PREDICT,
        metrics in one row for a training and TO EVALUATE, columns and their importance for TO EXPLAIN.

    Raises:
        EdlError: of ``edl.api.errors``; a statement is wrong, or fails. ``where`` names line and column of it.
    """
    cluster = {"job_file": job_file, "settings": tuple(settings), "database_secret": database_secret}
    cluster |= {"context": context, "namespace": namespace}
    # By name: an import would give everything that imports edl the packages of databases.
    try:
        frames: Any = import_module("edl.cli.sql_submission" if submit else "edl.sql_jobs.data_frames")
    except ImportError as error:
        from edl.api.errors import BadInputError

        hint = "pip install 'edl-platform[train,sql,pandas]'"
        raise BadInputError(f"edl.sql needs the package {error.name}", hint=hint) from error
    if not submit and any(cluster.values()):
        from edl.api.errors import BadInputError

        names = ", ".join(name for name, value in cluster.items() if value)
        raise BadInputError(f"belongs to a cluster: {names}", where="edl.sql", hint="add submit=True, or leave it out")
    if submit and stream:
        from edl.api.errors import BadInputError

        raise BadInputError(
            "is for a training on this machine", where="edl.sql: stream", hint="leave out stream, or submit=True"
        )
    given: dict[str, Any] = {"replace": replace, "models": models, "export": export, "query_timeout": query_timeout}
    run = frames.submit_to_frame if submit else frames.run_to_frame
    frame: pd.DataFrame = run(
        statements, database, **given, **(cluster if submit else {"stream": _stream_value(stream)})
    )
    return frame


def _stream_value(stream: bool | str) -> str:
    """What the option --stream has."""
    return ("snapshot" if stream else "") if isinstance(stream, bool) else stream

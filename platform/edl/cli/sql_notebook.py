"""``%%edl``: statements in a cell of Jupyter, after ``%load_ext edl``."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
from IPython.core.magic import Magics, cell_magic, magics_class
from IPython.core.magic_arguments import argument, magic_arguments, parse_argstring
from IPython.display import DisplayHandle

from edl.api.errors import BadInputError, EdlError, JobFailedError
from edl.cli.sql_output import TerminalObserver, print_result
from edl.cli.sql_submission import StatementSubmitter, SubmissionTarget, cluster_dialect
from edl.jobfile.database_address import DATABASE_VARIABLE, address_to_store
from edl.sql_jobs.data_frames import require_pandas, result_frame
from edl.sql_jobs.model_registry import ModelRegistry
from edl.sql_jobs.statement_parser import parse_with_texts
from edl.sql_jobs.statement_runner import (
    STREAM_SNAPSHOT,
    MetricsResult,
    PredictResult,
    StatementRunner,
    TrainResult,
    check_stream_value,
    dialect_of,
)


class NotebookObserver(TerminalObserver):
    """Shows progress in one place of the cell's output, and keeps rows for the dataframe."""

    wants_rows = True

    def __init__(self) -> None:
        super().__init__()
        self.batches = list[pa.RecordBatch]()
        self._display: DisplayHandle | None = None

    def row_batch(self, batch: pa.RecordBatch) -> None:
        self.batches.append(batch)

    def _replace_line(self, text: str) -> None:
        content = {"text/plain": text}
        if self._display is not None:
            self._display.update(content, raw=True)
        elif text:
            self._display = DisplayHandle(uuid4().hex)
            self._display.display(content, raw=True)

    def _is_shown(self) -> bool:
        return True


@magics_class
class EdlMagics(Magics):  # type: ignore[misc]
    """The magic ``%%edl``."""

    @magic_arguments()  # type: ignore[untyped-decorator]
    @argument("--database", help=f"address of the database; by default that of {DATABASE_VARIABLE}")  # type: ignore[untyped-decorator]
    @argument("--replace", action="store_true", help="a model gets a new version; a table is replaced")  # type: ignore[untyped-decorator]
    @argument("--models", type=Path, help="folder of the models; ~/.edl/models")  # type: ignore[untyped-decorator]
    @argument("--stream", nargs="?", default="", const=STREAM_SNAPSHOT, help="rows stay in the database; =inconsistent")  # type: ignore[untyped-decorator]
    @argument("--submit", action="store_true", help="run the statements as jobs on a cluster")  # type: ignore[untyped-decorator]
    @argument("--job-file", type=Path, help="with --submit: a job file with image, volumes, workers and the like")  # type: ignore[untyped-decorator]
    @argument("--set", action="append", default=[], dest="settings", help="with --submit: FIELD=VALUE of the job file")  # type: ignore[untyped-decorator]
    @argument("--database-secret", help="with --submit: the Secret with the credentials")  # type: ignore[untyped-decorator]
    @argument("-n", "--namespace", help="with --submit: namespace; the context's by default")  # type: ignore[untyped-decorator]
    @argument("--context", help="with --submit: context of the kubeconfig")  # type: ignore[untyped-decorator]
    @argument("--to", metavar="VARIABLE", help="variable that gets the dataframe of the last statement")  # type: ignore[untyped-decorator]
    @cell_magic  # type: ignore[untyped-decorator]
    def edl(self, line: str, cell: str) -> Any:
        """Train, evaluate and use models by SQL statements."""
        try:
            return self._run(parse_argstring(self.edl, line), cell)
        except EdlError as error:
            # The statement has the place, and the traceback only this module.
            text = str(error)
            error._render_traceback_ = lambda: [text]  # type: ignore[attr-defined]
            raise

    def _run(self, options: Any, cell: str) -> Any:
        require_pandas()
        database = address_to_store(options.database or os.environ.get(DATABASE_VARIABLE))
        target = SubmissionTarget(
            options.job_file, tuple(options.settings), options.database_secret, options.context, options.namespace
        )
        if target != SubmissionTarget() and not options.submit:
            raise BadInputError("belong to a cluster", where="options of the job", hint="add --submit to %%edl")
        check_stream_value(options.stream, submit=options.submit)
        parsed = parse_with_texts(cell, cluster_dialect(database) if options.submit else dialect_of(database))
        if not parsed:
            raise BadInputError("has no statement", where="the cell", hint="write SHOW MODELS below %%edl")
        if options.submit:
            # A cell cannot ask.
            submitter = StatementSubmitter(
                database, replace(target, skips_confirmation=True), options.models, options.replace,
                fetches_results=True,
            )  # fmt: skip
            if code := submitter.submit(parsed):
                raise JobFailedError(f"it ended with exit code {code}", where="the job")
            return self._keep(submitter.result, submitter.batches, options.to)
        runner = StatementRunner(
            database, ModelRegistry(options.models), replaces=options.replace, stream=options.stream
        )
        runner.check([statement for statement, _ in parsed])  # before the first one runs
        for number, (statement, text) in enumerate(parsed):
            with NotebookObserver() as observer:
                runner.observer = observer
                result = runner.run(statement, text)
            is_last = number == len(parsed) - 1
            has_metrics = isinstance(result, TrainResult | MetricsResult)
            if has_metrics or not is_last or isinstance(result, PredictResult):
                print_result(result)
        return self._keep(result, observer.batches, options.to)

    def _keep(self, result: Any, batches: list[pa.RecordBatch], variable: str | None) -> Any:
        """The dataframe of a result, unless a variable gets it or its metrics were printed."""
        frame = result_frame(result, batches)
        if variable:
            self.shell.user_ns[variable] = frame
            return None
        return None if isinstance(result, TrainResult | MetricsResult) else frame

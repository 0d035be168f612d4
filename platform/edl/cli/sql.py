"""``edl sql``: models from SQL statements."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer.core import TyperCommand

from edl.api.errors import BadInputError
from edl.cli.options import ContextOption, NamespaceOption, YesOption
from edl.jobfile.database_address import DATABASE_VARIABLE, address_to_store

if TYPE_CHECKING:
    from edl.sql_jobs.statements import Statement

_EXTRA_HINT = "pip install 'edl-platform[train,sql]'"

app = typer.Typer(rich_markup_mode=None, add_completion=False)

StatementsArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[STATEMENTS|FILE|-]",
        help="The statements, separated by semicolons; a file with them, named *.sql; - reads standard input.",
        show_default=False,
    ),
]
DatabaseOption = Annotated[
    str | None,
    typer.Option(metavar="URL", envvar=DATABASE_VARIABLE, help="Address of the database, such as sqlite:///shop.db."),
]
DemoOption = Annotated[
    bool, typer.Option("--demo", help="Make the table employee in edl-demo.db, and use this database.")
]
ExportOption = Annotated[
    Path | None,
    typer.Option(metavar="FOLDER", help="Keep the Keras module, the job file and the data; edl run trains them."),
]
ReplaceOption = Annotated[
    bool, typer.Option("--replace", help="A model that exists gets a new version; a table is replaced.")
]
ModelsOption = Annotated[
    Path | None, typer.Option(metavar="FOLDER", envvar="EDL_MODELS", help="Where models are; ~/.edl/models.")
]
QueryTimeoutOption = Annotated[
    float | None, typer.Option(metavar="SECONDS", min=0.001, help="End a query that takes longer; without, none is.")
]
StreamOption = Annotated[
    str,
    typer.Option(
        metavar="[=inconsistent]",
        help="TO TRAIN without a copy of the rows: read ranges of a unique key, in one snapshot (PostgreSQL)."
        " Without a snapshot (=inconsistent), what others write meanwhile may be read or not.",
        show_default=False,
    ),
]
SubmitOption = Annotated[
    bool, typer.Option("--submit", help="Run the statements as jobs on a cluster, and SHOW and DROP its models.")
]
JobFileOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="With --submit: a job file with image, volumes, workers and the like."),
]
SettingsOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="FIELD=VALUE", help="With --submit: set a field of the job file; repeatable."),
]
SecretOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="With --submit: the Secret with EDL_DATABASE_USER and EDL_DATABASE_PASSWORD, or EDL_DATABASE.",
    ),
]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="With --submit: print the manifests, and contact no cluster.")
]
WatchOption = Annotated[bool, typer.Option("--watch/--detach", help="With --submit: wait until the job has ended.")]


class _OptionalStreamCommand(TyperCommand):
    """A command whose ``--stream`` needs no value: what follows it is the statement."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        """Give a ``--stream`` that stands alone its value."""
        return super().parse_args(ctx, ["--stream=snapshot" if each == "--stream" else each for each in args])


@app.command(cls=_OptionalStreamCommand)
def sql(
    statements: StatementsArgument = None,
    database: DatabaseOption = None,
    demo: DemoOption = False,
    export: ExportOption = None,
    replace: ReplaceOption = False,
    models: ModelsOption = None,
    query_timeout: QueryTimeoutOption = None,
    stream: StreamOption = "",
    submit: SubmitOption = False,
    job_file: JobFileOption = None,
    settings: SettingsOption = None,
    database_secret: SecretOption = None,
    dry_run: DryRunOption = False,
    watch: WatchOption = True,
    yes: YesOption = False,
    context: ContextOption = None,
    namespace: NamespaceOption = None,
) -> None:
    """Train, evaluate and use models by SQL statements.

    SELECT * FROM employee LABEL income INTO my_model trains a model on the rows of a query. SHOW MODELS lists models.

    Exit codes: 0 done, 1 a job failed, 2 bad input, 130 interrupted.
    """
    _require_extra()
    from edl.cli.sql_submission import StatementSubmitter, SubmissionTarget, cluster_dialect
    from edl.sql_jobs.statement_parser import parse_with_texts
    from edl.sql_jobs.statement_runner import check_stream_value, dialect_of

    if demo:
        database = _make_demo(database, shows_next=statements is None)
        if statements is None and not _is_terminal():
            return
    database = address_to_store(database)
    check_stream_value(stream, submit=submit)
    target = SubmissionTarget(job_file, tuple(settings or ()), database_secret, context, namespace, yes, watch, dry_run)
    if target != SubmissionTarget() and not submit:
        raise BadInputError("belong to a cluster", where="options of the job", hint="add --submit, or leave them out")
    if submit and export is not None:
        raise BadInputError("is for a training on this machine", where="--export", hint="leave out --submit")
    dialect = cluster_dialect(database) if submit else dialect_of(database)

    def run(parsed: list[tuple[Statement, str]]) -> int:
        if submit:
            return StatementSubmitter(database, target, models, replace, query_timeout).submit(parsed)
        _run_all(parsed, database, models, export=export, replaces=replace, query_seconds=query_timeout, stream=stream)
        return 0

    if statements is None and _is_terminal():
        _check_export(export, [])
        _open_prompt(lambda text: run(parse_with_texts(text, dialect)), database, models, dialect, submits=submit)
        return
    if statements is None:
        raise BadInputError("are missing", where="the statements", hint='write edl sql "SHOW MODELS", or - or a file')
    parsed = parse_with_texts(_read_statements(statements), dialect)
    if not parsed:
        raise BadInputError("has no statement", where=statements if statements.lower().endswith(".sql") else "the text")
    _check_export(export, [statement for statement, _ in parsed])
    if code := run(parsed):
        raise typer.Exit(code)


def _require_extra() -> None:
    try:
        import sqlalchemy  # noqa: F401
        import sqlglot  # noqa: F401

        import edl.sql_jobs.statement_runner  # noqa: F401
    except ImportError as error:
        raise BadInputError(f"edl sql needs the package {error.name}", hint=_EXTRA_HINT) from error


def _make_demo(database: str | None, *, shows_next: bool) -> str:
    """Make the table of ``--demo``; returns the address of its database."""
    from edl.sql_jobs.demo_table import DEMO_DATABASE, DEMO_FILE, DEMO_STATEMENT, make_demo

    if database not in (None, DEMO_DATABASE) and not os.environ.get(DATABASE_VARIABLE):
        raise BadInputError("uses a database of its own", where="--demo", hint="leave out --database, or --demo")
    print(f"{'Made' if make_demo() else 'Using'} {DEMO_FILE} with the table employee.")
    if shows_next:
        print(f'Train a model on it: edl sql --database {DEMO_DATABASE} "{DEMO_STATEMENT}"')
    return DEMO_DATABASE


def _open_prompt(
    run_text: Callable[[str], int], database: str | None, models: Path | None, dialect: str | None, *, submits: bool
) -> None:
    from edl.cli.sql_prompt import open_prompt
    from edl.sql_jobs.model_registry import ModelRegistry

    def list_models() -> list[str]:
        # Those of a volume would need a pod at each completion.
        return [] if submits else ModelRegistry(models).list_names()

    open_prompt(run_text, database, list_models, dialect)


def _is_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


def _read_statements(given: str) -> str:
    if given == "-":
        return sys.stdin.read()
    if given.lower().endswith(".sql") and "\n" not in given:
        try:
            return Path(given).read_text(encoding="utf-8-sig")  # editors of Windows write a mark in front
        except (OSError, UnicodeDecodeError) as error:
            raise BadInputError(f"cannot be read: {error}", where=given) from error
    return given


def _check_export(export: Path | None, statements: list[Statement]) -> None:
    from edl.sql_jobs.statements import TrainStatement

    trainings = sum(isinstance(each, TrainStatement) for each in statements)
    if export is not None and trainings != 1:
        raise BadInputError(
            f"is for one training, and there are {trainings}", where="--export", hint="run that statement by itself"
        )


def _run_all(
    parsed: list[tuple[Statement, str]],
    database: str | None,
    models: Path | None,
    *,
    export: Path | None,
    replaces: bool,
    query_seconds: float | None,
    stream: str = "",
) -> None:
    from edl.cli.sql_output import TerminalObserver, print_result
    from edl.sql_jobs.model_registry import ModelRegistry
    from edl.sql_jobs.statement_runner import StatementRunner

    registry = ModelRegistry(models)
    runner = StatementRunner(
        database, registry, replaces=replaces, export=export, query_seconds=query_seconds, stream=stream
    )
    runner.check([statement for statement, _ in parsed])  # before the first one runs
    for statement, text in parsed:
        with TerminalObserver() as observer:
            runner.observer = observer
            result = runner.run(statement, text)
        print_result(result)

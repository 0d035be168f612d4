"""The prompt of ``edl sql``: statements end with a semicolon, and errors do not end it."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import sqlglot
from sqlglot.errors import SqlglotError
from sqlglot.tokenizer_core import TokenType

from edl.api.errors import BadInputError, EdlError
from edl.sql_jobs.database_names import DatabaseNames
from edl.sql_jobs.estimators import ESTIMATORS
from edl.sql_jobs.statement_parser import COLUMN_FUNCTIONS, TASKS

HISTORY = Path("~/.edl/sql_history")
_LEAVE = ("exit", "quit", "\\q")
_HINT = "pip install 'edl-platform[prompt]'; or write edl sql \"SHOW MODELS\", or - or a file"
KEYWORDS = (
    *("SELECT", "FROM", "WHERE", "JOIN", "ON", "GROUP BY", "ORDER BY", "LIMIT", "AND", "OR", "NOT", "AS", "IS NULL"),
    *(f"TO {task}" for task in TASKS),
    *("LABEL", "INTO", "WITH", "COLUMN", "FOR", "USING", "SHOW MODELS", "SHOW TRAIN", "DROP MODEL"),
)
_MODEL_FOLLOWS = re.compile(r"\b(USING|TO\s+EVALUATE|TO\s+EXPLAIN|SHOW\s+TRAIN|DROP\s+MODEL)$", re.I)
_TABLE_FOLLOWS = re.compile(r"\b(FROM|JOIN)$", re.I)
_ESTIMATOR_FOLLOWS = re.compile(r"\bTO\s+TRAIN$", re.I)
_WORD_FOLLOWS = {
    re.compile(r"\bTO$", re.I): TASKS,
    re.compile(r"\bSHOW$", re.I): ("MODELS", "TRAIN"),
    re.compile(r"\bDROP$", re.I): ("MODEL",),
}
_COLUMNS_FOLLOW = re.compile(r"\bCOLUMN\b[^;]*$", re.I)
_NAME = re.compile(r"[^\s(),;=.]*$")


def is_complete(text: str, dialect: str | None) -> bool:
    """Whether a text ends with a semicolon that is in no text, quoted name or comment."""
    try:
        tokens = sqlglot.tokenize(text, read=dialect)
    except SqlglotError:  # a text has no end yet
        return False
    return bool(tokens) and tokens[-1].token_type == TokenType.SEMICOLON


def find_completions(text: str, names: DatabaseNames, models: Callable[[], Sequence[str]]) -> Iterator[tuple[str, int]]:
    """What may stand in place of the last word of a text, and the length of that word.

    Args:
        text: up to the cursor.
        names: of the database.
        models: of the registry.
    """
    match = _NAME.search(text)
    word = match[0] if match else ""
    before = text[: len(text) - len(word)].rstrip()
    for candidate in _candidates(before, text, names, models):
        # A quoted name is found by its letters, too.
        if candidate.lower().lstrip('"').startswith(word.lower().lstrip('"')) and candidate != word:
            yield candidate, len(word)


def _candidates(before: str, text: str, names: DatabaseNames, models: Callable[[], Sequence[str]]) -> Iterable[str]:
    if _MODEL_FOLLOWS.search(before):
        return map(_quoted, models())
    if _TABLE_FOLLOWS.search(before):
        return map(_quoted, names.tables())
    for pattern, words in _WORD_FOLLOWS.items():
        if pattern.search(before):
            return words
    if _ESTIMATOR_FOLLOWS.search(before):
        return ESTIMATORS
    tables = [each for each in names.tables() if re.search(rf"(?<!\w){re.escape(each)}(?!\w)", text, re.I)]
    columns = [_quoted(name) for each in tables for name in names.columns(each)]
    functions = [f"{each}(" for each in COLUMN_FUNCTIONS] if _COLUMNS_FOLLOW.search(before) else []
    return dict.fromkeys((*columns, *functions, *KEYWORDS, *(map(_quoted, names.tables()) if before else ())))


def _quoted(name: str) -> str:
    return name if re.fullmatch(r"\w+", name) and not name[0].isdigit() else '"' + name.replace('"', '""') + '"'


def open_prompt(
    run: Callable[[str], object],
    database: str | None,
    models: Callable[[], Sequence[str]],
    dialect: str | None,
    **streams: Any,
) -> None:
    """Ask for statements until the end of the input.

    Args:
        run: runs the statements of a text.
        database: its address.
        models: names of the models.
        dialect: of the database, by sqlglot's name.
        streams: ``input`` and ``output`` of prompt_toolkit, in tests.

    Raises:
        BadInputError: prompt_toolkit is not installed.
    """
    names = DatabaseNames(database)
    ask = _make_session(names, models, dialect, streams)
    print("Statements end with a semicolon; Tab completes, exit or Ctrl-D leaves.")
    while True:
        try:
            text = ask().strip()
        except EOFError:
            return
        except KeyboardInterrupt:  # clears what was typed
            continue
        if text.rstrip(";").lower() in _LEAVE:
            return
        if not text:
            continue
        try:
            run(text)
        except EdlError as error:
            print(error, file=sys.stderr, flush=True)
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr, flush=True)
        names.forget()


def _make_session(
    names: DatabaseNames, models: Callable[[], Sequence[str]], dialect: str | None, streams: dict[str, Any]
) -> Callable[[], str]:
    try:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.auto_suggest import AutoSuggestFromHistory
        from prompt_toolkit.completion import Completer, Completion
        from prompt_toolkit.filters import Condition
        from prompt_toolkit.key_binding import KeyBindings
    except ImportError as error:
        raise BadInputError(f"the prompt needs the package {error.name}", hint=_HINT) from error

    class NameCompleter(Completer):  # type: ignore[misc]
        def get_completions(self, document: Any, complete_event: Any) -> Iterator[Any]:
            known = find_completions(document.text_before_cursor, names, models)
            for candidate, length in known:
                yield Completion(candidate, start_position=-length)

    bindings = KeyBindings()
    ends = Condition(lambda: _ends(session.default_buffer.text, dialect))

    @bindings.add("enter", filter=ends)  # type: ignore[untyped-decorator]
    def accept(event: Any) -> None:
        event.current_buffer.validate_and_handle()

    session: Any = PromptSession(
        "edl> ",
        multiline=True,
        prompt_continuation="...> ",
        completer=NameCompleter(),
        complete_in_thread=True,
        complete_while_typing=False,
        auto_suggest=AutoSuggestFromHistory(),
        history=_open_history(),
        key_bindings=bindings,
        **streams,
    )
    ask: Callable[[], str] = session.prompt
    return ask


def _ends(text: str, dialect: str | None) -> bool:
    return not text.strip() or text.strip().lower() in _LEAVE or is_complete(text, dialect)


def _open_history() -> Any:
    """Statements of earlier prompts, for the user alone; none where no file can be written."""
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    path = HISTORY.expanduser()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))
    except OSError:
        return InMemoryHistory()
    return FileHistory(path)

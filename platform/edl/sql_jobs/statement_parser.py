"""Parses the statements of ``edl sql``.

The clauses of EDL are found on the tokens of sqlglot, in the dialect of the database, outside of parentheses. So texts,
quoted names, comments and nested queries may contain their words, and the SELECT before them stays as it is. The
clauses themselves are parsed here, by recursive descent.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from difflib import get_close_matches
from itertools import pairwise
from typing import TypeVar

import sqlglot
from sqlglot.errors import SqlglotError
from sqlglot.tokenizer_core import Token, TokenType

from edl.api.errors import BadInputError
from edl.sql_jobs.statements import (
    Attribute,
    AttributeValue,
    ColumnCall,
    ColumnExpression,
    ColumnName,
    DropModelStatement,
    EvaluateStatement,
    ExplainStatement,
    ModelName,
    PredictStatement,
    QueryStatement,
    SelectQuery,
    ShowModelsStatement,
    ShowTrainStatement,
    Statement,
    TableName,
    TextPosition,
    TrainStatement,
)

DEFAULT_ESTIMATOR = "default"
"""After ``TO TRAIN``: the model that a statement without ``TO TRAIN`` has."""
_CLAUSE_DIALECT = "mysql"
"""For the clauses: quotes of either kind are texts, and so is what is a quoted name elsewhere."""
_QUOTED = (TokenType.STRING, TokenType.IDENTIFIER)
_NAMES = (TokenType.VAR, *_QUOTED)
_OPENING, _CLOSING = "([{", ")]}"
StatementT = TypeVar("StatementT")
TASKS = ("TRAIN", "EVALUATE", "PREDICT", "EXPLAIN")
COLUMN_FUNCTIONS = (
    "NUMERIC",
    "BUCKET",
    "CROSS",
    "EMBEDDING",
    "INDICATOR",
    "CATEGORY_HASH",
    "CATEGORY_ID",
    "VOCABULARIZE",
)
"""What ``COLUMN`` may make of columns: SQLFlow's names."""


def parse_with_texts(text: str, dialect: str | None = None) -> list[tuple[Statement, str]]:
    """The statements of a text, which semicolons separate, each with its own text.

    Args:
        text: the statements.
        dialect: sqlglot's name of the database's dialect, such as ``sqlite`` or ``postgres``.

    Raises:
        BadInputError: a statement is wrong; ``where`` names line and column.
    """
    tokens = _tokenize(text, dialect)
    statements, start = list[tuple[Statement, str]](), 0
    for end in [*(at for at, token in enumerate(tokens) if token.token_type == TokenType.SEMICOLON), len(tokens)]:
        if start < end:
            own = text[tokens[start].start : tokens[end - 1].end + 1]
            statements.append((_StatementParser(text, tokens[start:end], dialect).parse(), own))
        start = end + 1
    return statements


class StatementError(BadInputError):
    """Something in the statements is wrong.

    Args:
        message: what.
        place: line and column in the text of the statements.
        hint: what the user can do about it.
    """

    def __init__(self, message: str, place: TextPosition, hint: str | None = None) -> None:
        super().__init__(message, where=f"statement, {place}", hint=hint)
        self.line, self.column = place.line, place.column


def _tokenize(text: str, dialect: str | None) -> list[Token]:
    try:
        return sqlglot.tokenize(text, read=dialect)
    except SqlglotError as error:
        # Of a comment, sqlglot does not say where it begins.
        begin = re.search(r" from \d+:(\d+)$", str(error.__cause__))
        offset = int(begin[1]) if begin else max(0, text.rfind("/*"))
        raise StatementError("a text, a quoted name or a comment has no end", _place_at(text, offset)) from None


def _place_at(text: str, offset: int) -> TextPosition:
    line = text.count("\n", 0, offset)
    return TextPosition(line + 1, offset - (text.rfind("\n", 0, offset) + 1) + 1)


def _two_labels(place: TextPosition) -> StatementError:
    return StatementError("a model has one label", place, "predict the other column with a model of its own")


class _StatementParser:
    """One statement: the query in front, and the clauses after it."""

    def __init__(self, text: str, tokens: Sequence[Token], dialect: str | None) -> None:
        self._text = text
        self._tokens = tokens
        self._dialect = dialect

    def parse(self) -> Statement:
        first = self._word(0)
        if first == "SHOW":
            return self._clauses(1, is_one_token=True).parse_show()  # sqlglot does not parse what SHOW shows
        if first == "DROP" and self._word(1) == "MODEL":
            clauses = self._clauses(2)
            return clauses.finish(DropModelStatement(clauses.take_model()))
        task = self._find_task()
        if task is not None:
            return self._parse_task(task)
        self._refuse_misspelt()
        label = self._find_short_form()
        if label is not None:
            if self._has_label_before(label):
                raise _two_labels(_place_at(self._text, self._tokens[label].start))
            return self._clauses(label).parse_train(self._select(label), None)
        return QueryStatement(self._select(len(self._tokens)))

    def _parse_task(self, task: int) -> Statement:
        select, name = self._select(task), self._word(task + 1)
        clauses = self._clauses(task + 2)
        if name == "TRAIN":
            place, estimator = clauses.place(), clauses.take_dotted("a model, such as dnn")
            wanted = None if estimator.lower() == DEFAULT_ESTIMATOR else estimator
            return replace(clauses.parse_train(select, wanted), estimator_place=place)
        if name == "PREDICT":
            return clauses.parse_predict(select)
        return clauses.parse_evaluate(select) if name == "EVALUATE" else clauses.parse_explain(select)

    def _select(self, end: int) -> SelectQuery:
        place = _place_at(self._text, self._tokens[0].start)
        if end == 0 or self._word(0) not in ("SELECT", "WITH", "VALUES", "TABLE", "FROM"):
            raise StatementError(
                f"a statement begins with SELECT, SHOW or DROP MODEL, found {self._tokens[0].text}", place
            )
        return SelectQuery(self._text[self._tokens[0].start : self._tokens[end - 1].end + 1], place)

    def _top_level(self) -> list[int]:
        """Numbers of the tokens outside of parentheses."""
        depth, numbers = 0, []
        for number, token in enumerate(self._tokens):
            plain = token.token_type not in _QUOTED
            depth -= plain and token.text in _CLOSING and bool(token.text)
            if depth == 0:
                numbers.append(number)
            depth += plain and token.text in _OPENING and bool(token.text)
        return numbers

    def _find_task(self) -> int | None:
        """The number of ``TO`` before the name of a task; the last one, because a query may have such aliases."""
        for number in reversed(self._top_level()):
            if self._word(number) == "TO" and self._word(number + 1) in TASKS:
                return number
        return None

    def _find_short_form(self) -> int | None:
        """The number of the last ``LABEL`` that a name and ``INTO``, or the end, follow."""
        for number in reversed(self._top_level()):
            # LABEL may be a column, too: `SELECT label FROM t LABEL label INTO m`.
            if number and self._word(number) == "LABEL" and "INTO" in map(self._word, range(number + 2, number + 6)):
                if self._word(number + 1) == "," and self._word(number - 1) == "LABEL":
                    continue  # it is the first one of two
                return number
        return None

    def _has_label_before(self, label: int) -> bool:
        """Whether a ``LABEL`` with its column stands before another one: after a name, no query goes on so."""
        if label < 3 or self._word(label - 2) != "LABEL":
            return False
        before, column = (self._tokens[label - at].token_type for at in (3, 1))
        return before in (*_NAMES, TokenType.R_PAREN) and column in _NAMES

    def _refuse_misspelt(self) -> None:
        """An error for what can only be a clause of EDL with a wrong word."""
        for number in self._top_level():
            word, following = self._word(number), self._word(number + 1)
            place = _place_at(self._text, self._tokens[number].start)
            if word == "TO" and following and (near := get_close_matches(following, TASKS, 1)):
                raise StatementError(f"TO {following} is no clause", place, f"did you mean TO {near[0]}?")
            if word == "LABEL" and number == len(self._tokens) - 2:
                raise StatementError("INTO is missing: the model has no name", place, "end with INTO my_model")
            if number and (self._begins_settings(number) or (word == "COLUMN" and following in COLUMN_FUNCTIONS)):
                raise StatementError(
                    f"{word} belongs to TO TRAIN", place, f"write TO TRAIN {DEFAULT_ESTIMATOR} {word} …"
                )

    def _begins_settings(self, number: int) -> bool:
        """Whether there is ``WITH name=``, with dots in the name or without, which is no SQL."""
        last = number + 1
        while self._word(last + 1) == ".":
            last += 2
        return self._word(number) == "WITH" and self._word(last + 1) == "="

    def _word(self, number: int) -> str:
        """A token that is not quoted, in capital letters; empty after the last one."""
        if number >= len(self._tokens) or self._tokens[number].token_type in _QUOTED:
            return ""
        return self._tokens[number].text.upper()

    def _clauses(self, start: int, *, is_one_token: bool = False) -> _ClauseParser:
        """A parser of all from a token on.

        Args:
            start: number of the token.
            is_one_token: sqlglot makes one token of the rest, whose place is not its own.
        """
        begin, end = self._tokens[start - 1].end + 1, self._tokens[-1].end + 1
        # Offsets in the whole text, so that places are those of the user.
        padded = list(" " * begin + self._text[begin:end])
        if not is_one_token:
            # Comments are those of the database's dialect: nothing else is between two of its tokens.
            for before, after in pairwise(self._tokens[start - 1 :]):
                gap = self._text[before.end + 1 : after.start]
                padded[before.end + 1 : after.start] = [each if each == "\n" else " " for each in gap]
        tokens = _tokenize("".join(padded), _CLAUSE_DIALECT)
        # PostgreSQL takes a name without quotes in small letters: so a query finds the table that was written.
        return _ClauseParser(self._text, tokens, end, folds_names=self._dialect == "postgres")


class _ClauseParser:
    """What follows a query."""

    def __init__(self, text: str, tokens: Sequence[Token], end: int, *, folds_names: bool) -> None:
        self._folds_names = folds_names
        self._text = text
        self._tokens = tokens
        self._end = end
        self._at = 0

    # -- statements ------------------------------------------------------------------------------

    def parse_show(self) -> ShowTrainStatement | ShowModelsStatement:
        if self.take_word("MODELS"):
            return self.finish(ShowModelsStatement())
        if not self.take_word("TRAIN"):
            raise self._error("SHOW shows MODELS or TRAIN my_model")
        return self.finish(ShowTrainStatement(self.take_model()))

    def parse_train(self, select: SelectQuery, estimator: str | None) -> TrainStatement:
        attributes = self._take_attributes()
        columns = self._take_columns()
        self.expect_word("LABEL")
        label = self._take_column()
        if self._peek() == ",":
            raise self._error("a model has one label", "predict the other column with a model of its own")
        if self._peek() == "LABEL":
            raise _two_labels(self.place())
        # What follows a label that no keyword is may be the rest of its name, such as that of LABEL yearly income.
        self.expect_word("INTO", "put a name of several words into double quotes" if self._current() else None)
        into = self.take_model()
        if into.version is not None:
            raise StatementError("a new model has no version yet", into.place, f"INTO {into.name} makes the next one")
        return self.finish(TrainStatement(select, label, into, estimator, attributes, columns))

    def parse_evaluate(self, select: SelectQuery) -> EvaluateStatement:
        model = self.take_model()
        attributes = self._take_attributes()
        label = self._take_column() if self.take_word("LABEL") else None
        into = self._take_table() if self.take_word("INTO") else None
        return self.finish(EvaluateStatement(select, model, label, into, attributes))

    def parse_predict(self, select: SelectQuery) -> PredictStatement:
        target = self._take_table()
        if len(target.parts) < 2:
            raise StatementError(
                f"TO PREDICT {target} names no column", target.place, f"write TO PREDICT {target}.column USING model"
            )
        attributes = self._take_attributes()
        self.expect_word("USING")
        model = self.take_model()
        table = TableName(target.parts[:-1], target.place)
        return self.finish(PredictStatement(select, table, target.parts[-1], model, attributes))

    def parse_explain(self, select: SelectQuery) -> ExplainStatement:
        model = self.take_model()
        attributes = self._take_attributes()
        if self._peek() == "USING":
            raise StatementError(
                "TO EXPLAIN has no USING", self.place(), "leave it out: EDL shuffles the values of each column"
            )
        into = self._take_table() if self.take_word("INTO") else None
        return self.finish(ExplainStatement(select, model, into, attributes))

    # -- clauses ---------------------------------------------------------------------------------

    def _take_attributes(self) -> dict[str, Attribute]:
        attributes: dict[str, Attribute] = {}
        if not self.take_word("WITH"):
            return attributes
        while True:
            place = self.place()
            name = self.take_dotted("a setting, such as train.epochs=5")
            if name in attributes:
                raise StatementError(f"{name} is set twice", place)
            self._expect("=", f"write {name}=value")
            attributes[name] = Attribute(self._take_value(), place)
            if not self._take(","):
                return attributes

    def _take_columns(self) -> dict[str, tuple[ColumnExpression, ...]]:
        columns: dict[str, tuple[ColumnExpression, ...]] = {}
        while self.take_word("COLUMN"):
            place, listed = self.place(), [self._take_expression()]
            while self._take(","):
                listed.append(self._take_expression())
            part = self._take_name("a part of the model") if self.take_word("FOR") else ""
            if part in columns:
                raise StatementError(f"COLUMN {f'FOR {part} ' if part else ''}stands twice", place)
            columns[part] = tuple(listed)
        return columns

    def _take_expression(self) -> ColumnExpression:
        place, is_quoted = self.place(), self._is_quoted()
        name = self._take_name("a column")
        if is_quoted or not self._take("("):
            return ColumnName(name, place)
        function = name.upper()
        arguments: list[ColumnExpression | AttributeValue] = []
        if function not in COLUMN_FUNCTIONS:
            near = get_close_matches(function, COLUMN_FUNCTIONS, 1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise StatementError(f"{name} is no function", place, f"{hint}There are {', '.join(COLUMN_FUNCTIONS)}")
        while not self._take(")"):
            if arguments:
                self._expect(",", "separate arguments by commas")
            if function == "CROSS" and self._take("["):  # columns and calls, which a list of values cannot have
                arguments += self._take_crossed()
            else:
                arguments.append(self._take_argument())
        return ColumnCall(function, tuple(arguments), place)

    def _take_crossed(self) -> list[ColumnExpression]:
        crossed = [self._take_expression()]
        while self._take(","):
            crossed.append(self._take_expression())
        self._expect("]", "close the list of CROSS")
        return crossed

    def _take_argument(self) -> ColumnExpression | AttributeValue:
        token = self._current()
        is_text = token is not None and self._text[token.start] == "'"  # a name has other quotes
        if token is not None and (is_text or token.token_type == TokenType.NUMBER or token.text in ("[", "-", "+")):
            return self._take_value()
        return self._take_expression()

    def _take_value(self) -> AttributeValue:
        token = self._current()
        if token is None:
            raise self._error("a value is missing")
        if token.token_type == TokenType.STRING:
            self._at += 1
            return token.text
        if token.token_type == TokenType.NUMBER or token.text in ("-", "+"):
            return self._take_number()
        if self._take("["):
            items = list[AttributeValue]()
            while not self._take("]"):
                if items:
                    self._expect(",", "separate items by commas")
                items.append(self._take_value())
            return tuple(items)
        word = token.text.upper()
        if word in ("TRUE", "FALSE", "NULL", "NONE"):
            self._at += 1
            return None if word in ("NULL", "NONE") else word == "TRUE"
        return self.take_dotted("a value: a number, a text in quotes, a list, true or false")

    def _take_number(self) -> int | float:
        sign = 1
        while (token := self._current()) is not None and token.text in ("-", "+"):
            sign = -sign if token.text == "-" else sign
            self._at += 1
        if token is None or token.token_type != TokenType.NUMBER:
            raise self._error("a number is missing")
        self._at += 1
        try:
            return sign * int(token.text)
        except ValueError:
            return sign * float(token.text)

    # -- names -----------------------------------------------------------------------------------

    def take_model(self) -> ModelName:
        place = self.place()
        parts = self._take_parts("the name of a model")
        version = None
        if self._take("@"):
            token = self._current()
            if token is None or not token.text.isdecimal() or int(token.text) == 0:
                raise self._error("a version is a whole number from 1, as in my_model@3")
            version = int(token.text)
            self._at += 1
        return ModelName(parts[-1], version, place)

    def _take_table(self) -> TableName:
        place = self.place()
        return TableName(tuple(self._take_parts("the name of a table", folds=self._folds_names)), place)

    def _take_column(self) -> ColumnName:
        place = self.place()
        # The name of a table before it says nothing about the columns of the result.
        return ColumnName(self._take_parts("the name of a column")[-1], place)

    def take_dotted(self, what: str) -> str:
        return ".".join(self._take_parts(what))

    def _take_parts(self, what: str, *, folds: bool = False) -> list[str]:
        parts: list[str] = []
        while not parts or self._take("."):
            is_quoted = self._is_quoted()
            name = self._take_name(what)
            parts.append(name.lower() if folds and not is_quoted else name)
        return parts

    def _take_name(self, what: str) -> str:
        token = self._current()
        if token is None or not (self._is_quoted() or token.text[:1].isalpha() or token.text.startswith("_")):
            raise self._error(f"{what} is missing")
        if not self._is_quoted() and token.text.upper() in ("WITH", "COLUMN", "LABEL", "INTO", "USING", "FOR"):
            following = self._tokens[self._at + 1].text.upper() if self._at + 1 < len(self._tokens) else ""
            # `LABEL label` is a column of that name.
            if token.text.upper() != "LABEL" or following not in ("", "INTO", ",", ")", "FOR", "LABEL", "."):
                raise self._error(f"{what} is missing", f"put a name that is called {token.text} into quotes")
        self._at += 1
        return token.text

    # -- tokens ----------------------------------------------------------------------------------

    def take_word(self, word: str) -> bool:
        if self._peek() != word:
            return False
        self._at += 1
        return True

    def expect_word(self, word: str, hint: str | None = None) -> None:
        if not self.take_word(word):
            raise self._error(f"{word} is missing", hint)

    def finish(self, statement: StatementT) -> StatementT:
        self.expect_end()
        return statement

    def expect_end(self) -> None:
        if self._current() is not None:
            raise self._error("nothing more was expected")

    def _take(self, text: str) -> bool:
        if self._is_quoted() or self._peek() != text:
            return False
        self._at += 1
        return True

    def _expect(self, text: str, hint: str) -> None:
        if not self._take(text):
            raise self._error(f"'{text}' is missing", hint)

    def _peek(self) -> str:
        token = self._current()
        return "" if token is None or self._is_quoted() else token.text.upper()

    def _is_quoted(self) -> bool:
        token = self._current()
        return token is not None and token.token_type in _QUOTED

    def _current(self) -> Token | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def place(self) -> TextPosition:
        token = self._current()
        return _place_at(self._text, self._end if token is None else token.start)

    def _error(self, message: str, hint: str | None = None) -> BadInputError:
        token = self._current()
        actual = "the statement ends" if token is None else f"found {self._text[token.start : token.end + 1]}"
        return StatementError(f"{message}, {actual}", self.place(), hint)

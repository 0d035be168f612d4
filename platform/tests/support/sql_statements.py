"""Statements of ``edl sql`` without their texts."""

from __future__ import annotations

from edl.sql_jobs.statement_parser import parse_with_texts
from edl.sql_jobs.statements import Statement


def parse_statements(text: str, dialect: str | None = None) -> list[Statement]:
    return [statement for statement, _ in parse_with_texts(text, dialect)]

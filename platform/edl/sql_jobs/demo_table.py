"""The table ``employee`` of ``edl sql --demo``: made-up people in a file of SQLite."""

from __future__ import annotations

import math
import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import date, timedelta
from pathlib import Path

from edl.api.errors import StorageError
from edl.storage.durable_files import replace_file

DEMO_FILE = Path("edl-demo.db")
DEMO_DATABASE = f"sqlite:///{DEMO_FILE}"
DEMO_STATEMENT = "SELECT * FROM employee LABEL income INTO my_elasticdl_model"
ROWS = 4000
_EDUCATION = ("school", "college", "bachelor", "master", "doctorate")
_OCCUPATIONS = ("sales", "engineering", "support", "finance", "operations", "research", "design", "legal")
_CITIES = ("Berlin", "Hangzhou", "Köln", "Lagos", "Lima", "Osaka", "Pune", "São Paulo", "Tartu", "Zürich")
_TABLE = """
CREATE TABLE employee (
    id INTEGER PRIMARY KEY,
    age INTEGER NOT NULL,
    education TEXT,
    occupation TEXT NOT NULL,
    city TEXT NOT NULL,
    hired DATE NOT NULL,
    hours_per_week REAL,
    remote BOOLEAN NOT NULL,
    capital_gain REAL NOT NULL,
    income TEXT NOT NULL
)
"""


def make_demo(file: Path = DEMO_FILE) -> bool:
    """Make the database with its table; False if the file is there already.

    The income is above 50K by education, the years of work, which count less the more there are, and by hours, of
    which both few and very many are of low incomes: a linear model does not find that.

    Raises:
        StorageError: the file cannot be written.
    """
    if file.exists():
        return False
    try:
        with replace_file(file) as temporary, closing(sqlite3.connect(temporary)) as connection, connection:
            connection.execute(_TABLE)
            connection.executemany(f"INSERT INTO employee VALUES ({', '.join('?' * 10)})", _rows())  # noqa: S608
    except (OSError, sqlite3.Error) as error:
        raise StorageError(f"the demo table cannot be written: {error}", where=str(file)) from error
    return True


def _rows() -> Iterator[tuple[object, ...]]:
    chance = random.Random(7)  # noqa: S311  no secret
    for number in range(1, ROWS + 1):
        age = chance.randint(18, 68)
        education = chance.choices(range(5), (30, 25, 25, 15, 5))[0]
        occupation = chance.choice(_OCCUPATIONS)
        years = chance.uniform(0, age - 17)
        hours = min(80.0, max(5.0, chance.gauss(40, 11)))
        gain = round(chance.lognormvariate(8, 1.2), 2) if chance.random() < 0.08 else 0.0
        score = 0.9 * (education - 1.4) + 1.1 * math.log1p(years) - ((hours - 46) / 13) ** 2 + (gain > 4000) * 3
        score += {"engineering": 0.7, "finance": 0.9, "support": -0.8}.get(occupation, 0.0) - 1.8
        yield (
            number,
            age,
            None if chance.random() < 0.04 else _EDUCATION[education],
            occupation,
            chance.choice(_CITIES),
            (date(2026, 1, 1) - timedelta(days=round(years * 365.25))).isoformat(),
            None if chance.random() < 0.05 else round(hours, 1),
            chance.random() < 0.35,
            gain,
            ">50K" if score + chance.gauss(0, 0.5) > 0 else "<=50K",
        )

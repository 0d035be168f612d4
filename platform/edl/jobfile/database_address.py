"""Addresses of databases in ``data.training`` and its siblings, such as ``postgresql://host/shop#orders``.

What stands after ``#`` is a table. Nothing here connects.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from urllib.parse import parse_qsl, urlsplit

from edl.api.job_spec import JobSpec
from edl.jobfile.document_tree import RuleViolation

SERVER_SCHEMES = ("postgresql", "mysql", "mariadb")
FILE_SCHEMES = ("sqlite", "duckdb")
DATABASE_VARIABLE = "EDL_DATABASE"
ENVIRONMENT_SCHEME = "env"
"""``env://NAME``: the environment variable ``NAME`` has the address."""
DATABASE_SCHEMES = (*SERVER_SCHEMES, *FILE_SCHEMES, ENVIRONMENT_SCHEME)
CREDENTIAL_VARIABLES = frozenset({"EDL_DATABASE", "EDL_DATABASE_USER", "EDL_DATABASE_PASSWORD"})
"""The variables with EDL's prefix that users set."""
CREDENTIALS_HINT = (
    "set EDL_DATABASE_PASSWORD in the environment (on a cluster from a Secret, with pod.env), or put the whole address "
    "into an environment variable NAME and write env://NAME here"
)
_SECRET_PARAMETER = re.compile("password|secret|token", re.I)


def is_database(path: object) -> bool:
    """Whether a path of data is the address of a database."""
    scheme, separator, _ = str(path).partition("://")
    return bool(separator) and scheme.lower() in DATABASE_SCHEMES


def split_table(address: str) -> tuple[str, str]:
    """The address of a database, and the table after ``#``; empty: it names none."""
    place, _, table = address.partition("#")
    return place, table


def database_file(address: str) -> str | None:
    """The path of the file of an embedded database, relative if it is so; None: the database is no file."""
    if address.partition("://")[0].lower() not in FILE_SCHEMES:
        return None
    return split_table(address)[0].partition("://")[2].removeprefix("/")


def with_database_file(address: str, file: str) -> str:
    """The address with another path of its file."""
    scheme, table = address.partition("://")[0], split_table(address)[1]
    return f"{scheme}:///{file}" + (f"#{table}" if table else "")


def path_of_data(path: str) -> str | None:
    """What of a path of data lies in a file system; None: nothing, it is an address."""
    return path if "://" not in path else database_file(path)


def has_password(address: str) -> bool:
    """Whether an address of a server contains a password."""
    # A password may contain "#", "?" or "/", which would end the part with the host.
    if re.match(r"[^:]+://[^/@]*:[^@]*@", address):
        return True
    try:
        parameters = parse_qsl(urlsplit(address).query, keep_blank_values=True)
    except ValueError:
        return False
    return any(_SECRET_PARAMETER.search(name) for name, _ in parameters)


def address_to_store(address: str | None) -> str | None:
    """An address as it may be printed and stored: one with a password in ``EDL_DATABASE`` becomes its reference."""
    if address and address == os.environ.get(DATABASE_VARIABLE) and has_password(address):
        return f"{ENVIRONMENT_SCHEME}://{DATABASE_VARIABLE}"
    return address


def check_databases(spec: JobSpec) -> Iterator[RuleViolation]:
    """No address has a password: job files are stored, printed and sent."""
    for name in ("training", "validation", "prediction"):
        addresses = [path for path in getattr(spec.data, name) if is_database(path)]
        if any(has_password(address) for address in addresses):
            yield RuleViolation(f"data.{name}", "the address of the database contains a password", CREDENTIALS_HINT)

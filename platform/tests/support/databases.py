"""Servers of PostgreSQL and MariaDB for tests: processes on loopback, in a temporary folder, of an unprivileged user.

A test whose server is not installed is skipped and says how to get it; with EDL_REQUIRE_DATABASES=1 it fails.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

USER, PASSWORD = "edl", "se/cr#et@1"
_START_SECONDS = 60


def require(found: Path | None, package: str) -> Path:
    """The folder with a server's programs, or the end of the test."""
    if found is not None:
        return found
    reason = f"the server is not installed: apt-get install {package}"
    if os.environ.get("EDL_REQUIRE_DATABASES") == "1":
        pytest.fail(reason)
    pytest.skip(reason)


def find_postgres() -> Path | None:
    """The folder with PostgreSQL's programs; Debian keeps it out of PATH. None: it is not installed."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    initdb = shutil.which("initdb")
    if initdb is not None:
        folders.insert(0, Path(initdb).resolve().parent)
    return next((folder for folder in folders if (folder / "initdb").exists() and (folder / "postgres").exists()), None)


def find_mariadb() -> Path | None:
    """The folder with MariaDB's server; Debian keeps it out of the PATH of users. None: it is not installed."""
    mariadbd = shutil.which("mariadbd", path=f"{os.environ['PATH']}:/usr/sbin")
    return None if mariadbd is None or shutil.which("mariadb-install-db") is None else Path(mariadbd).parent


@dataclass
class DatabaseServer:
    """A server that listens on loopback and asks for a password."""

    programs: Path
    folder: Path
    port: int
    owner: int | None
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it answers."""
        self.process = self._popen([*map(str, self._command())])
        self.connect("SELECT 1")

    def stop(self) -> None:
        """Stop it; connections are closed at once."""
        self._end(self._stop_signal)

    def crash(self) -> None:
        """End it as a crash does: nothing is committed or written any more."""
        self._end(self._crash_signal)

    _stop_signal, _crash_signal = signal.SIGINT, signal.SIGQUIT

    def _end(self, number: signal.Signals) -> None:
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait(30)
            self.process = None

    def connect(self, *statements: str) -> list[Any]:
        """Execute statements on a new connection; the rows of the last one."""
        last: Exception | None = None
        for _ in range(_START_SECONDS * 10):
            try:
                return self._execute(statements)
            except self._operational_error() as error:
                last = error
                if self.process is None or self.process.poll() is not None:
                    break
                with suppress(subprocess.TimeoutExpired):
                    self.process.wait(0.1)
        raise AssertionError(f"the server does not answer: {last}")

    def _command(self) -> list[object]:
        raise NotImplementedError

    def _operational_error(self) -> type[Exception]:
        raise NotImplementedError

    def _execute(self, statements: Sequence[str]) -> list[Any]:
        raise NotImplementedError

    def _popen(self, command: list[str]) -> subprocess.Popen[bytes]:
        environment = {"PATH": os.environ["PATH"], "LC_ALL": "C"}
        log = (self.folder / "log").open("ab")
        with log:
            # The user alone: of root's groups nothing is left.
            rights: dict[str, Any] = {}
            if self.owner is not None:
                rights = {"user": self.owner, "group": pwd.getpwuid(self.owner).pw_gid, "extra_groups": []}
            return subprocess.Popen(command, cwd=self.folder, env=environment, stdout=log, stderr=log, **rights)


class PostgresServer(DatabaseServer):
    """PostgreSQL. SIGINT is its fast shutdown, SIGQUIT its immediate one, after which it recovers as from a crash."""

    @property
    def address(self) -> str:
        """Without credentials."""
        return f"postgresql://127.0.0.1:{self.port}/postgres"

    def _command(self) -> list[object]:
        command = [self.programs / "postgres", "-D", self.folder / "data", "-p", self.port, "-k", self.folder]
        return [*command, "-c", "listen_addresses=127.0.0.1", "-c", "fsync=off", "-c", "shared_buffers=16MB"]

    def _operational_error(self) -> type[Exception]:
        import psycopg

        return psycopg.OperationalError

    def _execute(self, statements: Sequence[str]) -> list[Any]:
        import psycopg

        with psycopg.connect(
            host="127.0.0.1", port=self.port, dbname="postgres", user=USER, password=PASSWORD, connect_timeout=5
        ) as connection:
            for statement in statements:
                cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def connect_alone(self, *statements: str) -> None:
        """Execute statements that refuse to be in a transaction."""
        import psycopg

        for statement in statements:
            with psycopg.connect(
                host="127.0.0.1", port=self.port, dbname="postgres", user=USER, password=PASSWORD, autocommit=True
            ) as connection:
                connection.execute(statement.encode())


class MariaDbServer(DatabaseServer):
    """MariaDB. SIGTERM is its shutdown, SIGKILL a crash."""

    _stop_signal, _crash_signal = signal.SIGTERM, signal.SIGKILL

    @property
    def address(self) -> str:
        """Without credentials."""
        return f"mariadb://127.0.0.1:{self.port}/shop"

    def _command(self) -> list[object]:
        files = [f"--datadir={self.folder}/data", f"--socket={self.folder}/socket", f"--pid-file={self.folder}/pid"]
        network = ["--bind-address=127.0.0.1", f"--port={self.port}", f"--init-file={self.folder}/password"]
        small = ["--innodb-buffer-pool-size=16M", "--innodb-flush-log-at-trx-commit=2", "--skip-log-bin"]
        small.append("--character-set-server=utf8mb4")
        return [self.programs / "mariadbd", "--no-defaults", *files, *network, *small]

    def _operational_error(self) -> type[Exception]:
        import pymysql

        return pymysql.OperationalError

    def _execute(self, statements: Sequence[str]) -> list[Any]:
        import pymysql

        with pymysql.connect(
            host="127.0.0.1", port=self.port, database="shop", user=USER, password=PASSWORD, connect_timeout=5
        ) as connection:
            cursor = connection.cursor()
            for statement in statements:
                cursor.execute(statement)
            connection.commit()
            return list(cursor.fetchall())


@contextmanager
def start_postgres(programs: Path) -> Iterator[PostgresServer]:
    """A server, which is stopped at the end; it refuses to run as root."""
    with _server_folder("edl-pg-") as (folder, port, owner):
        server = PostgresServer(programs, folder, port, owner)
        _write_file(folder / "password", PASSWORD, owner)
        process = server._popen(
            [
                str(programs / "initdb"),
                *("-D", str(folder / "data"), "-U", USER, "-A", "scram-sha-256", "-E", "UTF8", "--no-sync"),
                f"--pwfile={folder / 'password'}",
            ]
        )
        assert process.wait(_START_SECONDS) == 0, (folder / "log").read_text()
        try:
            server.start()
            yield server
        finally:
            server.stop()


@contextmanager
def start_mariadb(programs: Path) -> Iterator[MariaDbServer]:
    """A server with a database ``shop``, which is stopped at the end."""
    with _server_folder("edl-maria-") as (folder, port, owner):
        server = MariaDbServer(programs, folder, port, owner)
        rights = f"CREATE DATABASE IF NOT EXISTS shop;\nCREATE USER IF NOT EXISTS {USER} IDENTIFIED BY '{PASSWORD}';\n"
        rights += f"GRANT ALL ON *.* TO {USER} WITH GRANT OPTION;\n"
        _write_file(folder / "password", rights, owner)
        process = server._popen(
            [
                *("mariadb-install-db", "--no-defaults", f"--datadir={folder / 'data'}", "--skip-test-db"),
                *("--auth-root-authentication-method=normal", "--skip-name-resolve"),
            ]
        )
        assert process.wait(_START_SECONDS) == 0, (folder / "log").read_text()
        try:
            server.start()
            yield server
        finally:
            server.stop()


@contextmanager
def _server_folder(prefix: str) -> Iterator[tuple[Path, int, int | None]]:
    """A folder, a free port, and the user to whom the folder belongs; None: this one."""
    owner = pwd.getpwnam("nobody").pw_uid if os.getuid() == 0 else None
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    folder = Path(tempfile.mkdtemp(prefix=prefix))  # short: the path of a socket has 107 bytes at most
    try:
        if owner is not None:
            os.chown(folder, owner, -1)
        yield folder, port, owner
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _write_file(path: Path, text: str, owner: int | None) -> None:
    path.write_text(text)
    if owner is not None:
        os.chown(path, owner, -1)

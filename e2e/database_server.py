"""PostgreSQL in a pod of the namespace, with a Service, a Secret of its credentials and the way to it from masters."""

from __future__ import annotations

import csv
import io
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from e2e.install import SECRET
from e2e.namespaces import Namespace
from e2e.pods import pod
from e2e.programs import apply, kubectl

from edl.cluster.kubernetes.resource_kinds import Manifest

NAME, PORT, USER = "shop", 5432, "analyst"
PASSWORD = "in-no-log-of-a-job"
ADDRESS = f"postgresql://{NAME}/postgres"
_START = f"""
set -e
echo "$PASSWORD" > /tmp/password
initdb --pgdata /database/data --username {USER} --auth scram-sha-256 --pwfile /tmp/password --encoding UTF8 --no-sync
echo "host all all all scram-sha-256" >> /database/data/pg_hba.conf
exec postgres -D /database/data -k /tmp -c listen_addresses='*' -c fsync=off
"""


@dataclass(frozen=True)
class DatabasePod:
    """A server that asks for a password, in a namespace."""

    namespace: Namespace

    @classmethod
    def start(cls, namespace: Namespace) -> DatabasePod:
        """Start it, and wait until it answers."""
        for manifest in _manifests(namespace.images.database):
            apply(manifest, "-n", namespace.name)
        kubectl("-n", namespace.name, "wait", "--for=condition=Ready", f"pod/{NAME}", "--timeout=90s")
        return cls(namespace)

    def copy_table(self, file: Path, table: str) -> int:
        """Make a table as a file of SQLite has it; the number of its rows."""
        with closing(sqlite3.connect(file)) as connection:
            (create,) = connection.execute("SELECT sql FROM sqlite_master WHERE name = ?", (table,)).fetchone()
            rows = connection.execute(f'SELECT * FROM "{table}"').fetchall()
        self.execute(create)
        self.execute(f'COPY "{table}" FROM STDIN WITH (FORMAT csv)', stdin=_csv(rows))
        return len(rows)

    def execute(self, statement: str, stdin: str | None = None) -> list[list[str]]:
        """Execute a statement with its credentials; the rows, as text."""
        program = (
            f'PGPASSWORD="$PASSWORD" psql -X -h 127.0.0.1 -U {USER} -d postgres -v ON_ERROR_STOP=1 -q --csv -t -c "$0"'
        )
        command = ("-n", self.namespace.name, "exec", "-i", NAME, "--", "sh", "-c", program, statement)
        return list(csv.reader(io.StringIO(kubectl(*command, stdin=stdin or ""))))


def _csv(rows: Iterable[Iterable[object]]) -> str:
    """Without a value where there is NULL."""
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    return text.getvalue()


def _manifests(image: str) -> list[Manifest]:
    """The way to it is what `networkPolicies.extra` of the chart makes: to labels of the server, from masters."""
    labels = {"app": NAME}
    server = pod(
        NAME,
        image,
        *("sh", "-c", _START),
        labels=labels,
        volumes=[{"name": "database", "emptyDir": {"sizeLimit": "1Gi"}}],
        mounts=[{"name": "database", "mountPath": "/database"}],
        cpu="50m",
        memory="128Mi",
        priorityClassName="high",
    )
    (container,) = server["spec"]["containers"]
    container["env"] = [
        {"name": "PASSWORD", "valueFrom": {"secretKeyRef": {"name": SECRET, "key": "EDL_DATABASE_PASSWORD"}}}
    ]
    answers = ["pg_isready", "-h", "127.0.0.1", "-U", USER, "-d", "postgres"]
    container["readinessProbe"] = {"exec": {"command": answers}, "periodSeconds": 1}
    port = {"port": PORT, "protocol": "TCP"}
    return [
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": SECRET},
            "stringData": {"EDL_DATABASE_USER": USER, "EDL_DATABASE_PASSWORD": PASSWORD},
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": NAME},
            "spec": {"selector": labels, "ports": [port]},
        },
        {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": {"name": NAME},
            "spec": {
                "podSelector": {"matchLabels": {"edl.dev/role": "master"}},
                "policyTypes": ["Egress"],
                "egress": [{"to": [{"podSelector": {"matchLabels": labels}}], "ports": [port]}],
            },
        },
        server,
    ]
